//! Effect definitions: how a worker turns a command into a call and its answer into a result.

mod provider;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::provider::{
    Attachment, AttachmentBody, CustomCall, GrpcCall, HttpCall, NatsAct, NatsCall, Provider, Returned,
    SmtpMail, SmtpSecurity, SqlCall, SqlExpectation, SqlJournal, SqlStatement, SubjectPart,
};
use super::model::EffectContract;
use super::redaction::Redaction;
use super::url;
use crate::breaker::BreakerPolicy;
use crate::expr::{Expr, Root, Template, TextPart};
use crate::ids::EffectName;
use crate::rate::Rate;
use crate::retry::RetryPolicy;
use crate::schema::Schema;

/// What is told of all effects, by name. An effect that cannot be read has none.
pub type Effects = BTreeMap<String, EffectSchemas>;

/// What sagas are told of an effect: what it takes and gives, and what follows an unknown outcome.
#[derive(Debug, Clone, Default)]
pub struct EffectSchemas {
    /// Of `input`; absent: anything.
    pub input: Option<Arc<Schema>>,
    /// Of the result; absent: anything.
    pub output: Option<Arc<Schema>>,
    /// An operator is asked for an unknown outcome, and no call is made that might be a second one.
    pub asks: bool,
}

impl EffectSchemas {
    #[must_use]
    pub fn contract(&self) -> Option<EffectContract> {
        EffectContract::of(self.input.as_deref(), self.output.as_ref(), self.asks)
    }
}

/// Class of a call that was sent and not answered.
pub const AMBIGUOUS: &str = "ambiguous";
/// Error classes that a worker tries again where the definition does not say.
pub const EFFECT_RETRY_CLASSES: [&str; 4] = ["transient", "throttled", "timeout", AMBIGUOUS];

/// One effect, ready to run.
#[derive(Debug)]
pub struct EffectDefinition {
    pub name: EffectName,
    pub schemas: EffectSchemas,
    pub provider: Provider,
    /// Whole call of one attempt, in milliseconds. Default 10,000; of mail 900,000.
    pub timeout_ms: u64,
    /// Establishing the connection, in milliseconds. Default 2,000.
    pub connect_timeout_ms: u64,
    /// Attempts within one command, in the worker's memory.
    pub retry: RetryPolicy,
    /// Error classes that are tried again. Default [`EFFECT_RETRY_CLASSES`]; of mail without [`AMBIGUOUS`].
    pub retry_classes: Vec<String>,
    /// What follows a call that was begun and whose outcome is unknown.
    pub on_ambiguous: OnAmbiguous,
    /// What happens to a call whose result is no longer needed.
    pub on_cancel: OnCancel,
    pub limits: EffectLimits,
    /// When the upstream is left alone. `None`: as others say that call the same host, or the default.
    pub breaker: Option<BreakerRule>,
    /// First match wins; the built-in rules follow.
    pub classify: Vec<Classify>,
    /// The result of a successful call. Default: the response body.
    pub result: Option<Template>,
    /// What is masked in all that is told about its calls.
    pub redaction: Redaction,
}

impl EffectDefinition {
    /// Whether workers of saga-runner leave its commands to others.
    #[must_use]
    pub const fn is_external(&self) -> bool {
        matches!(self.provider, Provider::External)
    }

    /// Whether no call is made after one that was begun and whose outcome is unknown, be it that the worker died in it. A
    /// call that changes nothing may always be made again.
    #[must_use]
    pub fn never_calls_twice(&self) -> bool {
        match self.on_ambiguous {
            OnAmbiguous::Retry => false,
            OnAmbiguous::Fail | OnAmbiguous::Ask => self.provider.acts(),
        }
    }

    /// The base URLs that the manifest must give: `x` of `upstreams.x`.
    #[must_use]
    pub fn upstreams(&self) -> BTreeSet<String> {
        self.named(Root::Upstreams)
    }

