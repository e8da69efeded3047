//! The figures and how they are told.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::drive::WINDOW_SECONDS;
use super::usage::Spent;

/// Everything that one bench measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub broker: &'static str,
    /// The bench's own nats-server syncs each write to disk.
    pub sync_always: bool,
    /// Messages that are stored by one atomic batch at most, on NATS.
    pub publish_batch: usize,
    pub in_flight: u64,
    pub shards: u16,
    /// How commands get to the worker.
    pub dispatch: &'static str,
    /// From the start of the runner (not of the process) to the end of its first saga.
    pub start_to_first_saga_ms: f64,
    pub first_saga_ms: f64,
    /// After the first saga.
    pub idle_rss_bytes: u64,
    /// After all phases.
    pub rss_bytes: u64,
    pub throughput: Figures,
    pub latency: Latency,
    pub raw: Raw,
    /// State on disk, the embedded broker's streams left out, per saga of the throughput phase.
    pub state_bytes_per_saga: u64,
}

/// What the throughput phase saw.
pub struct Throughput {
    pub sagas: u64,
    pub elapsed: Duration,
    pub latency: Latency,
    /// Ends in each whole window.
    pub windows: Vec<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    pub sagas: u64,
    pub seconds: f64,
    pub sagas_per_second: f64,
    /// Four inputs for each saga: its event and three results.
    pub transitions_per_second: f64,
    pub latency: Latency,
    /// Processor seconds per second: driver and runner, embedded broker included.
    pub cpu: f64,
    /// Processor seconds per second of a nats-server that the bench started.
    pub server_cpu: f64,
    /// Ends per second in the first and the last minute, where the run was long enough.
    pub first_minute: Option<f64>,
    pub last_minute: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    pub sagas: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Raw {
    pub messages: u64,
    pub messages_per_second: f64,
    /// The same in sagas, at the messages that one saga costs.
    pub sagas_per_second: f64,
}

impl Latency {
    pub fn of(histogram: &Histogram<u64>) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "microseconds far below 2^52")]
        let ms = |micros: u64| micros as f64 / 1_000.0;
        Self {
            sagas: histogram.len(),
            p50_ms: ms(histogram.value_at_quantile(0.5)),
            p99_ms: ms(histogram.value_at_quantile(0.99)),
            max_ms: ms(histogram.max()),
        }
    }
}

impl Throughput {
    #[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn figures(self, spent: &Spent) -> Figures {
        let seconds = self.elapsed.as_secs_f64();
        let sagas_per_second = self.sagas as f64 / seconds;
        let minute = 60 / usize::try_from(WINDOW_SECONDS).expect("a small constant");
        let rate = |windows: &[u64]| {
            (self.windows.len() >= 2 * minute).then(|| windows.iter().sum::<u64>() as f64 / 60.0)
        };
        let (head, tail) = (
            &self.windows[..minute.min(self.windows.len())],
            &self.windows[self.windows.len().saturating_sub(minute)..],
        );
        Figures {
            sagas: self.sagas,
            seconds,
            sagas_per_second,
            transitions_per_second: 4.0 * sagas_per_second,
            latency: self.latency,
            cpu: spent.cpu.as_secs_f64() / seconds,
            server_cpu: spent.server_cpu.as_secs_f64() / seconds,
            first_minute: rate(head),
            last_minute: rate(tail),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures {
            sagas,
            seconds,
            sagas_per_second,
            transitions_per_second,
            latency,
            cpu,
            server_cpu,
            first_minute,
            last_minute,
        } = &self.throughput;
        #[allow(clippy::cast_precision_loss, reason = "bytes of a process")]
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        writeln!(
            f,
            "broker          {}{}, {} shard(s), dispatch {}, publish batch {}",
            self.broker,
            if self.sync_always { " (sync always)" } else { "" },
            self.shards,
            self.dispatch,
            self.publish_batch
        )?;
        writeln!(
            f,
            "start           {:.0} ms to the end of the first saga, which took {:.1} ms",
            self.start_to_first_saga_ms, self.first_saga_ms
        )?;
        writeln!(
            f,
            "throughput      {sagas_per_second:.0} sagas/s, {transitions_per_second:.0} transitions/s ({sagas} sagas in {seconds:.1} s, {} in flight)",
            self.in_flight
        )?;
        writeln!(
            f,
            "  under load    p50 {:.1} ms, p99 {:.1} ms; processors {cpu:.2} runner and driver, {server_cpu:.2} nats-server",
            latency.p50_ms, latency.p99_ms
        )?;
        if let (Some(first), Some(last)) = (first_minute, last_minute) {
            writeln!(
                f,
                "  over time     {first:.0} sagas/s in the first minute, {last:.0} in the last ({:+.1} %)",
                (last / first - 1.0) * 100.0
            )?;
        }
        if self.latency.sagas > 0 {
            writeln!(
                f,
                "latency         p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms ({} sagas)",
                self.latency.p50_ms, self.latency.p99_ms, self.latency.max_ms, self.latency.sagas
            )?;
        }
        writeln!(
            f,
            "raw broker      {:.0} messages/s published and read = {:.0} sagas/s; the runner reaches {:.0} % of it",
            self.raw.messages_per_second,
            self.raw.sagas_per_second,
            sagas_per_second / self.raw.sagas_per_second * 100.0
        )?;
        write!(
            f,
            "memory, disk    {:.0} MiB after the first saga, {:.0} MiB at the end; {} bytes of state per ended saga",
            mib(self.idle_rss_bytes),
            mib(self.rss_bytes),
            self.state_bytes_per_saga
        )
    }
}
