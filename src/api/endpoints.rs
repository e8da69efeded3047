//! All endpoints, in one table: the router, the check of roles, the audit and the list of paths are made from it, so none can be
//! forgotten in one of them.

mod letter_rows;
mod rows;
mod verb_rows;

pub use rows::{all, probes};

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{self, MethodRouter};

use super::{ApiState, pages};
pub use crate::kernel::envelope::Role;

/// Who may ask an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody, without credentials: probes, and callbacks, whose token is their credential.
    Open,
    /// Whoever has this role, for the tenant of the path where there is one.
    Needs(Role),
}

impl Access {
    /// The role that is needed, or `open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Needs(role) => role.as_str(),
        }
    }
}

/// On which listener an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The tenants' API.
    Tenants,
    /// What operators of the process need.
    Admin,
    /// Both.
    Everywhere,
}

/// Which process can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Each: about itself, or by a message to the instance.
    Here,
    /// The one that has the shards open; any other forwards the request to it.
    Owner,
}

/// What is special about how an endpoint answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Plain,
    /// The answer may take as long as a shard needs, which goes on without whoever asked.
    Slow,
    /// It is a request to an instance, which an `Idempotency-Key` may name.
    Request,
    /// The answer is a stream of events.
    Stream,
}

/// One endpoint.
#[derive(Clone)]
pub struct Endpoint {
    pub method: Method,
    /// As the router reads it, e.g. `/v1/tenants/{tenant}/dead-letters`.
    pub path: String,
    pub access: Access,
    pub place: Place,
    /// Whether it is about one tenant.
    pub is_of_tenant: bool,
    /// Whether it reads a body.
    pub has_body: bool,
    /// Whether the body says nothing but who asks and why.
    pub has_account_only: bool,
    /// The query parameters that it knows; any other is refused.
    pub parameters: Vec<&'static str>,
    pub kind: Kind,
    pub answers: Answers,
    /// What it does, in a sentence.
    pub summary: &'static str,
    pub(super) handler: MethodRouter<ApiState>,
}

