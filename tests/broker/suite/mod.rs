//! The promises of `ports::broker`, one case each, for any broker.
//!
//! `conformance!(ground, private)` makes a test of every case; `ground` is a function that returns the place on which
//! the case plays; `private` returns one that may be restarted. Each case has a stream and subjects of its own, so a broker may be shared.

mod entries;
mod lookups;
mod publishing;
mod queues;
mod readers;
mod restarts;
mod streams;

pub use entries::*;
pub use lookups::*;
pub use publishing::*;
pub use queues::*;
pub use readers::*;
pub use restarts::*;
pub use streams::*;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use saga_runner::ports::broker::{
    Broker, Expect, Manner, Message, Publication, PublishAck, PublishError, Queue, QueueSpec, Reader,
    ReaderSpec, StreamSpec,
};

/// A broker and the hand above it.
#[async_trait]
pub trait Ground: Send + Sync {
    /// One more client of the same broker.
    async fn broker(&self) -> Arc<dyn Broker>;

    async fn delete_stream(&self, stream: &str);

    /// Ends the broker without warning and starts it again with the data that it has kept.
    async fn restart(&self);

    /// Ends once this many messages have been sent to the members of a queue that pushes.
    ///
    /// NATS gives back at once what a member refuses. What it was about to send to a member that had just left counts as
    /// delivered to nobody, and waits for the ack wait.
    async fn pushed(&self, _durable: &str, _count: usize) -> BoxFuture<'static, ()> {
        panic!("this broker does not push")
    }
}

/// Makes a test of every case. Cases behind the semicolon restart the broker and get one for themselves.
#[macro_export]
macro_rules! conformance {
    ($ground:path, $private:path) => {
        $crate::conformance! { @cases $ground;
            ensure_creates_a_stream_and_tells_its_bounds
            ensure_again_keeps_messages_and_identity
            ensure_brings_a_stream_of_ours_to_its_spec
            check_names_differences_and_changes_nothing
            a_missing_foreign_stream_is_created
            an_existing_foreign_stream_is_never_changed
            a_foreign_stream_without_the_subjects_is_a_mismatch
            an_unknown_stream_is_named_as_such
            a_recreated_stream_has_another_identity
            publications_are_stored_in_the_order_of_their_first_poll
            a_stored_message_comes_back_whole
            the_first_on_a_subject_is_stored_once
            of_two_firsts_at_once_exactly_one_is_stored
            a_repeated_message_id_returns_the_first_sequence
            a_message_id_counts_for_the_whole_stream
            an_oversized_message_is_refused_and_not_stored
            control_characters_in_headers_are_refused
            subjects_that_are_not_literal_are_refused
            a_subject_without_a_stream_is_unavailable
            a_reader_delivers_matching_messages_from_its_start_in_order
            a_reader_goes_on_with_messages_stored_later
            deliveries_are_numbered_from_one_without_gaps
            several_filters_share_one_order
            pending_counts_the_matching_messages_behind
            ready_takes_what_has_arrived_and_never_waits
            a_dropped_next_loses_no_message
            a_buffer_of_one_still_delivers_everything
            readers_do_not_disturb_each_other
            the_horizon_of_an_empty_stream_is_zero
            the_horizon_passes_a_tail_that_does_not_match
            the_horizon_waits_for_messages_not_yet_taken
            the_horizon_never_covers_a_message_not_delivered
            a_reader_may_start_behind_the_end
            a_deleted_stream_breaks_its_readers
            the_time_told_with_a_state_stands_between_the_messages_before_and_behind_it
            the_time_of_the_last_message_is_that_of_its_lookup
            trim_removes_exactly_what_lies_below
            trim_never_reaches_beyond_the_end
            a_reader_from_before_a_trim_starts_at_the_first_message_left
            the_last_message_of_a_subject_is_found_by_exact_subject
            a_message_is_found_by_its_sequence
            ping_and_flush_answer
            each_message_goes_to_one_member
            an_unanswered_message_is_delivered_again
            a_refused_message_is_delivered_again_at_once
            a_refused_message_stays_away_for_its_delay
            progress_keeps_a_message_with_its_worker
            a_terminated_message_is_never_delivered_again
            the_floor_stops_below_an_unanswered_message
            the_floor_passes_messages_that_do_not_match
            an_unknown_queue_has_no_floor
            a_queue_tells_how_far_it_was_delivered_and_whether_a_member_asks
            close_gives_back_what_was_not_taken
            members_together_hold_no_more_than_allowed
            a_queue_with_another_filter_is_not_joined
            a_queue_outlives_its_members
            a_bucket_is_made_once_and_keeps_its_entries
            an_entry_is_created_once
            an_entry_is_replaced_at_the_revision_that_was_expected_only
            of_two_writes_at_once_exactly_one_counts
            keys_and_buckets_do_not_disturb_each_other
            names_and_sizes_of_entries_have_bounds
        }
        $crate::conformance! { @cases $private;
            a_restart_keeps_messages_and_identity
            a_restart_keeps_the_state_of_queues
            a_restart_breaks_readers_and_loses_nothing
            a_restart_keeps_entries_and_their_revisions
        }
    };
    (@cases $ground:path; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let ground: std::sync::Arc<dyn $crate::broker::suite::Ground> = $ground();
                $crate::broker::suite::$case($crate::broker::suite::Case::new(ground, stringify!($case)).await).await;
            }
        )*
    };
}

pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(20);

/// Fails the case where an answer stays out.
pub async fn within<T>(what: &str, answer: impl Future<Output = T>) -> T {
    let Ok(answer) = tokio::time::timeout(PATIENCE, answer).await else {
        panic!("{what}: no answer within {PATIENCE:?}");
    };
    answer
}

/// Asks until the answer is yes, for what a broker brings about by and by.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    within(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A case with a stream and subjects of its own.
pub struct Case {
    pub ground: Arc<dyn Ground>,
    pub broker: Arc<dyn Broker>,
    pub stream: String,
    prefix: String,
    manner: Manner,
}

impl Case {
    /// One whose queues push.
    pub async fn pushed(ground: Arc<dyn Ground>, name: &str) -> Self {
        let mut case = Self::new(ground, &format!("pushed_{name}")).await;
        case.manner.push = true;
        case
    }

    pub async fn new(ground: Arc<dyn Ground>, name: &str) -> Self {
        let broker = within("a broker", ground.broker()).await;
        Self {
            ground,
            broker,
            stream: name.to_uppercase(),
            prefix: name.to_owned(),
            manner: Manner::default(),
        }
    }

    /// Of the newest message in its stream.
    pub async fn last_sequence(&self) -> u64 {
        let state = self.broker.stream_state(&self.stream).await.unwrap();
        state.last_sequence
    }

    /// A subject of this case.
    pub fn subject(&self, rest: &str) -> String {
        format!("{}.{rest}", self.prefix)
    }

    pub fn spec(&self) -> StreamSpec {
        StreamSpec {
            name: self.stream.clone(),
            subjects: vec![self.subject(">")],
            replicas: 1,
            message_bytes_max: MESSAGE_BYTES_MAX,
            foreign: false,
        }
    }

    /// With its stream.
    pub async fn with_stream(self) -> Self {
        within("ensure", self.broker.ensure_stream(&self.spec()))
            .await
            .expect("a new stream can be made");
        self
    }

    pub fn message(&self, rest: &str, payload: &str) -> Publication {
        Publication {
            stream: self.stream.clone(),
            subject: self.subject(rest),
            headers: Vec::new(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            expect: Expect::Nothing,
        }
    }

    pub async fn try_publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        within("publish", self.broker.publish(message)).await
    }

    /// Stores a message and returns its sequence.
    pub async fn publish(&self, rest: &str, payload: &str) -> u64 {
        self.try_publish(self.message(rest, payload))
            .await
            .expect("a plain message can be stored")
            .sequence
    }

    /// Stores messages numbered from 0 on one subject.
    pub async fn publish_many(&self, rest: &str, count: usize) {
        let all = (0..count).map(|n| self.try_publish(self.message(rest, &n.to_string())));
        for stored in futures::future::join_all(all).await {
            stored.expect("a plain message can be stored");
        }
    }

    pub fn reader_spec(&self, filters: &[&str], start_sequence: u64) -> ReaderSpec {
        ReaderSpec {
            stream: self.stream.clone(),
            filters: filters.iter().map(|filter| self.subject(filter)).collect(),
            start_sequence,
            name: format!("r-{}", uuid::Uuid::from_u128(unique()).simple()),
            buffer: 64,
        }
    }

    pub async fn reader(&self, filters: &[&str], start_sequence: u64) -> Box<dyn Reader> {
        within(
            "reader",
            self.broker.reader(self.reader_spec(filters, start_sequence)),
        )
        .await
        .expect("a reader can be opened")
    }

    pub fn queue_spec(&self) -> QueueSpec {
        QueueSpec {
            group: None,
            stream: self.stream.clone(),
            filters: vec![self.subject("work.>")],
            durable: format!("{}-workers", self.prefix),
            ack_wait: Duration::from_secs(30),
            max_unacknowledged: 1_000,
            buffer: 16,
            manner: self.manner,
        }
    }

    pub async fn queue(&self, spec: QueueSpec) -> Box<dyn Queue> {
        within("queue", self.broker.queue(spec))
            .await
            .expect("a queue can be joined")
    }
}

/// Differs with each call and between processes that share a broker.
fn unique() -> u128 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (u128::from(std::process::id()) << 64) | u128::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The next message, which must come.
pub async fn next(reader: &mut dyn Reader) -> Message {
    within("next", reader.next()).await.expect("the reader holds")
}

pub async fn take(reader: &mut dyn Reader, count: usize) -> Vec<Message> {
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        messages.push(next(reader).await);
    }
    messages
}

pub fn sequences(messages: &[Message]) -> Vec<u64> {
    messages.iter().map(|message| message.stream_sequence).collect()
}

pub fn payload(message: &Message) -> &str {
    std::str::from_utf8(&message.payload).expect("payloads of the suite are text")
}
