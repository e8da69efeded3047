//! Trimming the runner's own streams behind everyone who still needs their messages.
//!
//! The streams have no age limit: a command or result goes only when no shard of the cluster and no reader needs it, and it is
//! older than the gate's horizon. The message at the lowest position stays: by it the stream is known again.
//!
//! Results and commands need each other, too. A worker that is given a command again finds by its result that it was carried
//! out; so results stay until every effect queue has acknowledged what was asked for before them. And a result may not name
//! its instance, which is found by its command; so a command stays until the results are read that were there when it was
//! acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinHandle;

use super::settings::Settings;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{Broker, BrokerError, StreamState, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::tasks::{Task, Tasks};

/// Up to where no shard of the cluster and no reader needs the streams, by [`SourceStream::index`]; `None` while that is not
/// known of one of them: then nothing may go. Asked again before each trim.
pub type Positions = Box<dyn Fn() -> BoxFuture<'static, Option<[u64; 3]>> + Send + Sync>;

/// Names of durable queues.
pub type Durables = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// What trimming needs.
pub struct RetentionSpec {
    pub broker: Arc<dyn Broker>,
    pub streams: WorkflowStreams,
    /// The stream of domain events, where it is the runner's own: on the embedded broker.
    pub events: Option<String>,
    /// Every durable queue by which a command may come to a worker.
    pub durables: Durables,
    pub positions: Positions,
    /// Whether this process may still speak for every shard of the positions.
    pub may_trim: Box<dyn Fn() -> bool + Send + Sync>,
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    pub tasks: Tasks,
}

/// The running task; it ends when this is dropped.
pub struct Retention(JoinHandle<()>);

impl Retention {
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn start(spec: RetentionSpec) -> Self {
        let tasks = spec.tasks.clone();
        let spec = Arc::new(spec);
        // What it knows of the ends of the streams it learns again.
        Self(tasks.keep(Task::Retention, "", move || {
            let mut trimmer = Trimmer::new(Arc::clone(&spec));
            async move {
                loop {
                    trimmer.round().await;
                    tokio::time::sleep(trimmer.spec.settings.trim_interval.duration()).await;
                }
            }
        }))
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Trimmer {
    spec: Arc<RetentionSpec>,
    commands: Horizon,
    events: Horizon,
    domain: Horizon,
    /// Results whose commands are acknowledged, and acknowledged commands whose results are read.
    answered: Processed,
    read: Processed,
}

/// Up to where messages of one stream need nothing of another one any more.
#[derive(Debug, Default)]
struct Processed {
    upto: u64,
    /// A later place of the stream, and that of the other one which processes it.
    next: Option<(u64, u64)>,
}

impl Processed {
    /// What lies up to `place` is processed once the other stream has come to `by`, and it has come to `reached` now.
    fn observe(&mut self, place: u64, by: u64, reached: u64) -> u64 {
        // Where it is slow, the same place is waited for until it is reached: later ones would be waited for without end.
        for _ in 0..2 {
            let (next, needs) = *self.next.get_or_insert((place, by));
            if reached < needs {
                break;
            }
            self.upto = self.upto.max(next);
            self.next = None;
        }
        self.upto
    }
}

/// Where the end of a stream was at times past.
#[derive(Debug, Default)]
struct Horizon {
    /// Monotonic time and last sequence, oldest first.
    samples: VecDeque<(Duration, u64)>,
}

impl Horizon {
    /// Notes the end of the stream; the sequence that was its end at least `age` ago, if that is known.
    fn observe(&mut self, now: Duration, last_sequence: u64, age: Duration) -> Option<u64> {
        self.samples.push_back((now, last_sequence));
        let old = |sample: &(Duration, u64)| now.saturating_sub(sample.0) >= age;
        while self.samples.get(1).is_some_and(old) {
            self.samples.pop_front();
        }
        self.samples
            .front()
            .filter(|sample| old(sample))
            .map(|(_, last)| *last)
    }
}

impl Trimmer {
    fn new(spec: Arc<RetentionSpec>) -> Self {
        Self {
            spec,
            commands: Horizon::default(),
            events: Horizon::default(),
            domain: Horizon::default(),
            answered: Processed::default(),
            read: Processed::default(),
        }
    }

    async fn round(&mut self) {
        if let Err(error) = self.trim_own().await {
            tracing::warn!(%error, "cannot trim the streams of commands and results");
        }
        if let Err(error) = self.trim_domain_events().await {
            tracing::warn!(%error, "cannot trim the stream of domain events");
        }
    }

    /// Trims the streams that commands and results go through.
    async fn trim_own(&mut self) -> Result<(), BrokerError> {
        let (broker, names) = (Arc::clone(&self.spec.broker), self.spec.streams.clone());
        // In this order: whatever a result answers was asked for before it.
        let events = broker.stream_state(&names.events).await?;
        let commands = broker.stream_state(&names.commands).await?;
        let mut acknowledged = u64::MAX;
        for durable in (self.spec.durables)() {
            // A queue that nobody has joined yet has answered nothing.
            let floor = broker.queue_floor(&names.commands, &durable).await?;
            acknowledged = acknowledged.min(floor.unwrap_or(0));
        }
        // And whatever is acknowledged by now has its result before this end.
        let answers = broker.stream_state(&names.events).await?.last_sequence;
        let now = self.spec.clock.monotonic();
        let age = self.spec.settings.gate_horizon.duration();
        let old_events = self.events.observe(now, events.last_sequence, age);
        let old_commands = self.commands.observe(now, commands.last_sequence, age);
        let Some(needless) = (self.spec.positions)().await else {
            return Ok(());
        };
        let read = needless[SourceStream::WorkflowEvents.index()];
        let processed = [
            self.answered
                .observe(events.last_sequence, commands.last_sequence, acknowledged),
            self.read
                .observe(acknowledged.min(commands.last_sequence), answers, read)
                // A queue may have been made again since.
                .min(acknowledged),
        ];
        let (results, asked) = (SourceStream::WorkflowEvents, SourceStream::WorkflowCommands);
        let streams = [(results, &events, old_events), (asked, &commands, old_commands)];
        for ((stream, state, old), processed) in streams.into_iter().zip(processed) {
            let read = needless[stream.index()];
            if let Some(old) = old {
                let through = old.min(read.saturating_sub(1)).min(processed);
                self.trim_through(stream, state, through).await?;
            }
        }
        Ok(())
    }

    /// The same for the domain events, where nobody else would: only what is too old or too much goes.
    async fn trim_domain_events(&mut self) -> Result<(), BrokerError> {
        let Some(name) = self.spec.events.clone() else {
            return Ok(());
        };
        let state = self.spec.broker.stream_state(&name).await?;
        let settings = &self.spec.settings;
        let (now, age) = (self.spec.clock.monotonic(), settings.events_horizon.duration());
        let old = self.domain.observe(now, state.last_sequence, age);
        let too_much = too_much(&state, settings.events_bytes);
        let stream = SourceStream::AggregateEvents;
        let Some(needless) = (self.spec.positions)().await else {
            return Ok(());
        };
        let read = needless[stream.index()];
        let through = old.unwrap_or(0).max(too_much).min(read.saturating_sub(1));
        self.trim_through(stream, &state, through).await
    }

    async fn trim_through(
        &self,
        stream: SourceStream,
        state: &StreamState,
        through: u64,
    ) -> Result<(), BrokerError> {
        if through < state.first_sequence || !(self.spec.may_trim)() {
            return Ok(());
        }
        self.spec.broker.trim(&state.identity.name, through + 1).await?;
        tracing::debug!(?stream, through, "stream trimmed");
        Ok(())
    }
}

/// The sequence up to which about as many bytes lie as the stream has above `bytes_max`, 0 where it has no more.
fn too_much(state: &StreamState, bytes_max: u64) -> u64 {
    let excess = state.bytes.saturating_sub(bytes_max);
    if excess == 0 {
        return 0;
    }
    let messages = u128::from(state.messages) * u128::from(excess) / u128::from(state.bytes);
    let messages = u64::try_from(messages).unwrap_or(state.messages).max(1);
    state.first_sequence + messages - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_stream_that_has_too_much_the_oldest_part_goes() {
        let state = |bytes| StreamState {
            identity: crate::ports::broker::StreamIdentity {
                name: "S".to_owned(),
                created_ns: 1,
            },
            first_sequence: 101,
            last_sequence: 200,
            last_time: None,
            messages: 100,
            bytes,
            told: crate::kernel::ids::TimeMs(1),
        };
        assert_eq!(too_much(&state(1_000), 1_000), 0);
        assert_eq!(too_much(&state(1_000), 750), 125);
        assert_eq!(too_much(&state(1_000), 999), 101, "at least one");
        assert_eq!(too_much(&state(1_000), 0), 200);
    }

    #[test]
    fn trimming_follows_the_progress_of_the_stream_that_processes_the_messages() {
        let mut processed = Processed::default();
        assert_eq!(processed.observe(10, 100, 99), 0);
        assert_eq!(processed.observe(20, 200, 99), 0);
        assert_eq!(
            processed.observe(30, 300, 150),
            10,
            "what was waited for since then"
        );
        assert_eq!(processed.observe(40, 400, 299), 10);
        assert_eq!(processed.observe(50, 500, 500), 50, "at once");
        assert_eq!(processed.observe(40, 510, 510), 50, "what went is gone");
    }

    #[test]
    fn only_what_was_there_a_horizon_ago_may_go() {
        let minute = Duration::from_mins(1);
        let mut horizon = Horizon::default();
        assert_eq!(horizon.observe(minute, 10, minute * 3), None);
        assert_eq!(horizon.observe(minute * 2, 20, minute * 3), None);
        assert_eq!(horizon.observe(minute * 3, 30, minute * 3), None);
        assert_eq!(horizon.observe(minute * 4, 40, minute * 3), Some(10));
        assert_eq!(horizon.observe(minute * 5, 50, minute * 3), Some(20));
        assert_eq!(horizon.observe(minute * 60, 60, minute * 3), Some(50));
        assert_eq!(horizon.samples.len(), 2);
    }
}
