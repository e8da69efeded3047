//! The subject grammar: how tenants, aggregates, commands and instances become NATS subjects and back.
//!
//! With multi-tenancy every subject begins with `tenant.<tenant>.`; without it the prefix is absent and the
//! tenant is [`TenantId::none`]. Free text (correlation ids, aggregate ids) is escaped so that it is always
//! exactly one token.

use std::fmt::Write as _;

use saga_runner_language::ids::{CommandId, EffectName, IdError, InstanceId, Key, SagaName, TenantId};
use uuid::Uuid;

/// What stands behind the tenant in the subjects of domain events.
pub const AGGREGATE_KINDS: &[&str] = &["aggregate"];
/// The same of results and facts.
pub const EVENT_KINDS: &[&str] = &["effect_result", "workflow_event"];
/// The same of what the runner and its workers tell each other.
pub const COMMAND_KINDS: &[&str] = &[
    "callbacks",
    "effect",
    "effect_progress",
    "effect_cancel",
    "workflow",
];

/// Whether subjects carry a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenancy {
    Multi,
    Single,
}

/// A subject of one of the runner's streams, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// `aggregate.<Type>.<aggregate id>`
    Aggregate {
        tenant: TenantId,
        aggregate_type: String,
        aggregate_id: String,
    },
    /// `effect.<effect>.<command id>`
    Effect {
        tenant: TenantId,
        effect: EffectName,
        command: CommandId,
    },
    /// `effect_result.<effect>.<command id>`
    EffectResult {
        tenant: TenantId,
        effect: EffectName,
        command: CommandId,
    },
    /// `effect_progress.<effect>.<command id>`
    EffectProgress {
        tenant: TenantId,
        effect: EffectName,
        command: CommandId,
    },
    /// `effect_cancel.<effect>.<command id>`
    EffectCancellation {
        tenant: TenantId,
        effect: EffectName,
        command: CommandId,
    },
    /// `workflow.<saga>.<correlation>`
    Workflow {
        tenant: TenantId,
        saga: SagaName,
        key: Key,
    },
    /// `callbacks.<saga>.<correlation>`
    Callback {
        tenant: TenantId,
        saga: SagaName,
        key: Key,
    },
    /// `workflow_event.<saga>.<correlation>`
    WorkflowEvent {
        tenant: TenantId,
        saga: SagaName,
        key: Key,
    },
    /// `runner.<cluster>.control.<tenant>.<saga>.<correlation>`: of the runners, and of nobody else. Here the tenant stands behind
    /// the kind, and is absent without multi-tenancy.
    Control {
        /// Its name.
        cluster: String,
        tenant: TenantId,
        saga: SagaName,
        key: Key,
    },
}

/// What the runners' own subjects begin with.
const RUNNER: &str = "runner";
/// What stands behind the cluster in the subjects by which the runners talk to instances.
const CONTROL: &str = "control";
/// What stands there in the subjects of the audit.
const AUDIT: &str = "audit";
/// What stands for the tenant in the subject of a record of the audit that concerns none: no tenant has this name.
const NO_TENANT: &str = "_";
/// The same of what is left of instances after their time.
const ARCHIVE: &str = "archive";

/// Why a text is not a subject of the runner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("subject has the wrong number of tokens or an empty one")]
    Shape,
    #[error("tenant token is invalid: {0}")]
    Tenant(IdError),
    #[error("subject token is invalid: {0}")]
    Token(#[from] IdError),
    #[error("subject token is not escaped as the runner escapes")]
    Escape,
    #[error("command id is not a UUID")]
    CommandId,
}

impl Subject {
    #[must_use]
    pub fn tenant(&self) -> &TenantId {
        match self {
            Self::Aggregate { tenant, .. }
            | Self::Effect { tenant, .. }
            | Self::EffectResult { tenant, .. }
            | Self::EffectProgress { tenant, .. }
            | Self::EffectCancellation { tenant, .. }
            | Self::Workflow { tenant, .. }
            | Self::Callback { tenant, .. }
            | Self::WorkflowEvent { tenant, .. }
            | Self::Control { tenant, .. } => tenant,
        }
    }

