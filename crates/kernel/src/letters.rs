//! What operators decide about dead letters. One may be edited: it is the same input with other data, in the same place of order.

use bytes::Bytes;
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;

use crate::envelope::Principal;
use crate::input::{Control, Input, InputBody, Origin, WorkOutcome};
use crate::recorded::LetterDecision;
use crate::transition::content_of;

/// What an operator decides about a dead letter, and who that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterOrder {
    pub decision: LetterDecision,
    /// With a retry: JSON that is applied in the place of the data that came.
    pub edited: Option<Bytes>,
    pub principal: Principal,
    /// The job that decides; empty: a single request.
    pub job: String,
}

impl From<LetterDecision> for LetterOrder {
    fn from(decision: LetterDecision) -> Self {
        Self {
            decision,
            edited: None,
            principal: Principal::nobody(),
            job: String::new(),
        }
    }
}

/// Why an input cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotEdited {
    /// It has no data of its own.
    #[error("{0}")]
    NoData(&'static str),
    /// What is to stand in the place of its data is no such data.
    #[error("{0}")]
    Unfit(String),
}

/// The data of an input that an operator may edit, as JSON: those of an event or a signal, the input of a start, the result of an
/// effect that has succeeded.
#[must_use]
pub const fn data(input: &Input) -> Option<&Bytes> {
    match &input.body {
        InputBody::Event(event) => Some(&event.payload),
        InputBody::Result(result) => match &result.outcome {
            WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => Some(payload),
            WorkOutcome::Failed { .. } | WorkOutcome::TimedOut { .. } => None,
        },
        InputBody::Control(Control::Signal { data, .. }) => Some(data),
        InputBody::Control(Control::Start {
            input, parent: None, ..
        }) => Some(input),
        InputBody::Timer { .. } | InputBody::Control(_) => None,
    }
}

/// The input with other data. It keeps its id, its time and its place, and remembers what had come first.
///
/// # Errors
/// [`NotEdited`].
pub fn edited(input: &Input, data: &Bytes, limits: &Limits) -> Result<Input, NotEdited> {
    let mut edited = input.clone();
    let place = match &mut edited.body {
        InputBody::Event(event) => &mut event.payload,
        InputBody::Result(result) => {
            let outcome = &mut result.outcome;
            if let WorkOutcome::Unusable { payload, .. } = outcome {
                let payload = std::mem::take(payload);
                *outcome = WorkOutcome::Succeeded { payload };
            }
            match outcome {
                WorkOutcome::Succeeded { payload } => payload,
                WorkOutcome::Unusable { .. } | WorkOutcome::Failed { .. } | WorkOutcome::TimedOut { .. } => {
                    return Err(NotEdited::NoData(
                        "the call has failed: there is no result to edit; resolve the step instead",
                    ));
                }
            }
        }
        InputBody::Control(Control::Signal { data, .. }) => data,
        InputBody::Control(Control::Start {
            input, parent: None, ..
        }) => input,
        InputBody::Timer { .. } | InputBody::Control(_) => {
            return Err(NotEdited::NoData(
                "it has no data: events, signals, starts and results of effects can be edited",
            ));
        }
    };
    if data.len() > limits.payload_bytes {
        let (found, max) = (data.len(), limits.payload_bytes);
        return Err(NotEdited::Unfit(format!(
            "the data have {found} bytes, at most {max} are allowed"
        )));
    }
    match Json::parse(data, limits.json_depth) {
        Ok(Json::Map(_)) => {}
        Ok(_) => return Err(NotEdited::Unfit("the data are not a JSON object".to_owned())),
        Err(error) => return Err(NotEdited::Unfit(format!("the data: {error}"))),
    }
    *place = data.clone();
    let content = match input.origin {
        Origin::Edited { content } => content,
        Origin::Stream { .. } | Origin::Timer | Origin::Local => content_of(input),
    };
    edited.origin = Origin::Edited { content };
    Ok(edited)
}
