//! The provider without I/O: the result is rendered from the input.

use std::sync::Arc;

use async_trait::async_trait;

use super::certainty::SideEffects;
use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use crate::kernel::definition::EffectDefinition;
use crate::kernel::expr::{Budget, Root, Scope};

pub struct Transform {
    pub definition: Arc<EffectDefinition>,
    pub expression_steps: u64,
    pub environment: Arc<Environment>,
}

impl Transform {
    fn render(&self, call: &CallContext<'_>) -> CallOutcome {
        let Some(template) = &self.definition.result else {
            return CallOutcome::Succeeded {
                payload: call.command.payload.get().as_bytes().to_vec(),
            };
        };
        let command = self.environment.command(call.command);
        let scope = Scope::default()
            .bind(Root::Input, call.input)
            .bind(Root::Command, &command);
        let mut budget = Budget {
            steps: self.expression_steps,
        };
        let mut payload = Vec::with_capacity(256);
        match template.render(&scope, &mut budget, &mut payload) {
            Ok(()) => CallOutcome::Succeeded { payload },
            Err(error) => {
                CallOutcome::Failed(CallFailure::not_done("expression", format!("result: {error}")))
            }
        }
    }
}

#[async_trait]
impl Provider for Transform {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        self.render(call)
    }

    fn side_effects(&self) -> SideEffects {
        SideEffects::None
    }

    fn upstream(&self) -> Option<String> {
        None
    }
}
