//! The NATS provider: a request, a message, a message for a stream or a value for a key, over the runner's own
//! connection.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::timeout;

use super::body::{self, Form};
use super::certainty::{Ending, Said, SideEffects};
use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::refusal::ProviderError;
use super::rendering::{Rendering, Verdict};
use super::settings::Settings;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{NatsAct, NatsCall, Provider as ProviderDefinition, SubjectPart};
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
    /// [`ProviderError::NoNats`] where the runner has no connection to NATS.
    pub fn new(
        definition: &Arc<EffectDefinition>,
        call: &NatsCall,
        environment: &Arc<Environment>,
        settings: &Settings,
    ) -> Result<Self, ProviderError> {
        let messenger = environment.messenger().ok_or(ProviderError::NoNats)?;
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

    fn side_effects(&self) -> SideEffects {
        SideEffects::unless(
            matches!(&self.definition.provider, ProviderDefinition::Nats(call) if call.is_safe()),
        )
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
                "the effect is not a message over NATS",
            ));
        };
        let message = {
            let steps = self.settings.expression_steps;
            let mut rendering = Rendering::of(call, command, &self.environment, steps);
            message(template, call, &mut rendering)?
        };
        let id = &call.command.metadata.idempotency_key;
        let act = async {
            match &template.act {
                NatsAct::Request { .. } => {
                    let reply = self.messenger.request(message, call.limit).await;
                    reply.map(|reply| self.judge(&reply, call, command))
                }
                NatsAct::Publish => {
                    let sent = self.messenger.send(message).await;
                    sent.map(|()| self.done(Json::Null, call, command))
                }
                NatsAct::Store => {
                    let stored = self.messenger.store(message, id).await;
                    stored.map(|stored| self.done(kept(stored), call, command))
                }
                NatsAct::Put { .. } => {
                    let stored = self.messenger.store(message, id).await;
                    stored.map(|stored| self.done(revised(stored), call, command))
                }
            }
        };
        // A message waits in the client until the server takes it, so that one may have gone at any time.
        let late = |_| MessengerError::Unknown(format!("none within {} ms", call.limit.as_millis()));
        let answer = timeout(call.limit, act).await.map_err(late);
        answer
            .and_then(|answer| answer)
            .map_err(|error| self.failed(&error))
    }

    /// What somebody answered: the definition's rules first, then the protocol of NATS services.
    fn judge(&self, reply: &Reply, call: &CallContext<'_>, command: &Json<'_>) -> CallOutcome {
        let side_effects = self.side_effects();
        let code = header(reply, ERROR_CODE).map(|text| text.trim().parse().unwrap_or(500));
        let said = excerpt(header(reply, ERROR_TEXT).unwrap_or_default());
        let failure = code.map(|code| {
            let ending = Ending::Said(Said::of_service(code));
            CallFailure::of(ending, side_effects, format!("{code}: {said}"))
        });
        let bytes_max = self.settings.response_bytes;
        if reply.payload.len() > bytes_max {
            let message = format!("the answer is longer than {bytes_max} bytes");
            let long = CallFailure::of(Ending::TooLong, side_effects, message);
            return CallOutcome::Failed(match failure {
                // The code says what happened.
                Some(failure) => CallFailure {
                    certainty: failure.certainty,
                    end: failure.end,
                    ..long
                },
                None => long,
            });
        }
        let form = Form::of(header(reply, "content-type").unwrap_or_default().as_bytes());
        let read = body::value(&reply.payload, form, self.settings.json_depth);
        let body = match read.map_err(|error| error.to_string()) {
            Ok(body) => body,
            Err(_) if failure.is_some() => body::text(&reply.payload),
            Err(reason) => {
                return CallOutcome::Failed(CallFailure::of(Ending::Malformed, side_effects, reason));
            }
        };
        let response = response_value(code.unwrap_or(0), &said, headers_value(reply), body);
        self.verdict(&response, failure, call, command)
    }

    /// What the server has taken.
    fn done(&self, body: Json<'_>, call: &CallContext<'_>, command: &Json<'_>) -> CallOutcome {
        let response = response_value(0, "", Json::Map(Vec::new()), body);
        self.verdict(&response, None, call, command)
    }

    fn verdict(
        &self,
        response: &Json<'_>,
        failure: Option<CallFailure>,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> CallOutcome {
        let steps = self.settings.expression_steps;
        Verdict::on(response, &self.definition, call, command, steps).outcome(self.side_effects(), failure)
    }

    fn failed(&self, error: &MessengerError) -> CallFailure {
        let ending = match error {
            MessengerError::Refused(_) => Ending::Unsendable("permanent"),
            MessengerError::Unavailable(_) => Ending::Unconnected,
            MessengerError::Unheard(_) => Ending::NotBegun,
            MessengerError::Unknown(_) => Ending::Late,
        };
        CallFailure::of(ending, self.side_effects(), error.to_string())
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
        ("traceparent", call.traceparent.to_string()),
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

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let mut headers = reply.headers.iter();
    let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    Some(&found.1)
}

fn excerpt(text: &str) -> String {
    let end = text.floor_char_boundary(MESSAGE_BYTES_MAX);
    text[..end].replace(char::is_control, " ")
}
