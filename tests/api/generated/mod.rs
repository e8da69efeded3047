//! The runner's own OpenAPI document against the runner: requests that are made from it, half of them wrong in some way, to every
//! operation. No request is answered with a fault (5xx), and every answer has a status, a content type and a body that are
//! documented; what the document does not allow is refused.
//!
//! `make fuzz-api MINUTES=10` asks more, from another seed each time, which it prints. A failure names the case; `API_SEED` with
//! that number and `API_CASES=1` sends a request like it.

pub mod document;
mod requests;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::document::{Document, Operation};
use self::requests::{Generator, Learned};
use self::wire::{Answer, Request};
use crate::api::caller::{RATIO, event, get, instance, post, until};
use crate::api::requests::until_metric;
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, order_payload};

/// Requests that are sent where nothing else is asked for.
const CASES: u64 = 2_000;
/// The same on a real nats-server, where they take longer.
const CASES_ON_NATS: u64 = 300;
/// Faults after which no more are looked for.
const FAULTS_MAX: usize = 20;
/// Requests under way at the same time: some of them wait.
const CLIENTS: usize = 4;

const RENT: &str = r"
apiVersion: sagas/v1
kind: Saga
name: rent
input: {type: object}
steps: {wait: {wait: {signal: paid, timeout: 1h}}}
";

const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Delivered: {by: {tracking: event.data.no}}}
handlers:
  Parcel.Packed: {alias: {tracking: "${event.data.no}"}}
steps:
  deliver: {wait: {event: Carrier.Delivered, timeout: 24h}}
"#;

/// What ends the process, and what takes a shard from it: in a runner of its own.
const DISRUPTIVE: [&str; 3] = [
    "POST /admin/drain",
    "POST /admin/shards/{shard}/open",
    "POST /admin/shards/{shard}/close",
];

/// `API_SEED`, `API_CASES` and `API_MINUTES`.
struct Plan {
    first: u64,
    most: u64,
    until: Option<Instant>,
}

impl Plan {
    fn asked_for(cases: u64) -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u64>().expect("a number"))
        };
        let minutes = number("API_MINUTES");
        let plan = Self {
            first: number("API_SEED").unwrap_or(0),
            most: number("API_CASES").unwrap_or(if minutes.is_some() { u64::MAX } else { cases }),
            until: minutes.map(|minutes| Instant::now() + Duration::from_mins(minutes)),
        };
        println!("requests from API_SEED={}", plan.first);
        plan
    }
}

/// One runner, what it says of its API, and what it has answered so far.
struct Campaign<'r> {
    rig: &'r Rig,
    document: Document,
    learned: Mutex<Learned>,
    /// By operation and status, how often.
    answers: Mutex<BTreeMap<String, BTreeMap<u16, u32>>>,
    /// What was wrong, up to [`FAULTS_MAX`].
    faults: Mutex<Vec<String>>,
    /// Whether an operation may be not available.
    is_draining: bool,
}

impl<'r> Campaign<'r> {
    async fn new(rig: &'r Rig) -> Self {
        let document = get(rig, "/openapi.json").await.json();
        Self {
            rig,
            document: Document::of(&document),
            learned: Mutex::default(),
            answers: Mutex::default(),
            faults: Mutex::default(),
            is_draining: false,
        }
    }

    /// The operation that a request is to, if it is to one.
    fn operation(&self, meant: &Operation, request: &Request) -> Option<&Operation> {
        let method = match request.method.as_str() {
            "HEAD" => "GET",
            method => method,
        };
        let path = request.target.split(|byte| *byte == b'?').next()?;
        let segments = |path: &[u8]| path.split(|byte| *byte == b'/').count();
        if segments(path) != segments(meant.path.as_bytes()) || path.ends_with(b"/") {
            return None;
        }
        let mut operations = self.document.operations.iter();
        operations.find(|operation| operation.method == method && operation.path == meant.path)
    }

