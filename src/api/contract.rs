//! What each endpoint reads and sends, for the OpenAPI document: names of schemas in `schemas.json`, statuses and content types.
//!
//! The table of endpoints says who may ask what; this one says what clients can rely on. tests/api/generated.rs sends requests to
//! every operation and compares what comes back with it.

use std::collections::BTreeSet;

use axum::http::Method;

use super::endpoints::{Access, Endpoint, Kind};
use super::entrance::TENANT_PREFIX;
use crate::ports::control::MetricsFormat;

/// A body as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// `application/json` by this schema.
    Json(&'static str),
    /// A text of this content type.
    Text(&'static str),
    Nothing,
}

/// What a client can rely on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// Schema of the body that is read.
    pub reads: Option<&'static str>,
    /// Nothing is done without a body.
    pub needs_body: bool,
    /// By status what is sent when it is done, and by the probes when it is not. A status may have several forms.
    pub sends: Vec<(u16, Sent)>,
    /// Statuses of problems that only this endpoint has.
    pub refuses: Vec<u16>,
}

impl Contract {
    fn of(status: u16, sent: Sent) -> Self {
        Self {
            reads: None,
            needs_body: false,
            sends: vec![(status, sent)],
            refuses: Vec::new(),
        }
    }

    fn reads(mut self, schema: &'static str) -> Self {
        self.reads = Some(schema);
        self
    }

    /// Reads a body that must be there.
    fn needs(self, schema: &'static str) -> Self {
        Self {
            needs_body: true,
            ..self.reads(schema)
        }
    }

    /// The same body under another status.
    fn also(mut self, status: u16) -> Self {
        let (_, sent) = self.sends[0];
        self.sends.push((status, sent));
        self
    }

    /// The same in another form, where the client asks for it.
    fn or(mut self, sent: Sent) -> Self {
        let (status, _) = self.sends[0];
        self.sends.push((status, sent));
        self
    }

    fn refuses(mut self, statuses: &[u16]) -> Self {
        self.refuses.extend(statuses);
        self
    }

    /// Every status of a problem, except that of a fault of the runner (500).
    #[must_use]
    pub fn problems(&self, endpoint: &Endpoint) -> BTreeSet<u16> {
        // A path or a parameter that is wrong, a foreign host name, and a request that takes too long.
        let mut problems = BTreeSet::from([400, 403, 503]);
        if matches!(endpoint.access, Access::Needs(_)) {
            problems.insert(401);
        }
        if endpoint.path.contains('{') || endpoint.is_of_tenant {
            problems.insert(404);
        }
        if endpoint.method != Method::GET {
            problems.extend([413, 415]);
        }
        if endpoint.kind == Kind::Request {
            problems.insert(409);
        }
        problems.extend(&self.refuses);
        problems
    }
}

/// The contract of an endpoint, if it has one; a test asserts that each has.
#[must_use]
pub fn of(endpoint: &Endpoint) -> Option<Contract> {
    let path = endpoint.path.as_str();
    // Without multi-tenancy the tenant's segment is absent.
    let behind = path.strip_prefix(TENANT_PREFIX);
    let path = match behind.or_else(|| path.strip_prefix("/v1")) {
        Some(behind) if endpoint.is_of_tenant => behind,
        _ => path,
    };
    let name = format!("{} {path}", endpoint.method);
    let mut all = process().into_iter().chain(shards()).chain(cluster());
    let mut of_tenants = instances().into_iter().chain(verbs()).chain(tenants());
    let found = if endpoint.is_of_tenant {
        of_tenants.find(|(known, _)| *known == name)
    } else {
        all.find(|(known, _)| *known == name)
    };
    found.map(|(_, contract)| contract)
}

