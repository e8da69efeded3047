//! Providers that a team compiles into a runner of its own, by name.
//!
//! An effect names one with `custom`. The runner renders `with` and does everything else that it does for its own
//! providers: gate, deadline, limits, breaker, retries, the one recorded result. A provider makes one attempt.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::certainty::SideEffects;
use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::refusal::ProviderError;
use super::rendering::Rendering;
use super::settings::Settings;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::CustomCall;
use crate::kernel::json::Json;

/// Makes the provider of one effect; a sentence where the definition makes none.
type Factory = dyn Fn(&EffectDefinition) -> Result<Arc<dyn Provider>, String> + Send + Sync;

/// The providers that effects may name under `custom.provider`.
#[derive(Clone, Default)]
pub struct Registry {
    factories: BTreeMap<String, Arc<Factory>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}

impl Registry {
    /// Adds a provider. The factory is called once for each effect that names it; [`CallContext::input`] of its calls is
    /// what `with` rendered. The last of two with one name counts.
    #[must_use]
    pub fn with<F>(mut self, name: impl Into<String>, factory: F) -> Self
    where
        F: Fn(&EffectDefinition) -> Result<Arc<dyn Provider>, String> + Send + Sync + 'static,
    {
        self.factories.insert(name.into(), Arc::new(factory));
        self
    }

    /// Whether no team has added a provider.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.factories.is_empty()
    }

    /// The provider of one effect.
    pub(super) fn provider(
        &self,
        definition: &Arc<EffectDefinition>,
        call: &CustomCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Arc<dyn Provider>, ProviderError> {
        let name = &call.provider;
        let factory = self.factories.get(name);
        let factory = factory.ok_or_else(|| ProviderError::Unknown {
            name: name.clone(),
            known: self.factories.keys().cloned().collect(),
        })?;
        Ok(Arc::new(Custom {
            provider: factory(definition).map_err(ProviderError::Custom)?,
            definition: Arc::clone(definition),
            environment: Arc::clone(environment),
            expression_steps: settings.expression_steps,
            json_depth: settings.json_depth,
        }))
    }
}

/// Renders `with` for a provider from outside.
struct Custom {
    provider: Arc<dyn Provider>,
    definition: Arc<EffectDefinition>,
    environment: Arc<Environment>,
    expression_steps: u64,
    json_depth: usize,
}

impl Custom {
    fn render(&self, call: &CallContext<'_>) -> Result<Vec<u8>, CallFailure> {
        let crate::kernel::definition::effect::Provider::Custom(custom) = &self.definition.provider else {
            return Err(CallFailure::not_done(
                "expression",
                "the effect names no provider",
            ));
        };
        let command = self.environment.command(call.command);
        Rendering::of(call, &command, &self.environment, self.expression_steps).json("with", &custom.with)
    }
}

#[async_trait]
impl Provider for Custom {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let with = match self.render(call) {
            Ok(with) => with,
            Err(failure) => return CallOutcome::Failed(failure),
        };
        match Json::parse(&with, self.json_depth) {
            Ok(input) => {
                let call = CallContext {
                    command: call.command,
                    input: &input,
                    secrets: call.secrets,
                    now: call.now,
                    traceparent: call.traceparent.clone(),
                    limit: call.limit,
                };
                self.provider.call(&call).await
            }
            Err(error) => {
                let failure = CallFailure::not_done("expression", format!("with: {error}"));
                CallOutcome::Failed(failure)
            }
        }
    }

    fn side_effects(&self) -> SideEffects {
        self.provider.side_effects()
    }

    fn upstream(&self) -> Option<String> {
        self.provider.upstream()
    }
}
