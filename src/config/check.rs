//! What in a manifest contradicts itself, although each key of it can be read.

use super::manifest::{Dispatch, Manifest, Mode, TenantList};
use super::secret::SecretReference;
use super::{BrokerKind, Refusal, limits};
use crate::effects::consumers::{Delivery, Grouping, PUSHED_MAX};
use crate::kernel::ids::{SagaName, TenantId};

/// Fewest and most shards of a cluster.
const SHARDS: std::ops::RangeInclusive<u16> = 1..=1024;
/// What contradicts itself.
pub(super) const CONTRADICTION: &str = "SR0403";
/// An address that others can reach, without anything that authenticates.
const EXPOSED: &str = "SR0412";

impl Manifest {
    /// All that is refused of the manifest by itself.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let contradictions = self.contradictions().into_iter();
        let mut found: Vec<Refusal> = contradictions
            .map(|sentence| Refusal::sentence(CONTRADICTION, &sentence))
            .collect();
        found.extend(self.http.exposed().map(|(key, listen)| {
            let told = "can be reached from other machines, and anyone who reaches the API may do everything: listen on 127.0.0.1, set http.authentication: tokens or jwt, or say in_front where only authenticated requests get there";
            Refusal::sentence(EXPOSED, &format!("{key} {listen} {told}"))
        }));
        found
    }

    /// All contradictions, each a sentence that begins with the key that it is about.
    fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        let names = [
            ("cluster", Some(self.cluster.as_str())),
            ("group", self.group.as_deref()),
        ];
        for (key, name) in names.into_iter().filter_map(|(key, name)| Some((key, name?))) {
            found.extend(SagaName::parse(name).err().map(|error| format!("{key}: {error}")));
        }
        if !SHARDS.contains(&self.shards) {
            found.push(format!(
                "shards must be between {} and {}, found {}",
                SHARDS.start(),
                SHARDS.end(),
                self.shards
            ));
        }
        self.tenancy_contradictions(&mut found);
        for (name, files) in &self.upstream_tls {
            if !self.upstreams.contains_key(name) {
                found.push(format!(
                    "upstream_tls names {name:?}, which is not among upstreams"
                ));
            }
            let wrong = files.check().err();
            found.extend(wrong.map(|reason| format!("upstream_tls.{name}: {reason}")));
        }
        if let Some(gateway) = &self.gateway {
            let has_nats = self.broker.kind == BrokerKind::Nats;
            let checked = gateway
                .check()
                .and_then(|()| gateway.check_beside(has_nats, self.tenancy()));
            found.extend(checked.err().map(|error| error.to_string()));
        }
        let egress = self.worker.egress.check().err();
        found.extend(egress.map(|reason| format!("worker.egress: {reason}")));
        self.secret_contradictions(&mut found);
        found.extend(self.http.check().err());
        found.extend(self.ownership.check().err());
        found.extend(self.jobs.check().err());
        found.extend(self.streams.audit.check().err());
        self.storage_contradictions(&mut found);
        found.extend(self.telemetry.check().err());
        found.extend(crate::logging::check(&self.log.level).err());
        if self.mode != Mode::Combined {
            let mode = self.mode.as_str();
            if self.broker.kind == BrokerKind::Embedded {
                found.push(format!(
                    "mode {mode} needs a broker that other processes can reach: set broker.kind to nats"
                ));
            }
            if self.dispatch == Dispatch::Local {
                found.push(format!(
                    "dispatch local hands commands to a worker of the same process, and mode {mode} has none beside sagas"
                ));
            }
        }
        self.consumer_contradictions(&mut found);
        // What is younger is sent without a look at what stands, and so must still be there.
        let (horizon, recheck) = (self.relay.gate_horizon, self.relay.recheck_after);
        if horizon < recheck {
            found.push(format!(
                "relay.gate_horizon must be at least relay.recheck_after, {recheck}, found {horizon}"
            ));
        }
        found.extend(limits::raised(&self.limits));
        found
    }

    fn tenancy_contradictions(&self, found: &mut Vec<String>) {
        let is_listed = |list: &[TenantId]| !list.is_empty() && !list.iter().any(TenantId::is_none);
        if matches!(&self.tenants, Some(TenantList::Listed(list)) if !is_listed(list)) {
            found.push(
                "tenants must name at least one tenant, each not empty; omit the key to run without tenants"
                    .to_owned(),
            );
        }
        let of_schedules = self.scheduled_tenants.iter().flatten();
        let named = of_schedules.map(|tenant| ("scheduled_tenants", tenant));
        let of_storage = self.storage.tenants.keys();
        let named = named.chain(of_storage.map(|tenant| ("storage.tenants", tenant)));
        for (key, tenant) in named {
            let served = match &self.tenants {
                None => false,
                Some(TenantList::Any) => !tenant.is_none(),
                Some(TenantList::Listed(list)) => list.contains(tenant),
            };
            if !served {
                let name = tenant.as_str();
                found.push(format!("{key} names {name:?}, which is not among tenants"));
            }
        }
    }

    fn consumer_contradictions(&self, found: &mut Vec<String>) {
        let consumers = &self.worker.consumers;
        if self.broker.kind == BrokerKind::Embedded {
            let bound = consumers.bind.keys();
            found.extend(bound.map(|what| {
                format!("worker.consumers.bind.{what} names a NATS consumer, which needs broker.kind nats, found embedded")
            }));
        }
        if consumers.delivery == Delivery::Push {
            let most = self.worker.unacknowledged_max;
            if self.broker.kind == BrokerKind::Embedded {
                found.push(
                    "worker.consumers.delivery is push, which needs broker.kind nats, found embedded"
                        .to_owned(),
                );
            } else if !(1..=PUSHED_MAX).contains(&most) {
                found.push(format!(
                    "worker.unacknowledged_max must be between 1 and {PUSHED_MAX} where worker.consumers.delivery is push, found {most}"
                ));
            }
        }
        let by_tenant = matches!(consumers.by, Some(Grouping::Tenant | Grouping::TenantAndEffect));
        if by_tenant && !matches!(self.tenants, Some(TenantList::Listed(_))) {
            found.push(
                "worker.consumers.by is tenant or tenant_and_effect, which needs a list under tenants"
                    .to_owned(),
            );
        }
    }

    fn storage_contradictions(&self, found: &mut Vec<String>) {
        let least = crate::storage::HISTORY_COUNT_MIN;
        if (1..least).contains(&self.storage.keep_history_count) {
            found.push(format!(
                "storage.keep_history_count must be 0 or at least {least}, found {}",
                self.storage.keep_history_count
            ));
        }
        let Some(archive) = &self.storage.archive else {
            return;
        };
        found.extend(archive.check().err());
        let streams = &self.streams;
        let others = [
            &streams.aggregate_events.name,
            &streams.workflow_commands.name,
            &streams.workflow_events.name,
        ];
        if others.contains(&&archive.stream) {
            found.push(format!(
                "storage.archive.stream is {:?}, which another stream has",
                archive.stream
            ));
        }
    }

    fn secret_contradictions(&self, found: &mut Vec<String>) {
        for (name, reference) in &self.secrets {
            let SecretReference::Kv(place) = reference else {
                continue;
            };
            if self.broker.kind == BrokerKind::Embedded {
                found.push(format!(
                    "secrets.{name} is in NATS KV, which needs broker.kind nats, found embedded"
                ));
            }
            let wrong = place.check().err();
            found.extend(wrong.map(|message| format!("secrets.{name}: {message}")));
        }
        let callbacks = self.callbacks.as_ref().map(|callbacks| &callbacks.key);
        if let Some(SecretReference::Kv(_)) = callbacks {
            found
                .push("callbacks.key cannot be in NATS KV; write {env: VARIABLE} or {file: PATH}".to_owned());
        }
    }
}
