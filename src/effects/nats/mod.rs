//! The NATS provider: a request, a message, a message for a stream or a value for a key, over the runner's own
//! connection.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::environment::{Environment, traceparent};
use super::provider::{CallContext, CallFailure, CallOutcome, Certainty, Provider};
use super::rendering::{Rendering, Verdict};
use super::settings::Settings;
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{
    AMBIGUOUS, NatsAct, NatsCall, Provider as ProviderDefinition, SubjectPart,
};
use crate::kernel::json::Json;
use crate::ports::messenger::{Messenger, MessengerError, Outgoing, Reply, Stored};

/// Longest value in a subject or key, in bytes.
const TOKEN_BYTES_MAX: usize = 128;
/// Most bytes of a service's own words that are kept as the message.
const MESSAGE_BYTES_MAX: usize = 200;
/// How a service says by the protocol of NATS services that it did not do what it was asked.
const ERROR_CODE: &str = "Nats-Service-Error-Code";
const ERROR_TEXT: &str = "Nats-Service-Error";

pub struct Nats {
    definition: Arc<EffectDefinition>,
    messenger: Arc<dyn Messenger>,
    /// What its breaker is named after: the subject with `*` for the values.
    upstream: String,
    environment: Arc<Environment>,
    settings: Settings,
}

impl Nats {
    /// # Errors
    /// A sentence where the runner has no connection to NATS.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        call: &NatsCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, String> {
        let messenger = environment.messenger().ok_or(
            "it sends over NATS, and the broker of this runner is embedded; use `broker: {kind: nats}`",
        )?;
        let pattern = |part: &SubjectPart| match part {
            SubjectPart::Literal(text) => text.clone(),
            SubjectPart::Value(_) => "*".to_owned(),
        };
        let subject: String = call.subject.iter().map(pattern).collect();
        Ok(Self {
            definition: Arc::clone(definition),
            messenger: Arc::clone(messenger),
            upstream: match &call.act {
                NatsAct::Put { bucket } => format!("nats:{bucket}"),
                NatsAct::Request { .. } | NatsAct::Publish | NatsAct::Store => format!("nats:{subject}"),
            },
            environment: Arc::clone(environment),
            settings: settings.clone(),
        })
    }
}

#[async_trait]
impl Provider for Nats {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let command = self.environment.command(call.command);
        match self.attempt(call, &command).await {
            Ok(outcome) => outcome,
            Err(failure) => CallOutcome::Failed(failure),
        }
    }

    fn is_safe(&self) -> bool {
        matches!(&self.definition.provider, ProviderDefinition::Nats(call) if call.is_safe())
    }

    fn upstream(&self) -> Option<String> {
        Some(self.upstream.clone())
    }
}

impl Nats {
    async fn attempt(&self, call: &CallContext<'_>, command: &Json<'_>) -> Result<CallOutcome, CallFailure> {
        let ProviderDefinition::Nats(template) = &self.definition.provider else {
            return Err(CallFailure::not_done(
                "permanent",
                "the effect is no message over NATS",
            ));
        };
        let message = {
            let steps = self.settings.expression_steps;
            let mut rendering = Rendering::of(call, command, &self.environment, steps);
            message(template, call, &mut rendering)?
        };
        let id = &call.command.metadata.idempotency_key;
        let answer = match &template.act {
            NatsAct::Request { .. } => {
                let timeout = Duration::from_millis(self.definition.timeout_ms);
                let reply = self.messenger.request(message, timeout).await;
                return reply
                    .map_err(|error| self.failed(&error))
                    .and_then(|reply| self.judge(&reply, call, command));
            }
            NatsAct::Publish => self.messenger.send(message).await.map(|()| Json::Null),
            NatsAct::Store => self.messenger.store(message, id).await.map(kept),
            NatsAct::Put { .. } => self.messenger.store(message, id).await.map(revised),
        };
        let body = answer.map_err(|error| self.failed(&error))?;
        let response = response_value(0, "", Json::Map(Vec::new()), body);
        Ok(self.verdict(&response, call, command))
    }

