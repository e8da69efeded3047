//! Work items: what a transition asks the outside world to do, with ids that no replay can change.

use std::sync::LazyLock;

use blake3::hazmat::{ContextKey, hash_derive_key_context};
use bytes::Bytes;
use saga_runner_language::ids::{
    ClusterId, CommandId, DefinitionHash, EffectName, InstanceId, Key, SagaName, TimeMs,
};
#[cfg(feature = "planted")]
use saga_runner_language::planted::{self, Bug};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::children::SagaMessage;
use super::fields::Fields;
use super::input::WorkOutcome;

/// Name of an outbox row: the shard's log sequence of the input that caused it, and the row's index
/// among the work of that input. Rows are ordered by this pair, which is the order of commitment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkRef {
    pub log_sequence: u64,
    pub index: u16,
}

impl WorkRef {
    /// One number in the order of the log, as messages and counters carry it.
    #[must_use]
    pub const fn position(self) -> u64 {
        self.log_sequence << 16 | self.index as u64
    }

    /// The row at a position.
    #[must_use]
    pub const fn at_position(position: u64) -> Self {
        Self {
            log_sequence: position >> 16,
            #[allow(clippy::cast_possible_truncation, reason = "the low 16 bits are the index")]
            index: position as u16,
        }
    }
}

/// One row of the outbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkItem {
    pub instance: InstanceId,
    /// Identity of this attempt; the fact's id for published facts.
    pub command_id: CommandId,
    /// The same for all attempts of a piece of work, 32 hex digits.
    pub idempotency_key: String,
    /// Place in the definition, e.g. `steps.charge.compensate`.
    pub path: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// When the input that caused it was stored, or the one before of its instance where that is later. Of a
    /// [`WorkKind::Result`]: the time of the input that has applied the result.
    pub created: TimeMs,
    /// After this instant the work is no longer wanted and its outcome is recorded as timed out, as the transition has it. What
    /// is sent says this one, so that it is the same whenever the transition is made.
    pub deadline: TimeMs,
    /// How long the input had waited in a backlog before it was applied, in milliseconds; the work gets as much longer.
    pub waited_ms: i64,
    /// Id of the input that caused it.
    pub causation_id: String,
    /// Correlation id of the message that started the instance, where it differs from the key.
    pub root_correlation_id: Option<String>,
    pub traceparent: Option<String>,
    /// Hops of the chain of messages that cause each other.
    pub hops: u32,
    pub kind: WorkKind,
}

impl WorkItem {
    /// When it is really given up.
    #[must_use]
    pub const fn ends(&self) -> TimeMs {
        self.deadline.plus_ms(self.waited_ms)
    }
}

/// What the kinds of work are called ([`WorkKind::named`]).
pub const EFFECT: &str = "effect";
/// A command for an aggregate.
pub const COMMAND: &str = "command";
/// A fact.
pub const FACT: &str = "fact";
/// The start of an instance of another saga.
pub const START: &str = "start";
/// Any other message.
pub const MESSAGE: &str = "message";

/// Where a work item goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WorkKind {
    /// A command for an effect worker. The row lives until its result is applied.
    Effect { effect: EffectName, payload: Bytes },
    /// A command for an aggregate, submitted to the gateway.
    Command {
        aggregate_type: String,
        aggregate_id: String,
        command_type: String,
        payload: Bytes,
        /// What stands in the payload for the callback token of this work, which is put in when the command is handed over.
        token: Option<String>,
        /// Whether a step waits for the gateway's verdict. Then the row lives until the verdict is
        /// applied; otherwise until it is delivered.
        awaited: bool,
    },
    /// A fact about the instance, published to whoever listens.
    Fact { fact_type: String, payload: Bytes },
    /// A message to an instance of another saga, of the same tenant.
    Saga {
        saga: SagaName,
        key: Key,
        message: SagaMessage,
        /// Whether an answer is awaited. Then the row lives until it is applied; otherwise until it is delivered.
        awaited: bool,
    },
    /// The applied result of an effect that this process carried out itself, as a message for whoever listens.
    Result { effect: EffectName, body: Bytes },
    /// Word to the workers that nobody waits for the result of `command` any longer.
    Cancel { effect: EffectName, command: CommandId },
}

