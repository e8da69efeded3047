//! Who asks, and what they may do.
//!
//! A principal has a role for tenants. Whoever has none for a tenant is answered as if the tenant did not exist.

mod tokens;

pub use tokens::{NewToken, TokensFile};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, header};

use super::endpoints::{Access, Role};
use super::problem::Problem;
use crate::kernel::envelope;
use crate::kernel::ids::TenantId;
use crate::ports::clock::Clock;

/// How often refused credentials are told in the log.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Who asks, and what they may do for the tenant that they ask about.
#[derive(Debug, Clone)]
struct Asking {
    name: Option<String>,
    role: Role,
}

tokio::task_local! {
    static ASKING: Asking;
}

/// Runs what answers a request about `tenant` in the name of its principal.
pub async fn within<F: Future>(principal: &Principal, tenant: Option<&TenantId>, answering: F) -> F::Output {
    let asking = Asking {
        name: principal.name.clone(),
        role: principal.grants.role(tenant).unwrap_or(Role::Viewer),
    };
    ASKING.scope(asking, answering).await
}

/// Who decides something: the principal, if the API has authenticated one, and otherwise who the body names.
pub fn decider(named: String) -> String {
    let principal = ASKING.try_with(|asking| asking.name.clone()).ok().flatten();
    principal.unwrap_or(named)
}

/// The same as an instance is told it.
pub fn operator(named: String, reason: String) -> envelope::Principal {
    let role = ASKING.try_with(|asking| asking.role);
    envelope::Principal {
        who: decider(named),
        role: role.unwrap_or(Role::Viewer),
        reason,
    }
}

/// Whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// `None` where the API does not authenticate.
    pub name: Option<String>,
    grants: Grants,
}

/// Roles, by tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// For every tenant, and for what belongs to none.
    everywhere: Option<Role>,
    tenants: BTreeMap<TenantId, Role>,
}

impl Grants {
    /// Reads `role@tenant,role@*`.
    fn parse(text: &str) -> Result<Self, String> {
        let mut grants = Self::default();
        for grant in text.split(',') {
            let Some((role, tenant)) = grant.split_once('@') else {
                return Err(format!("{grant:?} is not ROLE@TENANT or ROLE@*"));
            };
            let role = match role {
                "viewer" => Role::Viewer,
                "operator" => Role::Operator,
                "admin" => Role::Admin,
                _ => {
                    return Err(format!(
                        "unknown role {role:?}: expected viewer, operator or admin"
                    ));
                }
            };
            let before = if tenant == "*" {
                grants.everywhere.replace(role)
            } else {
                let tenant = TenantId::parse(tenant).map_err(|error| error.to_string())?;
                grants.tenants.insert(tenant, role)
            };
            if before.is_some() {
                return Err(format!("two roles for {tenant:?}"));
            }
        }
        Ok(grants)
    }

    /// The role for a tenant, or for what belongs to none.
    fn role(&self, tenant: Option<&TenantId>) -> Option<Role> {
        let here = tenant.and_then(|tenant| self.tenants.get(tenant).copied());
        here.max(self.everywhere)
    }
}

impl Principal {
    /// Whoever asks where nobody has to say.
    pub const fn nobody() -> Self {
        Self {
            name: None,
            grants: Grants {
                everywhere: None,
                tenants: BTreeMap::new(),
            },
        }
    }

    /// Anybody, where the API does not authenticate.
    const fn anybody() -> Self {
        Self {
            name: None,
            grants: Grants {
                everywhere: Some(Role::Admin),
                tenants: BTreeMap::new(),
            },
        }
    }

    /// One that another process of the cluster has authenticated, with the role that it has for the tenant that it asks about,
    /// or for what belongs to none.
    pub fn vouched(name: Option<String>, role: Role, tenant: Option<TenantId>) -> Self {
        let grants = match tenant {
            Some(tenant) => Grants {
                everywhere: None,
                tenants: BTreeMap::from([(tenant, role)]),
            },
            None => Grants {
                everywhere: Some(role),
                tenants: BTreeMap::new(),
            },
        };
        Self { name, grants }
    }

    /// The role for a tenant, or for what belongs to none.
    pub fn role(&self, tenant: Option<&TenantId>) -> Option<Role> {
        self.grants.role(tenant)
    }