    /// What somebody answered: the definition's rules first, then the protocol of NATS services.
    fn judge(
        &self,
        reply: &Reply,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> Result<CallOutcome, CallFailure> {
        let bytes_max = self.settings.response_bytes;
        if reply.payload.len() > bytes_max {
            let message = format!("the answer is longer than {bytes_max} bytes");
            return Err(CallFailure::unclear("response.size", message));
        }
        let code = header(reply, ERROR_CODE).map(|text| text.trim().parse().unwrap_or(500));
        let said = excerpt(header(reply, ERROR_TEXT).unwrap_or_default());
        let body = match &*reply.payload {
            [] => Json::Null,
            bytes => Json::parse(bytes, self.settings.json_depth)
                .unwrap_or_else(|_| Json::Str(String::from_utf8_lossy(bytes))),
        };
        let response = response_value(code.unwrap_or(0), &said, headers_value(reply), body);
        let Some(code) = code else {
            return Ok(self.verdict(&response, call, command));
        };
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        match verdict.class() {
            Some("succeeded") => Ok(verdict.result()),
            class => Err(verdict.redacted(refused(code, &said, class))),
        }
    }

    /// An answer without an error in it.
    fn verdict(&self, response: &Json<'_>, call: &CallContext<'_>, command: &Json<'_>) -> CallOutcome {
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(response, &self.definition, call, command, steps);
        match verdict.class() {
            None | Some("succeeded") => verdict.result(),
            Some(class) => CallOutcome::Failed(CallFailure {
                class: Cow::Owned(class.to_owned()),
                certainty: Certainty::Refused,
                ..CallFailure::unclear("", format!("the answer is classified as {class}"))
            }),
        }
    }

    fn failed(&self, error: &MessengerError) -> CallFailure {
        let message = error.to_string();
        match error {
            MessengerError::Refused(_) => CallFailure::not_done("permanent", message),
            MessengerError::Unavailable(_) | MessengerError::Unheard(_) => {
                CallFailure::unreachable("transient", message)
            }
            MessengerError::Unknown(_) if self.is_safe() => CallFailure::unreachable("timeout", message),
            MessengerError::Unknown(_) => CallFailure::unanswered(AMBIGUOUS, message),
        }
    }
}

/// Renders the message of one attempt.
fn message(
    template: &NatsCall,
    call: &CallContext<'_>,
    rendering: &mut Rendering<'_>,
) -> Result<Outgoing, CallFailure> {
    let meta = &call.command.metadata;
    let mut headers = Vec::with_capacity(template.headers.len() + 2);
    for (name, value) in &template.headers {
        let text = rendering.text(name, value)?;
        if text.chars().any(char::is_control) {
            let message = format!("the value of header {name} holds characters that no header may hold");
            return Err(CallFailure::not_done("header.illegal", message));
        }
        headers.push((name.clone(), text));
    }
    let given = [
        ("Idempotency-Key", meta.idempotency_key.clone()),
        ("traceparent", traceparent(call.command)),
    ];
    for (name, text) in given {
        if !headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
            headers.push((name.to_owned(), text));
        }
    }
    let payload = match &template.body {
        Some(body) => Bytes::from(rendering.json("body", body)?),
        None => Bytes::new(),
    };
    Ok(Outgoing {
        subject: subject(template, rendering)?,
        headers,
        payload,
    })
}

/// The subject, in which every value is a part of one token.
fn subject(template: &NatsCall, rendering: &mut Rendering<'_>) -> Result<String, CallFailure> {
    let (mut subject, what) = match &template.act {
        NatsAct::Put { bucket } => (format!("$KV.{bucket}."), "key"),
        NatsAct::Request { .. } | NatsAct::Publish | NatsAct::Store => (String::new(), "subject"),
    };
    for part in &template.subject {
        match part {
            SubjectPart::Literal(text) => subject.push_str(text),
            SubjectPart::Value(value) => {
                let text = rendering.text(what, value)?;
                let legal = (1..=TOKEN_BYTES_MAX).contains(&text.len());
                if !legal || !text.chars().all(|c| template.act.allows(c)) {
                    let message = format!("the value {:?} cannot be part of a {what}", excerpt(&text));
                    return Err(CallFailure::not_done("subject.illegal", message));
                }
                subject.push_str(&text);
            }
        }
    }
    Ok(subject)
}

fn response_value<'a>(code: i64, message: &'a str, headers: Json<'a>, body: Json<'a>) -> Json<'a> {
    Json::Map(vec![
        ("body".into(), body),
        ("code".into(), Json::Int(code)),
        ("headers".into(), headers),
        ("message".into(), Json::Str(message.into())),
    ])
}

/// Header names are lower case; values of a repeated header are joined.
fn headers_value(reply: &Reply) -> Json<'static> {
    let mut joined: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    for (name, value) in &reply.headers {
        joined
            .entry(name.to_ascii_lowercase())
            .and_modify(|text| {
                text.push_str(", ");
                text.push_str(value);
            })
            .or_insert_with(|| value.clone());
    }
    let member = |(name, value)| (Cow::Owned(name), Json::Str(Cow::Owned(value)));
    Json::Map(joined.into_iter().map(member).collect())
}

fn kept(stored: Stored) -> Json<'static> {
    Json::Map(vec![
        ("duplicate".into(), Json::Bool(stored.duplicate)),
        ("sequence".into(), whole(stored.sequence)),
        ("stream".into(), Json::Str(stored.stream.into())),
    ])
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "as its like, so that both can be mapped over an answer"
)]
fn revised(stored: Stored) -> Json<'static> {
    Json::Map(vec![("revision".into(), whole(stored.sequence))])
}

fn whole(number: u64) -> Json<'static> {
    Json::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A service that understood the request and did not carry it out. Its codes are those of HTTP.
fn refused(code: i64, said: &str, class: Option<&str>) -> CallFailure {
    let (built_in, certainty, end) = match code {
        408 | 504 => ("timeout", Certainty::Unknown, CallEnd::Failed),
        429 => ("throttled", Certainty::NotDone, CallEnd::Failed),
        400..=499 => ("permanent", Certainty::Refused, CallEnd::Answered),
        _ => ("transient", Certainty::NotDone, CallEnd::Failed),
    };
    CallFailure {
        class: class.map_or(Cow::Borrowed(built_in), |class| Cow::Owned(class.to_owned())),
        message: format!("{code}: {said}"),
        certainty,
        end,
        retry_after: None,
    }
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let mut headers = reply.headers.iter();
    let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    Some(&found.1)
}

fn excerpt(text: &str) -> String {
    let end = text.floor_char_boundary(MESSAGE_BYTES_MAX);
    text[..end].replace(char::is_control, " ")
}