type Row = (&'static str, Contract);

fn json(schema: &'static str) -> Contract {
    Contract::of(200, Sent::Json(schema))
}

/// A request to an instance: done where it was waited for, else stored.
fn request(reads: &'static str) -> Contract {
    json("Requested").also(202).reads(reads)
}

/// The same of one that says what is decided, or why.
fn order(needs: &'static str) -> Contract {
    json("Requested").also(202).needs(needs)
}

fn process() -> Vec<Row> {
    let metrics = |format: MetricsFormat| Sent::Text(format.content_type());
    let page = Sent::Text("text/markdown; charset=utf-8");
    let nothing = || Contract::of(204, Sent::Nothing);
    vec![
        ("GET /live", json("Live").also(503)),
        ("GET /ready", json("Readiness").also(503)),
        ("GET /errors/{code}", Contract::of(200, page)),
        ("GET /openapi.json", json("OpenApi")),
        ("GET /health", json("Health").also(503)),
        (
            "GET /metrics",
            Contract::of(200, metrics(MetricsFormat::Classic)).or(metrics(MetricsFormat::OpenMetrics)),
        ),
        ("GET /info", json("Info")),
        (
            "POST /admin/drain",
            Contract::of(202, Sent::Json("Drain")).reads("Account"),
        ),
        (
            "POST /admin/reload",
            json("Reloaded").reads("Account").refuses(&[422]),
        ),
        ("GET /admin/audit", json("AuditRecords")),
        ("GET /admin/breakers", json("Breakers")),
        ("GET /admin/rates", json("Rates")),
        (
            "POST /admin/breakers/{upstream}",
            nothing().needs("BreakerForce").refuses(&[409]),
        ),
    ]
}

fn shards() -> Vec<Row> {
    let accept = || json("AcceptReport").needs("Accept").refuses(&[409]);
    let held = || json("HeldReport").needs("Held").refuses(&[409]);
    vec![
        ("GET /admin/shards", json("Shards")),
        (
            "POST /admin/shards/{shard}/open",
            json("ShardOpened").reads("Account").refuses(&[409]),
        ),
        (
            "POST /admin/shards/{shard}/close",
            json("ShardOpened").reads("Account").refuses(&[409]),
        ),
        (
            "POST /admin/shards/{shard}/backup",
            Contract::of(200, Sent::Text("application/octet-stream"))
                .reads("Account")
                .refuses(&[409]),
        ),
        ("POST /admin/shards/{shard}/accept-gap", accept()),
        ("POST /admin/shards/{shard}/rebind", accept()),
        (
            "GET /admin/shards/{shard}/pending",
            json("PendingReport").refuses(&[409]),
        ),
        ("POST /admin/shards/{shard}/release", held()),
        ("POST /admin/shards/{shard}/discard", held()),
    ]
}

fn cluster() -> Vec<Row> {
    // Nobody waits for the outcome of a callback.
    let callback = Contract::of(202, Sent::Json("Requested")).needs("Callback");
    vec![
        ("GET /v1/definitions", json("Definitions")),
        ("GET /v1/definitions/{hash}", json("DefinitionDetail")),
        (
            "POST /v1/definitions/{hash}/migrate",
            json("Migration").reads("Account").refuses(&[409]),
        ),
        ("GET /v1/migrations/{id}", json("Migration")),
        ("POST /v1/callbacks/{token}", callback.refuses(&[409, 410])),
    ]
}

fn instances() -> Vec<Row> {
    let start = Contract::of(201, Sent::Json("Started")).also(200).also(202);
    let events = Contract::of(200, Sent::Text("text/event-stream"));
    vec![
        ("GET /instances", json("Summaries")),
        ("GET /instances/count", json("Count")),
        ("POST /sagas/{saga}/instances", start.reads("Start")),
        ("GET /sagas/{saga}/instances", json("Instances")),
        ("GET /sagas/{saga}/instances/{key}", json("InstanceDetail")),
        ("GET /sagas/{saga}/instances/{key}/inputs", json("RecordedInputs")),
        ("GET /sagas/{saga}/instances/{key}/why", json("Why")),
        (
            "GET /sagas/{saga}/instances/{key}/actions",
            json("Actions").refuses(&[409]),
        ),
        (
            "GET /sagas/{saga}/instances/{key}/graph",
            json("Graph").refuses(&[409]),
        ),
        ("GET /sagas/{saga}/instances/{key}/history", json("History")),
        ("GET /sagas/{saga}/instances/{key}/wait", json("Reached")),
        ("GET /sagas/{saga}/instances/{key}/events", events),
    ]
}

fn verbs() -> Vec<Row> {
    vec![
        ("POST /sagas/{saga}/instances/{key}/cancel", request("Cancel")),
        (
            "POST /sagas/{saga}/instances/{key}/signals/{name}",
            request("Signal"),
        ),
        ("POST /sagas/{saga}/instances/{key}/retry", request("Decision")),
        ("POST /sagas/{saga}/instances/{key}/skip", order("Skip")),
        ("POST /sagas/{saga}/instances/{key}/resolve", request("Decision")),
        ("POST /sagas/{saga}/instances/{key}/pause", request("Operation")),
        ("POST /sagas/{saga}/instances/{key}/resume", request("Operation")),
        (
            "POST /sagas/{saga}/instances/{key}/kill",
            order("OperationWithReason"),
        ),
        ("POST /sagas/{saga}/instances/{key}/restart", request("Operation")),
        (
            "DELETE /sagas/{saga}/instances/{key}",
            order("OperationWithReason"),
        ),
        (
            "POST /sagas/{saga}/instances/{key}/migrate",
            json("InstanceMigration").needs("MigrateInstance").refuses(&[409]),
        ),
        ("POST /sagas/{saga}/instances/{key}/try-now", request("TryNow")),
        (
            "POST /sagas/{saga}/instances/{key}/timers/{name}/fire",
            request("Operation"),
        ),
        (
            "POST /sagas/{saga}/instances/{key}/timers/{name}/cancel",
            request("Operation"),
        ),
    ]
}

fn tenants() -> Vec<Row> {
    let nothing = || Contract::of(204, Sent::Nothing);
    let job = || json("Job").reads("JobCommand").refuses(&[409]);
    let mut start = json("JobPlan").needs("JobStart").refuses(&[409]);
    start.sends.push((202, Sent::Json("Job")));
    vec![
        ("GET /jobs", json("Jobs")),
        ("POST /jobs", start),
        ("GET /jobs/{id}", json("Job")),
        ("POST /jobs/{id}/pause", job()),
        ("POST /jobs/{id}/resume", job()),
        ("POST /jobs/{id}/stop", job()),
        (
            "POST /events",
            Contract::of(202, Sent::Json("Published"))
                .needs("Event")
                .refuses(&[409]),
        ),
        ("GET /audit", json("AuditRecords")),
        ("GET /sagas/{saga}/aliases/{name}/{value}", json("AliasOwners")),
        ("GET /schedules", json("Schedules")),
        ("GET /sagas/{saga}/schedule", json("Schedule")),
        (
            "POST /sagas/{saga}/schedule/pause",
            json("Schedule").reads("Account").refuses(&[409]),
        ),
        (
            "POST /sagas/{saga}/schedule/resume",
            json("Schedule").reads("Account").refuses(&[409]),
        ),
        ("GET /timers", json("DueTimers")),
        ("GET /outbox", json("OutboxItems")),
        ("GET /dead-letters", json("DeadLetters")),
        ("GET /dead-letters/count", json("DeadLetterCount")),
        ("GET /dead-letters/{id}", json("DeadLetterDetail")),
        (
            "POST /dead-letters/{id}/retry",
            nothing().reads("DeadLetterRetry").refuses(&[409, 422]),
        ),
        (
            "POST /dead-letters/{id}/discard",
            nothing().reads("DeadLetterDiscard").refuses(&[409]),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{endpoints, openapi};
    use super::*;
    use crate::kernel::subject::Tenancy;

    #[test]
    fn every_endpoint_has_a_contract_and_every_contract_an_endpoint() {
        let rows = [process(), shards(), cluster(), instances(), verbs(), tenants()];
        let rows = rows.iter().map(Vec::len).sum::<usize>();
        for tenancy in [Tenancy::Multi, Tenancy::Single] {
            let all = endpoints::all(tenancy);
            assert_eq!(all.len(), rows, "a contract too many, or twice the same");
            for endpoint in all {
                let contract = of(&endpoint);
                let contract = contract
                    .unwrap_or_else(|| panic!("{} {} has no contract", endpoint.method, endpoint.path));
                assert_eq!(contract.reads.is_some(), endpoint.has_body, "{}", endpoint.path);
            }
        }
    }

    #[test]
    fn every_schema_is_used_and_every_name_of_one_is_known() {
        let document = openapi::document(Tenancy::Multi).to_string();
        let schemas: BTreeMap<String, serde_json::Value> = openapi::schemas();
        let named = |name: &str| format!("\"#/components/schemas/{name}\"");
        for name in schemas.keys() {
            assert!(document.contains(&named(name)), "nothing uses {name}");
        }
        for rest in document.split("\"#/components/schemas/").skip(1) {
            let name = rest.split('"').next().expect("a name");
            assert!(schemas.contains_key(name), "there is no schema {name}");
        }
    }
}