impl WorkKind {
    /// The JSON that it carries; of a message from saga to saga the input or the event, if it has one.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        match self {
            Self::Effect { payload, .. } | Self::Command { payload, .. } | Self::Fact { payload, .. } => {
                payload
            }
            Self::Result { body, .. } => body,
            Self::Cancel { .. } => b"null",
            Self::Saga { message, .. } => match message {
                SagaMessage::Start { input, .. } => input,
                SagaMessage::Signal { data, .. } => data,
                SagaMessage::Outcome {
                    outcome: WorkOutcome::Succeeded { payload },
                    ..
                } => payload,
                SagaMessage::Forward(forwarded) => &forwarded.event.payload,
                SagaMessage::CancelChild { .. }
                | SagaMessage::Outcome { .. }
                | SagaMessage::RegisterAlias { .. }
                | SagaMessage::ReleaseAlias { .. }
                | SagaMessage::AskAlias(_)
                | SagaMessage::AliasRead { .. }
                | SagaMessage::AliasAnswered { .. } => b"null",
            },
        }
    }

    /// What it is (`effect`, `command`, `fact`, `start` or `message`), and the name of the effect, the command, the fact or the saga.
    #[must_use]
    pub fn named(&self) -> (&'static str, &str) {
        match self {
            Self::Effect { effect, .. } => (EFFECT, effect.as_str()),
            Self::Command { command_type, .. } => (COMMAND, command_type),
            Self::Fact { fact_type, .. } => (FACT, fact_type),
            Self::Saga { saga, message, .. } if message.starts() => (START, saga.as_str()),
            Self::Saga { saga, .. } => (MESSAGE, saga.as_str()),
            Self::Result { effect, .. } | Self::Cancel { effect, .. } => (MESSAGE, effect.as_str()),
        }
    }

    /// Whether no definition asks for it: who has an alias, and what is cancelled.
    #[must_use]
    pub const fn is_incidental(&self) -> bool {
        match self {
            Self::Saga { message, .. } => matches!(
                message,
                SagaMessage::RegisterAlias { .. }
                    | SagaMessage::ReleaseAlias { .. }
                    | SagaMessage::AskAlias(_)
                    | SagaMessage::AliasRead { .. }
                    | SagaMessage::AliasAnswered { .. }
            ),
            Self::Cancel { .. } => true,
            Self::Effect { .. } | Self::Command { .. } | Self::Fact { .. } | Self::Result { .. } => false,
        }
    }

    /// Whether the row lives until a result for it was applied.
    #[must_use]
    pub const fn awaits_result(&self) -> bool {
        match self {
            Self::Effect { .. } => true,
            Self::Command { awaited, .. } | Self::Saga { awaited, .. } => *awaited,
            Self::Fact { .. } | Self::Result { .. } | Self::Cancel { .. } => false,
        }
    }

    /// Whether the row lives until another instance has ended, which may itself wait for events and timers.
    #[must_use]
    pub const fn awaits_saga(&self) -> bool {
        matches!(self, Self::Saga { awaited: true, .. })
    }
}

/// Keeps command ids apart from other digests. Hashed once, since every piece of work needs it.
static COMMAND_ID: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context("saga-runner command id v1"));
static IDEMPOTENCY_KEY: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context("saga-runner idempotency key v1"));

/// What the id of one attempt is derived from.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub cluster: ClusterId,
    pub instance: &'a InstanceId,
    pub generation: u32,
    pub definition: &'a DefinitionHash,
    /// Id and time of the input that causes the attempt.
    pub input_id: &'a str,
    pub input_time: TimeMs,
    pub path: &'a str,
    /// Index among the work of this input.
    pub index: u16,
    pub attempt: u32,
}

impl Attempt<'_> {
    /// Derives the UUID v7 of this attempt.
    ///
    /// Its time is the stored time of the input, its random bits are the first ten bytes of BLAKE3 over
    /// the length-prefixed fields, so the same history always yields the same id.
    #[must_use]
    pub fn command_id(&self) -> CommandId {
        let mut hasher = Fields::of(&COMMAND_ID);
        hasher.bytes(&self.cluster.0);
        hasher.instance(self.instance);
        hasher.number(u64::from(self.generation));
        hasher.bytes(&self.definition.0);
        hasher.bytes(self.input_id.as_bytes());
        hasher.bytes(self.path.as_bytes());
        hasher.number(u64::from(self.index));
        hasher.number(u64::from(self.attempt));
        let digest = hasher.finish();
        let mut random = [0_u8; 10];
        random.copy_from_slice(&digest[..10]);
        #[cfg(feature = "planted")]
        if planted::is_planted(Bug::RandomId) {
            random[..8].copy_from_slice(&planted::unrepeatable().to_le_bytes());
        }
        // Times before 1970 do not occur in stored messages; they would clamp to 0.
        let millis = u64::try_from(self.input_time.0).unwrap_or(0);
        CommandId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }
}

/// The time of the input that has caused the attempt of this id, in milliseconds since 1970, as [`Attempt::command_id`] puts it
/// there; `None` where the id is not of that kind.
#[must_use]
pub fn caused_at(command: CommandId) -> Option<TimeMs> {
    let is_derived = command.0.get_version_num() == 7;
    // The first 48 of 128 bits.
    let millis = i64::try_from(command.0.as_u128() >> 80).ok()?;
    is_derived.then_some(TimeMs(millis))
}

/// A piece of work, whatever its attempts.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    pub cluster: ClusterId,
    pub instance: &'a InstanceId,
    /// Id of the input that started this life of the instance. The number of the generation would not do: it
    /// begins again once the tombstone of the key is pruned.
    pub life: &'a str,
    pub path: &'a str,
    /// How often the surrounding state or loop was entered.
    pub iteration: u64,
    /// Rises only when work is repeated whose last outcome was definite.
    pub round: u32,
    /// Index of the item in a collection, 0 outside collections.
    pub item: u32,
}

