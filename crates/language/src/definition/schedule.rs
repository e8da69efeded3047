//! Reading `schedule`: when instances start by themselves.

use std::ops::Range;
use std::sync::Arc;

use super::actions::Reading;
use super::codes;
use super::compensations::one_of;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::schemas;
use super::yaml::{Entry, Value};
use crate::duration::Millis;
use crate::ids::TimeMs;
use crate::json::Json;
use crate::limits::Limits;
use crate::schedule::{CATCH_UP, CATCH_UP_MAX, CatchUp, Cron, MadeUp, Overlap, Schedule, Zone, run_input};
use crate::schema::Schema;

/// What an instance is given that starts by the clock, where its file does not say what it takes.
const INPUT: &str = "{type: object, required: [time], properties: {time: {type: string}}}";

/// Shortest age that bounds what is made up: what is a minute late is on time.
const WITHIN_MIN_MS: u64 = 60_000;
/// Longest age that bounds what is made up: 366 days.
const WITHIN_MAX_MS: u64 = 366 * 24 * 3_600_000;

impl<'r> Reading<'r, '_> {
    /// `schedule: {cron, zone, catch_up, overlap}`
    pub fn schedule(&mut self, fields: &Fields<'r, '_>) -> Option<Schedule> {
        let entry = fields.get("schedule")?;
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::SCHEDULE,
            self.findings,
        )?;
        let cron = fields.require("cron", self.findings);
        let cron = cron.and_then(|entry| cron_of(entry, self.findings));
        let zone = match fields.get("zone") {
            None => Some(Zone::utc()),
            Some(entry) => zone_of(entry, self.findings),
        };
        let catch_up = fields
            .get("catch_up")
            .map_or(Some(CatchUp::default()), |entry| self.catch_up(entry));
        let overlap = fields.get("overlap").map_or(Some(Overlap::default()), |entry| {
            one_of(
                entry,
                &Overlap::ALL.map(|word| (word.as_str(), word)),
                self.findings,
            )
        });
        if let (Some(caught @ (CatchUp::All | CatchUp::UpTo(_))), Some(Overlap::Skip), Some(entry)) =
            (catch_up, overlap, fields.get("catch_up"))
            && caught.most() > 1
        {
            let what = match caught {
                CatchUp::All => "all makes up every missed run".to_owned(),
                _ => format!("max: {} makes up as many missed runs", caught.most()),
            };
            let message = format!(
                "catch_up: {what}, and overlap: skip, which is the default, skips all but the first of them"
            );
            self.findings
                .error(codes::CONTRADICTION, entry.value.span.clone(), message)
                .help(Some("write overlap: queue, or allow".to_owned()));
        }
        Some(Schedule {
            cron: cron?,
            zone: zone?,
            catch_up: catch_up?,
            overlap: overlap?,
        })
    }

    /// `none`, `last`, `all`, or `{within: 7d, max: 1000}`
    fn catch_up(&mut self, entry: &Entry<'_>) -> Option<CatchUp> {
        let Value::Map(bounds) = &entry.value.value else {
            return one_of(entry, &CatchUp::WORDS, self.findings);
        };
        if bounds.is_empty() {
            let message = "catch_up needs at least one of the keys within and max";
            self.findings
                .error(codes::MISSING_KEY, entry.key_span.clone(), message);
            return None;
        }
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::CATCH_UP,
            self.findings,
        )?;
        let within = fields.get("within").map(|entry| {
            let range = WITHIN_MIN_MS..=WITHIN_MAX_MS;
            fields::duration(entry, range, codes::WRONG_VALUE, self.findings).map(Millis)
        });
        let max = fields
            .get("max")
            .map(|entry| fields::integer(entry, 1..=CATCH_UP_MAX, codes::WRONG_VALUE, self.findings));
        Some(CatchUp::UpTo(MadeUp {
            within: within.map_or(Some(None), |within| within.map(Some))?,
            max: max.map_or(Some(CATCH_UP), |max| max.map(|max| max as usize))?,
        }))
    }

    /// What instances are given: as the file says it, or what a schedule gives.
    pub fn input(&mut self, fields: &Fields<'r, '_>) -> Option<Arc<Schema>> {
        let (entry, scheduled) = (fields.get("input"), fields.get("schedule").is_some());
        let input = match entry {
            Some(entry) => self.schemas.read(entry, self.findings),
            None => scheduled.then(given),
        };
        if let (Some(entry), Some(schema), true) = (entry, &input, scheduled) {
            let given = run_input(TimeMs(0));
            let json = Json::parse(given.as_bytes(), Limits::default().json_depth).expect("an object");
            if let Err(violation) = schema.check(&json) {
                self.findings
                    .error(
                        codes::MISFIT,
                        entry.key_span.clone(),
                        format!("the schedule starts it with {{\"time\": ...}}: input {violation}"),
                    )
                    .help(Some(
                        "take a time, and let nothing else be required: required: [time], properties: {time: {type: string}}"
                            .to_owned(),
                    ));
            }
        }
        input
    }
}

/// What a schedule gives to the instances that it starts.
pub fn given() -> Arc<Schema> {
    let text = Arc::from(INPUT);
    Arc::new(schemas::compile_text("schedule", &text).expect("a good schema"))
}

fn cron_of(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Cron> {
    let what = "five fields such as \"0 6 * * *\"";
    let text = fields::text(&entry.value, &entry.key_span, what, findings)?;
    match Cron::parse(text) {
        Ok(cron) => Some(cron),
        Err(error) => {
            let span = within(&entry.value.span, text, &error.at, findings);
            findings.error(codes::CRON, span, error.message).help(Some(
                "minute, hour, day of the month, month, day of the week: \"0 6 * * MON-FRI\"".to_owned(),
            ));
            None
        }
    }
}

/// A place in a scalar, where the file has its text as it is; else the whole of it.
fn within(scalar: &Range<usize>, text: &str, at: &Range<usize>, findings: &Findings<'_>) -> Range<usize> {
    let written = findings.text().get(scalar.clone()).unwrap_or_default();
    match written.find(text) {
        Some(begin) if !text.is_empty() => {
            let begin = scalar.start + begin;
            begin + at.start..begin + at.end
        }
        Some(_) | None => scalar.clone(),
    }
}

fn zone_of(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Zone> {
    let name = fields::text(
        &entry.value,
        &entry.key_span,
        "a time zone such as Europe/Berlin",
        findings,
    )?;
    match Zone::named(name) {
        Ok(zone) => Some(zone),
        Err(near) => {
            let message = format!("unknown time zone \"{}\"", name.escape_debug());
            let help = near.map_or_else(
                || "zones have the names of the IANA database, such as Europe/Berlin or UTC".to_owned(),
                |near| format!("did you mean \"{near}\"?"),
            );
            findings
                .error(codes::ZONE, entry.value.span.clone(), message)
                .help(Some(help));
            None
        }
    }
}
