//! From the templates of a definition to the parts of one call, and from its answer to an outcome.

use super::certainty::{Ending, Said, SideEffects};
use super::environment::Environment;
use super::mask::Mask;
use super::provider::{CallContext, CallFailure, CallOutcome};
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::Classify;
use crate::kernel::expr::{Budget, EvalError, Root, Scope, Template};
use crate::kernel::json::Json;

/// What a rule calls an answer that is not a failure.
const SUCCEEDED: &str = "succeeded";

/// Renders the parts of one call within one budget of expression steps.
pub struct Rendering<'a> {
    scope: Scope<'a>,
    budget: Budget,
}

impl<'a> Rendering<'a> {
    /// Expressions read `input`, `command`, `secrets` and `upstreams`.
    pub fn of(
        call: &'a CallContext<'_>,
        command: &'a Json<'_>,
        environment: &'a Environment,
        steps: u64,
    ) -> Self {
        let scope = Scope::default()
            .bind(Root::Input, call.input)
            .bind(Root::Command, command)
            .bind(Root::Secrets, call.secrets)
            .bind(Root::Upstreams, environment.upstreams());
        Self {
            scope,
            budget: Budget { steps },
        }
    }

    /// A text; `place` names it in the failure.
    pub fn text(&mut self, place: &str, template: &Template) -> Result<String, CallFailure> {
        template
            .render_text(&self.scope, &mut self.budget)
            .map_err(|error| unrendered(place, &error))
    }

    /// A JSON value, encoded.
    pub fn json(&mut self, place: &str, template: &Template) -> Result<Vec<u8>, CallFailure> {
        let mut bytes = Vec::with_capacity(512);
        template
            .render(&self.scope, &mut self.budget, &mut bytes)
            .map_err(|error| unrendered(place, &error))?;
        Ok(bytes)
    }
}

fn unrendered(place: &str, error: &EvalError) -> CallFailure {
    match error {
        EvalError::NoField { name, place: of } if of == Root::Secrets.name() => {
            CallFailure::not_done("secret.missing", format!("secret {name:?} is not configured"))
        }
        error => CallFailure::not_done("expression", format!("{place}: {error}")),
    }
}

/// The definition's own rules about one answer.
pub struct Verdict<'a> {
    definition: &'a EffectDefinition,
    input: &'a Json<'a>,
    response: &'a Json<'a>,
    scope: Scope<'a>,
    budget: Budget,
}

impl<'a> Verdict<'a> {
    /// Expressions read `response`, `input` and `command`.
    pub fn on(
        response: &'a Json<'a>,
        definition: &'a EffectDefinition,
        call: &'a CallContext<'_>,
        command: &'a Json<'_>,
        steps: u64,
    ) -> Self {
        let scope = Scope::default()
            .bind(Root::Input, call.input)
            .bind(Root::Command, command)
            .bind(Root::Response, response);
        Self {
            definition,
            input: call.input,
            response,
            scope,
            budget: Budget { steps },
        }
    }

    /// The first rule that holds. One that cannot be evaluated on this answer does not.
    pub fn rule(&mut self) -> Option<&'a Classify> {
        for rule in &self.definition.classify {
            match rule.when.test(&self.scope, &mut self.budget) {
                Ok(true) => return Some(rule),
                Ok(false) => {}
                Err(error) => {
                    let error = self.mask().clean_message(error.to_string());
                    tracing::debug!(effect = %self.definition.name, rule = rule.when.text(), error, "rule does not apply");
                }
            }
        }
        None
    }

    /// What an answer means: the definition's own rules first, then `built_in`, the failure that the answer is without
    /// them, `None` for a success.
    pub fn outcome(&mut self, side_effects: SideEffects, built_in: Option<CallFailure>) -> CallOutcome {
        let failure = match (self.rule(), built_in) {
            (None, None) => return self.result(),
            (Some(rule), _) if rule.class == SUCCEEDED => return self.result(),
            (None, Some(failure)) => failure,
            (Some(rule), Some(failure)) => failure.ruled(rule, side_effects),
            (Some(rule), None) => {
                let message = format!("the answer is classified as {}", rule.class);
                CallFailure::of(Ending::Said(Said::Refused), side_effects, message).ruled(rule, side_effects)
            }
        };
        CallOutcome::Failed(self.redacted(failure))
    }

    /// The failure that the answer means, without what the definition redacts.
    pub fn redacted(&self, failure: CallFailure) -> CallFailure {
        self.mask().scrub_failure(failure)
    }

    fn mask(&self) -> Mask {
        let redaction = &self.definition.redaction;
        Mask::at([
            (&*redaction.input, self.input),
            (&*redaction.response, self.response),
        ])
    }

    /// The upstream did it. If its answer cannot be turned into the result, the answer itself is recorded.
    pub fn result(&mut self) -> CallOutcome {
        let mut payload = Vec::with_capacity(256);
        if let Some(template) = &self.definition.result
            && let Err(error) = template.render(&self.scope, &mut self.budget, &mut payload)
        {
            payload.clear();
            let hidden = self.definition.redaction.response.iter();
            let response = hidden.fold(self.response.clone(), |value, path| path.hide(value));
            write_body(&response, &mut payload);
            return CallOutcome::Unusable {
                payload,
                class: "result.expression",
                message: self.mask().clean_message(format!("result: {error}")),
            };
        }
        if self.definition.result.is_none() {
            write_body(self.response, &mut payload);
        }
        CallOutcome::Succeeded { payload }
    }
}

/// An answer without body is an empty result, so that a saga may still read it as an object.
fn write_body(response: &Json<'_>, payload: &mut Vec<u8>) {
    match response.get("body") {
        None | Some(Json::Null) => payload.extend_from_slice(b"{}"),
        Some(body) => body.write(payload),
    }
}
