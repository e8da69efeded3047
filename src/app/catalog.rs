//! The definitions that this process works with now, for everybody who shows or routes by them.

use std::sync::{Arc, PoisonError, RwLock};

use super::definitions::{Files, Read};
use super::streams;
use crate::config::Manifest;
use crate::effects::Consumer;
use crate::kernel::definition::{Definition, DefinitionSet, EffectDefinition};
use crate::kernel::input::SourceStream;
use crate::ports::control::JobVerb;
use crate::telemetry::Metrics;

/// The definitions in force. Readers take a snapshot; a change replaces the whole.
pub(super) struct Catalog(RwLock<Arc<InForce>>);

/// One state of the catalog.
pub(super) struct InForce {
    /// Rises with every change of the active sagas; 0 before the shards are open.
    pub revision: u64,
    /// Active and archived sagas.
    pub sagas: Arc<DefinitionSet>,
    pub effects: Vec<Arc<EffectDefinition>>,
    /// Those that bring the commands of the effects.
    pub consumers: Vec<Consumer>,
    /// Hash of the texts of the effects.
    pub effects_text: [u8; 32],
    /// What the active sagas and the effects were read from.
    pub files: Arc<Files>,
}

impl Catalog {
    pub fn new(loaded: Read, consumers: Vec<Consumer>) -> Self {
        Self(RwLock::new(Arc::new(InForce {
            revision: 0,
            sagas: Arc::new(DefinitionSet::new(loaded.sagas, Vec::new())),
            effects: loaded.effects,
            consumers,
            effects_text: loaded.effects_text,
            files: loaded.files,
        })))
    }

    pub fn now(&self) -> Arc<InForce> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, state: InForce) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }
}

impl InForce {
    /// The active sagas, by name.
    pub fn active(&self) -> Vec<Arc<Definition>> {
        self.sagas.iter_active().cloned().collect()
    }

    /// Whether a file declares an effect of this name.
    pub fn declares(&self, effect: &str) -> bool {
        self.effects
            .iter()
            .any(|declared| declared.name.as_str() == effect)
    }

    /// Tells the metrics what is in force.
    pub fn show(&self, metrics: &Metrics) {
        metrics
            .definitions_revision
            .set(i64::try_from(self.revision).unwrap_or(i64::MAX));
        metrics.definitions_active.reset();
        for definition in self.sagas.iter_active() {
            let hash = definition.hash.to_string();
            metrics.saga_activated(definition.name.as_str());
            if definition.schedule.is_some() {
                metrics.schedule_activated(definition.name.as_str());
            }
            metrics
                .definitions_active
                .with_label_values(&[definition.name.as_str(), hash.as_str()])
                .set(1);
        }
    }
}

/// Gives the tenants of the manifest series of their own, before the first that sends something gets some.
pub(super) fn name_tenants(manifest: &Manifest, metrics: &Metrics) {
    metrics.tenants.name_at_most(manifest.shard.metric_tenants);
    for tenant in manifest.tenant_list().into_iter().flatten() {
        metrics.tenants.name(tenant.as_str());
    }
}

/// Series of what is in force are there from the start, so that an alert sees the first increase.
pub(super) fn begin_series(manifest: &Manifest, in_force: &InForce, metrics: &Metrics) {
    in_force.show(metrics);
    if !manifest.mode.runs_sagas() {
        return;
    }
    for stream in SourceStream::ALL {
        metrics.stream_known(streams::name(manifest, stream));
    }
    metrics.jobs_known(&JobVerb::ALL.map(JobVerb::as_str));
}
