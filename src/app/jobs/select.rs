//! Which instances a job is about: the walk over the index of each shard, by the code that lists instances.

use std::mem::size_of;

use super::carry::Carried;
use super::letters;
use super::record::{Chunk, Ended, Trouble};
use crate::api::search::FilterParameters;
use crate::app::cursors::{read_place, write_place};
use crate::app::node::Node;
use crate::app::search;
use crate::kernel::ids::{Key, SagaName, TenantId, shard_of};
use crate::ports::control::{
    ControlError, InstanceFilter, InstanceSummary, JobFilter, JobInstance, JobOrder, JobPlan, JobVerb,
    PageRequest,
};

/// Instances of one page.
pub(super) const PAGE: usize = 500;
/// Bytes of names in one chunk; an entry of the broker has at most 64 KiB.
pub(super) const CHUNK_BYTES_MAX: usize = 32 * 1024;
/// Instances that a dry run names.
pub(super) const SHOWN_MAX: usize = 20;

/// The filter of a stored order, read by the code that reads the query of a list.
fn filter_of(order: &JobOrder) -> Result<InstanceFilter, ControlError> {
    let parameters = FilterParameters::read(&order.filter).and_then(FilterParameters::filter);
    parameters.map_err(|problem| ControlError::Invalid(problem.detail))
}

/// Whether an instance that the filter selects can be meant: a request to a key goes to its last generation, whatever earlier ones
/// were; and only what has ended is deleted.
fn is_meant(order: &JobOrder, item: &InstanceSummary) -> bool {
    item.last_generation && (order.verb != JobVerb::Delete || item.ended.is_some())
}

/// Counts what a job would be about, and names the first.
pub(super) async fn plan(
    node: &Node,
    tenant: &TenantId,
    order: &JobOrder,
    filter: JobFilter,
) -> Result<JobPlan, ControlError> {
    let most = u64::from(node.manifest.jobs.instances_max);
    let mut plan = JobPlan {
        dry_run: true,
        verb: order.verb,
        selected: 0,
        too_many: false,
        instances: Vec::new(),
        letters: Vec::new(),
        absent_shards: Vec::new(),
    };
    let filter = match filter {
        JobFilter::Instances(filter) => filter,
        JobFilter::Letters(filter) => return letters::plan(node, tenant, plan, filter).await,
    };
    let mut after = None;
    loop {
        let page = PageRequest::new(after, PAGE);
        let found = search::search(node, tenant, filter.clone(), page).await?;
        plan.absent_shards = found.absent_shards;
        for item in found.items.into_iter().filter(|item| is_meant(order, item)) {
            plan.selected += 1;
            if plan.instances.len() < SHOWN_MAX {
                plan.instances.push(JobInstance {
                    saga: item.saga,
                    key: item.key,
                    phase: item.phase,
                });
            }
        }
        after = found.next;
        plan.too_many = plan.selected > most;
        if plan.too_many || after.is_none() {
            plan.selected = plan.selected.min(most);
            return Ok(plan);
        }
    }
}

impl Carried<'_> {
    /// Takes one page of the selection. Whether the job goes on here.
    pub async fn select_page(&mut self) -> Result<bool, Trouble> {
        self.renew().await?;
        let shard = self.record.selection.shard;
        if shard >= self.node.manifest.shards {
            self.record.selection.is_whole = true;
            self.save().await?;
            return Ok(true);
        }
        let running = self.node.running_or_unavailable()?;
        if running.shards.get(shard).is_none() {
            self.leave(Some(shard)).await?;
            return Ok(false);
        }
        let after = self.record.selection.after.clone();
        let after = after.unwrap_or_else(|| write_place(shard, None));
        let page = PageRequest::new(Some(after), PAGE);
        let filter = filter_of(&self.record.order)?;
        let found = search::search(self.node, &self.record.tenant, filter, page).await?;
        let mut names = Vec::with_capacity(found.items.len());
        let order = &self.record.order;
        for item in found.items.into_iter().filter(|item| is_meant(order, item)) {
            let (Ok(saga), Ok(key)) = (SagaName::parse(&item.saga), Key::parse(&item.key)) else {
                continue;
            };
            let is_of_shard = shard_of(&self.record.tenant, &key, self.node.manifest.shards) == shard;
            if is_of_shard && self.met.insert((saga.clone(), key.clone())) {
                names.push((saga, key));
            }
        }
        let most = u64::from(self.node.manifest.jobs.instances_max);
        let selected = self.record.selection.selected + names.len() as u64;
        if selected > most {
            let message = format!(
                "the filter selects more than {most} instances (jobs.instances_max); nothing was sent"
            );
            self.end(Ended::Failed, message).await?;
            return Ok(false);
        }
        for instances in split(names) {
            let job = self.record.id.clone();
            let chunk = Chunk {
                job,
                instances,
                ..Chunk::default()
            };
            let number = self.record.selection.chunks;
            self.entries().put_chunk(self.slot, number, &chunk).await?;
            self.record.selection.chunks += 1;
        }
        self.record.selection.selected = selected;
        let next = found
            .next
            .map(|next| Ok::<_, ControlError>((read_place(&next)?.0, next)));
        match next.transpose()? {
            Some((of, next)) if of == shard => self.record.selection.after = Some(next),
            Some(_) | None => {
                self.record.selection.after = None;
                self.record.selection.shard = shard + 1;
                self.met.clear();
            }
        }
        self.save().await?;
        Ok(true)
    }
}

/// Chunks that fit an entry.
fn split(names: Vec<(SagaName, Key)>) -> Vec<Vec<(SagaName, Key)>> {
    let (mut chunks, mut bytes) = (Vec::new(), CHUNK_BYTES_MAX);
    for (saga, key) in names {
        let more = saga.as_str().len() + key.as_str().len() + size_of::<[u64; 2]>();
        if bytes + more > CHUNK_BYTES_MAX {
            chunks.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(last) = chunks.last_mut() {
            last.push((saga, key));
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_fits_an_entry_and_nothing_is_left_out() {
        let saga = SagaName::parse("order").expect("legal");
        let key = |n: usize| Key::parse(&format!("{n:0200}")).expect("legal");
        let names: Vec<_> = (0..500).map(|n| (saga.clone(), key(n))).collect();
        let chunks = split(names.clone());
        assert!(chunks.len() > 1);
        for instances in &chunks {
            let chunk = Chunk {
                job: "job-1".to_owned(),
                instances: instances.clone(),
                ..Chunk::default()
            };
            let bytes = serde_json::to_vec(&chunk).expect("JSON").len();
            assert!(bytes < crate::ports::broker::ENTRY_VALUE_BYTES_MAX, "{bytes}");
        }
        assert_eq!(chunks.concat(), names);
        assert_eq!(split(Vec::new()), Vec::<Vec<_>>::new());
    }
}
