//! The rows of the table.

use super::super::{
    aliases, audit, definitions, entrance, instances, jobs, openapi, operations, pending, problem, queries,
    schedules, search, watch,
};
use super::letter_rows::of_letters;
use super::verb_rows::of_verbs;
use super::{Access, Endpoint, Place, Role, Rows};
use crate::kernel::subject::Tenancy;

/// The parameters of a page of a list.
pub(super) const PAGE: &[&str] = &["after", "limit"];

pub(super) const VIEWER: Access = Access::Needs(Role::Viewer);
pub(super) const OPERATOR: Access = Access::Needs(Role::Operator);
pub(super) const ADMIN: Access = Access::Needs(Role::Admin);

/// All endpoints.
#[must_use]
pub fn all(tenancy: Tenancy) -> Vec<Endpoint> {
    let mut all = probes();
    all.push(document());
    all.extend(of_the_process());
    all.extend(of_shards());
    all.extend(of_the_cluster());
    all.extend(of_instances(tenancy));
    all.extend(of_questions(tenancy));
    all.extend(of_watches(tenancy));
    all.extend(of_verbs(tenancy));
    all.extend(of_jobs(tenancy));
    all.extend(of_tenants(tenancy));
    all.extend(of_letters(tenancy));
    all
}

/// What orchestrators ask.
#[must_use]
pub fn probes() -> Vec<Endpoint> {
    let rows = Rows {
        prefix: "",
        place: Place::Everywhere,
        is_of_tenant: false,
    };
    vec![
        rows.get(
            "/live",
            Access::Open,
            "Tell whether the process moves",
            operations::live,
        ),
        rows.get(
            "/ready",
            Access::Open,
            "Tell whether the process takes work",
            operations::ready,
        ),
        rows.get(
            "/errors/{code}",
            Access::Open,
            "Explain the code of a problem",
            problem::page,
        ),
    ]
}

fn document() -> Endpoint {
    let rows = Rows {
        prefix: "",
        place: Place::Everywhere,
        is_of_tenant: false,
    };
    rows.get(
        "/openapi.json",
        Access::Open,
        "Describe this API as OpenAPI 3.1",
        openapi::show,
    )
}

fn of_the_process() -> Vec<Endpoint> {
    let rows = Rows {
        prefix: "",
        place: Place::Admin,
        is_of_tenant: false,
    };
    vec![
        rows.get("/health", VIEWER, "Check storage and broker", operations::health),
        rows.get("/metrics", VIEWER, "Print all metrics", operations::metrics),
        rows.get("/info", VIEWER, "Describe the process", operations::info),
        rows.get(
            "/admin/rates",
            VIEWER,
            "Show what happened in the last hour, minute by minute",
            operations::rates,
        ),
        rows.post(
            "/admin/drain",
            ADMIN,
            "Finish what runs, and exit",
            operations::drain,
        )
        .account(),
        rows.post(
            "/admin/reload",
            ADMIN,
            "Read the definitions again",
            operations::reload,
        )
        .account(),
        rows.get(
            "/admin/audit",
            ADMIN,
            "List the requests for changes of all tenants and of operators, newest first",
            audit::of_all,
        )
        .knows(&["tenant"])
        .knows(audit::FILTER)
        .knows(PAGE),
        rows.get(
            "/admin/breakers",
            VIEWER,
            "List the circuit breakers",
            operations::breakers,
        ),
        rows.post(
            "/admin/breakers/{upstream}",
            ADMIN,
            "Set a circuit breaker",
            operations::force_breaker,
        )
        .body(),
    ]
}