    /// Refuses what the principal may not do.
    pub fn check(&self, access: Access, tenant: Option<&TenantId>) -> Result<(), Problem> {
        let Access::Needs(needed) = access else {
            return Ok(());
        };
        match (self.grants.role(tenant), tenant) {
            (Some(role), _) if role >= needed => Ok(()),
            (Some(_), _) | (None, None) => Err(Problem::forbidden(needed)),
            (None, Some(_)) => Err(Problem::no_such_tenant()),
        }
    }
}

/// Tells principals by their credentials.
pub struct Door {
    /// `None`: the API does not authenticate.
    tokens: Option<TokensFile>,
    refused: AtomicU64,
    /// When refused credentials were told last, in milliseconds of the monotonic clock.
    told_ms: AtomicU64,
}

impl Door {
    pub const fn new(tokens: Option<TokensFile>) -> Self {
        Self {
            tokens,
            refused: AtomicU64::new(0),
            told_ms: AtomicU64::new(0),
        }
    }

    /// Who asks with these headers.
    pub fn principal(&self, headers: &HeaderMap, clock: &dyn Clock) -> Result<Principal, Problem> {
        let Some(tokens) = &self.tokens else {
            return Ok(Principal::anybody());
        };
        let found = bearer(headers).and_then(|token| tokens.find(token, clock.monotonic()));
        found.ok_or_else(|| {
            self.note_refusal(clock.monotonic());
            Problem::unauthenticated()
        })
    }

    /// Counts, and tells now and then: whoever guesses tokens cannot fill the log.
    fn note_refusal(&self, now: Duration) {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let told_ms = self.told_ms.load(Ordering::Relaxed);
        let every_ms = u64::try_from(TELL_EVERY.as_millis()).unwrap_or(u64::MAX);
        let is_due = refused == 1 || now_ms.saturating_sub(told_ms) >= every_ms;
        let swapped = || {
            let order = Ordering::Relaxed;
            self.told_ms
                .compare_exchange(told_ms, now_ms, order, order)
                .is_ok()
        };
        if is_due && swapped() {
            tracing::warn!(
                target: "audit",
                refused_since_start = refused,
                "requests without valid credentials were refused"
            );
        }
    }
}

/// The token of `Authorization: Bearer <token>`, if there is just one such header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (given.next()?, given.next()) else {
        return None;
    };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(grants: &str, needed: Role, tenant: Option<&str>) -> u16 {
        let principal = Principal {
            name: Some("ann".to_owned()),
            grants: Grants::parse(grants).expect("grants"),
        };
        let tenant = tenant.map(|tenant| TenantId::parse(tenant).expect("a tenant"));
        let checked = principal.check(Access::Needs(needed), tenant.as_ref());
        checked.map_or_else(|problem| problem.status, |()| 200)
    }

    #[test]
    fn a_role_holds_for_its_tenant_and_nobody_learns_of_others() {
        for (grants, needed, tenant, expected) in [
            ("viewer@acme", Role::Viewer, Some("acme"), 200),
            ("viewer@acme", Role::Operator, Some("acme"), 403),
            ("viewer@acme", Role::Viewer, Some("globex"), 404),
            ("admin@acme", Role::Viewer, Some("globex"), 404),
            ("admin@acme", Role::Viewer, None, 403),
            ("operator@*", Role::Operator, Some("acme"), 200),
            ("operator@*", Role::Admin, None, 403),
            ("admin@*", Role::Admin, None, 200),
            ("viewer@*,operator@acme", Role::Operator, Some("acme"), 200),
            ("viewer@*,operator@acme", Role::Operator, Some("globex"), 403),
            ("operator@*,viewer@acme", Role::Operator, Some("acme"), 200),
        ] {
            assert_eq!(
                status(grants, needed, tenant),
                expected,
                "{grants} {needed:?} {tenant:?}"
            );
        }
        for wrong in [
            "",
            "viewer",
            "root@*",
            "viewer@A.b",
            "viewer@*,admin@*",
            "viewer@acme,",
        ] {
            assert!(Grants::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn one_bearer_token_is_read_and_nothing_else() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().expect("a value"));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(read(&["Bearer abc"]), Some("abc".to_owned()));
        assert_eq!(read(&["bearer abc"]), Some("abc".to_owned()));
        for wrong in [&["Basic abc"][..], &["abc"], &[], &["Bearer a", "Bearer a"]] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
