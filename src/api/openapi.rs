//! The OpenAPI document, made from the table of endpoints.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::ApiState;
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
            "schemas": {"Problem": problem()},
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut operation = json!({
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "parameters": parameters(endpoint),
        "responses": {
            "2XX": {"description": "Done, or stored to be done"},
            "default": {
                "description": "A problem, with a stable code",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
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
    if endpoint.has_body {
        operation["requestBody"] = json!({
            "required": false,
            "content": {"application/json": {"schema": {"type": "object"}}},
        });
    }
    if endpoint.kind == Kind::Stream {
        operation["responses"]["200"] = json!({
            "description": "Server-sent events: `entry` for each entry of the history, with its number as id, and `end` at last",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        });
    }
    if endpoint.kind == Kind::File {
        operation["responses"]["200"] = json!({
            "description": "The file",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        });
    }
    if ["/live", "/ready", "/health"].contains(&endpoint.path.as_str()) {
        operation["responses"]["503"] = json!({
            "description": "It does not, and why",
            "content": {"application/json": {"schema": {"type": "object"}}},
        });
    }
    operation
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
    if endpoint.kind == Kind::Request {
        all.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "description": "Names the request, as `request_id` of the body does. A repetition with the same body gets the same answer; another body under the same key is 409 with the code SR0514.",
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

fn problem() -> Value {
    json!({
        "type": "object",
        "description": "RFC 9457",
        "required": ["type", "title", "status", "detail", "code", "trace_id", "errors"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference", "description": "Where the runner explains the code"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "pattern": "^SR[0-9]{4}$"},
            "trace_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "errors": {"type": "array", "items": {"type": "object"}},
            "outcome": {"type": "object", "description": "What became of a request to an instance, where it has changed nothing"},
        },
    })
}
