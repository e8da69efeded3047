//! What people ask of jobs: to plan, start, show and command them.

use std::cmp::Reverse;

use async_trait::async_trait;
use uuid::Uuid;

use super::record::{End, Ended, Entries, JobRecord, Listed, Progress, Selection, Trouble};
use super::select::plan;
use super::send::{message, target};
use crate::app::node::Node;
use crate::config::{JOB_RATE_MAX, JOB_RATE_MIN};
use crate::kernel::envelope::ControlVerb;
use crate::kernel::envelope::Principal;
use crate::kernel::ids::TenantId;
use crate::kernel::input::Verdict;
use crate::ports::broker::{Broker, PutError};
use crate::ports::control::{
    ControlError, InstanceFilter, JobCommand, JobFilter, JobOrder, JobPlan, JobRequest, JobVerb, JobView,
    Jobs,
};

/// How often a write is tried where somebody else was faster.
const TRIES: usize = 10;

#[async_trait]
impl Jobs for Node {
    async fn plan_job(&self, tenant: &TenantId, request: JobRequest) -> Result<JobPlan, ControlError> {
        let order = self.checked(request.order, &request.filter)?;
        plan(self, tenant, &order, request.filter).await
    }

    async fn start_job(&self, tenant: &TenantId, request: JobRequest) -> Result<JobView, ControlError> {
        let order = self.checked(request.order, &request.filter)?;
        let broker = self
            .broker()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        let entries = self.entries(broker.as_ref());
        let id = match &request.key {
            None => format!("job-{}", Uuid::from_u128(self.randomness.draw()).simple()),
            Some(key) => named(tenant, key),
        };
        if request.key.is_some() {
            match find(&entries, tenant, &id).await {
                Ok((_, there, _)) => return repeated(there, &order),
                Err(ControlError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let listed = self.reserve(&entries, tenant, &id).await?;
        let record = JobRecord {
            id,
            tenant: tenant.clone(),
            order,
            created: listed.created,
            command: JobCommand::Resume,
            said: String::new(),
            lease: None,
            waits_for_shard: None,
            selection: Selection::default(),
            progress: Progress::default(),
            end: None,
        };
        let before = match entries.record(listed.slot).await? {
            // The same request was made twice at a time.
            Some((there, _)) if there.id == record.id => return repeated(there, &record.order),
            before => before.map(|(_, revision)| revision),
        };
        let put = entries.put_record(listed.slot, &record, before).await;
        put.map_err(|error| ControlError::Unavailable(error.to_string()))?;
        audit(&record, "start", &record.order.principal);
        Ok(record.view())
    }

    async fn jobs(&self, tenant: &TenantId) -> Result<Vec<JobView>, ControlError> {
        let broker = self
            .broker()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        let entries = self.entries(broker.as_ref());
        let (mut list, _) = entries.list().await?;
        list.jobs.sort_by_key(|job| Reverse(job.created));
        let mut found = Vec::new();
        for listed in list.jobs.into_iter().filter(|job| job.tenant == *tenant) {
            let record = entries.record(listed.slot).await?;
            found.extend(record.filter(|(record, _)| record.id == listed.id));
        }
        Ok(found.into_iter().map(|(record, _)| record.view()).collect())
    }

    async fn job(&self, tenant: &TenantId, id: &str) -> Result<JobView, ControlError> {
        let broker = self
            .broker()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        let (_, record, _) = find(&self.entries(broker.as_ref()), tenant, id).await?;
        Ok(record.view())
    }

    async fn command_job(
        &self,
        tenant: &TenantId,
        id: &str,
        command: JobCommand,
        principal: Principal,
    ) -> Result<JobView, ControlError> {
        principal
            .check()
            .map_err(|message| ControlError::Invalid(message.to_owned()))?;
        let broker = self
            .broker()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        let entries = self.entries(broker.as_ref());
        for _ in 0..TRIES {
            let (slot, mut record, revision) = find(&entries, tenant, id).await?;
            if let Some(End { how, .. }) = &record.end {
                return Err(ControlError::Conflict(format!(
                    "job {id} has ended: it is {}",
                    how.as_str()
                )));
            }
            if record.command == command || record.command == JobCommand::Stop {
                let message = match record.command {
                    JobCommand::Stop => format!("job {id} is being stopped"),
                    JobCommand::Pause => format!("job {id} is paused already"),
                    JobCommand::Resume => format!("job {id} is not paused"),
                };
                return Err(ControlError::Conflict(message));
            }
            record.command = command;
            record.said = said(command, &principal);
            if command == JobCommand::Stop && record.lease.is_none() {
                // Nobody is at it.
                record.end = Some(End {
                    how: Ended::Stopped,
                    message: record.said.clone(),
                    time: self.clock.now(),
                });
            }
            match entries.put_record(slot, &record, Some(revision)).await {
                Ok(_) => {
                    audit(&record, command.as_str(), &principal);
                    return Ok(record.view());
                }
                Err(PutError::Conflict) => {}
                Err(error) => return Err(ControlError::Unavailable(error.to_string())),
            }
        }
        Err(ControlError::Unavailable(format!(
            "job {id} changes all the time: try again"
        )))
    }
}

impl Node {
    fn entries<'b>(&'b self, broker: &'b dyn Broker) -> Entries<'b> {
        Entries {
            broker,
            manifest: &self.manifest,
        }
    }

    /// Says what is wrong with an order, and fills in what it does not say.
    fn checked(&self, mut order: JobOrder, filter: &JobFilter) -> Result<JobOrder, ControlError> {
        let invalid = |message: &str| Err(ControlError::Invalid(message.to_owned()));
        if order.principal.reason.trim().is_empty() {
            return invalid("a job needs a `reason`");
        }
        order
            .principal
            .check()
            .map_err(|message| ControlError::Invalid(message.to_owned()))?;
        let of_letters = order.verb.is_about_letters();
        if order.filter.is_empty() && !(of_letters && order.options.all) {
            return invalid(if of_letters {
                "a job needs a `filter`: say which dead letters are meant, or `all`"
            } else {
                "a job needs a `filter`: say which instances are meant"
            });
        }
        if order.options.all && !order.filter.is_empty() {
            return invalid("`all` is for no `filter`: leave one of them out");
        }
        if order.rate == 0 {
            order.rate = self.manifest.jobs.rate;
        }
        if !(JOB_RATE_MIN..=JOB_RATE_MAX).contains(&order.rate) {
            return Err(ControlError::Invalid(format!(
                "`rate` is {JOB_RATE_MIN} to {JOB_RATE_MAX} instances or dead letters a second"
            )));
        }
        let options = &order.options;
        let foreign = [
            ("mode", options.mode.is_some() && order.verb != JobVerb::Cancel),
            ("ended", options.ended && order.verb != JobVerb::Retry),
            (
                "step",
                options.step.is_some() && !matches!(order.verb, JobVerb::Retry | JobVerb::Skip),
            ),
            ("as", options.found.is_some() && order.verb != JobVerb::Skip),
            ("to", options.to.is_some() && order.verb != JobVerb::Migrate),
            ("all", options.all && !of_letters),
        ];
        if let Some((name, _)) = foreign.into_iter().find(|(_, is_foreign)| *is_foreign) {
            return Err(ControlError::Invalid(format!(
                "a job to {} takes no `{name}`",
                order.verb.as_str()
            )));
        }
        if options.ended && options.step.is_some() {
            return invalid("`ended` is about whole instances: leave out `step`");
        }
        let filter = match filter {
            JobFilter::Instances(filter) => filter,
            JobFilter::Letters(_) => return Ok(order),
        };
        if order.verb == JobVerb::Migrate {
            self.check_target(&order, filter)?;
            return Ok(order);
        }
        let said = message(&order, "job")?;
        if let ControlVerb::Skip(stuck) = said.verb {
            let decided = stuck.decide(Verdict::Skip, order.principal.clone());
            decided.map_err(|message| ControlError::Invalid(message.to_owned()))?;
        }
        Ok(order)
    }

    fn check_target(&self, order: &JobOrder, filter: &InstanceFilter) -> Result<(), ControlError> {
        let Some(to) = target(order) else {
            let message =
                "a job to migrate needs `to`: the hash of the version, as `definition list` shows it";
            return Err(ControlError::Invalid(message.to_owned()));
        };
        let in_force = self.catalog.now();
        let Some(version) = in_force.sagas.by_hash(&to) else {
            return Err(ControlError::NotFound(format!("definition {to} is not loaded")));
        };
        if filter.saga.as_ref() != Some(&version.name) {
            return Err(ControlError::Invalid(format!(
                "definition {to} is one of saga {}: the filter must name this saga",
                version.name
            )));
        }
        Ok(())
    }

    /// Finds a place for a new job among those that are kept.
    async fn reserve(
        &self,
        entries: &Entries<'_>,
        tenant: &TenantId,
        id: &str,
    ) -> Result<Listed, ControlError> {
        let settings = &self.manifest.jobs;
        for _ in 0..TRIES {
            let (mut list, revision) = entries.list().await?;
            // Whoever had this place for it before did not come to write the record.
            if let Some(listed) = list.jobs.iter().find(|job| job.id == id) {
                return Ok(listed.clone());
            }
            let open = list.jobs.iter().filter(|job| !job.ended).count();
            if open >= usize::from(settings.active_max) {
                return Err(ControlError::Conflict(format!(
                    "{open} jobs are in progress, as many as may be (jobs.active_max): wait for one, or stop one"
                )));
            }
            let used: Vec<u16> = list.jobs.iter().map(|job| job.slot).collect();
            let free = (0..settings.kept_max).find(|slot| !used.contains(slot));
            let slot = if let Some(slot) = free {
                slot
            } else {
                let ended = list.jobs.iter().filter(|job| job.ended);
                let oldest = ended.min_by_key(|job| job.created).map(|job| job.slot);
                let Some(oldest) = oldest else {
                    let message = "all jobs that are kept are in progress (jobs.kept_max)";
                    return Err(ControlError::Conflict(message.to_owned()));
                };
                list.jobs.retain(|job| job.slot != oldest);
                oldest
            };
            let listed = Listed {
                id: id.to_owned(),
                slot,
                tenant: tenant.clone(),
                created: self.clock.now(),
                ended: false,
            };
            list.jobs.push(listed.clone());
            match entries.put_list(&list, revision).await {
                Ok(_) => return Ok(listed),
                Err(PutError::Conflict) => {}
                Err(error) => return Err(Trouble::from(error).into()),
            }
        }
        Err(ControlError::Unavailable(
            "the list of jobs changes all the time: try again".to_owned(),
        ))
    }
}

/// The id of the job that a request with this key has started.
fn named(tenant: &TenantId, key: &str) -> String {
    let hash = blake3::hash(format!("{tenant}/{key}").as_bytes()).to_hex();
    format!("job-{}", &hash[..32])
}

/// What a repeated start is answered.
fn repeated(there: JobRecord, order: &JobOrder) -> Result<JobView, ControlError> {
    if there.order == *order {
        return Ok(there.view());
    }
    let message = "the Idempotency-Key was used before, for another job";
    Err(ControlError::Mismatch(message.to_owned()))
}

async fn find(
    entries: &Entries<'_>,
    tenant: &TenantId,
    id: &str,
) -> Result<(u16, JobRecord, u64), ControlError> {
    let (list, _) = entries.list().await?;
    let mut listed = list.jobs.into_iter();
    let missing = || ControlError::NotFound(format!("no job {id}: it never was, or is not kept any more"));
    let listed = listed
        .find(|job| job.id == id && job.tenant == *tenant)
        .ok_or_else(missing)?;
    let record = entries.record(listed.slot).await?;
    let (record, revision) = record.filter(|(record, _)| record.id == id).ok_or_else(missing)?;
    Ok((listed.slot, record, revision))
}

/// Who said what to a job, for people.
fn said(command: JobCommand, principal: &Principal) -> String {
    let verb = match command {
        JobCommand::Pause => "paused",
        JobCommand::Resume => "resumed",
        JobCommand::Stop => "stopped",
    };
    let by = if principal.who.is_empty() {
        String::new()
    } else {
        format!(" by {}", principal.who)
    };
    let why = if principal.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", principal.reason)
    };
    format!("{verb}{by}{why}")
}

fn audit(record: &JobRecord, what: &str, principal: &Principal) {
    tracing::info!(
        target: "audit",
        what,
        job = record.id,
        verb = record.order.verb.as_str(),
        tenant = %record.tenant,
        filter = ?record.order.filter,
        rate = record.order.rate,
        by = principal.who,
        role = principal.role.as_str(),
        reason = principal.reason,
        "job commanded"
    );
}
