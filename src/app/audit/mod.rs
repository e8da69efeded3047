//! The audit: records of requests for changes on their way to a stream of the broker, and back to whoever asks for them.
//!
//! A record waits in memory until the broker has it ([`Trail`]); one task stores them in their order and deletes what is too old
//! ([`begin`]). An answer waits for its record while the broker stores them, so a kill takes no record of what was answered; no
//! request is refused because the broker is away (ADR 215).

mod read;
mod signal;
mod store;

pub(super) use signal::reload as reload_by_signal;
pub(super) use store::{begin, prepare};

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};

use super::node::Node;
use super::ownership::host;
use crate::ports::clock::Clock;
use crate::ports::control::{Audit, AuditFilter, AuditRecord, ControlError, Page, PageRequest};
use crate::telemetry::Metrics;

/// Records of requests without valid credentials that are taken in [`ANONYMOUS_WITHIN`]: whoever may not use the API must not push
/// out the records of those who may.
const ANONYMOUS_MAX: u32 = 60;
const ANONYMOUS_WITHIN: Duration = Duration::from_mins(1);
/// How long an answer waits for its record in a process that drains: it ends once nothing is in progress, and gives its clients half a
/// second then.
const ENDING_MAX: Duration = Duration::from_millis(250);

/// The records of this process that are not stored yet.
pub(super) struct Trail {
    queue: Mutex<Queue>,
    queue_max: usize,
    /// Told of each new record.
    wake: Notify,
    /// Records that have left the queue, stored or not.
    handled: watch::Sender<u64>,
    process: String,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<AuditRecord>>,
    /// Records that were ever taken.
    taken: u64,
    /// Somebody stores them.
    is_kept: bool,
    /// Nothing is taken any more.
    is_closed: bool,
    /// Why they cannot be stored, if they cannot.
    trouble: Option<String>,
    /// When the time began in which anonymous requests are counted, and how many came since.
    anonymous: (Duration, u32),
}