fn of_shards() -> Vec<Endpoint> {
    let rows = Rows {
        prefix: "/admin/shards",
        place: Place::Admin,
        is_of_tenant: false,
    };
    vec![
        rows.get("", VIEWER, "List the shards", operations::shards),
        rows.post(
            "/{shard}/open",
            ADMIN,
            "Open a shard here",
            operations::open_shard,
        )
        .account()
        .slow(),
        rows.post(
            "/{shard}/close",
            ADMIN,
            "Drain and close a shard",
            operations::close_shard,
        )
        .account()
        .slow(),
        rows.post(
            "/{shard}/backup",
            ADMIN,
            "Take a backup of a shard while it goes on",
            operations::backup_shard,
        )
        .account(),
        rows.post(
            "/{shard}/accept-gap",
            ADMIN,
            "Continue behind messages that are gone",
            operations::accept_gap,
        )
        .body(),
        rows.post(
            "/{shard}/rebind",
            ADMIN,
            "Continue in a stream that was created again",
            operations::rebind,
        )
        .body(),
        rows.get(
            "/{shard}/pending",
            VIEWER,
            "List the work that an adopted shard holds",
            operations::pending,
        )
        .knows(PAGE),
        rows.post(
            "/{shard}/release",
            ADMIN,
            "Send the held work",
            operations::release,
        )
        .body(),
        rows.post(
            "/{shard}/discard",
            ADMIN,
            "Give held work up",
            operations::discard,
        )
        .body(),
    ]
}

fn of_the_cluster() -> Vec<Endpoint> {
    let rows = Rows {
        prefix: "/v1",
        place: Place::Tenants,
        is_of_tenant: false,
    };
    vec![
        rows.get(
            "/definitions",
            VIEWER,
            "List the versions of sagas",
            definitions::list,
        )
        .knows(&["saga"]),
        rows.get(
            "/definitions/{hash}",
            VIEWER,
            "Show a version of a saga",
            definitions::show,
        ),
        rows.post(
            "/definitions/{hash}/migrate",
            ADMIN,
            "Migrate running instances to a version, or back from it",
            definitions::migrate,
        )
        .account()
        .knows(&["dry_run", "undo"])
        .by_owner(),
        rows.get(
            "/migrations/{id}",
            VIEWER,
            "Show a migration",
            definitions::migration,
        ),
        rows.post(
            "/callbacks/{token}",
            Access::Open,
            "Complete a step that waits for this token",
            instances::callback,
        )
        .body(),
    ]
}

/// Without multi-tenancy the tenant segment is absent, as it is in subjects.
pub(super) const fn tenant_rows(tenancy: Tenancy) -> Rows {
    let prefix = match tenancy {
        Tenancy::Multi => entrance::TENANT_PREFIX,
        Tenancy::Single => "/v1",
    };
    Rows {
        prefix,
        place: Place::Tenants,
        is_of_tenant: true,
    }
}

fn of_instances(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    let list = "/sagas/{saga}/instances";
    let one = |rest: &str| format!("{list}/{{key}}{rest}");
    vec![
        rows.get("/instances", VIEWER, "List instances across sagas", search::list)
            .knows(search::LIST)
            .knows(PAGE),
        rows.get(
            "/instances/count",
            VIEWER,
            "Count instances by status",
            search::count,
        )
        .knows(search::LIST)
        .knows(search::COUNT),
        rows.post(list, OPERATOR, "Start an instance", instances::start)
            .request()
            .knows(&["wait_for"]),
        rows.get(list, VIEWER, "List the instances of a saga", instances::list)
            .knows(&["blocked"])
            .knows(PAGE),
        rows.get(&one(""), VIEWER, "Show an instance", instances::show)
            .knows(&["history"]),
        rows.get(
            &one("/inputs"),
            VIEWER,
            "List the inputs of an instance",
            queries::inputs,
        )
        .knows(PAGE),
        rows.get(
            &one("/history"),
            VIEWER,
            "List what happened to an instance, newest first",
            queries::history,
        )
        .knows(PAGE),
        rows.post(&one("/cancel"), OPERATOR, "Cancel an instance", instances::cancel)
            .request(),
        rows.post(
            &one("/signals/{name}"),
            OPERATOR,
            "Signal an instance",
            instances::signal,
        )
        .request(),
        rows.post(&one("/retry"), OPERATOR, "Retry what is stuck", instances::retry)
            .request(),
        rows.post(
            &one("/skip"),
            OPERATOR,
            "Skip a step in progress, or what is stuck, and continue",
            instances::skip,
        )
        .request(),
        rows.post(
            &one("/resolve"),
            OPERATOR,
            "Resolve what is stuck: state the outcome",
            instances::resolve,
        )
        .request(),
    ]
}

