//! The document that the runner shows of its API, and whether an answer is what it says.

use std::collections::BTreeMap;

use saga_runner::kernel::definition::schemas::compile_text;
use saga_runner::kernel::json::Json;
use saga_runner::kernel::schema::Schema;
use serde_json::{Map, Value, json};

use super::wire::Answer;

/// Deepest value that is checked against a schema.
const DEPTH_MAX: usize = 200;

/// One operation.
pub struct Operation {
    pub method: String,
    pub path: String,
    /// Names of query parameters.
    pub query: Vec<String>,
    /// Names of headers.
    pub headers: Vec<String>,
    /// Name of the schema of the body that it reads.
    pub reads: Option<String>,
    /// It does nothing without a body.
    pub needs_body: bool,
    /// By status and content type the name of the schema, where there is one.
    responses: BTreeMap<u16, BTreeMap<String, Option<String>>>,
}

impl Operation {
    fn of(method: &str, path: &str, told: &Value) -> Self {
        let parameters = told["parameters"].as_array().expect("parameters");
        let named = |place: &str| {
            let here = parameters.iter().filter(|parameter| parameter["in"] == place);
            here.map(|parameter| parameter["name"].as_str().expect("a name").to_owned())
                .collect()
        };
        let numbered = told["responses"].as_object().expect("responses").iter();
        let numbered = numbered.filter_map(|(status, told)| Some((status.parse().ok()?, told)));
        Self {
            method: method.to_ascii_uppercase(),
            path: path.to_owned(),
            query: named("query"),
            headers: named("header"),
            reads: schema(&told["requestBody"]["content"]["application/json"]),
            needs_body: told["requestBody"]["required"] == true,
            responses: numbered.map(|(status, told)| (status, contents(told))).collect(),
        }
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    pub fn statuses(&self) -> Vec<u16> {
        self.responses.keys().copied().collect()
    }
}

fn schema(content: &Value) -> Option<String> {
    let reference = content["schema"]["$ref"].as_str()?;
    Some(reference.rsplit('/').next().expect("a name").to_owned())
}

fn contents(response: &Value) -> BTreeMap<String, Option<String>> {
    let contents = response["content"].as_object().into_iter().flatten();
    contents
        .map(|(kind, content)| (kind.clone(), schema(content)))
        .collect()
}

/// All operations, and the schemas that they name.
pub struct Document {
    pub operations: Vec<Operation>,
    /// As they are written.
    pub raw: Map<String, Value>,
    /// For requests, as they are written.
    asked: BTreeMap<String, Schema>,
    /// For answers, which have no member that is not documented.
    answered: BTreeMap<String, Schema>,
}

impl Document {
    pub fn of(document: &Value) -> Self {
        let mut operations = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, told) in methods.as_object().expect("methods") {
                operations.push(Operation::of(method, path, told));
            }
        }
        let raw = document["components"]["schemas"].as_object().expect("schemas");
        let mut closed: Map<String, Value> = raw.clone();
        closed.values_mut().for_each(close);
        let all = |schemas: &Map<String, Value>| {
            let names = schemas.keys();
            names
                .map(|name| (name.clone(), compiled(name, schemas)))
                .collect()
        };
        Self {
            operations,
            asked: all(raw),
            answered: all(&closed),
            raw: raw.clone(),
        }
    }

    /// Why a body is none that an operation reads.
    pub fn violation(&self, schema: &str, bytes: &[u8]) -> Option<String> {
        violation(&self.asked[schema], bytes)
    }

    /// What is wrong with an answer to an operation.
    pub fn fault(&self, operation: &Operation, answer: &Answer, is_of_head: bool) -> Option<String> {
        let status = answer.status;
        let Some(contents) = operation.responses.get(&status) else {
            return Some(format!("status {status} is not documented"));
        };
        let kind = answer.header("content-type").unwrap_or_default();
        if contents.is_empty() {
            let is_empty = answer.body.is_empty() && kind.is_empty();
            return (!is_empty).then(|| format!("a body of {kind:?} that is not documented"));
        }
        let Some(schema) = contents.get(kind) else {
            return Some(format!("content type {kind:?} is not documented for {status}"));
        };
        if is_of_head {
            return None;
        }
        if kind == "application/problem+json" {
            return self.problem_fault(answer);
        }
        let violation = violation(&self.answered[schema.as_ref()?], &answer.body)?;
        Some(format!("the body is not what the document says: {violation}"))
    }

    /// What is wrong with a problem.
    pub fn problem_fault(&self, answer: &Answer) -> Option<String> {
        let kind = answer.header("content-type").unwrap_or_default();
        if kind != "application/problem+json" {
            return Some(format!("{} with {kind:?} is no problem", answer.status));
        }
        if let Some(violation) = violation(&self.answered["Problem"], &answer.body) {
            return Some(format!("the problem is not what the document says: {violation}"));
        }
        let body: Value = serde_json::from_slice(&answer.body).expect("it was checked");
        let code = body["code"].as_str().expect("it was checked");
        let agrees = body["status"] == answer.status && body["type"] == format!("/errors/{code}");
        let is_told = ["title", "detail"]
            .iter()
            .all(|member| body[*member].as_str().is_some_and(|text| !text.is_empty()));
        (!agrees || !is_told).then(|| format!("the problem contradicts itself: {body}"))
    }
}

fn violation(schema: &Schema, bytes: &[u8]) -> Option<String> {
    let value = match Json::parse(bytes, DEPTH_MAX) {
        Ok(value) => value,
        Err(error) => return Some(error.to_string()),
    };
    let checked = schema.check(&value);
    checked.err().map(|violation| violation.to_string())
}

/// Lets an object have the members that are documented and no other.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(close);
            if members.get("properties").is_some_and(Value::is_object) && members.contains_key("type") {
                members.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// A schema with all the others beside it, as JSON Schema wants them.
fn compiled(name: &str, all: &Map<String, Value>) -> Schema {
    let text = json!({"$ref": format!("#/definitions/{name}"), "definitions": all}).to_string();
    let text = text.replace("#/components/schemas/", "#/definitions/");
    compile_text(name, &text.into()).unwrap_or_else(|findings| panic!("{name}: {findings:?}"))
}
