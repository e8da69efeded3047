//! How many bytes the encoding of a record takes at most, without encoding it.

use serde_bytes::ByteBuf;

use super::{Paused, Question, Record, Registered, StepState, Tries};

impl Record {
    /// At least as many bytes as [`Record::encode`] writes, cheap to tell.
    #[must_use]
    pub fn encoded_bytes_at_most(&self) -> usize {
        // Numbers take at most 10 bytes each; the constants round up what a part has of them and of tags.
        let text = |text: &str| text.len() + 10;
        let blob = |bytes: &Option<ByteBuf>| bytes.as_ref().map_or(1, |bytes| bytes.len() + 10);
        let option = |value: &Option<String>| value.as_deref().map_or(1, |value| text(value) + 1);
        let step = |step: &StepState| {
            let sent = step
                .sent
                .as_ref()
                .map_or(1, |sent| sent.payload.len() + 11 + option(&sent.target));
            let texts = option(&step.error) + option(&step.known_as) + option(&step.callback);
            let question = step.question.as_ref();
            let question = question.map_or(1, |question| question.bytes_at_most());
            130 + sent + blob(&step.result) + texts + step.tries.bytes_at_most() + question
        };
        let steps: usize = self
            .steps
            .iter()
            .map(|state| {
                let items = state.items.as_ref().map_or(0, |items| {
                    let running = items.running.iter().flat_map(|item| &item.steps);
                    items.bytes_at_most() + running.map(step).sum::<usize>()
                });
                step(state) + items
            })
            .sum();
        let buffer: usize = self
            .buffer
            .iter()
            .map(|entry| 50 + entry.name.len() + entry.value.len())
            .sum();
        let strays: usize = self.strays.iter().map(|stray| 100 + blob(&stray.input)).sum();
        let doubts: usize = self.doubts.iter().map(|doubt| 60 + blob(&doubt.input)).sum();
        let timers: usize = self.timers.keys().map(|name| 2 * text(name) + 30).sum();
        let failure = self.failure.as_ref().map_or(0, |failure| {
            let keep: usize = failure.keep.iter().map(|name| text(name)).sum();
            30 + text(&failure.code) + text(&failure.message) + option(&failure.step) + keep
        });
        let early = self.early.as_ref().map_or(1, |early| 2 + text(&early.outcome));
        let left = self.left.as_ref().map_or(0, |left| 50 + 8 * left.forgotten.len());
        let program = self.program.as_ref().map_or(1, |program| {
            let pending = program.pending.iter();
            let tries = program.tries.iter().map(|tries| 20 + tries.name.len());
            30 + pending.map(|pending| 70 + pending.name.len()).sum::<usize>() + tries.sum::<usize>()
        });
        let aliases: usize = self
            .aliases
            .iter()
            .map(|Registered { alias, .. }| 1 + text(&alias.name) + text(&alias.value))
            .sum();
        let released = self
            .released
            .iter()
            .map(|alias| text(&alias.name) + text(&alias.value));
        270 + left
            + self.listing.as_ref().map_or(1, |listing| listing.bytes_at_most())
            + self.paused.as_ref().map_or(1, |paused| paused.bytes_at_most())
            + released.sum::<usize>()
            + aliases
            + early
            + program
            + text(&self.start_event)
            + option(&self.root_correlation_id)
            + option(&self.traceparent)
            + self.data.len()
            + blob(&self.input)
            + self.parent.as_ref().map_or(1, |parent| {
                70 + text(parent.saga.as_str()) + text(parent.key.as_str())
            })
            + 15 * (self.seen_events.len() + self.seen_results.len() + self.off_ledger.len())
            + 31 * self.sources.len()
            + steps
            + self.ledger.bytes_at_most()
            + strays
            + doubts
            + buffer
            + timers
            + failure
    }
}

impl Paused {
    /// At least as many bytes as the encoding takes.
    #[must_use]
    pub const fn bytes_at_most(&self) -> usize {
        32 + self.by.len() + self.reason.len()
    }
}

impl Question {
    /// At least as many bytes as the encoding takes.
    #[must_use]
    pub fn bytes_at_most(&self) -> usize {
        100 + self.message.len()
    }
}

impl Tries {
    /// At least as many bytes as the encoding takes.
    #[must_use]
    pub fn bytes_at_most(&self) -> usize {
        let failures = self.failures.iter().map(|failures| failures.class.len() + 20);
        30 + failures.sum::<usize>()
    }
}
