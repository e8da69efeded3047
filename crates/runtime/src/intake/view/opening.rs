//! The way to a reader: the stream is asked about, then a reader begins behind what was handled.

use super::View;
use super::question::{Purpose, answer_of};
use crate::intake::identity::{Opened, judge};
use crate::ports::broker::{BrokerError, ReaderSpec};

impl View {
    /// Comes nearer to a reader.
    ///
    /// # Cancel safety
    /// It goes on with the next call.
    pub(super) async fn open(&mut self) {
        if let Some(opening) = &mut self.opening {
            let opened = opening.await;
            self.opening = None;
            match opened {
                Ok(Opened { reader, state, seen }) => {
                    if let Some(halt) = judge(&state, &seen) {
                        return self.halt(halt);
                    }
                    self.ctx.progress(self.stream).stands(self.read);
                    self.reader = Some(reader);
                    self.opened += 1;
                    self.taken = 0;
                    self.behind = true;
                    self.connected(true);
                }
                Err(error) => self.unopened(&error),
            }
            return;
        }
        if self.question.is_none() {
            self.backoff.wait().await;
            // All behind what was read counts as jumped over: the stream may have dropped it meanwhile.
            self.guard.passed(self.read.sequence, u64::MAX);
            self.ask(Purpose::Open);
        }
        let answer = answer_of(&mut self.question).await;
        self.answered(answer);
    }

    pub(super) fn unopened(&mut self, error: &BrokerError) {
        tracing::warn!(stream = self.ctx.name(self.stream), %error, "reader cannot be opened");
        self.abandon("unopened");
    }

    pub(super) fn reader_spec(&self) -> ReaderSpec {
        ReaderSpec {
            stream: self.ctx.name(self.stream).to_owned(),
            filters: self.filters.clone(),
            start_sequence: self.read.sequence + 1,
            name: self.ctx.reader_name(self.stream),
            buffer: self.ctx.settings.buffer,
        }
    }
}
