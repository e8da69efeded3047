//! Events, signals and callbacks as steps wait for them, and what expressions see of them.

use std::borrow::Cow;

use saga_runner_language::json::Json;

use super::Rejection;
use super::run::Run;
use super::scope::Locals;
use crate::input::CallbackOutcome;
use crate::record::{Buffered, MessageKind};

/// An event or a signal as steps may wait for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) kind: MessageKind,
    pub(super) name: &'a str,
    /// What expressions see of it.
    pub(super) value: &'a Json<'a>,
}

impl<'a> Message<'a> {
    /// The event that is the input.
    pub(super) fn event(run: &mut Run<'a>, event_type: &'a str) -> Result<Self, Rejection> {
        Ok(Self {
            kind: MessageKind::Event,
            name: event_type,
            value: run.event_root()?,
        })
    }

    /// A signal. What it says is read beside its name, its sender and its time.
    pub(super) fn signal(
        run: &Run<'a>,
        name: &'a str,
        data: &'a [u8],
        by: &'a str,
    ) -> Result<Self, Rejection> {
        let data = run.parse(data, &format!("signal {name}"))?;
        let said = [("name", name), ("by", by)];
        Ok(Self {
            kind: MessageKind::Signal,
            name,
            value: said_beside(run, data, said),
        })
    }

    /// A callback; `work` is the idempotency key of the work whose token it has.
    pub(super) fn callback(
        run: &Run<'a>,
        work: &'a str,
        outcome: &'a CallbackOutcome,
    ) -> Result<Self, Rejection> {
        let (kind, value) = match outcome {
            CallbackOutcome::Done { data } => {
                let data = run.parse(data, "the callback")?;
                (MessageKind::Callback, said_beside(run, data, []))
            }
            CallbackOutcome::Failed { class, message } => {
                let text = |text: &'a str| Json::Str(Cow::Borrowed(text));
                let members = vec![
                    (Cow::Borrowed("class"), text(class)),
                    (Cow::Borrowed("message"), text(message)),
                ];
                let value = run.ground.values.keep(Json::Map(members));
                (MessageKind::CallbackFailed, value)
            }
        };
        Ok(Self {
            kind,
            name: work,
            value,
        })
    }

    /// What expressions see of it.
    pub(super) const fn value(self) -> &'a Json<'a> {
        self.value
    }

    pub(super) const fn is_callback(self) -> bool {
        matches!(self.kind, MessageKind::Callback | MessageKind::CallbackFailed)
    }

    pub(super) fn locals(self) -> Locals<'a> {
        let (event, signal) = match self.kind {
            MessageKind::Event => (Some(self.value), None),
            MessageKind::Signal | MessageKind::Callback => (None, Some(self.value)),
            MessageKind::CallbackFailed => (None, None),
        };
        Locals {
            event,
            signal,
            ..Locals::default()
        }
    }
}

/// `data` with what is known besides, which no sender may say.
fn said_beside<'a, const N: usize>(
    run: &Run<'a>,
    data: &'a Json<'a>,
    said: [(&'static str, &'a str); N],
) -> &'a Json<'a> {
    let mut members = match data {
        Json::Map(members) => members.clone(),
        _ => Vec::new(),
    };
    members.retain(|(member, _)| member != "time" && said.iter().all(|(name, _)| member != name));
    for (name, text) in said {
        members.push((Cow::Borrowed(name), Json::Str(Cow::Borrowed(text))));
    }
    let time = run.record.updated.to_string();
    members.push((Cow::Borrowed("time"), Json::Str(Cow::Owned(time))));
    run.ground.values.keep(Json::Map(members))
}

/// A message from the buffer. Its name is not looked at again.
pub(super) fn buffered<'a>(run: &Run<'a>, entry: &Buffered) -> Result<Message<'a>, Rejection> {
    Ok(Message {
        kind: entry.kind,
        name: "",
        value: run.parse_owned(entry.value.to_vec(), &entry.name)?,
    })
}
