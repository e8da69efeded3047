//! What a batch writes to the log once it has committed: each transition, if somebody reads that much, and what went wrong.
//!
//! The kernel logs nothing. A batch that found no room is applied again from the start, so nothing is written before it has
//! committed.

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::ids::{InstanceId, TenantId};
use saga_runner_kernel::input::{Control, Input, InputBody, SourceStream};
use saga_runner_kernel::patch::{Note, Outcome, Patch};
use saga_runner_kernel::record::{Phase, Record};
use saga_runner_kernel::trace;

use super::message::Unreadable;
use super::recording::kind_in_full;
use crate::storage::rows::{DeletedRow, HistoryOutcome};

/// The target of all lines about instances, by which operators select them: `log.level: info,saga_runner::instance=debug`.
pub const TARGET: &str = "saga_runner::instance";

/// The target of lines about what operators decide.
const AUDIT: &str = "audit";

/// Lines of one commit about what went wrong. Whoever sends what cannot be applied, without end, does not fill the log.
const TROUBLES_MAX: usize = 64;

/// What a batch has to tell, in the order in which it happened.
#[derive(Debug, Default)]
pub struct Story {
    /// Whether each input has a line. Nothing is collected for it otherwise.
    pub is_detailed: bool,
    lines: Vec<Line>,
    troubles: usize,
}

#[derive(Debug)]
enum Line {
    Decided(Box<Decided>),
    Trouble(Box<Trouble>),
    Unreadable(Box<UnreadableLine>),
    Deleted(Box<(InstanceId, DeletedRow, usize)>),
}

/// A message that cannot be read.
#[derive(Debug)]
struct UnreadableLine {
    tenant: TenantId,
    reason: &'static str,
    number: u64,
    subject: String,
    stream: SourceStream,
    sequence: u64,
}

/// An input, and what it did to its instance.
#[derive(Debug)]
pub struct Decided {
    pub instance: InstanceId,
    /// What the input is, as the history calls it.
    pub input: String,
    pub input_id: String,
    pub outcome: &'static str,
    pub after: Option<After>,
    /// Phase and state of the machine before; none where the input began the instance.
    pub from: Option<String>,
    /// The `traceparent` that came with the input.
    pub caused_by: Option<String>,
    notes: Vec<Note>,
}

/// An instance after an input.
#[derive(Debug)]
pub struct After {
    about: About,
    version: u64,
    pub to: String,
}

impl After {
    /// Of the instance.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.about.traceparent.as_deref()
    }
}

/// What lines about one instance have in common.
#[derive(Debug, Default)]
struct About {
    generation: Option<u32>,
    traceparent: Option<String>,
    correlation_id: Option<String>,
}

impl About {
    fn of(record: Option<&Record>) -> Self {
        let Some(record) = record else {
            return Self::default();
        };
        Self {
            generation: Some(record.generation),
            traceparent: record.traceparent.clone(),
            correlation_id: record.root_correlation_id.clone(),
        }
    }

    fn trace_id(&self) -> Option<&str> {
        self.traceparent.as_deref().and_then(trace::trace_id)
    }
}

/// Something that went wrong.
#[derive(Debug)]
struct Trouble {
    instance: InstanceId,
    about: About,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// An input cannot be applied.
    Dead {
        reason: String,
        number: u64,
        input: String,
    },
    /// What comes later waits behind a dead letter.
    Blocked { number: u64 },
    /// Something of the instance went wrong, as its history calls it.
    Noted(Note),
    /// It has ended otherwise than completed.
    Ended(Phase),
}

impl Story {
    /// Of a batch that begins.
    #[must_use]
    pub fn begun() -> Self {
        Self {
            is_detailed: tracing::enabled!(target: TARGET, tracing::Level::DEBUG),
            ..Self::default()
        }
    }

    /// An input that no transition was made for.
    pub fn input(&mut self, input: &Input, outcome: &'static str) {
        if self.is_detailed {
            let decided = Decided {
                instance: input.instance.clone(),
                input: kind_in_full(input),
                input_id: input.id.clone(),
                outcome,
                after: None,
                from: None,
                caused_by: None,
                notes: Vec::new(),
            };
            self.lines.push(Line::Decided(Box::new(decided)));
        }
    }

