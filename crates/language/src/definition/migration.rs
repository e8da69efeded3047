//! Reading `on_change` and `migrate`: how instances of earlier versions come over to this one, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::actions::Reading;
use super::archive;
use super::codes;
use super::diagnostic::Diagnostic;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::model::Definition;
use super::saga::member;
use super::texts::{self, EventParts, Readable};
use super::typing::{self, Types};
use super::yaml::{self, Entry, Node};
use crate::expr::types::Type;
use crate::expr::{Root, Template};
use crate::ids::DefinitionHash;

/// What the values of `set` may read: the instance as it was.
const ROOTS: &[Root] = &[Root::State, Root::Key];

/// What happens to the instances of another version.
#[derive(Debug, Default)]
pub struct Migration {
    /// They come over by themselves when this version becomes active (`on_change: migrate`).
    pub automatic: bool,
    /// The versions that may come over; empty for every version of the saga.
    pub from: Vec<DefinitionHash>,
    /// State fields from the state before. Reads `state` and `key`.
    pub set: Vec<(String, Template)>,
    /// New name by old name.
    pub steps: BTreeMap<String, String>,
    /// New name of a machine state by its old name.
    pub states: BTreeMap<String, String>,
    pub timers: BTreeMap<String, String>,
    pub dropped: Dropped,
    /// Where the file says it, or would have to.
    pub places: Places,
    /// How those that came over go back to where they came from: the names the other way round, and what `undo`
    /// says. `None` where there is no `migrate`: everything keeps its name then.
    pub undo: Option<Box<Self>>,
}

/// What an instance may have that has no place in the other version.
#[derive(Debug, Default)]
pub struct Dropped {
    /// Steps that may have ended and are forgotten.
    pub steps: BTreeSet<String>,
    /// Timers that are cleared.
    pub timers: BTreeSet<String>,
    /// Fields that leave the state.
    pub state: BTreeSet<String>,
    /// Types of events that are forgotten although they came early or were deferred.
    pub events: BTreeSet<String>,
    /// The same for signals.
    pub signals: BTreeSet<String>,
    /// Steps that stay done in every case: what they did is not undone any more.
    pub ledger: BTreeSet<String>,
}

/// Places in a file, as `file:line:column`.
#[derive(Debug, Clone, Default)]
pub struct Places {
    file: String,
    /// By key of `migrate`.
    keys: BTreeMap<&'static str, String>,
}

impl Places {
    /// Where `key` of `migrate` stands, or where it would have to be added.
    #[must_use]
    pub fn of(&self, key: &str) -> &str {
        let place = self.keys.get(key).or_else(|| self.keys.get("migrate"));
        place.map_or(&self.file, String::as_str)
    }

    fn note(&mut self, key: &'static str, span: &Range<usize>, findings: &Findings<'_>) {
        self.keys.insert(key, findings.place(span.start));
    }
}

