//! Stores records in their stream, and deletes from it what is too old or too much.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::super::node::Node;
use super::super::streams;
use crate::kernel::ids::TimeMs;
use crate::kernel::subject;
use crate::ports::broker::{Broker, BrokerError, Expect, Publication, PublishError};
use crate::ports::control::AuditRecord;
use crate::tasks::Task;

/// Records that are stored at a time.
const BATCH: usize = 256;
/// How long it takes until a broker that did not store is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a start waits for the stream.
const PREPARED_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked whether the broker is connected, at the start.
const CONNECTED_AGAIN: Duration = Duration::from_millis(100);
/// How often old records are deleted.
const TRIM_EVERY: Duration = Duration::from_mins(1);

/// Makes the stream before the process is ready, where the broker answers in time: a process that ends at once has it then, too. The
/// start goes on in any case, and [`begin`] tries again.
pub(crate) async fn prepare(node: &Node, broker: &dyn Broker) {
    if !node.manifest.mode.runs_sagas() || node.trail.check().is_none() {
        return;
    }
    let preparing = streams::prepare_audit(broker, &node.manifest);
    let trouble = match tokio::time::timeout(PREPARED_WITHIN, preparing).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!(
            "the broker has not answered within {} s",
            PREPARED_WITHIN.as_secs()
        ),
    };
    tracing::warn!(
        target: "audit",
        trouble,
        "the stream of the audit is not prepared yet: records wait in memory until it is"
    );
}

/// The task that stores.
pub(crate) struct Keeper {
    node: Arc<Node>,
    stop: CancellationToken,
}

/// Stores the records of this process from now on.
pub(crate) fn begin(node: &Arc<Node>) -> Keeper {
    node.trail.queue().is_kept = true;
    let stop = CancellationToken::new();
    let (of_task, told) = (Arc::clone(node), stop.clone());
    node.tasks.keep(Task::Audit, "", move || {
        let (node, told) = (Arc::clone(&of_task), told.clone());
        async move {
            let _until_told = told.run_until_cancelled(keep(&node)).await;
        }
    });
    Keeper {
        node: Arc::clone(node),
        stop,
    }
}

impl Keeper {
    /// Takes nothing more, as there are no more answers, and waits until what waits is stored, for at most `streams.audit.flush_timeout`.
    pub(crate) async fn end(self) {
        let (trail, manifest) = (&self.node.trail, &self.node.manifest);
        trail.queue().is_closed = true;
        if self.node.broker().is_some() {
            trail
                .settle(manifest.streams.audit.flush_timeout.duration())
                .await;
        }
        self.stop.cancel();
        let left = trail.queue().waiting.len();
        if left > 0 {
            trail.dropped("stopped", left as u64);
            tracing::warn!(
                target: "audit",
                left,
                "the process ends and the broker has not stored the last records of the audit; the log has them"
            );
        }
    }
}

async fn keep(node: &Node) {
    let broker = loop {
        if let Some(broker) = node.broker() {
            break broker;
        }
        tokio::time::sleep(CONNECTED_AGAIN).await;
    };
    let mut is_prepared = false;
    let mut trim_at = node.clock.monotonic();
    loop {
        match once(node, &*broker, &mut is_prepared).await {
            Ok(()) => node.trail.set_trouble(None),
            Err(trouble) => {
                tracing::debug!(trouble, "records of the audit are not stored; trying again");
                node.trail.set_trouble(Some(trouble));
                tokio::select! {
                    biased;
                    () = broker.next_connection() => {}
                    () = tokio::time::sleep(AGAIN) => {}
                }
                continue;
            }
        }
        let now = node.clock.monotonic();
        // Who may not make streams may not delete from them.
        if node.manifest.mode.runs_sagas() && now >= trim_at {
            trim_at = now + TRIM_EVERY;
            if let Err(error) = trim(node, &*broker).await {
                tracing::debug!(%error, "old records of the audit are not deleted");
            }
        }
        if node.trail.oldest(1).is_empty() {
            tokio::select! {
                biased;
                () = node.trail.wake.notified() => {}
                () = tokio::time::sleep(TRIM_EVERY) => {}
            }
        }
    }
}

/// Stores what has waited longest; why some of it is still to be stored.
async fn once(node: &Node, broker: &dyn Broker, is_prepared: &mut bool) -> Result<(), String> {
    if !*is_prepared {
        let prepared = streams::prepare_audit(broker, &node.manifest).await;
        prepared.map_err(|error| error.to_string())?;
        *is_prepared = true;
    }
    let records = node.trail.oldest(BATCH);
    let publications = records.iter().map(|record| publication(node, record));
    let ends = join_all(publications.map(|publication| broker.publish(publication))).await;
    let (mut are_done, mut trouble) = (Vec::with_capacity(ends.len()), None);
    for end in ends {
        let is_done = match end {
            Ok(_) | Err(PublishError::AlreadyThere) => {
                node.metrics.audit.stored.inc();
                true
            }
            Err(PublishError::Refused(why)) => {
                node.trail.dropped("refused", 1);
                tracing::warn!(target: "audit", why, "the broker does not take a record of the audit; the log has it");
                true
            }
            Err(error) => {
                trouble.get_or_insert_with(|| error.to_string());
                false
            }
        };
        are_done.push(is_done);
    }
    node.trail.done(&are_done);
    match trouble {
        None => Ok(()),
        Some(trouble) => {
            // Perhaps the stream is gone.
            *is_prepared = false;
            Err(trouble)
        }
    }
}

fn publication(node: &Node, record: &AuditRecord) -> Publication {
    let tenant = record.tenant.as_deref();
    Publication {
        stream: node.manifest.streams.audit.name.clone(),
        subject: subject::audit(&node.manifest.cluster, tenant, &record.action),
        headers: Vec::new(),
        payload: Bytes::from(serde_json::to_vec(record).expect("a record is plain data")),
        expect: Expect::MessageId(record.id.clone()),
    }
}

/// Deletes records that are older than `streams.audit.max_age`, and the oldest of more than `max_bytes` and `max_records`.
async fn trim(node: &Node, broker: &dyn Broker) -> Result<(), BrokerError> {
    let settings = &node.manifest.streams.audit;
    let state = broker.stream_state(&settings.name).await?;
    let mut keep_from = state.first_sequence;
    let too_much = state.bytes.saturating_sub(settings.max_bytes);
    let of_one = (state.bytes / state.messages.max(1)).max(1);
    let by_bytes = too_much.div_ceil(of_one);
    keep_from += state.messages.saturating_sub(settings.max_records).max(by_bytes);
    let age = i64::try_from(settings.max_age.0).unwrap_or(i64::MAX);
    let oldest = TimeMs(state.told.0.saturating_sub(age));
    keep_from = keep_from.max(streams::first_since(broker, &settings.name, &state, oldest).await?);
    if keep_from > state.first_sequence {
        broker
            .trim(&settings.name, keep_from.min(state.last_sequence + 1))
            .await?;
        tracing::debug!(keep_from, "old records of the audit were deleted");
    }
    Ok(())
}