    /// The name in `upstreams` of the manifest by which its calls are addressed; `None` where the address stands in its file, or there
    /// is none.
    #[must_use]
    pub fn upstream(&self) -> Option<&str> {
        match &self.provider {
            Provider::Http(call) => upstream_of(&call.url),
            Provider::Grpc(call) => upstream_of(&call.url),
            Provider::Smtp(mail) => upstream_of(&mail.server),
            Provider::Sql(call) => upstream_of(&call.database),
            Provider::Nats(_) | Provider::Transform | Provider::External | Provider::Custom(_) => None,
        }
    }

    /// The secrets that the manifest must give: `x` of `secrets.x`.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<String> {
        self.named(Root::Secrets)
    }

    /// Whether it hands out the callback token of its command: it reads `command.token`.
    #[must_use]
    pub fn hands_out_token(&self) -> bool {
        let reads = |expr: &Expr| expr.fields_of(Root::Command).iter().any(|name| name == "token");
        let mut found = self.named(Root::Command).contains("token");
        found |= self.classify.iter().any(|rule| reads(&rule.when));
        if let Some(result) = &self.result {
            result.for_each_expr(&mut |expr| found |= reads(expr));
        }
        found
    }

    fn named(&self, root: Root) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for template in self.provider.templates() {
            template.for_each_expr(&mut |expr| names.extend(expr.fields_of(root)));
        }
        names
    }
}

/// The name of the upstream that a template of an address begins with: `x` of `${upstreams.x}`.
#[must_use]
pub fn upstream_of(template: &Template) -> Option<&str> {
    match template {
        Template::Value(base) => url::upstream(base),
        Template::Text(parts) => match parts.first() {
            Some(TextPart::Expr(base)) => url::upstream(base),
            Some(TextPart::Literal(_)) | None => None,
        },
        Template::Constant(_) | Template::List(_) | Template::Map(_) => None,
    }
}

/// What follows a call that was begun and whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnAmbiguous {
    /// It may be made again, under the same idempotency key; [`EffectDefinition::retry_classes`] says whether it is.
    #[default]
    Retry,
    /// It is not made again.
    Fail,
    /// It is not made again, and an operator is asked: [`EffectSchemas::asks`].
    Ask,
}

/// What happens to a call whose result is no longer needed. One that changes nothing ends at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnCancel {
    /// It comes to its end, so that it is known what it did; no other follows.
    #[default]
    Finish,
    /// It is aborted, and what it did is not known.
    Interrupt,
}

/// How much of an effect one worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectLimits {
    /// Commands in progress at the same time. Default 32.
    pub concurrency: u32,
    /// Commands of one tenant in progress at the same time. Default: as many as of all tenants.
    pub per_tenant: Option<u32>,
    /// How fast commands are taken. Default: as fast as they come.
    pub rate: Option<Rate>,
    /// How fast calls for one tenant are made. Default: as fast as they come.
    pub tenant_rate: Option<Rate>,
}

impl Default for EffectLimits {
    fn default() -> Self {
        Self {
            concurrency: 32,
            per_tenant: None,
            rate: None,
            tenant_rate: None,
        }
    }
}

/// When an upstream is left alone, and what counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BreakerRule {
    pub scope: BreakerScope,
    pub policy: BreakerPolicy,
}

/// Which calls share a breaker. A tenant never shares one with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BreakerScope {
    /// All that go to one host and port.
    #[default]
    Host,
    /// Those of one effect.
    Effect,
}

#[derive(Debug)]
pub struct Classify {
    pub when: Expr,
    /// `succeeded`, or an error class.
    pub class: String,
    /// What such an answer says about the call. `None`: what class and answer say.
    pub outcome: Option<RuledOutcome>,
}

/// What a rule says about a call that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuledOutcome {
    /// The upstream has refused it.
    Refused,
    /// This call did nothing; it may be made again under the same idempotency key.
    NotDone,
    Unknown,
}
