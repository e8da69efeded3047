//! The providers that this runner is built with.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::environment::Environment;
use super::network::{Resolve, SystemResolver};
use super::provider::{Provider, Providers};
use super::refusal::ProviderError;
use super::registry::Registry;
use super::settings::Settings;
use super::transform::Transform;
use super::{WorkerError, WorkerSpec};
use crate::clients::UpstreamTls;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::Provider as ProviderDefinition;
use crate::kernel::token::TokenKey;

/// The providers that this runner is built with, and those that a team has compiled in.
pub struct BuiltIn {
    /// Base URLs by name; expressions read them as `upstreams.<name>`.
    pub upstreams: BTreeMap<String, String>,
    /// What protects the connections to upstreams, by their names.
    pub upstream_tls: BTreeMap<String, UpstreamTls>,
    /// Makes callback tokens, which expressions read as `command.token`.
    pub tokens: Option<TokenKey>,
    /// Turns the names of hosts into the addresses that calls connect to.
    pub resolver: Arc<dyn Resolve>,
    pub registry: Arc<Registry>,
}

impl BuiltIn {
    /// For these upstreams, without anything else.
    #[must_use]
    pub fn calling(upstreams: BTreeMap<String, String>) -> Self {
        Self {
            upstreams,
            upstream_tls: BTreeMap::new(),
            tokens: None,
            resolver: Arc::new(SystemResolver),
            registry: Arc::default(),
        }
    }

    /// What the templates of all calls may read, and how calls get where they lead.
    fn environment(&self, spec: &WorkerSpec) -> Environment {
        Environment::new(Arc::clone(&spec.secrets), &self.upstreams, self.tokens.clone())
            .with_tls(self.upstream_tls.clone())
            .with_resolver(Arc::clone(&self.resolver))
            .with_messenger(Arc::clone(&spec.broker).messenger())
    }
}

impl Providers for BuiltIn {
    fn of(&self, spec: &WorkerSpec) -> Result<Vec<Arc<dyn Provider>>, WorkerError> {
        let environment = Arc::new(self.environment(spec));
        let of = |definition| {
            of(definition, &environment, &spec.settings, &self.registry)
                .map_err(|error| WorkerError::of(definition, error.to_string()))
        };
        spec.effects.iter().map(of).collect()
    }
}

/// The provider of one effect.
///
/// # Errors
/// [`ProviderError`] where the definition or the environment makes none.
pub fn of(
    definition: &Arc<EffectDefinition>,
    environment: &Arc<Environment>,
    settings: &Settings,
    registry: &Registry,
) -> Result<Arc<dyn Provider>, ProviderError> {
    match &definition.provider {
        #[cfg(feature = "effect-http")]
        ProviderDefinition::Http(call) => {
            let provider = super::http::Http::new(definition, call, environment, settings)?;
            Ok(Arc::new(provider))
        }
        #[cfg(feature = "effect-grpc")]
        ProviderDefinition::Grpc(call) => {
            let provider = super::grpc::Grpc::new(definition, call, environment, settings)?;
            Ok(Arc::new(provider))
        }
        #[cfg(feature = "effect-smtp")]
        ProviderDefinition::Smtp(mail) => {
            let provider = super::smtp::Smtp::new(definition, mail, environment, settings)?;
            Ok(Arc::new(provider))
        }
        #[cfg(feature = "effect-sql")]
        ProviderDefinition::Sql(call) => {
            let provider = super::sql::Sql::new(definition, call, environment, settings)?;
            Ok(Arc::new(provider))
        }
        #[cfg(feature = "effect-nats")]
        ProviderDefinition::Nats(call) => {
            let provider = super::nats::Nats::new(definition, call, environment, settings)?;
            Ok(Arc::new(provider))
        }
        ProviderDefinition::Transform => Ok(Arc::new(Transform {
            definition: Arc::clone(definition),
            expression_steps: settings.expression_steps,
            environment: Arc::clone(environment),
        })),
        ProviderDefinition::Custom(call) => registry.provider(definition, call, environment, settings),
        ProviderDefinition::External => Err(ProviderError::External),
        // The loader has refused such a definition.
        #[allow(unreachable_patterns)]
        other => Err(ProviderError::Feature(other.absent_feature().unwrap_or_default())),
    }
}
