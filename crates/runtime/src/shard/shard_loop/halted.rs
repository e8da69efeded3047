//! What a halted shard does with its mail, until an operator repositions its streams or it is told to stop.

use super::ShardLoop;
use crate::shard::batch::Activation;
use crate::shard::mailbox::{Mail, Refused};

impl ShardLoop {
    /// Takes and drops mail so that nobody blocks on it, and does nothing, until told to stop. True: an operator has
    /// decided what to do with its streams.
    pub(super) async fn halted(&mut self, reason: &'static str, message: &str) -> bool {
        self.status
            .halt(self.index, reason, message.to_owned(), &self.metrics);
        self.backlog.clear();
        self.catching_up = None;
        self.show_catching_up(false);
        while let Some(mail) = self.mailbox.recv().await {
            match mail {
                Mail::Stop => return false,
                Mail::StreamHalted { stream, halt } => self.keep_halt(stream, &halt),
                Mail::Reposition(order) if self.halts.iter().any(Option::is_some) => {
                    if self.resume_after(*order, reason) {
                        return true;
                    }
                }
                Mail::Reposition(order) => {
                    let _gone = order
                        .reply
                        .send(Err(self.unavailable(&format!("halted: {message}"))));
                }
                Mail::Activate {
                    definitions,
                    revision,
                    routed_by,
                    reply,
                } => {
                    self.gathered.activation = Some(Activation {
                        definitions,
                        revision,
                        routed_by,
                        reply: None,
                    });
                    self.status.set_outdated(true);
                    let later = format!("halted: {message}; it takes the definitions when it goes on");
                    let _gone = reply.send(Err(self.unavailable(&later)));
                }
                Mail::CallBegins { reply, .. }
                | Mail::DeadLetter { reply, .. }
                | Mail::Archived { reply, .. }
                | Mail::Held { reply, .. }
                | Mail::PauseSchedule { reply, .. } => {
                    let _gone = reply.send(Err(self.unavailable(&format!("halted: {message}"))));
                }
                // A refill is dropped without an answer: an empty one would say that there is no more work.
                Mail::Refill { .. }
                | Mail::Delivery(_)
                | Mail::Barrier { .. }
                | Mail::Opened { .. }
                | Mail::Verdict(_)
                | Mail::Migrate { .. }
                | Mail::NotCalled(_)
                | Mail::Delivered(_) => {}
            }
        }
        false
    }

    pub fn unavailable(&self, message: &str) -> Refused {
        Refused::Unavailable {
            shard: self.index,
            message: message.to_owned(),
        }
    }
}
