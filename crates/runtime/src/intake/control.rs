//! Control messages: what is asked of an instance, by the subject of its tenant or by the runners' own.
//!
//! Whoever may publish for a tenant may start, signal and cancel its instances, and no more: what operators decide, and what
//! instances tell each other, is believed only on a subject on which the runners alone may publish (ADR 160).

use super::decode::{Decoded, Decoder, Defect};
use crate::kernel::alias::{Alias, Via};
use crate::kernel::envelope::{
    CallbackMessage, ControlMessage, ControlVerb, ErrorPayload, FORWARD, ForwardedEvent, Principal,
    ResultType, Role, Sender, StartedBy, StepFound, Stuck, callback_outcome, callback_request, callback_verb,
    operation,
};
use crate::kernel::ids::{CommandId, EventId, IdError, InstanceId, TimeMs};
use crate::kernel::input::{
    Control, DomainEvent, OperationVerb, Owner, Question, Verdict, WorkOutcome, WorkResult,
};
use crate::kernel::limits::Limits;
use crate::kernel::outcome::slice;
use crate::kernel::trace;
use crate::ports::broker::Message;

impl Decoder {
    /// By the subject of the tenant.
    pub(super) fn asked(&self, instance: InstanceId, message: &Message) -> Result<Decoded, Defect> {
        // Before the rest is read: a verb that may not come this way is told as such, whatever else is wrong with it.
        let named = verb_of(&message.payload);
        if let Some(control) = &named
            && let Some(Sender::Operator | Sender::Runner) = Sender::of(control)
        {
            return Err(wrong_subject(control));
        }
        let envelope = self.control_message(message)?;
        if !envelope.is_of_tenant() {
            let control = envelope.verb.as_str();
            return Err(wrong_subject(&format!("{control} with a parent or a principal")));
        }
        decoded(instance, envelope, traced(message))
    }

    /// By the runners' own subject.
    pub(super) fn told(&self, instance: InstanceId, message: &Message) -> Result<Decoded, Defect> {
        if is_forwarded(&message.payload) {
            return self.forwarded(instance, message);
        }
        let envelope = self.control_message(message)?;
        if !envelope.is_of_runner() {
            let role = envelope.principal.as_ref().map(|principal| principal.role);
            let (verb, has) = (envelope.verb.as_str(), role.map_or("none", Role::as_str));
            let needs = envelope.verb.role().as_str();
            let text = format!("{verb} needs the role {needs}, and the principal of the message has {has}");
            return Err(Defect::new("control.principal", text));
        }
        decoded(instance, envelope, traced(message))
    }

    fn control_message(&self, message: &Message) -> Result<ControlMessage, Defect> {
        // The envelope is flattened, which hides repeated keys from serde.
        self.check(&message.payload)?;
        let envelope: ControlMessage = self.read(&message.payload)?;
        EventId::parse(&envelope.request_id).map_err(|error| match error {
            IdError::Empty { .. } => Defect::new("request_id.missing", "request_id is empty"),
            _ => Defect::new("request_id.invalid", error.to_string()),
        })?;
        if let Some(principal) = &envelope.principal {
            principal.check().map_err(unfit)?;
        }
        Ok(envelope)
    }

    fn forwarded(&self, instance: InstanceId, message: &Message) -> Result<Decoded, Defect> {
        let envelope: ForwardedEvent<'_> = self.read(&message.payload)?;
        let event = envelope.event;
        let via = via(envelope.alias, envelope.generation)?;
        self.check(event.payload.get().as_bytes())?;
        Ok(Decoded::Forwarded {
            instance,
            event: DomainEvent {
                event_id: self.event_id(event.event_id.as_deref(), message.stream_sequence)?,
                event_type: event.event_type,
                aggregate_type: event.aggregate_type,
                aggregate_id: event.aggregate_id,
                sequence: event.sequence,
                schema_version: event.schema_version,
                correlation_id: event.metadata.correlation_id,
                causation_id: event.metadata.causation_id,
                traceparent: event
                    .metadata
                    .traceparent
                    .filter(|text| trace::is_traceparent(text)),
                hops: event.metadata.hops,
                fact: envelope.fact,
                payload: slice(&message.payload, event.payload),
                via: Some(Box::new(via)),
            },
            time: TimeMs(envelope.time_ms),
        })
    }