    /// What is wrong with the answer to a request.
    fn fault(&self, meant: &Operation, request: &Request, answer: &Answer) -> Option<String> {
        let is_of_head = request.method == "HEAD";
        let Some(operation) = self.operation(meant, request) else {
            if ![400, 403, 404, 405, 413, 415].contains(&answer.status) {
                return Some(format!("{} from no operation", answer.status));
            }
            return (!is_of_head)
                .then(|| self.document.problem_fault(answer))
                .flatten();
        };
        let tells_state = ["/live", "/ready", "/health"].contains(&operation.path.as_str());
        if answer.status >= 500 && !(answer.status == 503 && (self.is_draining || tells_state)) {
            return Some(format!("{}: {}", answer.status, answer.body.escape_ascii()));
        }
        if let Some(fault) = self.document.fault(operation, answer, is_of_head) {
            return Some(fault);
        }
        let is_done = (200..300).contains(&answer.status);
        let unallowed = self.unallowed(operation, request)?;
        is_done.then(|| format!("{} although {unallowed}", answer.status))
    }

    /// What the document does not allow in a request.
    fn unallowed(&self, operation: &Operation, request: &Request) -> Option<String> {
        let target = String::from_utf8_lossy(&request.target);
        let query = target.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap_or(pair);
            if !operation.query.iter().any(|known| known == name) {
                return Some(format!("{name:?} is no parameter"));
            }
        }
        let Some(body) = request.body.as_deref().filter(|body| !body.is_empty()) else {
            return operation.needs_body.then(|| "it has no body".to_owned());
        };
        let violation = self.document.violation(operation.reads.as_ref()?, body)?;
        Some(format!("the body is not what the document says: {violation}"))
    }

    /// Sends one request; `false`: nobody answers any more, or there are faults enough.
    fn send(&self, case: u64, operation: &Operation) -> bool {
        let learned = self.learned.lock().expect("not poisoned").clone();
        let request = Generator::new(case, &self.document, &learned).request(operation);
        let Some(answer) = request.send(self.rig.address()) else {
            assert!(
                self.is_draining,
                "case {case}: no answer to {}\n{}\n{}",
                operation.name(),
                request.shown(),
                self.rig.log_tail()
            );
            return false;
        };
        if let Some(fault) = self.fault(operation, &request, &answer) {
            let mut faults = self.faults.lock().expect("not poisoned");
            faults.push(format!(
                "case {case}, {} answered {}: {fault}\n{}\n  answer: {}",
                operation.name(),
                answer.status,
                request.shown(),
                answer.body.escape_ascii()
            ));
            return faults.len() < FAULTS_MAX;
        }
        if let Ok(body) = serde_json::from_slice::<Value>(&answer.body) {
            self.learned.lock().expect("not poisoned").learn(&body);
        }
        let mut answers = self.answers.lock().expect("not poisoned");
        let counts = answers.entry(operation.name()).or_default();
        *counts.entry(answer.status).or_default() += 1;
        true
    }

    /// Sends requests to those operations until the plan is carried out.
    fn run(&self, plan: &Plan, is_wanted: impl Fn(&Operation) -> bool + Sync) {
        let wanted: Vec<&Operation> = self.document.operations.iter().collect();
        let wanted: Vec<&Operation> = wanted.into_iter().filter(|one| is_wanted(one)).collect();
        let next = AtomicU64::new(0);
        let in_time = || plan.until.is_none_or(|until| Instant::now() < until);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= plan.most || !in_time() {
                            return;
                        }
                        let case = plan.first.wrapping_add(number);
                        let index = usize::try_from(case % wanted.len() as u64).expect("an index");
                        if !self.send(case, wanted[index]) {
                            return;
                        }
                    }
                });
            }
        });
    }

    /// The operations that no request has reached.
    fn never_done(&self) -> Vec<String> {
        let answers = self.answers.lock().expect("not poisoned");
        let is_done = |counts: &BTreeMap<u16, u32>| counts.keys().any(|status| (200..300).contains(status));
        let never = answers.iter().filter(|(_, counts)| !is_done(counts));
        never.map(|(name, _)| name.clone()).collect()
    }

    fn assert_well(&self) {
        let faults = self.faults.lock().expect("not poisoned");
        assert!(faults.is_empty(), "{}", faults.join("\n\n"));
        let log = std::fs::read_to_string(self.rig.log()).expect("a log");
        assert!(!log.contains("panicked"), "{}", self.rig.log_tail());
    }
}

