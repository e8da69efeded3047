//! Trimming the runner's own streams behind everyone who still needs their messages.
//!
//! The streams have no age limit: a message goes only when every shard has read it, every effect queue has
//! acknowledged it, and it is older than the gate's horizon. The message at the lowest position stays: by it the stream is
//! known again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::settings::Settings;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{Broker, BrokerError, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::tasks::{Task, Tasks};

/// The lowest position of all shards in a stream, `None` while one of them is not known.
pub type Positions = Arc<dyn Fn(SourceStream) -> Option<u64> + Send + Sync>;

/// Names of durable queues.
pub type Durables = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// What trimming needs.
pub struct RetentionSpec {
    pub broker: Arc<dyn Broker>,
    pub streams: WorkflowStreams,
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
        }
    }

    async fn round(&mut self) {
        for stream in [SourceStream::WorkflowCommands, SourceStream::WorkflowEvents] {
            match self.trim(stream).await {
                Ok(Some(sequence)) => tracing::debug!(?stream, sequence, "stream trimmed"),
                Ok(None) => {}
                Err(error) => tracing::warn!(?stream, %error, "stream was not trimmed"),
            }
        }
    }

    /// Trims one stream, and says up to where.
    async fn trim(&mut self, stream: SourceStream) -> Result<Option<u64>, BrokerError> {
        let (name, horizon, durables) = match stream {
            SourceStream::WorkflowCommands => (
                &self.spec.streams.commands,
                &mut self.commands,
                (self.spec.durables)(),
            ),
            SourceStream::WorkflowEvents => (&self.spec.streams.events, &mut self.events, Vec::new()),
            SourceStream::AggregateEvents => return Ok(None),
        };
        let broker = &self.spec.broker;
        let state = broker.stream_state(name).await?;
        let now = self.spec.clock.monotonic();
        let age = self.spec.settings.gate_horizon.duration();
        let (Some(old), Some(read)) = (
            horizon.observe(now, state.last_sequence, age),
            (self.spec.positions)(stream),
        ) else {
            return Ok(None);
        };
        let mut through = old.min(read.saturating_sub(1));
        for durable in durables {
            // A queue that nobody has joined yet has answered nothing.
            through = through.min(broker.queue_floor(name, &durable).await?.unwrap_or(0));
        }
        if through < state.first_sequence || !(self.spec.may_trim)() {
            return Ok(None);
        }
        broker.trim(name, through + 1).await?;
        Ok(Some(through))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