    /// What whoever was given a token says. The token alone is believed; the subject is where it is routed by.
    pub(super) fn callback(&self, instance: InstanceId, message: &Message) -> Result<Decoded, Defect> {
        self.check(&message.payload)?;
        let envelope: CallbackMessage = self.read(&message.payload)?;
        let callback = self.tokens.as_ref().and_then(|key| key.read(&envelope.token));
        let Some(callback) = callback.filter(|callback| callback.instance == instance) else {
            let text = "the token is not one of this cluster for the instance of the subject";
            return Err(Defect::new("callback.token", text));
        };
        let work = callback.work;
        let verb = callback_verb(work.clone(), envelope.ok, envelope.error, envelope.heartbeat);
        let (id, control) = match verb.map_err(unfit)? {
            ControlVerb::Callback { work, ok, error } => (
                callback_request(&work),
                Control::Callback {
                    work,
                    outcome: callback_outcome(ok.as_ref(), error.as_ref()).map_err(unfit)?,
                },
            ),
            _ => (
                format!("heartbeat:{}", message.stream_sequence),
                Control::Heartbeat { work },
            ),
        };
        Ok(Decoded::Control {
            instance,
            id,
            control,
        })
    }
}

/// What a message asks for, as far as that can be told without reading all of it.
fn verb_of(payload: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Verb {
        control: String,
    }
    serde_json::from_slice::<Verb>(payload)
        .ok()
        .map(|verb| verb.control)
}

/// Whether this is an event that an alias has forwarded. The runner alone writes them, in the compact form.
fn is_forwarded(payload: &[u8]) -> bool {
    let mark = format!("\"control\":\"{FORWARD}\"");
    let marked = payload.windows(mark.len()).any(|part| part == mark.as_bytes());
    marked && verb_of(payload).is_some_and(|verb| verb == FORWARD)
}

fn wrong_subject(what: &str) -> Defect {
    let text = format!(
        "{what} may not come by the subject of a tenant, where there are start, signal and cancel only: ask for it by the API"
    );
    Defect::new("control.subject", text)
}

fn unfit(message: &'static str) -> Defect {
    Defect::new("payload.schema", message)
}

/// The same as the instance takes it. The principal is that of an operator's decision.
fn decoded(
    instance: InstanceId,
    envelope: ControlMessage,
    traceparent: Option<String>,
) -> Result<Decoded, Defect> {
    let principal = envelope.principal.unwrap_or_else(Principal::nobody);
    let control = match envelope.verb {
        ControlVerb::Outcome {
            command_id,
            result_type,
            payload,
        } => return outcome_of(instance, command_id, result_type, payload),
        verb @ ControlVerb::Start { .. } => start(verb, principal, traceparent)?,
        ControlVerb::Cancel { reason, mode } => Control::Cancel { reason, mode },
        ControlVerb::Signal { name, data, by, hops } => {
            let data = serde_json::Value::Object(data).to_string().into();
            Control::Signal { name, data, by, hops }
        }
        ControlVerb::Retry(stuck) => decide_stuck(Verdict::Retry, stuck, principal)?,
        ControlVerb::Skip(stuck) => decide_stuck(Verdict::Skip, stuck, principal)?,
        ControlVerb::Resolve(stuck) => decide_stuck(Verdict::Resolve, stuck, principal)?,
        ControlVerb::Pause {} => operate(OperationVerb::Pause, principal)?,
        ControlVerb::Resume {} => operate(OperationVerb::Resume, principal)?,
        ControlVerb::Kill {} => operate(OperationVerb::Kill, principal)?,
        ControlVerb::FireTimer { timer } => operate(OperationVerb::FireTimer { timer }, principal)?,
        ControlVerb::CancelTimer { timer } => operate(OperationVerb::CancelTimer { timer }, principal)?,
        ControlVerb::TryNow { step } => operate(OperationVerb::TryNow { step }, principal)?,
        ControlVerb::Rerun { found } => rerun(found, principal)?,
        ControlVerb::Restart { event } => operate(restart(event)?, principal)?,
        ControlVerb::Delete { parent_over } => operate(OperationVerb::Delete { parent_over }, principal)?,
        ControlVerb::CancelChild { parent, undo, known } => Control::CancelChild { parent, undo, known },
        ControlVerb::Heartbeat { work } => Control::Heartbeat { work },
        ControlVerb::Callback { work, ok, error } => {
            let outcome = callback_outcome(ok.as_ref(), error.as_ref()).map_err(unfit)?;
            Control::Callback { work, outcome }
        }
        ControlVerb::RegisterAlias { key, generation } => Control::RegisterAlias {
            owner: Owner { key, generation },
        },
        ControlVerb::ReleaseAlias {
            key,
            generation,
            hears,
        } => Control::ReleaseAlias {
            owner: Owner { key, generation },
            hears,
        },
        ControlVerb::AskAlias {
            key,
            due_ms,
            number,
            slot,
        } => Control::AskAlias {
            key,
            question: question(due_ms, number, slot),
        },
        ControlVerb::AliasRead {
            due_ms,
            number,
            slot,
            late,
        } => Control::AliasRead {
            question: question(due_ms, number, slot),
            late,
        },
        ControlVerb::AliasAnswered {
            alias,
            generation,
            refused,
        } => Control::AliasAnswered {
            via: via(alias, generation)?,
            refused,
        },
    };
    Ok(Decoded::Control {
        instance,
        id: envelope.request_id,
        control,
    })
}