    /// A transition, which `patch` is to write.
    pub fn transition(
        &mut self,
        input: &Input,
        before: Option<&Record>,
        patch: &Patch,
        definitions: &DefinitionSet,
    ) {
        let ended = patch.ended.as_ref().map(|summary| &summary.record);
        let after = patch.record.as_ref().or(ended).or(before);
        if self.is_detailed {
            let place = |record: &Record| place(record, definitions);
            let decided = Decided {
                instance: input.instance.clone(),
                input: kind_in_full(input),
                input_id: input.id.clone(),
                outcome: HistoryOutcome::from(patch.outcome).as_str(),
                after: after.map(|record| After {
                    about: About::of(Some(record)),
                    version: record.version,
                    to: place(record),
                }),
                from: before.map(place),
                caused_by: caused_by(input).map(str::to_owned),
                notes: patch.notes.clone(),
            };
            self.lines.push(Line::Decided(Box::new(decided)));
        }
        let troubles = patch.notes.iter().filter(|note| is_trouble(note));
        for note in troubles {
            self.trouble(&input.instance, after, Kind::Noted(note.clone()));
        }
        if let (Some(ended), Outcome::Applied) = (ended, patch.outcome)
            && ended.phase != Phase::Completed
            && before.is_none_or(|before| before.phase != ended.phase)
        {
            self.trouble(&input.instance, Some(ended), Kind::Ended(ended.phase));
        }
    }

    /// An input cannot be applied.
    pub fn dead(&mut self, input: &Input, record: Option<&Record>, reason: &str, number: u64) {
        let kind = Kind::Dead {
            reason: reason.to_owned(),
            number,
            input: kind_in_full(input),
        };
        self.trouble(&input.instance, record, kind);
    }

    /// What comes later for an instance waits behind a dead letter.
    pub fn blocked(&mut self, instance: &InstanceId, number: u64) {
        self.trouble(instance, None, Kind::Blocked { number });
    }

    /// A message cannot be read.
    pub fn unreadable(&mut self, message: &Unreadable, stream: SourceStream, number: u64) {
        if self.has_room() {
            let unreadable = Box::new(UnreadableLine {
                tenant: message.tenant.clone(),
                reason: message.reason,
                number,
                subject: message.subject.clone(),
                stream,
                sequence: message.sequence,
            });
            self.lines.push(Line::Unreadable(unreadable));
        }
    }

    /// An operator has deleted an instance. Each has a line: nothing else tells of it for long.
    pub fn deleted(&mut self, instance: &InstanceId, deleted: &DeletedRow, earlier: usize) {
        let line = Box::new((instance.clone(), deleted.clone(), earlier));
        self.lines.push(Line::Deleted(line));
    }

    fn trouble(&mut self, instance: &InstanceId, record: Option<&Record>, kind: Kind) {
        if self.has_room() {
            let trouble = Trouble {
                instance: instance.clone(),
                about: About::of(record),
                kind,
            };
            self.lines.push(Line::Trouble(Box::new(trouble)));
        }
    }

    /// Counts one more line about what went wrong, and says whether it is written.
    const fn has_room(&mut self) -> bool {
        self.troubles += 1;
        self.troubles <= TROUBLES_MAX
    }

    /// The inputs, where they were collected.
    pub fn decided(&self) -> impl Iterator<Item = &Decided> {
        self.lines.iter().filter_map(|line| match line {
            Line::Decided(decided) => Some(&**decided),
            Line::Trouble(_) | Line::Unreadable(_) | Line::Deleted(_) => None,
        })
    }

    /// Writes it to the log: the batch of `shard` has committed.
    pub fn tell(&self, shard: u16) {
        for line in &self.lines {
            match line {
                Line::Decided(decided) => decided.tell(shard),
                Line::Trouble(trouble) => trouble.tell(shard),
                Line::Deleted(line) => {
                    let (instance, deleted, earlier) = line.as_ref();
                    tracing::info!(
                        target: AUDIT,
                        shard,
                        tenant = instance.tenant.as_str(),
                        saga = instance.saga.as_str(),
                        key = instance.key.as_str(),
                        generation = deleted.known.generation,
                        earlier_generations = earlier,
                        phase = deleted.known.phase.as_str(),
                        by = deleted.by,
                        reason = deleted.reason,
                        request = deleted.request,
                        "an admin has deleted an instance with its history"
                    );
                }
                Line::Unreadable(line) => tracing::warn!(
                    target: TARGET, shard, tenant = line.tenant.as_str(), reason = line.reason, dead_letter = line.number,
                    subject = line.subject, stream = ?line.stream, sequence = line.sequence,
                    "a message cannot be read and is a dead letter"
                ),
            }
        }
        if self.troubles > TROUBLES_MAX {
            let lines = self.troubles - TROUBLES_MAX;
            tracing::warn!(target: TARGET, shard, lines, "more went wrong in this commit than is logged");
        }
    }
}

impl Decided {
    fn tell(&self, shard: u16) {
        let about = self.after.as_ref().map(|after| &after.about);
        tracing::debug!(
            target: TARGET,
            shard,
            tenant = self.instance.tenant.as_str(),
            saga = self.instance.saga.as_str(),
            key = self.instance.key.as_str(),
            generation = about.and_then(|about| about.generation),
            version = self.after.as_ref().map(|after| after.version),
            input = self.input,
            input_id = self.input_id,
            outcome = self.outcome,
            from = self.from,
            to = self.after.as_ref().map(|after| after.to.as_str()),
            notes = ?self.notes,
            trace_id = about.and_then(About::trace_id),
            correlation_id = about.and_then(|about| about.correlation_id.as_deref()),
            "transition"
        );
    }
}

