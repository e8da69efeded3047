//! Jobs: one verb for many instances, or dead letters ([`letters`]).
//!
//! ```text
//! stored ──▶ selecting: the index of each shard is walked, and what the filter selects is stored in chunks
//!              │
//!              ▼
//!            running: chunk by chunk, a message to each instance; then the history says the outcome of it
//!              │
//!              ▼
//!            completed, stopped or failed
//! ```
//!
//! Everything that a job is lies in the broker ([`record`]), so any process goes on where another one was killed. One carries it on
//! at a time: it has a lease in the record, and every write expects the revision of the one before. The message to an instance has
//! an id that derives from job and instance, and an instance applies an id once; what the history of an instance has already is not
//! sent again. Nothing is sent before the selection is whole, so what the job changes is not selected by it.

mod carry;
mod letters;
mod orders;
mod pace;
mod record;
mod select;
mod send;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use uuid::Uuid;

use super::node::Node;
use crate::tasks::Task;
use carry::Carried;
use record::{Entries, Listed, Trouble};

/// How often a process looks for jobs that nobody carries on.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a drain waits for jobs to leave their lease.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Begins to carry on jobs, in a process that runs sagas.
pub(super) fn begin(node: &Arc<Node>) {
    if !node.manifest.mode.runs_sagas() {
        return;
    }
    let holder: Arc<str> = Uuid::from_u128(node.randomness.draw())
        .simple()
        .to_string()
        .into();
    let me = Arc::downgrade(node);
    node.tasks.keep(Task::Jobs, "", move || {
        let (node, holder) = (me.upgrade(), Arc::clone(&holder));
        async move {
            if let Some(node) = node {
                look(&node, &holder).await;
            }
        }
    });
}

/// Looks for jobs to carry on, until the drain.
async fn look(node: &Arc<Node>, holder: &str) {
    let (mut carried, mut ids) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        for listed in open(node).await {
            if ids.insert(listed.id.clone()) {
                carried.push(carry_on(node, holder, listed));
            }
        }
        let look_again = tokio::time::sleep(LOOK_EVERY);
        tokio::pin!(look_again);
        loop {
            tokio::select! {
                biased;
                () = node.drain.cancelled() => {
                    let all = async { while carried.next().await.is_some() {} };
                    // Who waits longer leaves its lease to expire.
                    let _in_time = tokio::time::timeout(LEAVE_MAX, all).await;
                    return;
                }
                Some(id) = carried.next(), if !carried.is_empty() => {
                    ids.remove(&id);
                }
                () = &mut look_again => break,
            }
        }
    }
}

/// The jobs that have not ended, as far as the broker says.
async fn open(node: &Node) -> Vec<Listed> {
    let Some(broker) = node.broker() else {
        return Vec::new();
    };
    let entries = Entries {
        broker: broker.as_ref(),
        manifest: &node.manifest,
    };
    match entries.list().await {
        Ok((list, _)) => list.jobs.into_iter().filter(|job| !job.ended).collect(),
        Err(error) => {
            tracing::debug!(%error, "cannot look for jobs");
            Vec::new()
        }
    }
}

/// Carries on one job as far as this process can; gives its id.
async fn carry_on(node: &Node, holder: &str, listed: Listed) -> String {
    let ended = match Carried::take(node, holder, &listed).await {
        Ok(Some(mut job)) => {
            let running = &node.metrics.jobs.running;
            running.inc();
            let ended = job.run().await;
            running.dec();
            ended
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match ended {
        Ok(()) | Err(Trouble::Lost | Trouble::Drains) => {}
        Err(error) => tracing::warn!(job = listed.id, %error, "job cannot go on; trying again"),
    }
    listed.id
}
