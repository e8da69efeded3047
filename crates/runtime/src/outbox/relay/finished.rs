//! What happens to rows whose handing over, call or check has ended.

use tokio::task::JoinError;

use super::RelayLoop;
use super::mail::Letter;
use crate::kernel::envelope::EffectProgress;
use crate::kernel::work::WorkRef;
use crate::outbox::backlog::Destination;
use crate::outbox::handover::{Completion, Done, Refused};
use crate::outbox::local::Called;
use crate::outbox::sweeper::Swept;
use crate::shard::mailbox::Mail;

impl RelayLoop {
    pub(super) fn called(&mut self, ended: Result<Called, JoinError>) {
        match ended {
            Ok(Called::Done(done)) => self.finish(done),
            Ok(Called::Queue {
                row,
                progress,
                not_called,
            }) => {
                if progress == EffectProgress::default() {
                    self.relayed.forget(&[row.0]);
                }
                if not_called {
                    self.letters.push_back(Letter {
                        mail: Mail::NotCalled(row.0),
                        rows: Vec::new(),
                    });
                }
                self.publish(row, Some(progress));
            }
            // The row stays where it is; the sweeper finds it, or the next start.
            Err(error) => tracing::error!(%error, "call of an effect ended abnormally"),
        }
    }

    pub(super) fn finish(&mut self, done: Done) {
        let label = match done.destination {
            Destination::Effect(..) => "effect",
            Destination::Gateway(_) => "gateway",
            Destination::Facts => "fact",
            Destination::Sagas => "saga",
            Destination::Results => "result",
            Destination::Cancellations => "cancellation",
        };
        self.metrics
            .messages_relayed
            .with_label_values(&[label, done.outcome])
            .inc();
        if let Some(refused) = done.refused {
            self.keep_refused(done.row, label, *refused);
            return;
        }
        if self.refused.forget(done.row) {
            tracing::info!(instance = %done.instance, row = ?done.row, "broker accepts a message that it had rejected");
        }
        match &done.destination {
            Destination::Effect(..) => {}
            chained @ (Destination::Gateway(_)
            | Destination::Facts
            | Destination::Sagas
            | Destination::Results
            | Destination::Cancellations) => {
                self.backlog.arrived(chained, &done.instance);
            }
        }
        if let Some(verdict) = done.verdict {
            let row = match done.completion {
                Completion::Row => None,
                Completion::Nothing => Some((done.row, done.destination.clone())),
            };
            self.letters.push_back(Letter {
                mail: Mail::Verdict(verdict),
                rows: row.into_iter().collect(),
            });
            if done.completion == Completion::Nothing {
                return;
            }
        }
        match done.completion {
            Completion::Row => self.delivered.push((done.row, done.destination)),
            Completion::Nothing => {
                // What is known of a call stands with its command.
                self.relayed.forget(&[done.row]);
                self.backlog.hand_over(done.row, &done.destination);
            }
        }
    }

    /// The row stays where it is, those of its instance wait behind it, and it is tried again.
    fn keep_refused(&mut self, row: WorkRef, destination: &str, refused: Refused) {
        let Refused { item, reason } = refused;
        let instance = item.instance.clone();
        let pause = self.publisher.settings.retry_max.duration();
        let due = self.publisher.clock.monotonic() + pause;
        if self.refused.keep((row, item), due) {
            tracing::error!(%instance, ?row, destination, reason, "broker rejects a message; it stays in the outbox");
        } else {
            tracing::debug!(%instance, ?row, destination, reason, "broker still rejects a message");
        }
    }

    /// Tries again what was refused, as far as there is room.
    pub(super) fn retry_refused(&mut self) {
        let room = self.publisher.settings.publish_in_flight.max(1);
        let room = room.saturating_sub(self.publishing.len());
        let now = self.publisher.clock.monotonic();
        for row in self.refused.due(now, room) {
            self.publish(row, None);
        }
        let count = i64::try_from(self.refused.len()).unwrap_or(i64::MAX);
        self.metrics
            .outbox_refused
            .with_label_values(&[&self.shard.to_string()])
            .set(count);
    }

    pub(super) fn swept(&mut self, row: WorkRef, swept: Swept) {
        self.overdue_known.remove(&row);
        self.metrics
            .overdue_commands_checked
            .with_label_values(&[swept.action()])
            .inc();
        if let Swept::Found(verdict) = swept {
            self.letters.push_back(Letter {
                mail: Mail::Verdict(verdict),
                rows: Vec::new(),
            });
        }
    }
}
