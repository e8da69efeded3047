//! Mail to the shard: verdicts, what was delivered, and requests for more rows of the outbox.
//!
//! It is sent when there is room, in order; the relay never waits for it.

use std::sync::atomic::Ordering;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;

use super::RelayLoop;
use crate::kernel::work::WorkRef;
use crate::outbox::backlog::{Destination, Row, Scope};
use crate::shard::mailbox::Mail;

/// Rows of one [`Mail::Delivered`].
const DELIVERED_MAX: usize = 512;

/// Mail that waits for room, and the rows that count as handed over once it is in the mailbox.
pub(super) struct Letter {
    pub mail: Mail,
    pub rows: Vec<(WorkRef, Destination)>,
}

pub(super) type Permit = Result<mpsc::OwnedPermit<Mail>, mpsc::error::SendError<()>>;

impl RelayLoop {
    /// Sends what mail fits, and publishes the floor. Breaks when the shard is gone.
    pub(super) fn take_mail(&mut self) -> std::ops::ControlFlow<()> {
        let mailbox = self.mailbox.clone();
        self.gather_delivered();
        while !self.letters.is_empty() {
            match mailbox.try_reserve() {
                Ok(permit) => self.post(|mail| permit.send(mail)),
                Err(TrySendError::Full(())) => {
                    self.await_room();
                    break;
                }
                Err(TrySendError::Closed(())) => return std::ops::ControlFlow::Break(()),
            }
        }
        let floor = self.backlog.floor().position();
        if floor > self.relayed.floor.load(Ordering::Relaxed) {
            self.relayed.floor.store(floor, Ordering::Release);
        }
        std::ops::ControlFlow::Continue(())
    }

    fn gather_delivered(&mut self) {
        while !self.delivered.is_empty() {
            let rest = self.delivered.split_off(self.delivered.len().min(DELIVERED_MAX));
            let rows = std::mem::replace(&mut self.delivered, rest);
            let refs = rows.iter().map(|(row, _)| *row).collect();
            self.letters.push_back(Letter {
                mail: Mail::Delivered(refs),
                rows,
            });
        }
    }

    pub(super) fn post(&mut self, send: impl FnOnce(Mail)) {
        if let Some(letter) = self.letters.pop_front() {
            send(letter.mail);
            for (row, destination) in letter.rows {
                self.backlog.hand_over(row, &destination);
            }
        }
    }

    /// Queues for a place in the mailbox, so that busy senders cannot starve the relay.
    fn await_room(&mut self) {
        if self.permit.is_none() {
            self.permit = Some(self.mailbox.clone().reserve_owned().boxed());
        }
    }

    pub(super) fn ask_for_more(&mut self) {
        if self.refill.is_some() || self.refill_paused {
            return;
        }
        let Some((scope, after)) = self.backlog.ask() else {
            return;
        };
        let (reply, answer) = oneshot::channel();
        let mail = Mail::Refill {
            after: (after.position() > 0).then_some(after),
            limit: self.publisher.settings.refill_rows.max(1),
            reply,
        };
        self.letters.push_back(Letter {
            mail,
            rows: Vec::new(),
        });
        self.refill = Some((scope, answer));
    }

    pub(super) fn refilled(&mut self, rows: Option<Vec<Row>>) {
        let Some((scope, _)) = self.refill.take() else {
            return;
        };
        // Whatever was committed before the answer was released before it, too.
        while let Ok(released) = self.released.try_recv() {
            self.take(released);
        }
        if let Some(rows) = rows {
            let limit = self.publisher.settings.refill_rows.max(1);
            self.backlog.refilled(&scope, rows, limit);
        } else {
            self.refill_paused = true;
            self.backlog.refill_failed(&scope);
        }
    }
}

/// Waits for a place in the mailbox, if one was queued for. Always polled while it is there: a place that was
/// granted and not taken would be missing to everyone else.
pub(super) async fn room(permit: &mut Option<BoxFuture<'static, Permit>>) -> Option<Permit> {
    match permit {
        Some(permit) => Some(permit.await),
        None => None,
    }
}

/// Waits for the answer to a refill, if one was asked for. `Some(None)`: the shard will not answer.
pub(super) async fn answer(
    refill: &mut Option<(Scope, oneshot::Receiver<Vec<Row>>)>,
) -> Option<Option<Vec<Row>>> {
    match refill {
        Some((_, answer)) => Some(answer.await.ok()),
        None => None,
    }
}
