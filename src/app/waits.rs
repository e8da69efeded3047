//! Waiting until an instance has got somewhere, and hearing what happens to it.
//!
//! Whoever waits is woken by commits that have to do with the instance, and looks at it as it is then. What it has passed through
//! within one commit is not seen; its end always is.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use super::answers;
use super::node::Node;
use super::requests::{Lookout, brief};
use crate::kernel::definition::Definition;
use crate::kernel::ids::InstanceId;
use crate::kernel::record::{Phase, Record};
use crate::ports::control::{Awaited, ControlError, Happened, InstanceBrief, Reached};
use crate::storage::StorageError;
use crate::storage::read::{Bound, Found, Reader};

/// Entries of a history that are read at once.
const ENTRIES_READ: usize = 100;

impl Node {
    /// Waits until an instance has got somewhere.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Invalid`] for what it can never get to,
    /// [`ControlError::Unavailable`] where this process does not work on its shard.
    pub(super) async fn until_reached(
        &self,
        id: &InstanceId,
        generation: Option<u32>,
        awaited: &Awaited,
        time: Duration,
    ) -> Result<Reached, ControlError> {
        let mut lookout = Lookout::new(self.shard(id).await?, id);
        let mut generation = generation;
        let mut time_is_up = pin!(tokio::time::sleep(time));
        loop {
            // Without a limit of its own: also whoever waits for no time is told how things stand.
            let reader = lookout.shard.reader.clone();
            let owned = id.clone();
            let found = self.read_patiently(move || reader.generations(&owned)).await?;
            let reached = self.look(id, &mut generation, awaited, found)?;
            if reached.reached || reached.ended {
                return Ok(reached);
            }
            tokio::select! {
                biased;
                is_open = lookout.look(self) => {
                    if !is_open {
                        return Ok(reached);
                    }
                }
                () = &mut time_is_up => return Ok(reached),
            }
        }
    }

    /// Where the instance is; the generation that is meant is the first one seen.
    fn look(
        &self,
        id: &InstanceId,
        generation: &mut Option<u32>,
        awaited: &Awaited,
        (now, before): (Option<Found>, Option<crate::kernel::record::Summary>),
    ) -> Result<Reached, ControlError> {
        let now = now.ok_or_else(|| ControlError::NotFound(answers::missing(id)))?;
        let meant = *generation.get_or_insert(now.record().generation);
        let current = now.record().generation;
        if current < meant {
            let message = format!("instance {} has no generation {meant}", id.key);
            return Err(ControlError::NotFound(message));
        }
        let before = before.map(Found::Ended);
        let found = if current == meant {
            Some(now)
        } else {
            before
                .clone()
                .filter(|before| before.record().generation == meant)
        };
        let Some(found) = found else {
            // Others came behind it, and nothing is kept of it.
            let newest = before.ok_or_else(|| {
                ControlError::NotFound(format!("generation {meant} of instance {} is not kept", id.key))
            })?;
            return Ok(Reached {
                reached: *awaited == Awaited::End,
                ended: true,
                instance: brief(id, &newest),
            });
        };
        let record = found.record();
        let in_force = self.catalog.now();
        let definition = in_force.sagas.by_hash(&record.definition).map(AsRef::as_ref);
        let ended = matches!(found, Found::Ended(_));
        Ok(Reached {
            reached: is_there(awaited, record, definition, ended)?,
            ended,
            instance: brief(id, &found),
        })
    }

    /// What happens to an instance.
    ///
    /// # Errors
    /// As [`Self::until_reached`].
    pub(super) async fn what_happens(
        self: Arc<Self>,
        id: &InstanceId,
        after: Option<u64>,
        newest: usize,
    ) -> Result<BoxStream<'static, Happened>, ControlError> {
        let lookout = Lookout::new(self.shard(id).await?, id);
        let reader = lookout.shard.reader.clone();
        let owned = id.clone();
        let begin = self
            .read_patiently(move || first(&reader, &owned, after, newest))
            .await?;
        let Some(after) = begin else {
            return Err(ControlError::NotFound(answers::missing(id)));
        };
        let watch = Watch {
            node: self,
            lookout,
            id: id.clone(),
            after,
            told: Vec::new(),
            is_over: false,
        };
        Ok(stream::unfold(watch, Watch::next).boxed())
    }
}

