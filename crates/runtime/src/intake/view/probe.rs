//! Proofs that everything stored up to some time is read, also where nothing comes that would tell.

use std::time::Duration;

use super::View;
use super::question::{Purpose, Question};
use crate::intake::identity::Place;
use crate::kernel::ids::TimeMs;
use crate::kernel::planted::{Bug, is_planted};
use crate::ports::clock::Clock as _;

/// The way to say that everything stored up to `as_of` is read.
pub(super) struct Probe {
    /// By the broker's clock, as are the times of messages.
    pub(super) as_of: TimeMs,
    /// The end of the stream at that time.
    pub(super) covered: Place,
    pub(super) silence: Silence,
}

/// Whether nothing matches between the last message and `covered`.
pub(super) enum Silence {
    /// Not known. Messages may be on their way; the reader is asked at this time if none has come.
    Sought { at: Duration },
    /// Nothing does behind the message at `after`.
    Found {
        after: u64,
        /// When that message, or one before it, should have come: nothing behind it would tell that it was lost.
        due: Duration,
    },
    /// Nothing has come. It is asked whether messages were removed that might have.
    Doubted,
    /// None were.
    Confirmed,
}

impl View {
    /// Begins to seek the proof that everything stored until now is read. False: not now.
    pub fn begin_probe(&mut self) -> bool {
        let is_readable = self.filters.is_empty() || self.reader.is_some();
        if self.halted || self.is_probing() || !is_readable {
            return false;
        }
        self.ask(Purpose::Probe);
        true
    }

    /// Whether a probe is under way. One that ends without [`View::proven`] has failed.
    pub fn is_probing(&self) -> bool {
        self.probe.is_some() || self.question.as_ref().is_some_and(Question::is_probe)
    }

    /// The instant up to which everything stored is handled, once a probe has come true.
    pub fn proven(&mut self) -> Option<TimeMs> {
        let read = self.read.sequence;
        let is_asked = self.question.as_ref().is_some_and(Question::is_for_probe);
        let probe = self.probe.as_mut()?;
        // Messages come in their order: nothing before the last one is missing.
        let is_read = probe.covered.sequence <= read;
        let is_silent = match probe.silence {
            Silence::Sought { .. } => false,
            Silence::Found { after, .. } => after <= read,
            Silence::Doubted | Silence::Confirmed => true,
        };
        let is_proven = is_read || self.filters.is_empty() || matches!(probe.silence, Silence::Confirmed);
        if !is_read && !is_silent {
            return None;
        }
        if !is_proven && !is_planted(Bug::RemovedUnread) {
            // Where the stream has dropped what lies before its end, a reader is silent, too.
            probe.silence = Silence::Doubted;
            if !is_asked {
                let covered = probe.covered.sequence;
                self.guard.passed(read, covered + 1);
                self.ask(Purpose::Confirm);
            }
            return None;
        }
        let probe = self.probe.take()?;
        self.advance(probe.covered);
        Some(probe.as_of)
    }

    /// A message was handled that has so many behind it.
    pub(super) fn probe_goes_on(&mut self, pending: u64) {
        let overdue = self.due();
        match self.probe.as_mut().map(|probe| &mut probe.silence) {
            Some(Silence::Found { due, .. }) => *due = overdue,
            // With more on their way, the next message tells what the reader would be asked.
            Some(Silence::Sought { .. }) if pending > 0 => self.seek_later(),
            Some(Silence::Sought { at }) => *at = Duration::ZERO,
            Some(Silence::Doubted | Silence::Confirmed) | None => {}
        }
    }

    pub(super) fn seek_later(&mut self) {
        let later = self.ctx.clock.monotonic() + self.ctx.settings.barrier_retry.duration();
        if let Some(Probe {
            silence: Silence::Sought { at },
            ..
        }) = &mut self.probe
        {
            *at = later;
        }
    }
}
