//! The OpenAPI document, made from the table of endpoints and their contracts.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::ApiState;
use super::contract::{self, Contract, Sent};
use super::endpoints::{self, Access, Endpoint, Kind, Place};
use crate::kernel::subject::Tenancy;

/// The document of this process.
pub async fn show(State(state): State<ApiState>) -> Json<Value> {
    Json(document(state.tenancy))
}

/// OpenAPI 3.1. docs/openapi.json is that with tenants.
#[must_use]
pub fn document(tenancy: Tenancy) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in endpoints::all(tenancy) {
        let method = endpoint.method.as_str().to_ascii_lowercase();
        let path = paths.entry(endpoint.path.clone()).or_insert_with(|| json!({}));
        path[method] = operation(&endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": env!("CARGO_PKG_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Times are RFC 3339. Lists have pages: `next` is the cursor of the one behind.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// The schemas of all bodies, by name.
///
/// # Panics
/// Never: a test reads the same text.
#[must_use]
pub fn schemas() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("schemas.json")).expect("a map of schemas")
}

fn operation(endpoint: &Endpoint) -> Value {
    let contract = contract::of(endpoint);
    let mut operation = json!({
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "parameters": parameters(endpoint),
        "responses": responses(endpoint, contract.as_ref()),
        "x-role": endpoint.access.as_str(),
        "x-listener": match endpoint.place {
            Place::Tenants => "http.listen",
            Place::Admin => "http.admin_listen",
            Place::Everywhere => "both",
        },
    });
    if let Access::Needs(_) = endpoint.access {
        operation["security"] = json!([{"token": []}]);
    }
    if let Some(contract) = contract
        && let Some(schema) = contract.reads
    {
        operation["requestBody"] = json!({
            "required": contract.needs_body,
            "content": {"application/json": {"schema": reference(schema)}},
        });
    }
    operation
}

/// By status what comes back. A status that no row names is that of something between runner and client, or of a fault of the
/// runner (500).
fn responses(endpoint: &Endpoint, contract: Option<&Contract>) -> Value {
    let problem = |description: &str| {
        json!({
            "description": description,
            "content": {"application/problem+json": {"schema": reference("Problem")}},
        })
    };
    let mut responses = json!({"default": problem("A problem, with a stable code")});
    let Some(contract) = contract else {
        return responses;
    };
    for status in contract.problems(endpoint) {
        responses[status.to_string()] = problem(meaning(status));
    }
    for (status, sent) in &contract.sends {
        let response = &mut responses[status.to_string()];
        let description = match status {
            503 => "It does not, and why; or a problem",
            _ if endpoint.kind == Kind::Stream => {
                "Server-sent events: `entry` for each entry of the history, with its number as id, and `end` at last"
            }
            201 => "Started",
            202 => "Stored to be done",
            _ => "Done",
        };
        response["description"] = description.into();
        match sent {
            Sent::Nothing => {}
            Sent::Json(schema) => {
                response["content"]["application/json"] = json!({"schema": reference(schema)});
            }
            Sent::Text(kind) => response["content"][*kind] = json!({"schema": {"type": "string"}}),
        }
    }
    responses
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// What the status of a problem says.
const fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong, and why",
        401 => "A valid token is needed",
        403 => "The role does not allow it, or the host name or the origin of the request is unknown",
        404 => "There is no such thing",
        409 => "It contradicts how things stand",
        410 => "What it is for is over",
        413 => "The body is larger than 1 MiB",
        415 => "The body is not JSON by its content type",
        422 => "The definitions have mistakes, which `errors` lists",
        503 => "Not now; retry later",
        _ => "A problem",
    }
}

/// Unique, from method and path: `post_v1_tenants_tenant_events`.
fn operation_id(endpoint: &Endpoint) -> String {
    let words = endpoint.path.split(['/', '{', '}', '.', '-']);
    let words = words.filter(|word| !word.is_empty());
    words.fold(endpoint.method.as_str().to_ascii_lowercase(), |id, word| {
        format!("{id}_{word}")
    })
}

fn parameters(endpoint: &Endpoint) -> Vec<Value> {
    let in_path = endpoint
        .path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| {
        let schema = if name == "shard" {
            json!({"type": "integer", "minimum": 0, "maximum": 65_535})
        } else {
            json!({"type": "string", "minLength": 1})
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let in_query = endpoint
        .parameters
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}));
    let mut all: Vec<Value> = in_path.chain(in_query).collect();
    if endpoint.is_of_tenant && endpoint.path.contains("{tenant}") {
        all.push(json!({
            "name": "x-tenant-id",
            "in": "header",
            "description": "Names the tenant where the path does not, and must agree with it where it does.",
            "schema": {"type": "string"},
        }));
    }
    if endpoint.takes_key() {
        all.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "description": "Names the request, as `request_id` of the body does where it has one. A repetition with the same body gets the same answer; another body under the same key is 409 with the code SR0514.",
            "schema": {"type": "string", "minLength": 1},
        }));
    }
    if endpoint.kind == Kind::Stream {
        all.push(json!({
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The id of the last event that was received: the stream begins behind it.",
            "schema": {"type": "integer", "minimum": 0},
        }));
    }
    all
}
