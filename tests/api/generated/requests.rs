//! Requests that are right, and ways in which they are wrong.

use std::collections::BTreeMap;

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::{Map, Value, json};

use super::document::{Document, Operation};
use super::wire::Request;

/// Values of parameters, the likely ones first.
const VALUES: &[(&str, &[&str])] = &[
    ("kind", &["effect", "fact", "message", "event"]),
    ("stream", &["events", "results", "x"]),
    ("subject_prefix", &["event ", "x"]),
    ("newer_than", &["1h", "x"]),
    ("by", &["saga", "reason", "phase", "x"]),
    ("sent", &["false", "true"]),
    ("due_within", &["1h", "0s"]),
    ("overdue", &["false", "true"]),
    ("tenant", &["acme", "globex", "initech", "No"]),
    (
        "saga",
        &["rent", "ratio", "order", "billing", "parcel", "leap", "nothing"],
    ),
    (
        "key",
        &["r-1", "r-2", "flat-1", "flat-2", "flat-3", "p-1", "absent"],
    ),
    ("name", &["paid", "go", "tracking", "unpaid", "timeout", "wait"]),
    ("value", &["T-1", "T-2"]),
    ("id", &["0-1", "0-1-1", "some"]),
    ("hash", &["sha256:00", "00", "f"]),
    ("token", &["some", "cb1.AAAA"]),
    ("shard", &["0", "1", "2", "65535", "65536", "-1", "x"]),
    ("upstream", &["127.0.0.1:9", "shop", "gateway"]),
    ("code", &["SR0501", "SR0511", "SR9999", "x"]),
    ("after", &["forged", "0", "0-1", ""]),
    ("limit", &["1", "2", "500", "1000000000", "0", "-1", "many", ""]),
    ("wait", &["0s", "1ms", "20ms", "9h", "-1s", "x", ""]),
    ("wait_for", &["start", "end", "never"]),
    (
        "for",
        &[
            "end",
            "phase=completed",
            "step=wait",
            "step=wait:waiting",
            "phase=",
            "x",
        ],
    ),
    ("generation", &["1", "2", "4294967296", "x"]),
    ("newest", &["0", "1", "1000000000000", "x"]),
    ("history", &["0", "1", "1000000000000", "x"]),
    ("blocked", &["true", "false", "maybe"]),
    ("dry_run", &["true", "true", "false", "maybe"]),
    ("undo", &["true", "false", "maybe"]),
    ("phase", &["running", "failed,completed", "over", ""]),
    ("blocked_by", &["nothing", "anything", "paused,dead_letter", "x"]),
    ("waits_for", &["message", "effect,timer", "x"]),
    ("older_than", &["1ms", "9999999999d", "x"]),
    ("last_generation", &["true", "false", "x"]),
    ("idle_for", &["1s", "-1s"]),
    (
        "where",
        &[
            "state.shares.size() > 0",
            "key == 'r-1'",
            "1/0 == 1",
            "((",
            "state.a.b.c == 1",
        ],
    ),
    ("key_prefix", &["r", "flat-", ""]),
    ("step", &["divide", "wait", ""]),
    ("upstream", &["service", "x"]),
    ("event", &["Patient.Divided", ""]),
    ("signal", &["go", "x"]),
    ("principal", &["ann", "", "\u{202e}"]),
    ("action", &["instances", "instances.cancel", "drain", "x", ""]),
    (
        "outcome",
        &["done", "accepted", "refused", "failed", "unanswered", "x"],
    ),
    ("status", &["200", "403", "99", "x"]),
    ("since", &["1h", "2026-11-26T03:00:00Z", "0s", "9999999999d", "x"]),
    ("until", &["0s", "2026-11-26T03:00:00Z", "x"]),
    ("reason", &["expression", "x"]),
    ("error", &["declined", "x"]),
];

/// Segments and values that parsers take differently.
const ODD: &[&str] = &[
    "",
    ".",
    "..",
    "%2e%2e",
    "a%2Fb",
    "%2F..%2F",
    "a%5C..%5Cb",
    "%00",
    "%0d%0aset-cookie:%20a",
    "%",
    "%zz",
    "%ff%fe",
    "%C3%A4",
    "%F0%9F%98%80",
    "%ED%A0%80",
    "%20",
    "+",
    "a;b=c",
    "a:b",
    "@schedule",
    "*",
    "%3E",
    "a.b",
    "{tenant}",
    "null",
    "-1",
    "18446744073709551616",
    "%7F",
    "%E2%80%AE",
    "'%20or%20'1'='1",
    "%24%7B1%2F0%7D",
];