    /// Writes the subject. The tenant is written exactly when it is not empty.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(96);
        if !matches!(self, Self::Control { .. }) {
            prefix(&mut out, self.tenant());
        }
        match self {
            Self::Aggregate {
                aggregate_type,
                aggregate_id,
                ..
            } => {
                out.push_str("aggregate.");
                escape_into(&mut out, aggregate_type);
                out.push('.');
                escape_into(&mut out, aggregate_id);
            }
            Self::Effect { effect, command, .. } => {
                write!(out, "effect.{effect}.{command}").expect("writing to a string");
            }
            Self::EffectResult { effect, command, .. } => {
                write!(out, "effect_result.{effect}.{command}").expect("writing to a string");
            }
            Self::EffectProgress { effect, command, .. } => {
                write!(out, "effect_progress.{effect}.{command}").expect("writing to a string");
            }
            Self::EffectCancellation { effect, command, .. } => {
                write!(out, "effect_cancel.{effect}.{command}").expect("writing to a string");
            }
            Self::Workflow { saga, key, .. } => {
                write!(out, "workflow.{saga}.").expect("writing to a string");
                escape_into(&mut out, key.as_str());
            }
            Self::Callback { saga, key, .. } => {
                write!(out, "callbacks.{saga}.").expect("writing to a string");
                escape_into(&mut out, key.as_str());
            }
            Self::WorkflowEvent { saga, key, .. } => {
                write!(out, "workflow_event.{saga}.").expect("writing to a string");
                escape_into(&mut out, key.as_str());
            }
            Self::Control {
                cluster,
                tenant,
                saga,
                key,
            } => {
                write!(out, "{RUNNER}.{cluster}.{CONTROL}.").expect("writing to a string");
                if !tenant.is_none() {
                    write!(out, "{tenant}.").expect("writing to a string");
                }
                write!(out, "{saga}.").expect("writing to a string");
                escape_into(&mut out, key.as_str());
            }
        }
        out
    }

    /// Takes a subject apart.
    ///
    /// # Errors
    /// [`SubjectError`] says which rule the text breaks.
    pub fn parse(text: &str, tenancy: Tenancy) -> Result<Self, SubjectError> {
        if let Some(rest) = text.strip_prefix(RUNNER).and_then(|rest| rest.strip_prefix('.')) {
            return Self::parse_own(rest, tenancy);
        }
        let mut tokens = text.split('.');
        let mut next = || match tokens.next() {
            Some(token) if !token.is_empty() => Ok(token),
            _ => Err(SubjectError::Shape),
        };
        let tenant = match tenancy {
            Tenancy::Single => TenantId::none(),
            Tenancy::Multi => {
                if next()? != "tenant" {
                    return Err(SubjectError::Shape);
                }
                TenantId::parse(next()?).map_err(SubjectError::Tenant)?
            }
        };
        let (kind, name, last) = (next()?, next()?, next()?);
        if tokens.next().is_some() {
            return Err(SubjectError::Shape);
        }
        let command = |text: &str| {
            Uuid::try_parse(text)
                .map(CommandId)
                .map_err(|_| SubjectError::CommandId)
        };
        match kind {
            "aggregate" => Ok(Self::Aggregate {
                tenant,
                aggregate_type: unescape(name)?,
                aggregate_id: unescape(last)?,
            }),
            "effect" => Ok(Self::Effect {
                tenant,
                effect: EffectName::parse(name)?,
                command: command(last)?,
            }),
            "effect_result" => Ok(Self::EffectResult {
                tenant,
                effect: EffectName::parse(name)?,
                command: command(last)?,
            }),
            "effect_progress" => Ok(Self::EffectProgress {
                tenant,
                effect: EffectName::parse(name)?,
                command: command(last)?,
            }),
            "effect_cancel" => Ok(Self::EffectCancellation {
                tenant,
                effect: EffectName::parse(name)?,
                command: command(last)?,
            }),
            "workflow" => Ok(Self::Workflow {
                tenant,
                saga: SagaName::parse(name)?,
                key: Key::parse(&unescape(last)?)?,
            }),
            "callbacks" => Ok(Self::Callback {
                tenant,
                saga: SagaName::parse(name)?,
                key: Key::parse(&unescape(last)?)?,
            }),
            "workflow_event" => Ok(Self::WorkflowEvent {
                tenant,
                saga: SagaName::parse(name)?,
                key: Key::parse(&unescape(last)?)?,
            }),
            _ => Err(SubjectError::Shape),
        }
    }

    /// The same for what stands behind `runner.`.
    fn parse_own(text: &str, tenancy: Tenancy) -> Result<Self, SubjectError> {
        let mut tokens = text.split('.');
        let mut next = || match tokens.next() {
            Some(token) if !token.is_empty() => Ok(token),
            _ => Err(SubjectError::Shape),
        };
        let cluster = next()?.to_owned();
        if next()? != CONTROL {
            return Err(SubjectError::Shape);
        }
        let tenant = match tenancy {
            Tenancy::Single => TenantId::none(),
            Tenancy::Multi => TenantId::parse(next()?).map_err(SubjectError::Tenant)?,
        };
        let (saga, key) = (next()?, next()?);
        if tokens.next().is_some() {
            return Err(SubjectError::Shape);
        }
        Ok(Self::Control {
            cluster,
            tenant,
            saga: SagaName::parse(saga)?,
            key: Key::parse(&unescape(key)?)?,
        })
    }
}

