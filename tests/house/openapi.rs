//! The OpenAPI document is the one that is published.

use std::path::Path;

use saga_runner::api::openapi;
use saga_runner::kernel::subject::Tenancy;

/// `UPDATE_OPENAPI=1` writes it.
#[test]
fn the_published_openapi_document_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    let text = serde_json::to_string_pretty(&openapi::document(Tenancy::Multi)).expect("JSON") + "\n";
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        published == text,
        "run UPDATE_OPENAPI=1 cargo test --test house openapi, and look at what has changed for clients"
    );
}

#[test]
fn every_operation_of_the_openapi_document_has_an_id_of_its_own() {
    let document = openapi::document(Tenancy::Multi);
    let mut ids = std::collections::BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for operation in methods.as_object().expect("methods").values() {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "{path}: {id} is there twice");
        }
    }
    assert!(ids.len() > 40, "{}", ids.len());
}