impl Trail {
    pub(super) fn new(queue_max: usize, metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Self {
        Self {
            queue: Mutex::default(),
            queue_max,
            wake: Notify::new(),
            handled: watch::Sender::new(0),
            process: format!("{}/{}", host(), std::process::id()),
            metrics: Arc::clone(metrics),
            clock: Arc::clone(clock),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, mut record: AuditRecord) {
        record.process.clone_from(&self.process);
        let now = self.clock.monotonic();
        let mut queue = self.queue();
        let reason = if is_anonymous(&record) && !queue.admits_anonymous(now) {
            "anonymous"
        } else if queue.is_closed {
            "stopped"
        } else if queue.waiting.len() >= self.queue_max {
            "queue"
        } else {
            queue.waiting.push_back(Arc::new(record));
            queue.taken += 1;
            self.metrics.audit.waiting.inc();
            drop(queue);
            self.wake.notify_one();
            return;
        };
        drop(queue);
        self.dropped(reason, 1);
    }

    fn dropped(&self, reason: &str, count: u64) {
        let dropped = &self.metrics.audit.dropped;
        dropped.with_label_values(&[reason]).inc_by(count);
    }

    /// The oldest records that wait.
    fn oldest(&self, count: usize) -> Vec<Arc<AuditRecord>> {
        self.queue().waiting.iter().take(count).cloned().collect()
    }

    /// Lets those of the oldest records go that need not be tried again, which `are_done` tells in their order.
    fn done(&self, are_done: &[bool]) {
        let mut queue = self.queue();
        let tried: Vec<_> = queue.waiting.drain(..are_done.len()).collect();
        let undone = tried.into_iter().zip(are_done).filter(|(_, is_done)| !**is_done);
        for (record, _) in undone.rev() {
            queue.waiting.push_front(record);
        }
        drop(queue);
        let count = are_done.iter().filter(|is_done| **is_done).count();
        self.metrics
            .audit
            .waiting
            .sub(i64::try_from(count).unwrap_or(i64::MAX));
        self.handled.send_modify(|handled| *handled += count as u64);
    }

    fn set_trouble(&self, trouble: Option<String>) {
        self.queue().trouble = trouble;
    }

    /// Whether records are stored, or why not; none where nobody stores them.
    pub(super) fn check(&self) -> Option<Result<String, String>> {
        let queue = self.queue();
        let waiting = queue.waiting.len();
        queue.is_kept.then(|| match &queue.trouble {
            None => Ok(format!("{waiting} record(s) wait")),
            Some(trouble) => Err(format!("{waiting} record(s) wait: {trouble}")),
        })
    }

    /// Whether somebody stores records, and the last attempt held.
    fn is_storing(&self) -> bool {
        let queue = self.queue();
        queue.is_kept && !queue.is_closed && queue.trouble.is_none()
    }

    /// Waits until the records that wait now are handled, for at most `patience`.
    async fn settle(&self, patience: Duration) {
        let taken = self.queue().taken;
        let mut handled = self.handled.subscribe();
        // Whoever reads then sees what is stored by now.
        let _in_time = tokio::time::timeout(patience, handled.wait_for(|handled| *handled >= taken)).await;
    }
}

impl Queue {
    fn admits_anonymous(&mut self, now: Duration) -> bool {
        let (began, count) = &mut self.anonymous;
        if now.saturating_sub(*began) >= ANONYMOUS_WITHIN {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        *count <= ANONYMOUS_MAX
    }
}

/// Whether a request was refused that has no known principal: without valid credentials, or with a token that is none.
fn is_anonymous(record: &AuditRecord) -> bool {
    let is_refused = record.status.is_none_or(|status| (400..500).contains(&status));
    record.status == Some(401) || record.role == "open" && is_refused
}

#[async_trait]
impl Audit for Node {
    fn audit(&self, record: AuditRecord) {
        self.trail.take(record);
    }

    async fn audit_stored(&self) {
        let patience = self.manifest.streams.audit.wait_max.duration();
        // Before the broker was reached for the first time nothing is stored, and a drain is answered at once.
        if self.broker().is_none() || !self.trail.is_storing() || patience.is_zero() {
            return;
        }
        let ends = async {
            self.drain.cancelled().await;
            tokio::time::sleep(ENDING_MAX).await;
        };
        tokio::select! {
            biased;
            () = self.trail.settle(patience) => {}
            () = ends => {}
        }
    }

    async fn audited(
        &self,
        filter: AuditFilter,
        page: PageRequest,
    ) -> Result<Page<AuditRecord>, ControlError> {
        read::page(self, filter, page).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::SystemClock;
    use crate::ports::control::AuditOutcome;

    fn trail(queue_max: usize) -> Trail {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Trail::new(queue_max, &Arc::new(Metrics::new()), &clock)
    }

    fn record(id: u32, status: u16) -> AuditRecord {
        AuditRecord {
            id: id.to_string(),
            time: "2026-11-26T03:00:00Z".to_owned(),
            principal: None,
            by: None,
            role: "operator".to_owned(),
            peer: None,
            method: "POST".to_owned(),
            endpoint: "/admin/drain".to_owned(),
            action: "drain".to_owned(),
            tenant: None,
            target: std::collections::BTreeMap::new(),
            reason: None,
            dry_run: false,
            request_id: None,
            trace_id: None,
            status: Some(status),
            outcome: AuditOutcome::of(Some(status)),
            code: None,
            process: String::new(),
        }
    }

    fn ids(trail: &Trail) -> Vec<String> {
        let waiting = trail.oldest(100);
        waiting.iter().map(|record| record.id.clone()).collect()
    }

    fn dropped(trail: &Trail, reason: &str) -> u64 {
        trail.metrics.audit.dropped.with_label_values(&[reason]).get()
    }

    #[test]
    fn records_that_do_not_fit_are_counted_and_those_that_wait_keep_their_order() {
        let trail = trail(3);
        for id in 0..5 {
            trail.take(record(id, 200));
        }
        assert_eq!(ids(&trail), ["0", "1", "2"]);
        assert_eq!(dropped(&trail, "queue"), 2);
        // The second one could not be stored.
        trail.done(&[true, false, true]);
        assert_eq!(ids(&trail), ["1"]);
        trail.take(record(5, 200));
        assert_eq!(ids(&trail), ["1", "5"]);
        assert_eq!(trail.metrics.audit.waiting.get(), 2);
    }

    #[test]
    fn an_answer_waits_for_its_record_only_while_records_are_stored() {
        let trail = trail(3);
        assert!(!trail.is_storing());
        trail.queue().is_kept = true;
        assert!(trail.is_storing());
        trail.set_trouble(Some("the broker is away".to_owned()));
        assert!(!trail.is_storing());
        trail.set_trouble(None);
        trail.queue().is_closed = true;
        assert!(!trail.is_storing());
    }

    #[test]
    fn guesses_of_tokens_do_not_push_out_the_records_of_others() {
        let trail = trail(1_000);
        for id in 0..100 {
            trail.take(record(id, 401));
        }
        for id in 100..200 {
            trail.take(record(id, 403));
        }
        assert_eq!(dropped(&trail, "anonymous"), 40);
        assert_eq!(trail.oldest(1_000).len(), 160);
    }
}
