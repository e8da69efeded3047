//! Places orders and waits for the facts that tell their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::report::{Latency, Throughput};
use super::{StartError, system};
use crate::ports::broker::{Broker, Expect, Message, Publication, PublishError, Reader, ReaderSpec};

/// Longest time that the bench waits for one more saga to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Length of a window in which ends are counted, for the slowdown over a long run.
const WINDOW: Duration = Duration::from_secs(10);

/// Places orders and sees them end.
pub struct Driver {
    facts: Box<dyn Reader>,
    next: u64,
    /// When each order under way was placed.
    placed: BTreeMap<u64, Instant>,
}

impl Driver {
    pub async fn open(broker: &dyn Broker) -> Result<Self, StartError> {
        let state = broker.stream_state("WORKFLOW_EVENTS").await.map_err(system)?;
        let facts = broker
            .reader(ReaderSpec {
                stream: "WORKFLOW_EVENTS".to_owned(),
                filters: vec!["tenant.bench.workflow_event.>".to_owned()],
                start_sequence: state.last_sequence + 1,
                name: format!("bench-{}", std::process::id()),
                buffer: 2_048,
            })
            .await
            .map_err(system)?;
        Ok(Self {
            facts,
            next: 0,
            placed: BTreeMap::new(),
        })
    }

    /// One order from its publication to its end.
    pub async fn one(&mut self, broker: &dyn Broker) -> Result<Duration, StartError> {
        let begin = Instant::now();
        let number = self.place();
        publish(broker, number).await?;
        while !self.placed.is_empty() {
            let message = tokio::time::timeout(PATIENCE, self.facts.next())
                .await
                .map_err(|_| system("the first saga did not end"))?
                .map_err(system)?;
            self.ended(&message);
        }
        Ok(begin.elapsed())
    }

    /// `sagas` orders, `in_flight` at a time.
    pub async fn throughput(
        &mut self,
        broker: &Arc<dyn Broker>,
        sagas: u64,
        in_flight: u64,
    ) -> Result<Throughput, StartError> {
        let begin = Instant::now();
        let mut publishing = FuturesUnordered::new();
        let mut histogram = new_histogram();
        let (mut started, mut ended) = (0, 0);
        let mut windows = Windows::new(begin);
        while ended < sagas {
            while started < sagas && started - ended < in_flight {
                let number = self.place();
                let broker = Arc::clone(broker);
                publishing.push(async move { publish(broker.as_ref(), number).await });
                started += 1;
            }
            tokio::select! {
                biased;
                message = self.facts.next() => {
                    let mut next = Some(message);
                    while let Some(message) = next {
                        if let Some(took) = self.ended(&message.map_err(system)?) {
                            ended += 1;
                            record(&mut histogram, took);
                            windows.count(Instant::now());
                        }
                        next = self.facts.ready();
                    }
                }
                Some(published) = publishing.next() => published?,
                () = tokio::time::sleep(PATIENCE) => {
                    return Err(system(format!("only {ended} of {sagas} sagas ended")));
                }
            }
        }
        Ok(Throughput {
            sagas,
            elapsed: begin.elapsed(),
            latency: Latency::of(&histogram),
            windows: windows.full,
        })
    }

    /// `rate` orders a second, evenly spaced, and how long each took.
    pub async fn latency(
        &mut self,
        broker: &Arc<dyn Broker>,
        rate: u64,
        length: Duration,
    ) -> Result<Latency, StartError> {
        let mut histogram = new_histogram();
        let mut publishing = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(Duration::from_nanos(1_000_000_000 / rate));
        let end = Instant::now() + length;
        while Instant::now() < end || !self.placed.is_empty() {
            tokio::select! {
                biased;
                message = self.facts.next() => {
                    if let Some(took) = self.ended(&message.map_err(system)?) {
                        record(&mut histogram, took);
                    }
                }
                Some(published) = publishing.next() => published?,
                _ = ticks.tick(), if Instant::now() < end => {
                    let number = self.place();
                    let broker = Arc::clone(broker);
                    publishing.push(async move { publish(broker.as_ref(), number).await });
                }
                () = tokio::time::sleep(PATIENCE) => return Err(system("a saga did not end")),
            }
        }
        Ok(Latency::of(&histogram))
    }

    fn place(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.placed.insert(number, Instant::now());
        number
    }

    fn ended(&mut self, message: &Message) -> Option<Duration> {
        let token = message.subject.rsplit('.').next()?;
        let number = token.strip_prefix("order-")?.parse().ok()?;
        self.placed.remove(&number).map(|placed| placed.elapsed())
    }
}

/// An event of about 500 bytes.
pub fn event(number: u64) -> Publication {
    let body = format!(
        r#"{{"tenant_id":"bench","event_id":"placed-{number}","event_type":"Placed","aggregate_type":"Order","aggregate_id":"order-{number}","sequence":1,"schema_version":1,"payload":{{"order_id":"order-{number}","customer":{{"id":"customer-{}","name":"Ada Example","email":"ada@example.test"}},"items":[{{"sku":"tea-0001","qty":2,"cents":1250}},{{"sku":"pot-0042","qty":1,"cents":4999}}],"total_cents":7499,"currency":"EUR","note":"please ring twice"}},"metadata":{{"correlation_id":"order-{number}"}},"timestamp":"2026-01-01T00:00:00Z"}}"#,
        number % 1_000
    );
    Publication {
        stream: "AGGREGATE_EVENTS".to_owned(),
        subject: format!("tenant.bench.aggregate.Order.order-{number}"),
        headers: Vec::new(),
        payload: body.into(),
        expect: Expect::Nothing,
    }
}

async fn publish(broker: &dyn Broker, number: u64) -> Result<(), StartError> {
    match broker.publish(event(number)).await {
        Ok(_) => Ok(()),
        Err(error @ (PublishError::Refused(_) | PublishError::AlreadyThere)) => Err(system(error)),
        Err(error) => Err(system(format!("the broker went away: {error}"))),
    }
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000, 3).expect("constant bounds")
}

fn record(histogram: &mut Histogram<u64>, took: Duration) {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    histogram.saturating_record(micros.max(1));
}

/// Ends per window, whole windows only.
struct Windows {
    until: Instant,
    count: u64,
    full: Vec<u64>,
}

impl Windows {
    fn new(begin: Instant) -> Self {
        Self {
            until: begin + WINDOW,
            count: 0,
            full: Vec::new(),
        }
    }

    fn count(&mut self, now: Instant) {
        while now >= self.until {
            self.full.push(std::mem::take(&mut self.count));
            self.until += WINDOW;
        }
        self.count += 1;
    }
}

/// Seconds of one window.
pub const WINDOW_SECONDS: u64 = WINDOW.as_secs();