/// Whether the instance is where it is waited for.
fn is_there(
    awaited: &Awaited,
    record: &Record,
    definition: Option<&Definition>,
    ended: bool,
) -> Result<bool, ControlError> {
    match awaited {
        Awaited::End => Ok(ended),
        Awaited::Phase(phase) => {
            if !Phase::ALL.iter().any(|known| known.as_str() == phase) {
                let known: Vec<&str> = Phase::ALL.iter().map(|phase| phase.as_str()).collect();
                let message = format!("no phase {phase:?}: expected {}", known.join(", "));
                return Err(ControlError::Invalid(message));
            }
            Ok(record.phase.as_str() == phase)
        }
        Awaited::Step(name, status) => {
            let Some(definition) = definition else {
                return Ok(false);
            };
            let mut steps = definition.steps.iter().zip(&record.steps);
            let found = steps.find(|(step, _)| step.is_named(name));
            let Some((_, state)) = found else {
                let message = format!("saga {} has no step {name}", definition.name);
                return Err(ControlError::Invalid(message));
            };
            Ok(state.status.as_str() == status)
        }
    }
}

/// The entry behind which a watch begins; `None` without the instance.
fn first(
    reader: &Reader,
    id: &InstanceId,
    after: Option<u64>,
    newest: usize,
) -> Result<Option<u64>, StorageError> {
    let (Some(found), before) = reader.generations(id)? else {
        return Ok(None);
    };
    if after.is_some() {
        return Ok(after);
    }
    let rows = reader.history(found.record().last_history, newest.saturating_add(1))?;
    // One more than is told, if there is one: the watch begins behind it.
    let of_before = || before.and_then(|before| before.record.last_history);
    let begin = rows.get(newest).map(|(sequence, _)| *sequence).or_else(of_before);
    Ok(Some(begin.unwrap_or(0)))
}

/// A watch of the history of an instance.
struct Watch {
    node: Arc<Node>,
    lookout: Lookout,
    id: InstanceId,
    after: u64,
    /// What is still to be told, newest first.
    told: Vec<Happened>,
    is_over: bool,
}

impl Watch {
    /// Tells the next thing. Nothing is read ahead of whoever listens, but for one page.
    async fn next(mut self) -> Option<(Happened, Self)> {
        loop {
            if let Some(happened) = self.told.pop() {
                if let Happened::Entry { id, .. } = &happened {
                    self.after = *id;
                }
                return Some((happened, self));
            }
            if self.is_over {
                return None;
            }
            // Whoever resumes finds what could not be read now.
            let (entries, end) = self.read().await.ok()?;
            if entries.is_empty() && end.is_none() {
                if !self.lookout.look(&self.node).await {
                    return None;
                }
                continue;
            }
            self.is_over = end.is_some();
            self.told = end
                .map(Happened::End)
                .into_iter()
                .chain(entries.into_iter().rev())
                .collect();
        }
    }

    /// The entries behind the last one that was told, oldest first, and the end of the instance behind them.
    async fn read(&self) -> Result<(Vec<Happened>, Option<InstanceBrief>), ControlError> {
        let reader = self.lookout.shard.reader.clone();
        let (id, after) = (self.id.clone(), self.after);
        let bound = Bound {
            items: ENTRIES_READ,
            bytes: self.node.manifest.http.page_bytes_max,
        };
        let read = move || {
            let (now, before) = reader.generations(&id)?;
            // What is left of the generation before comes first.
            let of_before = before.and_then(|before| before.record.last_history);
            if let Some(last) = of_before.filter(|last| *last > after) {
                let (rows, _) = reader.history_behind(Some(last), Some(after), bound)?;
                return Ok((rows, None));
            }
            let Some(now) = now else {
                return Ok((Vec::new(), None));
            };
            let (rows, more) = reader.history_behind(now.record().last_history, Some(after), bound)?;
            let is_end = matches!(now, Found::Ended(_)) && !more;
            Ok((rows, is_end.then_some(now)))
        };
        let (rows, end) = self.node.read_patiently(read).await?;
        let entries = rows.into_iter().map(|(id, row)| Happened::Entry {
            id,
            entry: self.node.history_view(row),
        });
        Ok((entries.collect(), end.map(|found| brief(&self.id, &found))))
    }
}