/// A filter that matches the subjects by which the runners of a cluster talk to the instances of one tenant or, with `None`, of
/// every tenant.
#[must_use]
pub fn control_filter(cluster: &str, tenant: Option<&TenantId>) -> String {
    match tenant {
        Some(tenant) if !tenant.is_none() => format!("{RUNNER}.{cluster}.{CONTROL}.{tenant}.>"),
        Some(_) | None => format!("{RUNNER}.{cluster}.{CONTROL}.>"),
    }
}

/// The subject of a record of the audit: `runner.<cluster>.audit.<tenant, or _>.<action>`. `action` is words with points between
/// them, as `instances.cancel`.
#[must_use]
pub fn audit(cluster: &str, tenant: Option<&str>, action: &str) -> String {
    let tenant = tenant.filter(|tenant| !tenant.is_empty()).unwrap_or(NO_TENANT);
    format!("{RUNNER}.{cluster}.{AUDIT}.{tenant}.{action}")
}

/// A filter that matches the subjects of all records of the audit of a cluster.
#[must_use]
pub fn audit_filter(cluster: &str) -> String {
    format!("{RUNNER}.{cluster}.{AUDIT}.>")
}

/// Where the archive has an instance: `runner.<cluster>.archive.<tenant>.<saga>.<correlation>`.
#[must_use]
pub fn archive(cluster: &str, instance: &InstanceId) -> String {
    let mut out = format!("{RUNNER}.{cluster}.{ARCHIVE}.");
    if !instance.tenant.is_none() {
        write!(out, "{}.", instance.tenant).expect("writing to a string");
    }
    write!(out, "{}.", instance.saga).expect("writing to a string");
    escape_into(&mut out, instance.key.as_str());
    out
}

/// A filter that matches all of the archive of a cluster.
#[must_use]
pub fn archive_filter(cluster: &str) -> String {
    format!("{RUNNER}.{cluster}.{ARCHIVE}.>")
}

/// A filter that matches the subjects of `kind` (and `name`, if given) of one tenant or, with `None`, of
/// every tenant.
#[must_use]
pub fn filter(tenancy: Tenancy, tenant: Option<&TenantId>, kind: &str, name: Option<&str>) -> String {
    let mut out = String::new();
    match (tenancy, tenant) {
        (Tenancy::Single, _) => {}
        (Tenancy::Multi, Some(tenant)) => prefix(&mut out, tenant),
        (Tenancy::Multi, None) => out.push_str("tenant.*."),
    }
    out.push_str(kind);
    if let Some(name) = name {
        out.push('.');
        escape_into(&mut out, name);
    }
    out.push_str(".>");
    out
}

fn prefix(out: &mut String, tenant: &TenantId) {
    if !tenant.is_none() {
        write!(out, "tenant.{tenant}.").expect("writing to a string");
    }
}

/// Appends `text` as one subject token: letters, digits, `-`, `_`, and the bytes of everything else as
/// `=XX` in upper-case hex. The empty text becomes a lone `=`.
pub fn escape_into(out: &mut String, text: &str) {
    if text.is_empty() {
        out.push('=');
    }
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(char::from(byte)),
            _ => write!(out, "={byte:02X}").expect("writing to a string"),
        }
    }
}

