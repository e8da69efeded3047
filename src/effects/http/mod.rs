//! The HTTP provider: one request per attempt, from templates, and its answer sorted into outcomes.
//!
//! Follows no redirects, reads no proxy settings from the environment, and calls no host but the one that
//! the definition names.

mod answer;
mod body;
mod client;
mod coding;
mod exchange;
mod oauth2;
mod pool;
#[cfg(test)]
mod proof_tests;
mod request;
mod sign;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper::header::HeaderName;
use hyper::{Method, Response, StatusCode};
use tokio::time::Instant;

use self::body::Body;
use self::client::{Client, ClientSpec, Unanswered};
use self::oauth2::{Token, Tokens};

use super::certainty::{Ending, SideEffects};
use super::egress::EgressDenied;
use super::environment::Environment;
use super::network::Network;
use super::origin::Origin;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::refusal::ProviderError;
use super::rendering::Rendering;
use super::settings::Settings;
use crate::clients::told;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{HttpCall, Provider as ProviderDefinition};
use crate::kernel::definition::http_proof::OAuth2;
use crate::kernel::expr::Template;

pub struct Http {
    client: Client,
    /// Of a call that needs one.
    tokens: Option<Tokens>,
    definition: Arc<EffectDefinition>,
    origin: Origin,
    header_names: Vec<HeaderName>,
    method: Method,
    environment: Arc<Environment>,
    network: Network,
    settings: Settings,
}

impl Http {
    /// Builds the client of one effect.
    ///
    /// # Errors
    /// [`ProviderError`] where the definition or the environment makes no client.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        call: &HttpCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, ProviderError> {
        let header_name = |(name, _): &(String, _)| {
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| ProviderError::HeaderName(name.clone()))
        };
        let network = environment.network(&settings.egress);
        let client = |address: &Template, origin: &Origin| {
            Client::new(ClientSpec {
                origin,
                tls: environment.tls(address),
                connect_timeout: Duration::from_millis(definition.connect_timeout_ms),
                network: &network,
                idle: settings.http_idle.duration(),
            })
        };
        let tokens = |oauth2: &OAuth2| {
            let url = &oauth2.token_url;
            let origin = Origin::of(url, environment.upstreams(), settings.expression_steps)
                .map_err(ProviderError::TokenUrl)?;
            Ok::<_, ProviderError>(Tokens::new(client(url, &origin)?, origin, network.clone()))
        };
        let origin = Origin::of(&call.url, environment.upstreams(), settings.expression_steps)?;
        Ok(Self {
            client: client(&call.url, &origin)?,
            tokens: call.oauth2.as_deref().map(tokens).transpose()?,
            definition: Arc::clone(definition),
            origin,
            header_names: call.headers.iter().map(header_name).collect::<Result<_, _>>()?,
            method: Method::from_bytes(call.method.as_bytes())
                .map_err(|_| ProviderError::Method(call.method.clone()))?,
            environment: Arc::clone(environment),
            network: network.clone(),
            settings: settings.clone(),
        })
    }
}

#[async_trait]
impl Provider for Http {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        match self.attempt(call).await {
            Ok(outcome) => outcome,
            Err(failure) => CallOutcome::Failed(failure),
        }
    }

    fn side_effects(&self) -> SideEffects {
        SideEffects::unless(self.method.is_safe())
    }

    fn upstream(&self) -> Option<String> {
        Some(self.origin.to_string())
    }
}

impl Http {
    /// What expressions read as `command` is made where they are evaluated: nothing of it is kept while the call waits.
    async fn attempt(&self, call: &CallContext<'_>) -> Result<CallOutcome, CallFailure> {
        if let Some((tokens, oauth2)) = self.tokens.as_ref().zip(self.oauth2()) {
            return Box::pin(self.attempt_with_token(tokens, oauth2, call)).await;
        }
        let by = Instant::now() + call.limit;
        let request = self.request(call, None, call.now)?;
        let answer = self.client.send(request, by).await;
        // Boxed: thousands of calls wait for an answer at the same time, and few read one.
        Ok(Box::pin(self.outcome(answer, call, by)).await)
    }

    async fn attempt_with_token(
        &self,
        tokens: &Tokens,
        oauth2: &OAuth2,
        call: &CallContext<'_>,
    ) -> Result<CallOutcome, CallFailure> {
        let begin = Instant::now();
        let ask = {
            let steps = self.settings.expression_steps;
            let command = self.environment.command(call.command);
            let mut rendering = Rendering::of(call, &command, &self.environment, steps);
            tokens.ask(oauth2, &mut rendering, call.now)?
        };
        let by = begin + call.limit;
        let mut carried: Vec<Arc<Token>> = Vec::with_capacity(2);
        loop {
            // What is left after the token is for the call, so that a slow endpoint leaves no unknown outcome.
            let tenths = if carried.is_empty() { 5 } else { 9 };
            let token = Box::pin(tokens.token(&ask, begin + call.limit / 10 * tenths)).await?;
            let passed = i64::try_from(begin.elapsed().as_millis()).unwrap_or(0);
            let request = self.request(call, Some(&token), call.now.plus_ms(passed))?;
            let answer = self.client.send(request, by).await;
            let refused = matches!(&answer, Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED);
            // Nothing was carried out for a token that was refused.
            let again = refused && token.refused(!carried.is_empty()) && carried.is_empty();
            carried.push(token);
            if again {
                continue;
            }
            let outcome = Box::pin(self.outcome(answer, call, by)).await;
            return Ok(Token::scrub(&carried, outcome));
        }
    }

    fn oauth2(&self) -> Option<&OAuth2> {
        match &self.definition.provider {
            ProviderDefinition::Http(call) => call.oauth2.as_deref(),
            _ => None,
        }
    }

    async fn outcome(
        &self,
        answer: Result<Response<Body>, Unanswered>,
        call: &CallContext<'_>,
        by: Instant,
    ) -> CallOutcome {
        match answer {
            Ok(answer) => self.judge(answer, call, by).await,
            Err(error) => CallOutcome::Failed(self.unanswered(&error)),
        }
    }

    /// A call to which there is no answer, or no whole one.
    fn unanswered(&self, error: &Unanswered) -> CallFailure {
        let (ending, message) = match EgressDenied::among(error) {
            Some(denied) => (Ending::Unsendable("egress.denied"), denied.to_string()),
            None => (error.ending(), told("request failed", error)),
        };
        CallFailure::of(ending, self.side_effects(), message)
    }
}