impl<'r> Reading<'r, '_> {
    pub fn migration(&mut self, fields: &Fields<'r, '_>) -> Migration {
        let mut migration = fields
            .get("migrate")
            .and_then(|entry| self.mapping(entry))
            .unwrap_or_default();
        if let Some(entry) = fields.get("on_change") {
            match fields::text(&entry.value, &entry.key_span, "pin or migrate", self.findings) {
                Some("migrate") => migration.automatic = true,
                Some("pin") | None => {}
                Some(other) => {
                    let message = format!(
                        "on_change is \"{}\", expected pin or migrate",
                        other.escape_debug()
                    );
                    self.findings
                        .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
                }
            }
        }
        self.findings.path().clone_into(&mut migration.places.file);
        if migration.undo.is_none()
            && let Some(entry) = fields.get("name")
        {
            // Where `migrate` would have to be added, nothing better is known than the head of the file.
            migration.places.note("migrate", &entry.key_span, self.findings);
        }
        migration
    }

    fn mapping(&mut self, entry: &'r Entry<'_>) -> Option<Migration> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::MIGRATION,
            self.findings,
        )?;
        let mut places = Places::default();
        places.note("migrate", &entry.key_span, self.findings);
        for key in grammar::saga::MIGRATION.names() {
            if let Some(entry) = fields.get(key) {
                places.note(key, &entry.key_span, self.findings);
            }
        }
        let mut migration = Migration {
            from: fields
                .get("from")
                .map(|from| self.hashes(from))
                .unwrap_or_default(),
            set: fields
                .get("set")
                .map(|set| self.old_state(set))
                .unwrap_or_default(),
            steps: self.renames(fields.get("rename_steps"), "rename_steps"),
            timers: self.renames(fields.get("rename_timers"), "rename_timers"),
            states: self.renames(fields.get("fsm"), "fsm"),
            dropped: self.dropped(fields.get("drop")),
            places,
            ..Migration::default()
        };
        migration.undo = Some(Box::new(self.way_back(&migration, fields.get("undo"))));
        Some(migration)
    }

    /// The same names the other way round, and what `undo` says.
    fn way_back(&mut self, there: &Migration, entry: Option<&'r Entry<'_>>) -> Migration {
        let turned = |names: &BTreeMap<String, String>| {
            let is_one = |new: &String| names.values().filter(|name| *name == new).count() == 1;
            // Where several states became one, nobody can tell which it was.
            names
                .iter()
                .filter(|(_, new)| is_one(new))
                .map(|(old, new)| (new.clone(), old.clone()))
                .collect()
        };
        let mut back = Migration {
            steps: turned(&there.steps),
            timers: turned(&there.timers),
            states: turned(&there.states),
            ..Migration::default()
        };
        let at = there.places.of("undo").to_owned();
        back.places.keys.insert("migrate", at);
        let Some(entry) = entry else { return back };
        let Some(fields) = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::WAY_BACK,
            self.findings,
        ) else {
            return back;
        };
        for key in grammar::saga::WAY_BACK.names() {
            if let Some(entry) = fields.get(key) {
                back.places.note(key, &entry.key_span, self.findings);
            }
        }
        if let Some(set) = fields.get("set") {
            // The state of the version that is gone back to has no schema here.
            let types = self.types.take();
            back.set = self.set(set, ROOTS, EventParts::Moment);
            self.types = types;
        }
        back.dropped = self.dropped(fields.get("drop"));
        back
    }

    fn dropped(&mut self, entry: Option<&'r Entry<'_>>) -> Dropped {
        let drop = entry.and_then(|entry| {
            Fields::read(
                &entry.value,
                &entry.key_span,
                &grammar::saga::DROPPED,
                self.findings,
            )
        });
        let Some(drop) = drop else {
            return Dropped::default();
        };
        let mut list = |key| self.list(drop.get(key));
        Dropped {
            steps: list("steps"),
            timers: list("timers"),
            state: list("state"),
            events: list("events"),
            signals: list("signals"),
            ledger: list("ledger"),
        }
    }

    /// Expressions over the state of the version that is left, which is not known here; what they give is held
    /// against the schema of the state.
    fn old_state(&mut self, entry: &Entry<'_>) -> Vec<(String, Template)> {
        let before = self.types.clone();
        if let Some(types) = &mut self.types {
            types.env.bind(Root::State, Type::dynamic());
        }
        let set = self.set(entry, ROOTS, EventParts::Moment);
        self.types = before;
        set
    }

    fn hashes(&mut self, entry: &Entry<'_>) -> Vec<DefinitionHash> {
        let mut hashes = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            let Some(text) = fields::text(item, &entry.key_span, "a definition hash", self.findings) else {
                continue;
            };
            match DefinitionHash::parse(text) {
                Some(hash) => hashes.push(hash),
                None => self.findings.error(
                    codes::WRONG_VALUE,
                    item.span.clone(),
                    "a definition hash is sha256: and 64 hex digits; `saga-runner definition list` shows those in use",
                ).help(None),
            }
        }
        hashes
    }

    /// New names by old ones. Each new name is one of this version, and, but for states, of one old name.
    fn renames(&mut self, entry: Option<&'r Entry<'_>>, key: &str) -> BTreeMap<String, String> {
        let mut names = BTreeMap::new();
        let mut taken = BTreeSet::new();
        let Some(entry) = entry else { return names };
        let entries = fields::entries(&entry.value, &entry.key_span, key, self.findings);
        for renamed in entries.unwrap_or_default() {
            let Some(to) = fields::text(&renamed.value, &renamed.key_span, "a name", self.findings) else {
                continue;
            };
            let (known, code, what) = match key {
                "rename_steps" => (self.steps.contains(&to), codes::UNKNOWN_STEP, "step"),
                "fsm" => (self.states.contains(&to), codes::UNKNOWN_STATE, "state"),
                _ => (self.timers.is_known(to), codes::UNKNOWN_TIMER, "timer"),
            };
            let message = if !known {
                format!("there is no {what} \"{}\" in this version", to.escape_debug())
            } else if key != "fsm" && !taken.insert(to) {
                format!("two {what}s would become \"{}\"", to.escape_debug())
            } else {
                names.insert(renamed.key.clone().into_owned(), to.to_owned());
                continue;
            };
            let code = if known { codes::WRONG_VALUE } else { code };
            self.findings.error(code, renamed.value.span.clone(), message);
        }
        names
    }

    fn list(&mut self, entry: Option<&Entry<'_>>) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let Some(entry) = entry else { return names };
        for item in fields::one_or_many(&entry.value) {
            if let Some(name) = fields::text(item, &entry.key_span, "a name", self.findings) {
                names.insert(name.to_owned());
            }
        }
        names
    }
}