/// Reads a token back. Producers that do not escape are understood as long as their token has no `=`.
fn unescape(token: &str) -> Result<String, SubjectError> {
    if token == "=" {
        return Ok(String::new());
    }
    if !token.contains('=') {
        let clean = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '*' | '>');
        return if token.chars().all(clean) {
            Ok(token.to_owned())
        } else {
            Err(SubjectError::Escape)
        };
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'=' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).filter(|two| two.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.ok_or(SubjectError::Escape)?;
        let text = std::str::from_utf8(digits).map_err(|_| SubjectError::Escape)?;
        bytes.push(u8::from_str_radix(text, 16).map_err(|_| SubjectError::Escape)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| SubjectError::Escape)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(text: &str) -> TenantId {
        TenantId::parse(text).expect("legal")
    }

    #[test]
    fn subjects_read_back_what_they_wrote() {
        let id = CommandId(Uuid::from_u128(7));
        let effect = EffectName::parse("payments-charge").expect("legal");
        let subject = Subject::Effect {
            tenant: tenant("acme"),
            effect,
            command: id,
        };
        assert_eq!(
            subject.render(),
            "tenant.acme.effect.payments-charge.00000000-0000-0000-0000-000000000007"
        );
        assert_eq!(Subject::parse(&subject.render(), Tenancy::Multi), Ok(subject));
    }

    #[test]
    fn hostile_tokens_are_refused() {
        for bad in [
            "",
            "tenant.acme.aggregate.Order",
            "tenant.acme.aggregate.Order.1.2",
            "tenant.acme.aggregate..1",
            "tenant.*.aggregate.Order.1",
            "tenant.>.aggregate.Order.1",
            "tenant.Acme.aggregate.Order.1",
            "tenant.a\0b.aggregate.Order.1",
            "tenant.acme.aggregate.Order.>",
            "tenant.acme.aggregate.Order.a=Z",
            "tenant.acme.aggregate.Order.a=+F",
            "tenant.acme.aggregate.Order.a=FF",
            "tenant.acme.effect.charge.not-a-uuid",
            "aggregate.Order.1",
        ] {
            assert!(Subject::parse(bad, Tenancy::Multi).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn filters_name_one_tenant_or_all() {
        let acme = tenant("acme");
        assert_eq!(
            filter(Tenancy::Multi, Some(&acme), "aggregate", Some("Order")),
            "tenant.acme.aggregate.Order.>"
        );
        assert_eq!(filter(Tenancy::Multi, None, "effect", None), "tenant.*.effect.>");
        assert_eq!(filter(Tenancy::Single, None, "effect", None), "effect.>");
    }

    #[test]
    fn the_runners_subject_names_cluster_and_tenant() {
        let control = |tenant: TenantId| Subject::Control {
            cluster: "shop".to_owned(),
            tenant,
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse("o/1").expect("legal"),
        };
        let of_acme = control(tenant("acme"));
        assert_eq!(of_acme.render(), "runner.shop.control.acme.order.o=2F1");
        assert_eq!(Subject::parse(&of_acme.render(), Tenancy::Multi), Ok(of_acme));
        let of_nobody = control(TenantId::none());
        assert_eq!(of_nobody.render(), "runner.shop.control.order.o=2F1");
        assert_eq!(
            Subject::parse(&of_nobody.render(), Tenancy::Single),
            Ok(of_nobody)
        );
        assert_eq!(
            control_filter("shop", Some(&tenant("acme"))),
            "runner.shop.control.acme.>"
        );
        assert_eq!(control_filter("shop", None), "runner.shop.control.>");
        for bad in [
            "runner.shop.control.acme.order",
            "runner.shop.control.acme.order.1.2",
            "runner.shop.control.Acme.order.1",
            "runner.shop.other.acme.order.1",
            "runner..control.acme.order.1",
            "tenant.acme.runner.shop.control.order.1",
            "tenant.acme.control.order.1",
        ] {
            assert!(Subject::parse(bad, Tenancy::Multi).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_key_is_one_token_and_comes_back(text in "\\PC{1,40}") {
            prop_assume!(Key::parse(&text).is_ok());
            let subject = Subject::Workflow {
                tenant: tenant("acme"),
                saga: SagaName::parse("order").expect("legal"),
                key: Key::parse(&text).expect("printable"),
            };
            let rendered = subject.render();
            prop_assert_eq!(rendered.split('.').count(), 5);
            prop_assert_eq!(Subject::parse(&rendered, Tenancy::Multi), Ok(subject));
        }
    }
}
