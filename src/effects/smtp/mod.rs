//! The SMTP provider: one message per attempt, over a connection of its own.
//!
//! Either all recipients are accepted or nothing is sent. Only a message whose end was sent has an unknown outcome: a
//! server throws away what it was sent before.

mod conversation;
mod message;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, CertificateStore, Identity, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Response;
use reqwest::Url;
use tokio::time::Instant;

use super::certainty::{Ending, Said, SideEffects};
use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::refusal::ProviderError;
use super::rendering::{Rendering, Verdict};
use super::settings::Settings;
use crate::clients::UpstreamTls;
use crate::clients::tls::{client_config, is_untrusted};
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{Provider as ProviderDefinition, SmtpMail, SmtpSecurity};
use crate::kernel::expr::{Budget, Root, Scope};
use crate::kernel::json::Json;
use conversation::{Conversation, Failed};
use message::Letter;

/// Port for messages of programs, opened in the clear.
const SUBMISSION_PORT: u16 = 587;
/// The same, protected from the first byte.
const SUBMISSIONS_PORT: u16 = 465;
/// How long the server may take to end the conversation behind a message that it has taken.
const GOODBYE: Duration = Duration::from_secs(1);

pub struct Smtp {
    definition: Arc<EffectDefinition>,
    server: Server,
    environment: Arc<Environment>,
    settings: Settings,
}

/// Where messages go, known before there is any command.
struct Server {
    host: String,
    port: u16,
    security: SmtpSecurity,
    /// Absent where nothing is protected.
    tls: Option<TlsParameters>,
}

/// What the server has said in the end.
struct Accepted {
    code: i64,
    message: String,
}

impl Smtp {
    /// # Errors
    /// [`ProviderError`] where the definition or the environment makes no server.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        mail: &SmtpMail,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, ProviderError> {
        let scope = Scope::default().bind(Root::Upstreams, environment.upstreams());
        let mut budget = Budget {
            steps: settings.expression_steps,
        };
        let address = mail
            .server
            .render_text(&scope, &mut budget)
            .map_err(|error| ProviderError::Expression { key: "server", error })?;
        Ok(Self {
            definition: Arc::clone(definition),
            server: Server::at(&address, mail.security, environment.tls(&mail.server))?,
            environment: Arc::clone(environment),
            settings: settings.clone(),
        })
    }
}

impl Server {
    fn at(
        address: &str,
        security: Option<SmtpSecurity>,
        upstream: Option<&UpstreamTls>,
    ) -> Result<Self, ProviderError> {
        let malformed = || ProviderError::MailServer(address.to_owned());
        let url = Url::parse(address).map_err(|_| malformed())?;
        let (security, port) = match (url.scheme(), security) {
            ("smtp", None | Some(SmtpSecurity::StartTls)) => (SmtpSecurity::StartTls, SUBMISSION_PORT),
            ("smtp", Some(SmtpSecurity::None)) => (SmtpSecurity::None, SUBMISSION_PORT),
            ("smtps", None) | ("smtp" | "smtps", Some(SmtpSecurity::Tls)) => {
                (SmtpSecurity::Tls, SUBMISSIONS_PORT)
            }
            ("smtps", Some(_)) => {
                return Err(ProviderError::MailSecurity);
            }
            _ => return Err(malformed()),
        };
        let plain = url.username().is_empty() && url.password().is_none();
        let bare = matches!(url.path(), "" | "/") && url.query().is_none();
        let host = url.host_str().filter(|host| !host.is_empty() && plain && bare);
        let host = host.ok_or_else(malformed)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = match security {
            SmtpSecurity::None => None,
            SmtpSecurity::StartTls | SmtpSecurity::Tls => Some(parameters(&host, upstream)?),
        };
        Ok(Self {
            port: url.port().unwrap_or(port),
            host,
            security,
            tls,
        })
    }
}

fn parameters(host: &str, upstream: Option<&UpstreamTls>) -> Result<TlsParameters, ProviderError> {
    let failed = |error: lettre::transport::smtp::Error| {
        ProviderError::Tls(format!("TLS cannot be set up: {}", causes(&error)))
    };
    // What cannot protect a connection of HTTP cannot protect one of mail, and is told with its cause.
    client_config(upstream).map_err(ProviderError::Tls)?;
    let mut builder = TlsParameters::builder(host.to_owned());
    if let Some(ca) = upstream.and_then(|tls| tls.ca.as_ref()) {
        builder = builder
            .certificate_store(CertificateStore::None)
            .add_root_certificate(Certificate::from_pem(ca).map_err(failed)?);
    }
    if let Some(identity) = upstream.and_then(|tls| tls.identity.as_ref()) {
        let identity = Identity::from_pem(&identity.certificate, &identity.key).map_err(failed)?;
        builder = builder.identify_with(identity);
    }
    builder.build_rustls().map_err(failed)
}

#[async_trait]
impl Provider for Smtp {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let command = self.environment.command(call.command);
        match self.attempt(call, &command).await {
            Ok(outcome) => outcome,
            Err(failure) => CallOutcome::Failed(failure),
        }
    }

    fn side_effects(&self) -> SideEffects {
        SideEffects::Possible
    }

    fn upstream(&self) -> Option<String> {
        Some(format!("{}:{}", self.server.host, self.server.port))
    }
}