/// What operators ask about an instance.
fn of_questions(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    let one = |rest: &str| format!("/sagas/{{saga}}/instances/{{key}}{rest}");
    vec![
        rows.get(
            &one("/why"),
            VIEWER,
            "Say why an instance does not proceed",
            queries::why,
        ),
        rows.get(
            &one("/actions"),
            VIEWER,
            "List what can be done to an instance now",
            queries::actions,
        ),
        rows.get(
            &one("/graph"),
            VIEWER,
            "Show the graph of an instance: what its saga consists of, and where each part stands",
            queries::graph,
        ),
    ]
}

/// Waits for an instance, and what happens to it.
fn of_watches(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    let one = |rest: &str| format!("/sagas/{{saga}}/instances/{{key}}{rest}");
    vec![
        rows.get(
            &one("/wait"),
            VIEWER,
            "Wait until an instance has ended, or is in a phase, or a step has a status",
            watch::reach,
        )
        .knows(&["for", "wait", "generation"]),
        rows.get(
            &one("/events"),
            VIEWER,
            "Watch what happens to an instance, as server-sent events",
            watch::events,
        )
        .knows(&["newest"])
        .stream(),
    ]
}

/// One verb for many instances.
fn of_jobs(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    vec![
        rows.get("/jobs", VIEWER, "List jobs, newest first", jobs::list)
            .here(),
        rows.post(
            "/jobs",
            OPERATOR,
            "Start a job: one verb for all instances that a filter selects",
            jobs::start,
        )
        .body(),
        rows.get("/jobs/{id}", VIEWER, "Show a job and its progress", jobs::show)
            .here(),
        rows.post("/jobs/{id}/pause", OPERATOR, "Pause a job", jobs::pause)
            .body(),
        rows.post("/jobs/{id}/resume", OPERATOR, "Resume a paused job", jobs::resume)
            .body(),
        rows.post("/jobs/{id}/stop", OPERATOR, "Stop a job for good", jobs::stop)
            .body(),
    ]
}

fn of_tenants(tenancy: Tenancy) -> Vec<Endpoint> {
    let rows = tenant_rows(tenancy);
    vec![
        rows.post(
            "/events",
            OPERATOR,
            "Publish a domain event",
            instances::publish_event,
        )
        .body(),
        rows.get(
            "/audit",
            ADMIN,
            "List the requests for changes of a tenant, newest first",
            audit::of_tenant,
        )
        .knows(audit::FILTER)
        .knows(PAGE)
        .here(),
        rows.get(
            "/sagas/{saga}/aliases/{name}/{value}",
            VIEWER,
            "Show which instances have an alias",
            aliases::show,
        ),
        rows.get("/timers", VIEWER, "List the timers of instances", pending::timers)
            .knows(pending::TIMERS),
        rows.get("/outbox", VIEWER, "List the outbox", pending::outbox)
            .knows(pending::OUTBOX),
        rows.get("/schedules", VIEWER, "List the schedules", schedules::list),
        rows.get(
            "/sagas/{saga}/schedule",
            VIEWER,
            "Show a schedule",
            schedules::show,
        ),
        rows.post(
            "/sagas/{saga}/schedule/pause",
            OPERATOR,
            "Pause a schedule",
            schedules::pause,
        )
        .account()
        .by_owner(),
        rows.post(
            "/sagas/{saga}/schedule/resume",
            OPERATOR,
            "Resume a schedule",
            schedules::resume,
        )
        .account()
        .by_owner(),
    ]
}
