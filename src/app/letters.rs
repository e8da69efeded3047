//! What operators see of dead letters.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::oneshot;

use super::control::blocking;
use super::node::Node;
use super::pages::{self, read_letter_id};
use crate::kernel::definition::EffectDefinition;
use crate::kernel::ids::TenantId;
use crate::kernel::input::{InputBody, WorkOutcome, WorkResult};
use crate::ports::control::{
    ControlError, DeadLetterView, DeadLetters, LetterDecision, LetterFilter, Page, PageRequest, rfc3339,
};
use crate::shard::mailbox::{Mail, Refused};
use crate::storage::rows::{DeadLetter, EXCERPT_BYTES};

#[async_trait]
impl DeadLetters for Node {
    async fn dead_letters(
        &self,
        tenant: &TenantId,
        filter: LetterFilter,
        page: PageRequest,
    ) -> Result<Page<DeadLetterView>, ControlError> {
        pages::dead_letters(self, tenant, filter, page).await
    }

    async fn dead_letter(&self, tenant: &TenantId, id: &str) -> Result<DeadLetterView, ControlError> {
        let unknown = || ControlError::NotFound(format!("no dead letter {id:?}"));
        let (shard, number) = read_letter_id(id).ok_or_else(unknown)?;
        if shard >= self.manifest.shards {
            return Err(unknown());
        }
        let reader = self.running_or_unavailable()?.shard(shard).await?.reader;
        let found = blocking(&self.tasks, move || reader.dead_letter(number)).await?;
        let letter = found
            .filter(|letter| letter.tenant == *tenant)
            .ok_or_else(unknown)?;
        Ok(view(shard, number, letter, &self.catalog.now().effects))
    }

    async fn decide(
        &self,
        tenant: &TenantId,
        id: &str,
        decision: LetterDecision,
    ) -> Result<(), ControlError> {
        let running = self.running_or_unavailable()?;
        let unknown = || ControlError::NotFound(format!("no dead letter {id:?}"));
        let (shard, number) = read_letter_id(id).ok_or_else(unknown)?;
        if shard >= self.manifest.shards {
            return Err(unknown());
        }
        let shown = running.shard(shard).await?;
        let (reply, answer) = oneshot::channel();
        let mail = Mail::DeadLetter {
            tenant: tenant.clone(),
            number,
            decision,
            reply,
        };
        let stopped = |_| ControlError::Unavailable(format!("shard {shard} has stopped"));
        shown
            .mail
            .send(mail)
            .await
            .map_err(|error| stopped(error.to_string()))?;
        match answer.await.map_err(|error| stopped(error.to_string()))? {
            Ok(()) => Ok(()),
            Err(Refused::NotFound(_)) => Err(unknown()),
            Err(refused @ Refused::Conflict(_)) => Err(ControlError::Conflict(refused.to_string())),
            Err(refused @ Refused::Unavailable { .. }) => Err(ControlError::Unavailable(refused.to_string())),
        }
    }
}

/// Whether a filter wants a dead letter.
pub(super) fn is_wanted(filter: &LetterFilter, letter: &DeadLetter) -> bool {
    let instance = letter.instance();
    let is = |wanted: &Option<String>, found: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
    };
    is(&filter.reason, Some(&letter.reason))
        && is(&filter.saga, instance.map(|id| id.saga.as_str()))
        && is(&filter.key, instance.map(|id| id.key.as_str()))
}

/// A dead letter as it is shown, without what `effects` redact.
pub(super) fn view(
    shard: u16,
    number: u64,
    letter: DeadLetter,
    effects: &[Arc<EffectDefinition>],
) -> DeadLetterView {
    let excerpt = printable(&excerpt(&letter, effects));
    let instance = letter.instance().cloned();
    DeadLetterView {
        id: pages::letter_id(shard, number),
        reason: letter.reason,
        message: letter.message,
        subject: letter.subject,
        saga: instance.as_ref().map(|id| id.saga.to_string()),
        key: instance.as_ref().map(|id| id.key.to_string()),
        time: rfc3339(letter.time),
        attempts: letter.attempts,
        excerpt,
    }
}

/// The first KiB of what the message said, without what its effect redacts of results.
fn excerpt<'l>(letter: &'l DeadLetter, effects: &[Arc<EffectDefinition>]) -> Cow<'l, [u8]> {
    match letter.input.as_ref().map(|input| &input.body) {
        Some(InputBody::Result(result)) => cut(of_result(result, effects)),
        Some(InputBody::Event(_) | InputBody::Timer { .. } | InputBody::Control(_)) | None => {
            Cow::Borrowed(&letter.excerpt)
        }
    }
}

fn of_result<'r>(result: &'r WorkResult, effects: &[Arc<EffectDefinition>]) -> Cow<'r, [u8]> {
    let payload = match &result.outcome {
        WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => payload,
        WorkOutcome::Failed { class, message, .. } => return told(class, message),
        WorkOutcome::TimedOut { class, message } => return told(class.as_str(), message),
    };
    let effect = effects
        .iter()
        .find(|effect| result.effect.as_ref() == Some(&effect.name));
    let hidden = effect.map_or(&[][..], |effect| &effect.redaction.result);
    if hidden.is_empty() {
        return Cow::Borrowed(payload);
    }
    // An unreadable message is not shown: its content is unknown.
    let mut value = serde_json::from_slice(payload).unwrap_or(Value::Null);
    for path in hidden {
        path.hide_value(&mut value);
    }
    Cow::Owned(value.to_string().into_bytes())
}

fn told(class: &str, message: &str) -> Cow<'static, [u8]> {
    Cow::Owned(format!("{class}: {message}").into_bytes())
}

fn cut(text: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..text.len().min(EXCERPT_BYTES)]),
        Cow::Owned(mut text) => {
            text.truncate(EXCERPT_BYTES);
            Cow::Owned(text)
        }
    }
}

/// Text as far as it is text; what could disturb a terminal or a log is escaped.
fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() {
            write!(out, "{}", c.escape_default()).expect("writing to a string");
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_cannot_disturb_a_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\0\xff"), "a\\u{1b}[2Jb\\u{0}\u{fffd}");
    }
}
