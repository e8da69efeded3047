//! Who asks, and what they may do.
//!
//! A principal has a role for tenants. Whoever has none for a tenant is answered as if the tenant did not exist.

pub mod jwt;
mod tokens;

pub use tokens::{NewToken, TokensFile};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use tokio_util::sync::CancellationToken;

use self::jwt::{Jwt, Refused};
use super::endpoints::{Access, Role};
use super::problem::Problem;
use super::tls::ClientCertificate;
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

/// The role of this name.
fn named_role(name: &str) -> Option<Role> {
    [Role::Viewer, Role::Operator, Role::Admin]
        .into_iter()
        .find(|role| role.as_str() == name)
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
            let Some(role) = named_role(role) else {
                return Err(format!(
                    "unknown role {role:?}: expected viewer, operator or admin"
                ));
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

    /// Adds `role@tenant` or `role@*` to those that are there; what is neither changes nothing. Of two roles for a tenant the
    /// higher one holds.
    fn add(&mut self, grant: &str) {
        let Some((role, tenant)) = grant.split_once('@') else {
            return;
        };
        let Some(role) = named_role(role) else { return };
        if tenant == "*" {
            self.everywhere = self.everywhere.max(Some(role));
        } else if let Ok(tenant) = TenantId::parse(tenant)
            && !tenant.is_none()
        {
            let here = self.tenants.entry(tenant).or_insert(role);
            *here = role.max(*here);
        }
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
            (Some(_), Some(_)) => Err(Problem::forbidden(needed)),
            (_, None) => Err(Problem::forbidden_everywhere(needed)),
            (None, Some(_)) => Err(Problem::no_such_tenant()),
        }
    }
}

/// Tells principals by their credentials.
///
/// With neither, the API does not authenticate.
#[derive(Default)]
pub struct Door {
    tokens: Option<TokensFile>,
    jwt: Option<Jwt>,
    refused: AtomicU64,
    /// When refused credentials were told last, in milliseconds of the monotonic clock.
    told_ms: AtomicU64,
}

impl Door {
    pub fn new(tokens: Option<TokensFile>, jwt: Option<Jwt>) -> Self {
        Self {
            tokens,
            jwt,
            ..Self::default()
        }
    }

    /// Keeps what it knows of an issuer up to date, until it is told to stop.
    pub async fn keep(&self, stop: &CancellationToken) {
        if let Some(jwt) = &self.jwt {
            jwt.keep(stop).await;
        }
    }

    /// Who asks with these headers, over a connection with this certificate. A token that is given decides alone.
    pub async fn principal(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
        clock: &dyn Clock,
    ) -> Result<Principal, Problem> {
        if self.tokens.is_none() && self.jwt.is_none() {
            return Ok(Principal::anybody());
        }
        let found = if headers.contains_key(header::AUTHORIZATION) {
            self.of_token(headers, clock.monotonic()).await
        } else {
            let tokens = self.tokens.as_ref().zip(certificate);
            let owner = tokens.and_then(|(tokens, of)| tokens.of_certificate(of, clock.monotonic()));
            owner.ok_or_else(|| Refused::Invalid("no token, and no certificate that is known".to_owned()))
        };
        found.map_err(|refused| match refused {
            Refused::Invalid(why) => {
                self.note_refusal(clock.monotonic(), &why);
                Problem::unauthenticated()
            }
            Refused::NoKeys => Problem::unavailable(
                "the keys of http.jwt.jwks_url are not known, or older than http.jwt.keys_age_max",
            ),
        })
    }

    async fn of_token(&self, headers: &HeaderMap, now: Duration) -> Result<Principal, Refused> {
        let token = bearer(headers)
            .ok_or_else(|| Refused::Invalid("the authorization is not one bearer token".to_owned()))?;
        match &self.jwt {
            Some(jwt) if Jwt::is_one(token) => jwt.find(token, now).await,
            _ => {
                let tokens = self.tokens.as_ref();
                let owner = tokens.and_then(|tokens| tokens.find(token, now));
                owner.ok_or_else(|| Refused::Invalid("the token is unknown".to_owned()))
            }
        }
    }

    /// Counts, and tells now and then: whoever guesses tokens cannot fill the log.
    fn note_refusal(&self, now: Duration, why: &str) {
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
                last = why,
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
    fn a_page_of_no_tenant_names_the_role_for_all_of_them() {
        let acme = TenantId::parse("acme").expect("a tenant");
        let detail = |grants: &str, tenant: Option<&TenantId>| {
            let principal = Principal {
                name: Some("ann".to_owned()),
                grants: Grants::parse(grants).expect("grants"),
            };
            let checked = principal.check(Access::Needs(Role::Operator), tenant);
            checked.expect_err("refused").detail
        };
        for grants in ["operator@acme", "viewer@*"] {
            let told = detail(grants, None);
            assert!(told.contains("operator@*: operator for all tenants"), "{told}");
        }
        assert_eq!(detail("viewer@acme", Some(&acme)), "this needs the role operator");
    }

    #[test]
    fn of_two_roles_for_a_tenant_the_higher_one_holds_and_what_is_no_role_grants_nothing() {
        let acme = TenantId::parse("acme").expect("a tenant");
        let mut grants = Grants::default();
        for wrong in ["admin", "root@*", "admin@", "admin@A.b", "Admin@*", "@*"] {
            grants.add(wrong);
        }
        assert_eq!(grants, Grants::default());
        for grant in ["operator@acme", "viewer@acme", "viewer@*"] {
            grants.add(grant);
        }
        assert_eq!(grants.role(Some(&acme)), Some(Role::Operator));
        assert_eq!(grants.role(None), Some(Role::Viewer));
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