/// What does not fit the schemas of both versions when the state of `from` becomes one of `to`, or, on the way
/// `back`, when what came over to `from` returns to `to`. The places are in the file that says how.
#[must_use]
pub fn misfits(from: &Definition, to: &Definition, back: bool) -> Vec<Diagnostic> {
    let (host, keys): (_, &[&str]) = if back {
        (from, &["migrate", "undo"])
    } else {
        (to, &["migrate"])
    };
    let Ok(archive) = archive::opened(&host.source) else {
        return Vec::new();
    };
    let mut findings = Findings::new(&host.migration.places.file, &archive.source);
    let Some(root) = yaml::parse(&archive.source, &mut findings) else {
        return Vec::new();
    };
    let old = from.state_schema.as_deref().map(Type::of_schema);
    let new = to.state_schema.as_deref().map(Type::of_schema);
    let mut types = Types::between(old.clone(), new.clone());
    types.env.bind(Root::Key, Type::string());
    let way = keys
        .iter()
        .try_fold(None, |node: Option<&Node<'_>>, key| {
            Some(Some(&member(node.unwrap_or(&root), key)?.value))
        })
        .flatten();
    let set = way.and_then(|way| member(way, "set"));
    let (at, names) = match set {
        None => {
            let place = member(&root, "migrate").or_else(|| member(&root, "name"));
            (
                place.map_or(0..0, |entry| entry.key_span.clone()),
                BTreeSet::new(),
            )
        }
        Some(entry) => {
            let entries = fields::entries(&entry.value, &entry.key_span, "set", &mut findings);
            let readable = Readable {
                roots: ROOTS,
                event: EventParts::Moment,
                steps: &[],
                item: None,
                input: false,
                types: Some(&types.env),
            };
            let set = texts::fields(entries.unwrap_or_default(), readable, &mut findings);
            typing::state_fields(entry, &set, &types, &mut findings);
            let names = set.into_iter().map(|(name, _)| name).collect();
            (entry.key_span.clone(), names)
        }
    };
    if let (Some(old), Some(new)) = (old, new) {
        let gone = if back {
            from.migration.undo.as_deref().map(|undo| &undo.dropped.state)
        } else {
            Some(&to.migration.dropped.state)
        };
        let changed = |name: &str| names.contains(name) || gone.is_some_and(|gone| gone.contains(name));
        for message in old.keeps(&new, changed, &names) {
            findings.error(codes::MISFIT, at.clone(), message);
        }
    }
    let mut found = findings.into_sorted();
    found.retain(|finding| finding.severity == super::Severity::Error);
    found
}
