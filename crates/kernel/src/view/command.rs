//! Where the command of an effect is, as far as the queue of its workers tells.

use serde::Serialize;

use super::why::Cause;

/// Where the command of an effect is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommandView {
    pub state: CommandState,
    /// The consumer by which it comes to its workers; absent for a command that is not in the stream of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// When its message was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<String>,
    /// Of a queued one: how many commands of its consumer come before it, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// Commands of its consumer that workers were given and have not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unacknowledged: Option<u64>,
    /// Whether a worker asks its consumer for more commands now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers_ask: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// The outbox has it.
    Unsent,
    /// No worker was given it yet.
    Queued,
    /// A worker was given it and has not answered.
    WithWorker,
    /// Its workers are done with it; the result is about to be applied.
    Answered,
}

/// What a consumer holds, and where the message of a command is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueView {
    /// Of the command's message in the stream.
    pub sequence: u64,
    /// The newest message that some worker was given.
    pub delivered: u64,
    /// Everything up to here is answered.
    pub floor: u64,
    /// Messages that no worker was given yet.
    pub pending: u64,
    pub unacknowledged: u64,
    pub workers_ask: bool,
}

impl CommandView {
    /// A command that is not in the stream of commands.
    #[must_use]
    pub const fn without_message(state: CommandState) -> Self {
        Self {
            state,
            consumer: None,
            sent: None,
            ahead: None,
            unacknowledged: None,
            workers_ask: None,
        }
    }

    /// A command in the stream of commands; `queued` is absent where its consumer does not exist, so that no worker was given it.
    #[must_use]
    pub fn stored(consumer: &str, sent: String, queued: Option<QueueView>) -> Self {
        let state = match queued {
            Some(queued) if queued.sequence <= queued.floor => CommandState::Answered,
            Some(queued) if queued.sequence <= queued.delivered => CommandState::WithWorker,
            Some(_) | None => CommandState::Queued,
        };
        let ahead = queued
            .filter(|_| state == CommandState::Queued)
            // It is one of those that are pending, and not all sequences between are of this consumer.
            .map(|queued| {
                let between = queued.sequence - queued.delivered - 1;
                between.min(queued.pending.saturating_sub(1))
            });
        Self {
            state,
            consumer: Some(consumer.to_owned()),
            sent: Some(sent),
            ahead,
            unacknowledged: queued.map(|queued| queued.unacknowledged),
            workers_ask: Some(queued.is_some_and(|queued| queued.workers_ask)),
        }
    }

    /// Whether it waits for a worker and none is there: none asks for commands, and none was given one that it has not answered.
    #[must_use]
    pub fn is_without_worker(&self) -> bool {
        self.state == CommandState::Queued
            && self.workers_ask == Some(false)
            && self.unacknowledged.unwrap_or(0) == 0
    }

    /// Where it is, as the rest of a sentence, and the cause that this is.
    pub(super) fn told(&self) -> (Cause, String) {
        let consumer = self.consumer.as_deref().unwrap_or("of its workers");
        let sent = self.sent.as_deref();
        let asks = self.workers_ask == Some(true);
        match self.state {
            CommandState::Unsent => (Cause::Effect, "its command was not sent yet".to_owned()),
            CommandState::Answered => (
                Cause::Effect,
                "a worker has answered its command, and the result is about to be applied".to_owned(),
            ),
            CommandState::WithWorker => {
                let sent = sent.map_or_else(String::new, |sent| format!(", sent at {sent},"));
                let more = if asks || self.consumer.is_none() {
                    ""
                } else {
                    "; workers ask for no more commands: they are busy, or have stopped"
                };
                let told = format!(
                    "a worker was given its command{sent} and has not answered: the call is in progress{more}"
                );
                (Cause::Effect, told)
            }
            CommandState::Queued if self.is_without_worker() => (
                Cause::NoWorker,
                format!(
                    "its command waits in the queue, and no worker takes commands from consumer {consumer}"
                ),
            ),
            CommandState::Queued => {
                let ahead = self.ahead.unwrap_or(0);
                let unacknowledged = self.unacknowledged.unwrap_or(0);
                let more = if asks {
                    ""
                } else {
                    " and ask for no more: they are busy, or have stopped"
                };
                let told = format!(
                    "its command waits in the queue: at most {ahead} command(s) of consumer {consumer} come before it, and \
                     workers have {unacknowledged}{more}"
                );
                (Cause::Queued, told)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = "10:00";

    fn stored(queued: QueueView) -> CommandView {
        CommandView::stored("effect-charge", SENT.to_owned(), Some(queued))
    }

    fn at(sequence: u64) -> QueueView {
        QueueView {
            sequence,
            delivered: 20,
            floor: 10,
            pending: 4,
            unacknowledged: 3,
            workers_ask: false,
        }
    }

    #[test]
    fn a_command_is_answered_with_a_worker_or_queued_as_its_sequence_says() {
        for (sequence, state) in [
            (10, CommandState::Answered),
            (11, CommandState::WithWorker),
            (20, CommandState::WithWorker),
            (21, CommandState::Queued),
        ] {
            assert_eq!(stored(at(sequence)).state, state, "{sequence}");
        }
    }

    #[test]
    fn those_before_a_queued_command_are_neither_more_than_wait_nor_than_fit_between() {
        assert_eq!(stored(at(21)).ahead, Some(0));
        assert_eq!(stored(at(23)).ahead, Some(2));
        assert_eq!(stored(at(90)).ahead, Some(3));
        assert_eq!(stored(at(15)).ahead, None);
    }

    #[test]
    fn a_queued_command_is_without_worker_where_none_asks_and_none_has_a_command() {
        let idle = QueueView {
            unacknowledged: 0,
            ..at(21)
        };
        assert!(stored(idle).is_without_worker());
        assert!(!stored(at(21)).is_without_worker());
        let asked = QueueView {
            workers_ask: true,
            ..idle
        };
        assert!(!stored(asked).is_without_worker());
        assert!(CommandView::stored("effect-charge", SENT.to_owned(), None).is_without_worker());
    }
}