impl Smtp {
    async fn attempt(&self, call: &CallContext<'_>, command: &Json<'_>) -> Result<CallOutcome, CallFailure> {
        let ProviderDefinition::Smtp(mail) = &self.definition.provider else {
            return Err(CallFailure::not_done("permanent", "the effect is not a message"));
        };
        let steps = self.settings.expression_steps;
        let (letter, credentials) = {
            let mut rendering = Rendering::of(call, command, &self.environment, steps);
            let letter = Letter::write(mail, &call.command.metadata.idempotency_key, &mut rendering)?;
            (letter, credentials(mail, &mut rendering)?)
        };
        let hello = mail.hello.as_deref().unwrap_or(&letter.domain);
        let conversation = Conversation {
            server: &self.server,
            network: self.environment.network(&self.settings.egress),
            connect: Duration::from_millis(self.definition.connect_timeout_ms),
            hello: client_id(hello),
            begun: Instant::now(),
            limit: call.limit,
        };
        let mut connection = conversation.prepare(&letter, credentials).await?;
        let accepted = match conversation.send(&mut connection, &letter).await {
            Ok(response) => accepted(&response),
            Err(Failed::Refused(error)) => return Ok(self.refused(&error, &letter, call, command)),
            Err(Failed::Ended(failure)) => return Err(failure),
        };
        // The message is accepted; how the conversation ends does not matter.
        let _ = tokio::time::timeout(GOODBYE, connection.quit()).await;
        Ok(self.judge(&accepted, &letter, call, command))
    }

    fn judge(
        &self,
        accepted: &Accepted,
        letter: &Letter,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> CallOutcome {
        let response = response_value(accepted, &letter.message_id);
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        match verdict.rule() {
            Some(rule) if rule.class != "succeeded" => {
                let failure = CallFailure::unclear("", accepted.message.clone());
                CallOutcome::Failed(verdict.redacted(failure.ruled(rule, SideEffects::Possible)))
            }
            Some(_) | None => verdict.result(),
        }
    }

    /// The server has seen the whole message and did not take it.
    fn refused(
        &self,
        error: &lettre::transport::smtp::Error,
        letter: &Letter,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> CallOutcome {
        let failure = not_sent(error);
        let said = Accepted {
            code: code(error).unwrap_or_default(),
            message: failure.message.clone(),
        };
        let response = response_value(&said, &letter.message_id);
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        match verdict.rule() {
            Some(rule) if rule.class == "succeeded" => verdict.result(),
            Some(rule) => CallOutcome::Failed(verdict.redacted(failure.ruled(rule, SideEffects::Possible))),
            None => CallOutcome::Failed(verdict.redacted(failure)),
        }
    }
}

/// A domain, or an address in brackets.
fn client_id(name: &str) -> ClientId {
    let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let Some(literal) = literal else {
        return ClientId::Domain(name.to_owned());
    };
    let v6 = literal.strip_prefix("IPv6:").unwrap_or(literal);
    match (literal.parse(), v6.parse()) {
        (Ok(address), _) => ClientId::Ipv4(address),
        (_, Ok(address)) => ClientId::Ipv6(address),
        _ => ClientId::Domain(name.to_owned()),
    }
}

fn credentials(mail: &SmtpMail, rendering: &mut Rendering<'_>) -> Result<Option<Credentials>, CallFailure> {
    let (Some(user), Some(password)) = (&mail.user, &mail.password) else {
        return Ok(None);
    };
    let user = rendering.text("user", user)?;
    let password = rendering.text("password", password)?;
    Ok(Some(Credentials::new(user, password)))
}

/// A failure before the message was sent, or the server's refusal of it.
fn not_sent(error: &lettre::transport::smtp::Error) -> CallFailure {
    let message = causes(error);
    let ending = match code(error) {
        // The server closes the connection, for want of resources most likely.
        Some(421) => Ending::Said(Said::NotNow),
        Some(_) if error.is_transient() => Ending::Said(Said::Conflict),
        Some(_) => Ending::Said(Said::Refused),
        None if is_untrusted(error) => Ending::Untrusted,
        None if error.is_timeout() => Ending::LateUnsent,
        // What the server lacks, such as STARTTLS, it will lack the next time.
        None if error.is_client() => Ending::Unsendable("permanent"),
        None => Ending::LostUnsent,
    };
    CallFailure::of(ending, SideEffects::Possible, message)
}

fn code(error: &lettre::transport::smtp::Error) -> Option<i64> {
    Some(i64::from(u16::from(error.status()?)))
}

fn causes(error: &lettre::transport::smtp::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.replace(char::is_control, " ")
}

fn accepted(response: &Response) -> Accepted {
    let lines: Vec<&str> = response.message().collect();
    Accepted {
        code: i64::from(u16::from(response.code())),
        message: lines.join(" ").replace(char::is_control, " "),
    }
}

fn response_value<'a>(said: &'a Accepted, message_id: &'a str) -> Json<'a> {
    let body = Json::Map(vec![("message_id".into(), Json::Str(message_id.into()))]);
    Json::Map(vec![
        ("body".into(), body),
        ("code".into(), Json::Int(said.code)),
        ("message".into(), Json::Str((&*said.message).into())),
    ])
}
