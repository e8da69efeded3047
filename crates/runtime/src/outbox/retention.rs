//! Trimming the runner's own streams behind everyone who still needs their messages.
//!
//! The streams have no age limit: a command or result goes only when every shard of the cluster has read it, every effect
//! queue has acknowledged it, and it is older than the gate's horizon. The message at the lowest position stays: by it the
//! stream is known again.

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

/// The lowest positions of all shards of the cluster, by [`SourceStream::index`]; `None` while that of one of them is not known:
/// then nothing may go. Asked anew before each trim.
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
        // What it knows of the ends of the streams it learns anew.
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
        }
    }

    async fn round(&mut self) {
        for stream in SourceStream::ALL {
            let trimmed = match stream {
                SourceStream::AggregateEvents => self.trim_domain_events().await,
                SourceStream::WorkflowCommands => {
                    let (name, durables) = (self.spec.streams.commands.clone(), (self.spec.durables)());
                    self.trim(stream, &name, durables).await
                }
                SourceStream::WorkflowEvents => {
                    let name = self.spec.streams.events.clone();
                    self.trim(stream, &name, Vec::new()).await
                }
            };
            match trimmed {
                Ok(Some(sequence)) => tracing::debug!(?stream, sequence, "stream trimmed"),
                Ok(None) => {}
                Err(error) => tracing::warn!(?stream, %error, "stream was not trimmed"),
            }
        }
    }

    /// Trims one of the streams that commands and results go through, and says up to where.
    async fn trim(
        &mut self,
        stream: SourceStream,
        name: &str,
        durables: Vec<String>,
    ) -> Result<Option<u64>, BrokerError> {
        let horizon = match stream {
            SourceStream::WorkflowCommands => &mut self.commands,
            _ => &mut self.events,
        };
        let broker = &self.spec.broker;
        let state = broker.stream_state(name).await?;
        let now = self.spec.clock.monotonic();
        let age = self.spec.settings.gate_horizon.duration();
        let Some(old) = horizon.observe(now, state.last_sequence, age) else {
            return Ok(None);
        };
        let Some(read) = self.lowest(stream).await else {
            return Ok(None);
        };
        let mut through = old.min(read.saturating_sub(1));
        for durable in durables {
            // A queue that nobody has joined yet has answered nothing.
            through = through.min(broker.queue_floor(name, &durable).await?.unwrap_or(0));
        }
        self.trim_through(name, &state, through).await
    }

    /// The same for the domain events, where nobody else would: only what is too old or too much goes.
    async fn trim_domain_events(&mut self) -> Result<Option<u64>, BrokerError> {
        let Some(name) = self.spec.events.clone() else {
            return Ok(None);
        };
        let state = self.spec.broker.stream_state(&name).await?;
        let settings = &self.spec.settings;
        let (now, age) = (self.spec.clock.monotonic(), settings.events_horizon.duration());
        let old = self.domain.observe(now, state.last_sequence, age);
        let too_much = too_much(&state, settings.events_bytes);
        let Some(read) = self.lowest(SourceStream::AggregateEvents).await else {
            return Ok(None);
        };
        let through = old.unwrap_or(0).max(too_much).min(read.saturating_sub(1));
        self.trim_through(&name, &state, through).await
    }

    async fn lowest(&self, stream: SourceStream) -> Option<u64> {
        let lowest = (self.spec.positions)().await?;
        Some(lowest[stream.index()])
    }

    async fn trim_through(
        &self,
        name: &str,
        state: &StreamState,
        through: u64,
    ) -> Result<Option<u64>, BrokerError> {
        if through < state.first_sequence || !(self.spec.may_trim)() {
            return Ok(None);
        }
        self.spec.broker.trim(name, through + 1).await?;
        Ok(Some(through))
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
        };
        assert_eq!(too_much(&state(1_000), 1_000), 0);
        assert_eq!(too_much(&state(1_000), 750), 125);
        assert_eq!(too_much(&state(1_000), 999), 101, "at least one");
        assert_eq!(too_much(&state(1_000), 0), 200);
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