/// A line of the log about an instance: its level, then what it has besides.
macro_rules! line {
    ($level:ident, $shard:expr, $trouble:expr, $($rest:tt)*) => {
        tracing::$level!(
            target: TARGET,
            shard = $shard,
            tenant = $trouble.instance.tenant.as_str(),
            saga = $trouble.instance.saga.as_str(),
            key = $trouble.instance.key.as_str(),
            generation = $trouble.about.generation,
            trace_id = $trouble.about.trace_id(),
            correlation_id = $trouble.about.correlation_id.as_deref(),
            $($rest)*
        )
    };
}

impl Trouble {
    fn tell(&self, shard: u16) {
        match &self.kind {
            Kind::Dead {
                reason,
                number,
                input,
            } => line!(
                warn,
                shard,
                self,
                reason,
                dead_letter = number,
                input,
                "an input cannot be applied and is a dead letter"
            ),
            Kind::Blocked { number } => line!(
                warn,
                shard,
                self,
                dead_letter = number,
                "instance is blocked: its inputs wait behind a dead letter"
            ),
            Kind::Noted(note) => self.tell_note(shard, note),
            Kind::Ended(Phase::CompensationFailed) => line!(
                warn,
                shard,
                self,
                phase = Phase::CompensationFailed.as_str(),
                "instance waits for an operator: a compensation has failed"
            ),
            Kind::Ended(phase) => line!(info, shard, self, phase = phase.as_str(), "instance has ended"),
        }
    }

    fn tell_note(&self, shard: u16, note: &Note) {
        match note {
            Note::StepAsked { step } => {
                line!(
                    warn,
                    shard,
                    self,
                    step,
                    "step is stuck: an operator has to say whether it was done"
                );
            }
            Note::CompensationAsked { step } => {
                line!(
                    warn,
                    shard,
                    self,
                    step,
                    "compensation is stuck: an operator has to say whether there is something to undo"
                );
            }
            Note::CompensationFailed { step, class } => {
                line!(warn, shard, self, step, class, "compensation has failed");
            }
            Note::FinallyFailed { step, class } => {
                line!(warn, shard, self, step, class, "effect of finally has failed");
            }
            Note::CommandRefused { command, class } => {
                line!(warn, shard, self, command, class, "command was refused");
            }
            Note::AliasRefused { alias, .. } => {
                line!(
                    warn,
                    shard,
                    self,
                    alias,
                    "alias was refused: its events do not reach the instance"
                );
            }
            Note::Failing { code } => line!(warn, shard, self, code, "instance fails"),
            Note::StepFailed { step, class } => line!(info, shard, self, step, class, "step has failed"),
            Note::ItemFailed { step, item, class } => {
                line!(info, shard, self, step, item, class, "item of a loop has failed");
            }
            Note::AttemptFailed { step, attempt, class } => line!(
                info,
                shard,
                self,
                step,
                attempt,
                class,
                "attempt of a step has failed, another one follows"
            ),
            _ => {}
        }
    }
}

/// Whether a note tells of something that went wrong.
const fn is_trouble(note: &Note) -> bool {
    matches!(
        note,
        Note::StepAsked { .. }
            | Note::CompensationAsked { .. }
            | Note::CompensationFailed { .. }
            | Note::FinallyFailed { .. }
            | Note::CommandRefused { .. }
            | Note::AliasRefused { .. }
            | Note::Failing { .. }
            | Note::StepFailed { .. }
            | Note::ItemFailed { .. }
            | Note::AttemptFailed { .. }
    )
}

/// The trace of whoever has sent an input.
fn caused_by(input: &Input) -> Option<&str> {
    match &input.body {
        InputBody::Event(event) => event.traceparent.as_deref(),
        InputBody::Control(Control::Start {
            parent, traceparent, ..
        }) => {
            let of_parent = parent.as_ref().and_then(|parent| parent.traceparent.as_deref());
            of_parent.or(traceparent.as_deref())
        }
        InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => None,
    }
}

/// Where an instance stands: its phase and, if it has a machine, the state.
fn place(record: &Record, definitions: &DefinitionSet) -> String {
    let phase = record.phase.as_str();
    let state = record.machine.and_then(|at| {
        let definition = definitions.by_hash(&record.definition)?;
        let machine = definition.machine.as_ref()?;
        machine.states.get(usize::from(at.state))
    });
    match state {
        Some(state) => format!("{phase}/{}", state.name),
        None => phase.to_owned(),
    }
}
