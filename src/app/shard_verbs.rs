//! One shard is opened or closed while the others go on.
//!
//! Closing drains it: its readers end, its mailbox is committed, its calls end, its outbox goes as far as the broker takes it,
//! and its owner record says that nothing of it is under way. What is meant for it waits in the streams, which are not trimmed
//! behind its position; opening reads on from there. One change at a time, and none while definitions change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::node::Node;
use super::running::Running;
use super::sagas::{Common, Opened};
use super::shards::Shown;
use super::{StartError, accept, backup, held, streams};
use crate::kernel::input::SourceStream;
use crate::ports::broker::StreamState;
use crate::ports::control::{
    AcceptReport, AcceptRequest, AcceptVerb, Backup, ControlError, PageRequest, ShardControl, ShardView,
};
use crate::ports::held::{HeldReport, HeldRequest, HeldVerb, PendingReport};
use crate::shard::ShardState;
use crate::tasks::Task;

#[async_trait]
impl ShardControl for Node {
    async fn shards(&self) -> Result<Vec<ShardView>, ControlError> {
        list(self).await
    }

    async fn open_shard(&self, shard: u16) -> Result<(), ControlError> {
        Self::open_shard(self, shard).await
    }

    async fn close_shard(&self, shard: u16) -> Result<(), ControlError> {
        let timeout = self.manifest.drain_timeout.duration();
        Self::close_shard(self, shard, timeout).await
    }

    async fn backup(&self, shard: u16) -> Result<Backup, ControlError> {
        let (running, common) = self.with_shards(shard)?;
        let Some(shown) = running.shards.get(shard) else {
            return Err(ControlError::Conflict(format!("shard {shard} is not open here")));
        };
        let epoch = common.keeper.epoch(shard).await.unwrap_or_default();
        backup::take(self, &shown, epoch)
    }

    async fn accept(
        &self,
        shard: u16,
        verb: AcceptVerb,
        request: AcceptRequest,
    ) -> Result<AcceptReport, ControlError> {
        accept::accept(self, shard, verb, request).await
    }

    async fn pending(&self, shard: u16, page: PageRequest) -> Result<PendingReport, ControlError> {
        held::pending(self, shard, page).await
    }

    async fn decide_held(
        &self,
        shard: u16,
        verb: HeldVerb,
        request: HeldRequest,
    ) -> Result<HeldReport, ControlError> {
        held::decide(self, shard, verb, request).await
    }
}

/// How long the folder of a shard may still be open after it was closed, because somebody still reads in it.
const LOCKED_MAX: Duration = Duration::from_secs(5);

impl Node {
    /// Opens a shard that is not open here, and waits for the broker as long as it takes. It ends by itself, even if nobody
    /// waits for it any more.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is open or may not be claimed,
    /// [`ControlError::Unavailable`] where the process does not run sagas, or drains.
    pub async fn open_shard(&self, shard: u16) -> Result<(), ControlError> {
        self.in_background(move |node| async move { node.open_now(shard).await })
            .await
    }

    /// Closes a shard, within about `timeout`. It ends by itself, too.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is not open,
    /// [`ControlError::Unavailable`] where the process does not run sagas, or drains, or where the shard did not stop in time:
    /// then nothing is sent for it any more, and its folder stays open until it does.
    pub async fn close_shard(&self, shard: u16, timeout: Duration) -> Result<(), ControlError> {
        self.in_background(move |node| async move { node.close_now(shard, timeout).await })
            .await
    }

    /// The shards of the cluster that are not open here, ascending; none where no sagas run.
    #[must_use]
    pub fn absent_shards(&self) -> Vec<u16> {
        let running = self.running().filter(|running| running.common.is_some());
        running.map_or_else(Vec::new, |running| running.shards.absent(self.manifest.shards))
    }

    async fn in_background<F>(&self, work: impl FnOnce(Arc<Self>) -> F) -> Result<(), ControlError>
    where
        F: Future<Output = Result<(), ControlError>> + Send + 'static,
    {
        let Some(node) = self.myself() else {
            return Err(ControlError::Unavailable("stopping".to_owned()));
        };
        let aborted = |why: String| Err(ControlError::Unavailable(format!("it was aborted: {why}")));
        match self.tasks.once(Task::Ownership, work(node)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => aborted(panic),
            Err(error) => aborted(error.to_string()),
        }
    }

