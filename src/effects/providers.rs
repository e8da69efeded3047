//! The providers that this runner is built with.

use std::sync::Arc;

use super::environment::Environment;
use super::provider::Provider;
use super::registry::Registry;
use super::settings::Settings;
use super::transform::Transform;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::Provider as ProviderDefinition;

/// The provider of one effect.
///
/// # Errors
/// A sentence that says what in the definition or the environment makes none.
pub fn of(
    definition: &Arc<EffectDefinition>,
    environment: &Arc<Environment>,
    settings: &Settings,
    registry: &Registry,
) -> Result<Arc<dyn Provider>, String> {
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
        ProviderDefinition::External => Err("workers that are not saga-runner carry it out".to_owned()),
        // The loader has refused such a definition.
        #[allow(unreachable_patterns)]
        other => Err(format!(
            "the runner is built without the feature {:?}",
            other.absent_feature().unwrap_or_default()
        )),
    }
}