/// Texts within bodies.
const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "flat-1",
    "\u{0}",
    "\r\n",
    "\u{1b}[31m",
    "\u{202e}",
    "😀",
    "../..",
    "acme",
    "No Name",
    "${state}",
    "1ms",
];

/// Bodies that are no object of JSON.
const BODIES: &[&[u8]] = &[
    b"",
    b"{",
    b"}",
    b"[]",
    b"null",
    b"5",
    b"\"x\"",
    b"NaN",
    b"1e999",
    b"{}{}",
    b"\xff\xfe",
    b"{\"a\":\"\xc3\x28\"}",
    b"{\"a\":\"\\ud800\"}",
    b"\xef\xbb\xbf{}",
    b"{\"by\":\"a\",\"by\":\"b\"}",
    b"{'by': 'a'}",
    b"{\"by\":\"a\",}",
    b"\0",
];

/// What the runner has answered before that names something, by the member that had it.
#[derive(Clone, Default)]
pub struct Learned(BTreeMap<String, Vec<String>>);

impl Learned {
    /// Values that are kept of each kind.
    const KEPT: usize = 40;

    pub fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    let name = if name == "next" { "after" } else { name };
                    if let (Value::String(text), true) =
                        (value, ["id", "hash", "upstream", "key", "after"].contains(&name))
                    {
                        let known = self.0.entry(name.to_owned()).or_default();
                        if !known.contains(text) && known.len() < Self::KEPT {
                            known.push(text.clone());
                        }
                    }
                    self.learn(value);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            _ => {}
        }
    }
}

/// Makes the requests of one case.
pub struct Generator<'d> {
    rng: TestRng,
    document: &'d Document,
    learned: &'d Learned,
}

