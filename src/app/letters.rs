//! What operators see of dead letters.

mod count;
mod detail;
mod schema;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::oneshot;

use super::node::Node;
use super::pages::{self, read_letter_id};
use crate::kernel::definition::EffectDefinition;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{TenantId, TimeMs};
use crate::kernel::input::{Input, InputBody, WorkOutcome, WorkResult};
use crate::ports::control::{
    ControlError, DeadLetterDetail, DeadLetterView, DeadLetters, LetterCount, LetterDecision, LetterFilter,
    LetterKind, LetterOrder, LetterTrait, Page, PageRequest,
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

    async fn count_letters(
        &self,
        tenant: &TenantId,
        filter: LetterFilter,
        by: LetterTrait,
    ) -> Result<LetterCount, ControlError> {
        count::count(self, tenant, filter, by).await
    }

    async fn dead_letter(&self, tenant: &TenantId, id: &str) -> Result<DeadLetterDetail, ControlError> {
        detail::show(self, tenant, id).await
    }

    async fn decide(&self, tenant: &TenantId, id: &str, order: LetterOrder) -> Result<(), ControlError> {
        let (shard, number) = self.named_letter(id)?;
        order
            .principal
            .check()
            .map_err(|message| ControlError::Invalid(message.to_owned()))?;
        if order.edited.is_some() && order.principal.reason.trim().is_empty() {
            return Err(ControlError::Invalid(
                "who edits a dead letter says why: `reason`".to_owned(),
            ));
        }
        let decision = order.decision;
        let came = self.letter(tenant, (shard, number)).await?;
        self.decide_letter(tenant, (shard, number), order).await?;
        match came.and_then(|letter| letter.input) {
            Some(came) if decision == LetterDecision::Retry => self.fails_again((shard, number), came).await,
            _ => Ok(()),
        }
    }
}

impl Node {
    /// A dead letter of this tenant, if it is there.
    async fn letter(
        &self,
        tenant: &TenantId,
        (shard, number): (u16, u64),
    ) -> Result<Option<DeadLetter>, ControlError> {
        let reader = self.running_or_unavailable()?.shard(shard).await?.reader;
        let letter = self.read(move || reader.dead_letter(number)).await?;
        Ok(letter.filter(|letter| letter.tenant == *tenant))
    }

    /// Refuses if an input that was applied again has become a dead letter again.
    async fn fails_again(&self, (shard, number): (u16, u64), came: Input) -> Result<(), ControlError> {
        let reader = self.running_or_unavailable()?.shard(shard).await?.reader;
        let again = self.read(move || detail::again(&reader, number, &came)).await?;
        match again {
            None => Ok(()),
            Some((number, letter)) => Err(ControlError::Conflict(format!(
                "it was applied again and failed again, {}: {}; it is dead letter {} now",
                letter.reason,
                letter.message,
                pages::letter_id(shard, number)
            ))),
        }
    }

    /// Shard and number of the dead letter of this name.
    fn named_letter(&self, id: &str) -> Result<(u16, u64), ControlError> {
        let named = read_letter_id(id).filter(|(shard, _)| *shard < self.manifest.shards);
        named.ok_or_else(|| unknown(id))
    }

    /// Has the shard decide.
    pub(super) async fn decide_letter(
        &self,
        tenant: &TenantId,
        (shard, number): (u16, u64),
        order: LetterOrder,
    ) -> Result<(), ControlError> {
        let shown = self.running_or_unavailable()?.shard(shard).await?;
        let (reply, answer) = oneshot::channel();
        let mail = Mail::DeadLetter {
            tenant: tenant.clone(),
            number,
            order,
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
            Err(Refused::NotFound(_)) => Err(unknown(&pages::letter_id(shard, number))),
            Err(Refused::Unfit { reason, message }) => Err(ControlError::Unfit {
                reason: reason.into_owned(),
                message,
            }),
            Err(Refused::Forbidden(why)) => Err(ControlError::Forbidden(why.to_owned())),
            Err(refused @ Refused::Conflict(_)) => Err(ControlError::Conflict(refused.to_string())),
            Err(refused @ Refused::Unavailable { .. }) => Err(ControlError::Unavailable(refused.to_string())),
        }
    }
}

fn unknown(id: &str) -> ControlError {
    ControlError::NotFound(format!("no dead letter {id:?}"))
}

/// Whether a filter wants a dead letter, as of `now`.
pub(super) fn is_wanted(filter: &LetterFilter, now: TimeMs, letter: &DeadLetter) -> bool {
    let instance = letter.instance();
    let is = |wanted: &Option<String>, found: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
    };
    let begins = |wanted: &Option<String>, found: Option<&str>| {
        let wanted = wanted.as_deref();
        wanted.is_none_or(|wanted| found.is_some_and(|found| found.starts_with(wanted)))
    };
    let key = instance.map(|id| id.key.as_str());
    let since = |age: Millis| now.plus_ms(-age.as_i64());
    is(&filter.reason, Some(&letter.reason))
        && is(&filter.saga, instance.map(|id| id.saga.as_str()))
        && is(&filter.key, key)
        && begins(&filter.key_prefix, key)
        && begins(&filter.subject_prefix, Some(&letter.subject))
        && filter.kind.is_none_or(|kind| kind == kind_of(letter))
        && filter
            .stream
            .is_none_or(|stream| letter.source.is_some_and(|(source, _)| source == stream))
        && filter.older_than.is_none_or(|age| letter.time <= since(age))
        && filter.newer_than.is_none_or(|age| letter.time >= since(age))
}

/// What has become the dead letter.
fn kind_of(letter: &DeadLetter) -> LetterKind {
    match letter.input.as_ref().map(|input| &input.body) {
        Some(InputBody::Event(_)) => LetterKind::Event,
        Some(InputBody::Result(_)) => LetterKind::Result,
        Some(InputBody::Timer { .. }) => LetterKind::Timer,
        Some(InputBody::Control(_)) => LetterKind::Control,
        None => LetterKind::Message,
    }
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
        kind: kind_of(&letter).as_str(),
        reason: letter.reason,
        message: letter.message,
        subject: letter.subject,
        saga: instance.as_ref().map(|id| id.saga.to_string()),
        key: instance.as_ref().map(|id| id.key.to_string()),
        time: letter.time.rfc3339(),
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