impl Endpoint {
    /// Whether it changes something, and so belongs into the audit.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        self.method != Method::GET
    }

    /// What it does, in words with points between them: the last two of its path that are no parameters. Behind what is started or
    /// deleted the verb is added, which the path lacks. Each change has an action of its own.
    #[must_use]
    pub fn action(&self) -> String {
        let words = self.path.split('/').filter(|word| {
            let is_parameter = word.starts_with('{');
            !is_parameter && !["", "v1", "tenants", "admin", "sagas"].contains(word)
        });
        let words: Vec<&str> = words.collect();
        let action = words[words.len().saturating_sub(2)..].join(".");
        if self.method == Method::DELETE {
            action + ".delete"
        } else if self.starts_instance() || self.starts_job() {
            action + ".start"
        } else {
            action
        }
    }

    /// Whether an `Idempotency-Key` may name the request.
    #[must_use]
    pub fn takes_key(&self) -> bool {
        self.kind == Kind::Request || self.starts_job()
    }

    /// What the items of a page are called, where it answers with one.
    #[must_use]
    pub fn paged(&self) -> Option<&'static str> {
        let is_list = self.parameters.contains(&"after") && self.parameters.contains(&"limit");
        let name = if self.path.ends_with("/inputs") {
            pages::INPUTS
        } else {
            pages::ITEMS
        };
        (is_list && !self.is_mutation()).then_some(name)
    }

    /// Whether it starts an instance.
    #[must_use]
    pub fn starts_instance(&self) -> bool {
        self.is_mutation() && self.path.ends_with("/instances")
    }

    /// Whether it starts a job.
    #[must_use]
    pub fn starts_job(&self) -> bool {
        self.is_mutation() && self.path.ends_with("/jobs")
    }

    /// Whether somebody may wait here for more than a request takes.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.parameters.contains(&"wait")
    }

    const fn body(mut self) -> Self {
        self.has_body = true;
        self
    }

    /// A body that says who asks and why, and nothing else.
    const fn account(mut self) -> Self {
        self.has_body = true;
        self.has_account_only = true;
        self
    }

    /// These query parameters, besides those that were named before.
    fn knows(mut self, parameters: &[&'static str]) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// A request to an instance, whose outcome may be waited for.
    fn request(mut self) -> Self {
        self.has_body = true;
        self.kind = Kind::Request;
        self.parameters.push("wait");
        self
    }

    const fn stream(mut self) -> Self {
        self.kind = Kind::Stream;
        self
    }

    /// Also without shards it is answered by the process that is asked.
    const fn here(mut self) -> Self {
        self.answers = Answers::Here;
        self
    }

    /// Although it changes something, only the process that has the shards can do it.
    const fn by_owner(mut self) -> Self {
        self.answers = Answers::Owner;
        self
    }

    const fn slow(mut self) -> Self {
        self.kind = Kind::Slow;
        self
    }
}

/// Begins the rows of one kind of paths.
struct Rows {
    prefix: &'static str,
    place: Place,
    is_of_tenant: bool,
}

impl Rows {
    fn get<H: Handler<T, ApiState>, T: 'static>(
        &self,
        path: &str,
        access: Access,
        summary: &'static str,
        handler: H,
    ) -> Endpoint {
        self.row(Method::GET, path, access, summary, routing::get(handler))
    }

    fn post<H: Handler<T, ApiState>, T: 'static>(
        &self,
        path: &str,
        access: Access,
        summary: &'static str,
        handler: H,
    ) -> Endpoint {
        self.row(Method::POST, path, access, summary, routing::post(handler))
    }

    fn delete<H: Handler<T, ApiState>, T: 'static>(
        &self,
        path: &str,
        access: Access,
        summary: &'static str,
        handler: H,
    ) -> Endpoint {
        self.row(Method::DELETE, path, access, summary, routing::delete(handler))
    }

    fn row(
        &self,
        method: Method,
        path: &str,
        access: Access,
        summary: &'static str,
        handler: MethodRouter<ApiState>,
    ) -> Endpoint {
        let reads_shards = method == Method::GET && self.place == Place::Tenants;
        Endpoint {
            answers: if reads_shards {
                Answers::Owner
            } else {
                Answers::Here
            },
            method,
            path: format!("{}{path}", self.prefix),
            access,
            place: self.place,
            is_of_tenant: self.is_of_tenant,
            has_body: false,
            has_account_only: false,
            parameters: Vec::new(),
            kind: Kind::Plain,
            summary,
            handler,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::subject::Tenancy;

    /// Method, path and action of each change.
    const ACTIONS: &[(&str, &str, &str)] = &[
        ("POST", "/admin/breakers/{upstream}", "breakers"),
        ("POST", "/admin/drain", "drain"),
        ("POST", "/admin/reload", "reload"),
        ("POST", "/admin/shards/{shard}/accept-gap", "shards.accept-gap"),
        ("POST", "/admin/shards/{shard}/backup", "shards.backup"),
        ("POST", "/admin/shards/{shard}/close", "shards.close"),
        ("POST", "/admin/shards/{shard}/discard", "shards.discard"),
        ("POST", "/admin/shards/{shard}/open", "shards.open"),
        ("POST", "/admin/shards/{shard}/rebind", "shards.rebind"),
        ("POST", "/admin/shards/{shard}/release", "shards.release"),
        ("POST", "/v1/callbacks/{token}", "callbacks"),
        ("POST", "/v1/definitions/{hash}/migrate", "definitions.migrate"),
        (
            "POST",
            "{tenant}/dead-letters/{id}/discard",
            "dead-letters.discard",
        ),
        ("POST", "{tenant}/dead-letters/{id}/retry", "dead-letters.retry"),
        ("POST", "{tenant}/events", "events"),
        ("POST", "{tenant}/jobs", "jobs.start"),
        ("POST", "{tenant}/jobs/{id}/pause", "jobs.pause"),
        ("POST", "{tenant}/jobs/{id}/resume", "jobs.resume"),
        ("POST", "{tenant}/jobs/{id}/stop", "jobs.stop"),
        ("POST", "{instances}", "instances.start"),
        ("DELETE", "{instances}/{key}", "instances.delete"),
        ("POST", "{instances}/{key}/cancel", "instances.cancel"),
        ("POST", "{instances}/{key}/kill", "instances.kill"),
        ("POST", "{instances}/{key}/migrate", "instances.migrate"),
        ("POST", "{instances}/{key}/pause", "instances.pause"),
        ("POST", "{instances}/{key}/resolve", "instances.resolve"),
        ("POST", "{instances}/{key}/restart", "instances.restart"),
        ("POST", "{instances}/{key}/resume", "instances.resume"),
        ("POST", "{instances}/{key}/retry", "instances.retry"),
        ("POST", "{instances}/{key}/signals/{name}", "instances.signals"),
        ("POST", "{instances}/{key}/skip", "instances.skip"),
        ("POST", "{instances}/{key}/timers/{name}/cancel", "timers.cancel"),
        ("POST", "{instances}/{key}/timers/{name}/fire", "timers.fire"),
        ("POST", "{instances}/{key}/try-now", "instances.try-now"),
        ("POST", "{tenant}/sagas/{saga}/schedule/pause", "schedule.pause"),
        ("POST", "{tenant}/sagas/{saga}/schedule/resume", "schedule.resume"),
    ];

    #[test]
    fn each_change_has_an_action_of_its_own_that_is_the_same_with_and_without_tenants() {
        for (tenancy, prefix) in [(Tenancy::Multi, "/v1/tenants/{tenant}"), (Tenancy::Single, "/v1")] {
            let instances = format!("{prefix}/sagas/{{saga}}/instances");
            let whole = |path: &str| {
                let path = path.replacen("{instances}", &instances, 1);
                match path.strip_prefix("{tenant}") {
                    Some(rest) => format!("{prefix}{rest}"),
                    None => path,
                }
            };
            let mut wanted: Vec<_> = ACTIONS
                .iter()
                .map(|(method, path, action)| ((*method).to_owned(), whole(path), (*action).to_owned()))
                .collect();
            let changes = all(tenancy).into_iter().filter(Endpoint::is_mutation);
            let mut found: Vec<_> = changes
                .map(|change| (change.method.to_string(), change.path.clone(), change.action()))
                .collect();
            wanted.sort();
            found.sort();
            assert_eq!(found, wanted);
        }
        let mut distinct: Vec<_> = ACTIONS.iter().map(|(_, _, action)| action).collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), ACTIONS.len(), "{distinct:?}");
    }
}
