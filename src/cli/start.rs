//! `start`: starts an instance without an event, over the HTTP API of a running cluster.

use std::path::Path;

use clap::Args;
use serde_json::{Map, Value};

use super::client::{Client, ServerArguments, TenantArguments, escaped};
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Args)]
#[command(after_help = "Prints the key of the instance. Example:\n  \
    saga-runner start refund --key r-1 --input '{\"order\": \"o-1\"}' --request-id 7f3a")]
pub struct StartArguments {
    /// Name of the saga, which declares `input`.
    #[arg(value_name = "SAGA")]
    saga: String,
    /// Key of the instance; generated if not given.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Input as a JSON object, or @FILE to read it from a file.
    #[arg(long, value_name = "JSON|@FILE", default_value = "{}")]
    input: String,
    #[command(flatten)]
    tenant: TenantArguments,
    /// Idempotency key of this request.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn start(arguments: &StartArguments) -> Result<(), Failure> {
    let mut body = Map::from_iter([("input".to_owned(), input(&arguments.input)?)]);
    let mut say = |name: &str, value: &Option<String>| {
        body.extend(
            value
                .iter()
                .map(|value| (name.to_owned(), Value::from(value.as_str()))),
        );
    };
    say("key", &arguments.key);
    say("request_id", &arguments.request_id);
    let client = Client::new(&arguments.server)?;
    let tenant = client.tenant_path(&arguments.tenant)?;
    let path = format!("{tenant}/sagas/{}/instances", escaped(&arguments.saga));
    let answer = client.post_json(&path, &Value::Object(body))?;
    out::line(answer["key"].as_str().unwrap_or_default())
}

fn input(text: &str) -> Result<Value, Failure> {
    let read = |path: &str| {
        std::fs::read_to_string(Path::new(path))
            .map_err(|error| Failure::new(exit::NO_INPUT, format!("{path}: {error}")))
    };
    let text = match text.strip_prefix('@') {
        Some(path) => read(path)?,
        None => text.to_owned(),
    };
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new(exit::USAGE, format!("--input is not JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Failure::new(exit::USAGE, "--input must be a JSON object"))
    }
}
