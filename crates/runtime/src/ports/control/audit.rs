//! The audit: a record of each request for a change, refused ones too.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{ControlError, Page, PageRequest};
use crate::kernel::ids::TimeMs;

/// How a request for a change has ended for whoever made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It was done (200 to 299, except 202).
    Done,
    /// It is stored to be done (202).
    Accepted,
    /// It was refused (300 to 499).
    Refused,
    /// It could not be done, or its outcome is unknown (500 to 599).
    Failed,
    /// There was no answer: whoever asked went away, or it took too long. The change may have been made.
    Unanswered,
}

impl AuditOutcome {
    pub const ALL: [Self; 5] = [
        Self::Done,
        Self::Accepted,
        Self::Refused,
        Self::Failed,
        Self::Unanswered,
    ];

    /// What a status of HTTP means; none: there was no answer.
    #[must_use]
    pub const fn of(status: Option<u16>) -> Self {
        match status {
            None => Self::Unanswered,
            Some(202) => Self::Accepted,
            Some(..300) => Self::Done,
            Some(..500) => Self::Refused,
            Some(_) => Self::Failed,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Unanswered => "unanswered",
        }
    }
}

/// One request for a change: who, what, why, and with which outcome. It has neither bodies nor credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// A random UUID. A record whose storing was not confirmed may be stored twice, under the same id.
    pub id: String,
    /// When the request came, in RFC 3339, by the clock of the process.
    pub time: String,
    /// Who asked, as the API has authenticated it; none where it does not authenticate, or has refused the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Who asked, as the body says where the API does not authenticate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The role that was needed, or `open`.
    pub role: String,
    /// The address of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    pub method: String,
    /// The endpoint as the API documents it, with the names of its parameters.
    pub endpoint: String,
    /// What was asked for, as words with points between them: `instances.cancel`.
    pub action: String,
    /// The tenant that it was about, if it was about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it was about, by the names of the parameters: saga, key, id, shard, upstream.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub target: BTreeMap<String, String>,
    /// Why, where whoever asked has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Nothing was to be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The id of the request: its `Idempotency-Key`, or that of the body; of an event its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The trace of the request, which the log and histories have too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The status of the answer; none where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub outcome: AuditOutcome,
    /// The code of the problem that was the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The process that the request came to: its host and its id there.
    pub process: String,
}

/// Which records are asked for. What is none, or empty, does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub tenant: Option<String>,
    /// The principal, or whom the body names.
    pub principal: Option<String>,
    /// This action, or all that begin with it and a point.
    pub action: Option<String>,
    pub saga: Option<String>,
    pub key: Option<String>,
    pub outcome: Option<AuditOutcome>,
    pub status: Option<u16>,
    /// Not before this time.
    pub since: Option<TimeMs>,
    /// Not behind it.
    pub until: Option<TimeMs>,
}

impl AuditFilter {
    /// Whether a record is asked for.
    #[must_use]
    pub fn wants(&self, record: &AuditRecord) -> bool {
        let is = |wanted: &Option<String>, found: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| Some(wanted) == found)
        };
        let of = |name: &str| record.target.get(name);
        let acts = |wanted: &String| {
            let rest = record.action.strip_prefix(wanted.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let time = || TimeMs::read(&record.time).map_or(i64::MIN, |TimeMs(time)| time);
        is(&self.tenant, record.tenant.as_ref())
            && is(&self.principal, record.principal.as_ref().or(record.by.as_ref()))
            && self.action.as_ref().is_none_or(acts)
            && is(&self.saga, of("saga"))
            && is(&self.key, of("key"))
            && self.outcome.is_none_or(|outcome| outcome == record.outcome)
            && self.status.is_none_or(|status| Some(status) == record.status)
            && self.since.is_none_or(|TimeMs(since)| since <= time())
            && self.until.is_none_or(|TimeMs(until)| time() <= until)
    }
}

/// Keeps and shows the records of the cluster.
#[async_trait]
pub trait Audit: Send + Sync + 'static {
    /// Takes a record to be stored beside all work; it waits for nothing.
    fn audit(&self, record: AuditRecord);

    /// Waits until the records that were taken so far are stored: for a bounded time, and not while the broker stores none.
    async fn audit_stored(&self);

    /// Stored records, the newest first.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for what is not a cursor of this list, [`ControlError::Unavailable`] where the broker does not
    /// answer in time.
    async fn audited(
        &self,
        filter: AuditFilter,
        page: PageRequest,
    ) -> Result<Page<AuditRecord>, ControlError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> AuditRecord {
        AuditRecord {
            id: "1".to_owned(),
            time: "2026-11-26T03:00:00Z".to_owned(),
            principal: Some("ann".to_owned()),
            by: None,
            role: "operator".to_owned(),
            peer: None,
            method: "POST".to_owned(),
            endpoint: "/v1/tenants/{tenant}/sagas/{saga}/instances/{key}/cancel".to_owned(),
            action: "instances.cancel".to_owned(),
            tenant: Some("acme".to_owned()),
            target: BTreeMap::from([
                ("saga".to_owned(), "order".to_owned()),
                ("key".to_owned(), "o-1".to_owned()),
            ]),
            reason: None,
            dry_run: false,
            request_id: None,
            trace_id: None,
            status: Some(409),
            outcome: AuditOutcome::of(Some(409)),
            code: None,
            process: "host/1".to_owned(),
        }
    }

    #[allow(clippy::too_many_lines, reason = "one table of filters")]
    #[test]
    fn a_filter_wants_what_agrees_with_all_of_it() {
        let text = |text: &str| Some(text.to_owned());
        let at = |text: &str| Some(TimeMs::read(text).expect("a time"));
        let any = AuditFilter::default;
        for (filter, wanted) in [
            (any(), true),
            (
                AuditFilter {
                    tenant: text("acme"),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    tenant: text("globex"),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    principal: text("ann"),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    principal: text("an"),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    action: text("instances"),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    action: text("instances.cancel"),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    action: text("instances.can"),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    saga: text("order"),
                    key: text("o-1"),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    saga: text("order"),
                    key: text("o-2"),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    outcome: Some(AuditOutcome::Refused),
                    status: Some(409),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    outcome: Some(AuditOutcome::Done),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    status: Some(403),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    since: at("2026-11-26T03:00:00Z"),
                    until: at("2026-11-26T03:00:00Z"),
                    ..any()
                },
                true,
            ),
            (
                AuditFilter {
                    since: at("2026-11-26T03:00:01Z"),
                    ..any()
                },
                false,
            ),
            (
                AuditFilter {
                    until: at("2026-11-26T02:59:59Z"),
                    ..any()
                },
                false,
            ),
        ] {
            assert_eq!(filter.wants(&record()), wanted, "{filter:?}");
        }
        let mut by = record();
        (by.principal, by.by) = (None, text("bob"));
        assert!(
            AuditFilter {
                principal: text("bob"),
                ..any()
            }
            .wants(&by)
        );
    }

    #[test]
    fn the_outcome_is_told_by_the_status() {
        for (status, outcome) in [
            (Some(200), "done"),
            (Some(204), "done"),
            (Some(202), "accepted"),
            (Some(401), "refused"),
            (Some(409), "refused"),
            (Some(503), "failed"),
            (None, "unanswered"),
        ] {
            assert_eq!(AuditOutcome::of(status).as_str(), outcome);
        }
    }
}