impl Piece<'_> {
    /// Derives the idempotency key: 32 lower-case hex digits.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let mut hasher = Fields::of(&IDEMPOTENCY_KEY);
        hasher.bytes(&self.cluster.0);
        hasher.instance(self.instance);
        hasher.bytes(self.life.as_bytes());
        hasher.bytes(self.path.as_bytes());
        hasher.number(self.iteration);
        hasher.number(u64::from(self.round));
        hasher.number(u64::from(self.item));
        let digest = hasher.finish();
        let mut half = [0_u8; 16];
        half.copy_from_slice(&digest[..16]);
        Uuid::from_bytes(half).simple().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saga_runner_language::ids::TenantId;

    fn instance(tenant: &str, key: &str) -> InstanceId {
        InstanceId {
            tenant: TenantId::parse(tenant).expect("legal"),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse(key).expect("legal"),
        }
    }

    fn attempt<'a>(instance: &'a InstanceId, input_id: &'a str, number: u32) -> CommandId {
        Attempt {
            cluster: ClusterId::OFFLINE,
            instance,
            generation: 1,
            definition: &DefinitionHash([7; 32]),
            input_id,
            input_time: TimeMs(1_767_225_600_000),
            path: "steps.charge",
            index: 0,
            attempt: number,
        }
        .command_id()
    }

    #[test]
    fn the_id_of_an_attempt_is_frozen_and_carries_the_time_of_its_input() {
        let id = attempt(&instance("acme", "o-1"), "e-1", 1);
        assert_eq!(id.to_string(), FROZEN_ID);
        assert_eq!(id.0.get_version_num(), 7);
        let (seconds, nanos) = id.0.get_timestamp().expect("v7").to_unix();
        assert_eq!((seconds, nanos), (1_767_225_600, 0));
        assert_eq!(caused_at(id), Some(TimeMs(1_767_225_600_000)));
        assert_eq!(caused_at(CommandId(Uuid::from_u128(7))), None, "not derived");
    }

    #[test]
    fn attempts_differ_and_their_idempotency_key_does_not() {
        let id = instance("acme", "o-1");
        assert_ne!(attempt(&id, "e-1", 1), attempt(&id, "e-1", 2));
        assert_ne!(attempt(&id, "e-1", 1), attempt(&id, "e-2", 1));
        let key = |round| {
            Piece {
                cluster: ClusterId::OFFLINE,
                instance: &id,
                life: "e-1",
                path: "steps.charge",
                iteration: 0,
                round,
                item: 0,
            }
            .idempotency_key()
        };
        assert_eq!(key(0), key(0));
        assert_ne!(key(0), key(1));
        assert_eq!(key(0).len(), 32);
    }

    fn piece<'a>(id: &'a InstanceId, cluster: u8, life: &'a str) -> Piece<'a> {
        Piece {
            cluster: ClusterId([cluster; 16]),
            instance: id,
            life,
            path: "steps.charge",
            iteration: 0,
            round: 0,
            item: 0,
        }
    }

    #[test]
    fn the_key_of_a_piece_of_work_is_frozen() {
        let id = instance("acme", "o-1");
        assert_eq!(piece(&id, 7, "e-1").idempotency_key(), FROZEN_KEY);
    }

    #[test]
    fn no_two_clusters_give_an_attempt_one_id() {
        let id = instance("acme", "o-1");
        let of = |cluster| {
            Attempt {
                cluster: ClusterId([cluster; 16]),
                instance: &id,
                generation: 1,
                definition: &DefinitionHash([7; 32]),
                input_id: "e-1",
                input_time: TimeMs(1_767_225_600_000),
                path: "steps.charge",
                index: 0,
                attempt: 1,
            }
            .command_id()
        };
        assert_ne!(of(1), of(2));
    }

    proptest::proptest! {
        /// The same key for the same work, another one in another cluster, another life, or for other work.
        #[test]
        fn keys_are_equal_exactly_where_all_that_names_the_work_is(
            left in (0..3_u8, "[ab]{0,2}", "[ab]{1,2}", "[ab]{0,2}", 0..3_u64, 0..3_u32, 0..3_u32),
            right in (0..3_u8, "[ab]{0,2}", "[ab]{1,2}", "[ab]{0,2}", 0..3_u64, 0..3_u32, 0..3_u32),
        ) {
            let key = |fields: &(u8, String, String, String, u64, u32, u32)| {
                let (cluster, life, key, path, iteration, round, item) = fields;
                let id = instance("acme", key);
                let piece = Piece {
                    path,
                    iteration: *iteration,
                    round: *round,
                    item: *item,
                    ..piece(&id, *cluster, life)
                };
                piece.idempotency_key()
            };
            proptest::prop_assert_eq!(key(&left) == key(&right), left == right);
        }
    }

    #[test]
    fn moving_a_byte_between_tenant_and_key_changes_the_id() {
        assert_ne!(
            attempt(&instance("ab", "c"), "e", 1),
            attempt(&instance("a", "bc"), "e", 1)
        );
    }

    const FROZEN_KEY: &str = "9d44a19c101048b72151f8f8b71e32a2";
    const FROZEN_ID: &str = "019b76da-a800-79c1-9a8b-f9af3c5a1099";
}