impl<'d> Generator<'d> {
    pub fn new(case: u64, document: &'d Document, learned: &'d Learned) -> Self {
        let mut seed = [0_u8; 32];
        seed[..8].copy_from_slice(&case.to_le_bytes());
        Self {
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &seed),
            document,
            learned,
        }
    }

    /// One of so many.
    fn among(&mut self, many: usize) -> usize {
        let drawn = usize::try_from(self.rng.next_u64() >> 32).expect("32 bits");
        drawn % many
    }

    /// Whether something happens that happens once in so many times.
    fn once_in(&mut self, many: usize) -> bool {
        self.among(many) == 0
    }

    fn one_of<'t>(&mut self, texts: &'t [&'t str]) -> &'t str {
        let index = self.among(texts.len());
        texts[index]
    }

    /// A request to an operation. Half of them are right as far as the document says.
    pub fn request(&mut self, operation: &Operation) -> Request {
        let is_odd = self.once_in(2);
        let mut request = Request {
            method: operation.method.clone(),
            target: self.target(operation, is_odd),
            headers: vec![("host", b"localhost".to_vec())],
            ..Request::default()
        };
        if operation.method != "GET" {
            let body = match &operation.reads {
                Some(schema) => self.body(schema, is_odd),
                None if is_odd && self.once_in(4) => Some(b"{}".to_vec()),
                None => None,
            };
            if body.is_some() {
                request
                    .headers
                    .push(("content-type", b"application/json".to_vec()));
            }
            request.body = body;
        }
        self.headers(operation, &mut request, is_odd);
        if is_odd {
            self.disturb(&mut request);
        }
        request
    }

    fn target(&mut self, operation: &Operation, is_odd: bool) -> Vec<u8> {
        let mut target = String::new();
        for segment in operation.path.split('/').skip(1) {
            target.push('/');
            let named = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
            match named {
                Some(name) => target.push_str(&self.value(name, is_odd)),
                None => target.push_str(segment),
            }
        }
        let mut pairs = Vec::new();
        for name in &operation.query {
            if self.once_in(3) {
                pairs.push(format!("{name}={}", self.value(name, is_odd)));
            }
        }
        if is_odd && self.once_in(8) {
            let more = ["histroy=1", "=", "&", "limit=1&limit=2", "a[b]=c", "%ff=%fe", "x"];
            pairs.push(self.one_of(&more).to_owned());
        }
        if !pairs.is_empty() {
            target = format!("{target}?{}", pairs.join("&"));
        }
        target.into_bytes()
    }

    /// A value of a parameter, encoded.
    fn value(&mut self, name: &str, is_odd: bool) -> String {
        if is_odd && self.once_in(4) {
            return match self.among(20) {
                0 => "a".repeat(8_000),
                1 => "k".repeat(257),
                _ => self.one_of(ODD).to_owned(),
            };
        }
        let learned = self.learned;
        if let Some(known) = learned.0.get(name)
            && (self.once_in(6) || name != "key" && !self.once_in(6))
        {
            return encoded(&known[self.among(known.len())]);
        }
        let known = VALUES.iter().find(|(known, _)| *known == name);
        let (_, values) = known.unwrap_or_else(|| panic!("no values for the parameter {name}"));
        // The first ones go together.
        if self.once_in(6) {
            encoded(self.one_of(values))
        } else {
            encoded(values[0])
        }
    }

    fn body(&mut self, schema: &str, is_odd: bool) -> Option<Vec<u8>> {
        if self.once_in(12) {
            return None;
        }
        let document = self.document;
        let mut value = if schema == "Event" {
            self.event()
        } else {
            self.instance_of(&document.raw[schema])
        };
        if !is_odd {
            return Some(value.to_string().into_bytes());
        }
        match self.among(10) {
            0 => {
                let index = self.among(BODIES.len());
                return Some(BODIES[index].to_vec());
            }
            1 => return Some(self.deep(&value)),
            2 => {
                let mut text = value.to_string().into_bytes();
                let index = self.among(text.len());
                text[index] ^= 1 << self.among(8);
                return Some(text);
            }
            3 => {
                let text = value.to_string().into_bytes();
                let end = self.among(text.len());
                return Some(text[..end].to_vec());
            }
            4 => value["no_such_field"] = json!(1),
            5 | 6 => self.remove(&mut value),
            _ => self.replace(&mut value),
        }
        Some(value.to_string().into_bytes())
    }

    /// A value that a schema of a request allows.
    fn instance_of(&mut self, schema: &Value) -> Value {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().expect("a name");
            let document = self.document;
            return self.instance_of(&document.raw[name]);
        }
        if let Some(values) = schema["enum"].as_array() {
            return values[self.among(values.len())].clone();
        }
        if let Some(alternatives) = schema["anyOf"].as_array() {
            let index = self.among(alternatives.len());
            return self.instance_of(&alternatives[index]);
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return json!({"n": [1, 2.5, null, "x"]}),
        };
        match self.one_of(&kinds) {
            "string" => self.one_of(TEXTS).into(),
            "boolean" => self.once_in(2).into(),
            "integer" => {
                let least = schema["minimum"].as_u64().unwrap_or_default();
                (least + self.rng.next_u64() % 4).into()
            }
            "array" => (0..self.among(3))
                .map(|_| self.instance_of(&schema["items"]))
                .collect(),
            "null" => Value::Null,
            _ => self.object(schema),
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        let required = schema["required"].as_array().map(Vec::as_slice);
        let required = required.unwrap_or_default();
        let mut object = Map::new();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let is_required = required.iter().any(|wanted| wanted == name);
            if is_required || self.once_in(2) {
                object.insert(name.clone(), self.instance_of(member));
            }
        }
        if schema.get("properties").is_none() && self.once_in(2) {
            object.insert("saga".to_owned(), json!("ratio"));
        }
        Value::Object(object)
    }

    fn event(&mut self) -> Value {
        let kinds = [
            ("Ratio", "Opened", json!({"ratio": "r-1"})),
            ("Ratio", "Divided", json!({"ratio": "r-1", "by": self.among(3)})),
            ("Ratio", "Divided", json!({"ratio": "r-2", "by": 4})),
            ("Parcel", "Packed", json!({"id": "p-1", "no": "T-1"})),
            ("Nothing", "Happened", json!({})),
        ];
        let (aggregate, kind, payload) = kinds[self.among(kinds.len())].clone();
        json!({
            "tenant_id": "acme",
            "event_id": format!("e-{}", self.among(1_000)),
            "event_type": kind,
            "aggregate_type": aggregate,
            "aggregate_id": "a-1",
            "payload": payload,
        })
    }

    /// A body with one member that is nested deeper than anything needs.
    fn deep(&mut self, value: &Value) -> Vec<u8> {
        let depth = [63, 65, 129, 20_000][self.among(4)];
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let member = ["input", "data", "payload", "result", "ok", "filter"][self.among(6)];
        let mut text = value.to_string();
        text.pop();
        let comma = if text.len() > 1 { "," } else { "" };
        format!("{text}{comma}\"{member}\":{nested}}}").into_bytes()
    }

    fn remove(&mut self, value: &mut Value) {
        if let Value::Object(members) = value
            && !members.is_empty()
        {
            let index = self.among(members.len());
            let name = members.keys().nth(index).expect("a member").clone();
            members.remove(&name);
        }
    }

    /// Puts something else in the place of one member.
    fn replace(&mut self, value: &mut Value) {
        let other = match self.among(9) {
            0 => Value::Null,
            1 => json!([]),
            2 => json!({}),
            3 => json!(-1),
            4 => json!(1.5),
            5 => json!(u64::MAX),
            6 => json!("x".repeat(200_000)),
            7 => json!(true),
            _ => json!(self.one_of(TEXTS)),
        };
        match value {
            Value::Object(members) if !members.is_empty() => {
                let index = self.among(members.len());
                let member = members.values_mut().nth(index).expect("a member");
                *member = other;
            }
            value => *value = other,
        }
    }

    fn headers(&mut self, operation: &Operation, request: &mut Request, is_odd: bool) {
        for name in &operation.headers {
            if !self.once_in(4) {
                continue;
            }
            let (name, values): (_, &[&[u8]]) = match name.as_str() {
                "x-tenant-id" => ("x-tenant-id", &[b"acme", b"acme", b"globex", b"No", b"", b"\xff"]),
                "Idempotency-Key" => (
                    "idempotency-key",
                    &[b"\"k-2\"", b"k-1", b"k-3", b"", b"\"", b"\xff", b"a b"],
                ),
                _ => ("last-event-id", &[b"0", b"7", b"-1", b"x", b"\xff"]),
            };
            let value = if is_odd {
                values[self.among(values.len())]
            } else {
                values[0]
            };
            request.headers.push((name, value.to_vec()));
        }
    }

    /// Makes one thing wrong that no operation is about.
    fn disturb(&mut self, request: &mut Request) {
        let kind = |request: &mut Request, value: &[u8]| {
            request.headers.retain(|(name, _)| *name != "content-type");
            if !value.is_empty() {
                request.headers.push(("content-type", value.to_vec()));
            }
        };
        match self.among(24) {
            0 => kind(request, b""),
            1 => kind(request, b"text/plain"),
            2 => kind(request, b"\xff"),
            3 => kind(request, b"application/vnd.x+json; charset=utf-8"),
            4 => request.headers[0].1 = b"evil.example".to_vec(),
            5 => request.headers.push(("host", b"localhost".to_vec())),
            6 => request.headers.push(("origin", b"https://evil.example".to_vec())),
            7 => request.headers.push(("traceparent", b"00-x\xff-y-z".to_vec())),
            8 => request.headers.push(("x-tenant-id", b"acme".to_vec())),
            9 => request.headers.push(("accept", b"text/html;q=x".to_vec())),
            10 => {
                for value in ["k-1", "k-2"] {
                    request
                        .headers
                        .push(("idempotency-key", value.as_bytes().to_vec()));
                }
            }
            11 if request.method == "POST" => {
                request.announced = Some(2 * 1024 * 1024);
                kind(request, b"application/json");
            }
            12 => request.headers.push(("authorization", b"Bearer \xff".to_vec())),
            13 | 14 => {
                let methods = [
                    "GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY",
                ];
                self.one_of(&methods).clone_into(&mut request.method);
            }
            15 => request.target.extend(b"/"),
            16 => {
                request.target.splice(0..0, *b"/");
            }
            17 => request.headers.push(("cookie", vec![b'a'; 4_000])),
            _ => {}
        }
    }
}

/// A value as a segment of a path or in a query.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            for digit in [byte >> 4, byte & 15] {
                encoded.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
        encoded
    })
}