/// A runner with instances that wait, have ended and are blocked, a dead letter, an alias and schedules.
async fn peopled(nats_url: Option<String>, slow: Duration) -> Rig {
    // On a busy machine a reload takes its time.
    let extra = json!({"http": {"wait_max": "200ms", "request_timeout": "60s"}});
    let mut rig = Rig::new(nats_url, "30m", slow, extra).await;
    for (name, text) in [("ratio", RATIO), ("rent", RENT), ("parcel", PARCEL)] {
        rig.add_saga(name, text);
    }
    rig.start().await;
    for (id, kind, payload) in [
        ("s-1", "Ratio.Opened", json!({"ratio": "r-1"})),
        ("s-2", "Ratio.Opened", json!({"ratio": "r-2"})),
        ("s-3", "Ratio.Divided", json!({"ratio": "r-2", "by": 0})),
        ("s-4", "Parcel.Packed", json!({"id": "p-1", "no": "T-1"})),
        ("s-5", "Order.Placed", order_payload("o-1")),
    ] {
        let path = "/v1/tenants/acme/events";
        let answer = post(&rig, path, event("acme", id, kind, &payload)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    let starts = "/v1/tenants/acme/sagas/rent/instances";
    for key in ["flat-1", "flat-2"] {
        let body = json!({"key": key}).to_string();
        assert_eq!(post(&rig, starts, body).await.status, 201);
    }
    until(&rig, "/v1/tenants/acme/dead-letters", |page| {
        page["items"][0].is_object()
    })
    .await;
    until(&rig, &instance("acme", "parcel", "p-1"), |_| true).await;
    rig
}

/// Lets an effect make a call that takes seconds, so that a drain takes as long.
async fn until_a_call_is_slow(rig: &Rig) {
    let body = event("acme", "slow", "Order.Placed", &order_payload("slow-1"));
    assert_eq!(post(rig, "/v1/tenants/acme/events", body).await.status, 202);
    let called = "saga_runner_effect_commands_in_progress{effect=\"payments-charge\"} 1";
    until_metric(rig, called).await;
}

async fn answers_fit_the_document(nats_url: Option<String>, cases: u64) {
    let mut rig = peopled(nats_url, Duration::ZERO).await;
    let campaign = Campaign::new(&rig).await;
    let plan = Plan::asked_for(cases);
    campaign.run(&plan, |operation| {
        !DISRUPTIVE.contains(&operation.name().as_str())
    });
    campaign.assert_well();
    // Some need more than a request: a gap, an adopted state, a token, something stuck.
    if plan.most >= CASES {
        let never = campaign.never_done();
        let all = campaign.document.operations.len();
        assert!(never.len() * 2 < all, "nothing of this was ever done: {never:?}");
    }
    until(&rig, "/ready", |_| true).await;
    assert_eq!(rig.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_generated_requests_is_documented() {
    answers_fit_the_document(None, CASES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_generated_requests_is_documented_on_nats() {
    let server = NatsServer::start();
    answers_fit_the_document(Some(server.url()), CASES_ON_NATS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_documented_while_shards_are_closed_and_the_runner_drains() {
    let mut rig = peopled(None, Duration::from_secs(3)).await;
    let mut campaign = Campaign::new(&rig).await;
    // Where a shard is closed, its instances cannot be asked for.
    campaign.is_draining = true;
    let few = |first: u64, most: u64| Plan {
        first,
        most,
        until: None,
    };
    campaign.run(&few(0, 60), |operation| {
        operation.name().starts_with("POST /admin/shards/{shard}/")
    });
    campaign.run(&few(0, 400), |operation| {
        // A breaker that is forced open lets no call be slow.
        let name = operation.name();
        !DISRUPTIVE.contains(&name.as_str()) && name != "POST /admin/breakers/{upstream}"
    });
    for shard in 0..2 {
        let answer = post(&rig, &format!("/admin/shards/{shard}/open"), "").await;
        assert!([200, 409].contains(&answer.status), "{answer:?}");
    }
    until(&rig, "/ready", |_| true).await;
    until_a_call_is_slow(&rig).await;
    assert_eq!(post(&rig, "/admin/drain", "").await.status, 202);
    campaign.run(&few(1_000, 400), |_| true);
    campaign.assert_well();
    assert_eq!(rig.exit().await, Some(0));
}

/// A path of the rig of [`peopled`] for each place of a path.
fn filled(path: &str) -> String {
    let saga = if path.contains("/schedule") {
        "leap"
    } else {
        "rent"
    };
    let places = [
        ("{tenant}", "acme"),
        ("{saga}", saga),
        ("{key}", "flat-1"),
        ("{name}", "paid"),
        ("{shard}", "0"),
        ("{upstream}", "127.0.0.1:9"),
        ("{id}", "0-1"),
        ("{hash}", "00000000"),
        ("{token}", "cb1.AAAA"),
    ];
    places
        .into_iter()
        .fold(path.to_owned(), |path, (place, value)| path.replace(place, value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_says_which_requests_are_refused_without_a_body() {
    let rig = peopled(None, Duration::ZERO).await;
    let document = Document::of(&get(&rig, "/openapi.json").await.json());
    let is_wanted = |one: &&Operation| one.reads.is_some() && !DISRUPTIVE.contains(&one.name().as_str());
    let mut needy = 0;
    for operation in document.operations.iter().filter(is_wanted) {
        let method = operation.method.parse().expect("a method");
        let request = rig.client.request(method, rig.url(&filled(&operation.path)));
        let request = request.header("content-type", "application/json");
        let answer = crate::api::caller::Answer::of(request).await;
        assert_eq!(
            answer.status == 400,
            operation.needs_body,
            "{}: {answer:?}",
            operation.name()
        );
        needy += u32::from(operation.needs_body);
    }
    assert!(needy >= 12, "{needy} need a body");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_and_reloads_at_the_same_time_are_each_answered() {
    let mut rig = peopled(None, Duration::from_secs(3)).await;
    until_a_call_is_slow(&rig).await;
    let asked = |path: &'static str| post(&rig, path, "");
    let reloads = futures::future::join_all((0..3).map(|_| asked("/admin/reload"))).await;
    for answer in &reloads {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let drains = futures::future::join_all((0..8).map(|_| asked("/admin/drain"))).await;
    let began = drains.iter().filter(|answer| answer.json()["began_now"] == true);
    assert_eq!(began.count(), 1, "{drains:?}");
    assert!(drains.iter().all(|answer| answer.status == 202), "{drains:?}");
    assert_eq!(rig.exit().await, Some(0));
}

#[test]
fn a_request_that_the_document_does_not_allow_is_recognised() {
    let told = saga_runner::api::openapi::document(saga_runner::kernel::subject::Tenancy::Multi);
    let document = Document::of(&told);
    let operation = |name: &str| {
        let mut operations = document.operations.iter();
        operations.find(|one| one.name() == name).expect("an operation")
    };
    let drain = operation("POST /admin/drain");
    assert!(drain.statuses().contains(&202) && !drain.statuses().contains(&200));
    let answer = |status: u16, kind: &str, body: &str| Answer {
        status,
        headers: vec![("content-type".to_owned(), kind.to_owned())],
        body: body.as_bytes().to_vec(),
    };
    let fault = |answer: &Answer| document.fault(drain, answer, false);
    let good = r#"{"draining": true, "began_now": true}"#;
    assert_eq!(fault(&answer(202, "application/json", good)), None);
    for (status, kind, body) in [
        (200, "application/json", good),
        (202, "text/plain", good),
        (202, "application/json", r#"{"draining": true}"#),
        (202, "application/json", r#"{"draining": 1, "began_now": true}"#),
        (
            202,
            "application/json",
            r#"{"draining": true, "began_now": true, "more": 1}"#,
        ),
        (409, "application/problem+json", "{}"),
        (403, "application/problem+json", "{}"),
    ] {
        assert!(
            fault(&answer(status, kind, body)).is_some(),
            "{status} {kind} {body}"
        );
    }
    assert!(document.violation("Cancel", br#"{"reson": "x"}"#).is_some());
    assert!(document.violation("Cancel", br#"{"mode": "drain"}"#).is_none());
}