/// The trace that the header of a message names. One that is there twice names none.
fn traced(message: &Message) -> Option<String> {
    let mut named = message
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(trace::HEADER));
    match (named.next(), named.next()) {
        (Some((_, text)), None) => trace::of_header(text),
        _ => None,
    }
}

fn decide_stuck(verdict: Verdict, stuck: Stuck, principal: Principal) -> Result<Control, Defect> {
    if verdict == Verdict::Retry && stuck == Stuck::default() && principal.is_silent() {
        return Ok(Control::Retry);
    }
    let decision = stuck.decide(verdict, principal);
    decision.map(Control::DecideStuck).map_err(unfit)
}

fn start(verb: ControlVerb, principal: Principal, traceparent: Option<String>) -> Result<Control, Defect> {
    let ControlVerb::Start {
        input,
        parent,
        on_conflict,
    } = verb
    else {
        return Err(unfit("not a start"));
    };
    Ok(Control::Start {
        input: serde_json::Value::Object(input).to_string().into(),
        parent,
        on_conflict: on_conflict.decide(principal).map_err(unfit)?,
        traceparent,
    })
}

fn rerun(found: Vec<StepFound>, principal: Principal) -> Result<Control, Defect> {
    let found: Result<Vec<_>, _> = found.into_iter().map(StepFound::finding).collect();
    let found = found.map_err(unfit)?;
    operate(OperationVerb::Rerun { found }, principal)
}

fn restart(event: Option<Box<StartedBy>>) -> Result<OperationVerb, Defect> {
    let Some(event) = event else {
        return Ok(OperationVerb::Restart);
    };
    let event = event.event(&Limits::default());
    let event = event.map_err(|_| unfit("the event of a restart is no event"))?;
    Ok(OperationVerb::RestartWith {
        event: Box::new(event),
    })
}

fn operate(verb: OperationVerb, principal: Principal) -> Result<Control, Defect> {
    operation(verb, principal).map(Control::Operate).map_err(unfit)
}

/// How an instance has ended, or how undoing it has, for the command of its parent.
fn outcome_of(
    instance: InstanceId,
    command_id: CommandId,
    result_type: ResultType,
    payload: serde_json::Value,
) -> Result<Decoded, Defect> {
    let outcome = if result_type == ResultType::Succeeded {
        WorkOutcome::Succeeded {
            payload: payload.to_string().into(),
        }
    } else {
        let error: ErrorPayload = serde_json::from_value(payload)
            .map_err(|error| Defect::new("payload.schema", format!("payload: {error}")))?;
        WorkOutcome::of_error(result_type, error)
    };
    let result = WorkResult {
        command_id,
        effect: None,
        outcome,
    };
    Ok(Decoded::Result {
        instance,
        result,
        applied: None,
    })
}

/// The alias that a message comes from, and the generation that it is for.
fn via(alias: Alias, generation: u32) -> Result<Via, Defect> {
    if alias.is_legal() {
        return Ok(Via { alias, generation });
    }
    Err(Defect::new(
        "payload.schema",
        "alias: not a name and a value of one",
    ))
}

const fn question(due_ms: i64, number: u64, slot: u8) -> Question {
    Question {
        due: TimeMs(due_ms),
        number,
        slot,
    }
}