    async fn open_now(&self, shard: u16) -> Result<(), ControlError> {
        let (running, common) = self.with_shards(shard)?;
        let _same_definitions = self.reloading.lock().await;
        let _alone = running.alone().await;
        if running.shards.has(shard) {
            return Err(ControlError::Conflict(format!("shard {shard} is open")));
        }
        let (opened, streams) = tokio::select! {
            biased;
            () = self.drain_requested() => return Err(ControlError::Unavailable("draining".to_owned())),
            prepared = self.prepare_shard(running, shard) => prepared.map_err(refused)?,
        };
        let epoch = opened.claimed.record.epoch;
        running
            .add(&self.parts(), common, opened, &streams)
            .await
            .map_err(refused)?;
        self.catalog.now().show(&self.metrics);
        tracing::info!(shard, epoch, "shard opened");
        Ok(())
    }

    /// What may take long because of the broker. If it is aborted, it leaves a claim behind, which the same folder may renew.
    async fn prepare_shard(
        &self,
        running: &Running,
        shard: u16,
    ) -> Result<(Opened, [StreamState; 3]), StartError> {
        let broker = &running.broker;
        let streams = self.wait_for_streams(broker.as_ref()).await?;
        let cluster = self.wait_for_cluster(broker.as_ref(), &streams).await?;
        let cluster = cluster.expect("a process with shards runs sagas");
        let claimed = self
            .claim(broker.as_ref(), &cluster, &[shard], LOCKED_MAX)
            .await?;
        let claimed = claimed
            .into_iter()
            .next()
            .expect("what was asked for was claimed");
        let opened = Opened::new(broker, claimed, &streams).await?;
        Ok((opened, streams))
    }

    async fn close_now(&self, shard: u16, timeout: Duration) -> Result<(), ControlError> {
        let (running, common) = self.with_shards(shard)?;
        let _same_definitions = self.reloading.lock().await;
        let _alone = running.alone().await;
        if self.is_draining() {
            return Err(ControlError::Unavailable("draining".to_owned()));
        }
        match running.remove(&self.parts(), common, shard, timeout).await {
            Some(true) => {
                tracing::info!(shard, "shard closed");
                Ok(())
            }
            Some(false) => Err(ControlError::Unavailable(format!(
                "shard {shard} did not stop in time; nothing is sent for it any more, and it can be opened again once it has stopped"
            ))),
            None => Err(ControlError::Conflict(format!("shard {shard} is not open"))),
        }
    }

    fn with_shards(&self, shard: u16) -> Result<(&Running, &Common), ControlError> {
        let running = self.running_or_unavailable()?;
        let common = running
            .common
            .as_ref()
            .expect("a process with a cluster has shards");
        if shard >= self.manifest.shards {
            return Err(ControlError::NotFound(format!("no shard {shard}")));
        }
        Ok((running, common))
    }
}

/// All shards of the cluster.
async fn list(node: &Node) -> Result<Vec<ShardView>, ControlError> {
    let running = node.running_or_unavailable()?;
    let (_, common) = node.with_shards(0)?;
    let mut views = Vec::with_capacity(usize::from(node.manifest.shards));
    for shard in 0..node.manifest.shards {
        views.push(match running.shards.get(shard) {
            Some(shown) => open(node, &shown),
            None => ShardView {
                shard,
                open: false,
                state: "absent",
                reason: None,
                owner: Some(common.absent.owner(shard).await),
                positions: match common.absent.positions(shard).await {
                    Ok(recorded) => positions(node, recorded),
                    Err(_) => BTreeMap::new(),
                },
            },
        });
    }
    Ok(views)
}

fn open(node: &Node, shown: &Shown) -> ShardView {
    let (state, reason) = match shown.status.state() {
        ShardState::Running => ("running", None),
        ShardState::Full(message) => ("full", Some(message)),
        ShardState::Halted { reason, message } => ("halted", Some(format!("{reason}: {message}"))),
        ShardState::Stopped => ("stopped", None),
    };
    ShardView {
        shard: shown.index,
        open: true,
        state,
        reason,
        owner: None,
        positions: positions(node, shown.status.positions()),
    }
}

fn positions(node: &Node, at: [u64; 3]) -> BTreeMap<String, u64> {
    SourceStream::ALL
        .into_iter()
        .map(|stream| {
            (
                streams::name(&node.manifest, stream).to_owned(),
                at[stream.index()],
            )
        })
        .collect()
}

/// Why a shard could not be opened, for whoever wanted it.
fn refused(error: StartError) -> ControlError {
    match error {
        StartError::Lost(_) | StartError::Owned(_) | StartError::Older(_) | StartError::Foreign(_) => {
            ControlError::Conflict(error.to_string())
        }
        error => ControlError::Unavailable(error.to_string()),
    }
}
