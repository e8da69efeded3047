//! The table of outcomes in docs/effects.md ("What an outcome means"), row by row for each provider on real peers: how often
//! a peer is called for what it does, under which idempotency keys, what the saga's step fails with, and whether it is
//! undone. For each `on_ambiguous` and both ways of dispatch, and with the runner killed in the middle of its calls.
//!
//! `table` holds the rows that are walked here against those of the page.

mod grpc;
mod http;
mod nats;
mod row;
mod rows;
mod smtp;
mod sql;
mod table;
mod tls;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use row::{Known, Note, Row, Via};
use serde_json::{Map, Value, json};

use crate::faults::until;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

const POLICIES: [&str; 3] = ["retry", "fail", "ask"];
/// Commands of a step that may be tried again, as the saga says.
const COMMANDS: usize = 2;
/// How long an instance may take, with all others at the same time.
const END_WITHIN: Duration = Duration::from_mins(3);
/// The longest answer that the runner reads, in bytes.
const ANSWER_BYTES_MAX: usize = 4_096;
/// A part of a result, in bytes, and how many of it are more than a result may have.
const LARGE_BYTES: usize = 50_000;
const LARGE_PARTS: usize = 24;

/// The idempotency keys of calls, by `<provider>/<conduct>/<policy>/<attempt of the step>`.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Calls {
    /// Enters a call, and tells how many like it came before.
    fn enter(&self, mark: &str, key: &str) -> usize {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = calls.entry(mark.to_owned()).or_default();
        keys.push(key.to_owned());
        keys.len() - 1
    }

    fn keys(&self, mark: &str) -> Vec<String> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(mark).cloned().unwrap_or_default()
    }
}

/// What a call asks its peer to do, and which one it is: `<conduct>/<policy>/<attempt of the step>`.
struct Mark<'m> {
    conduct: &'m str,
    attempt: &'m str,
}

impl<'m> Mark<'m> {
    fn read(text: &'m str) -> Self {
        let mut parts = text.split('/');
        let conduct = parts.next().unwrap_or_default();
        let attempt = parts.nth(1).unwrap_or_default();
        Self { conduct, attempt }
    }

    /// Whether the peer keeps the call for as long as its caller waits. The one of a runner that is killed is kept once.
    fn is_held(&self, before: usize) -> bool {
        match self.conduct {
            "says-nothing" | "is-broken-off" => true,
            "is-held" => before == 0 && self.attempt == "1",
            _ => false,
        }
    }
}

/// A kind of peer, and all that it may do.
struct Provider {
    /// What its effects and sagas begin with.
    name: &'static str,
    /// Its column in the table.
    column: &'static str,
    rows: &'static [&'static [Row]],
    /// The lines of an effect that calls.
    section: fn(Via, &str) -> String,
    /// Where in an answer the text is that becomes the result: `r-1`, something else, or `nothing`, which makes none.
    answer: &'static str,
}

static PROVIDERS: [&Provider; 6] = [
    &http::HTTP,
    &grpc::GRPC,
    &nats::NATS,
    &smtp::SMTP,
    &sql::POSTGRES,
    &sql::MARIADB,
];

impl Provider {
    fn rows(&self) -> impl Iterator<Item = &'static Row> + use<> {
        self.rows.iter().copied().flatten()
    }
}

/// Rows of a runner that is killed are walked apart.
fn walked(provider: &Provider, is_killed: bool) -> impl Iterator<Item = &'static Row> + use<> {
    provider
        .rows()
        .filter(move |row| (row.via == Via::Killed) == is_killed)
}

/// How the peer enters the calls of a row.
fn mark(provider: &Provider, row: &Row, policy: &str, attempt: usize) -> String {
    format!("{}/{}/{policy}/{attempt}", provider.name, row.conduct)
}

fn name(provider: &Provider, via: Via, policy: &str) -> String {
    format!("{}-{}-{policy}", provider.name, via.name())
}

/// Effects and sagas of each policy for each way to call, and the effect that undoes.
fn define(rig: &Rig) {
    for provider in PROVIDERS {
        let vias: std::collections::BTreeSet<Via> = provider.rows().map(|row| row.via).collect();
        for via in vias {
            for policy in POLICIES {
                let name = name(provider, via, policy);
                rig.add_effect(&name, &effect(&name, provider, via, policy));
                rig.add_saga(&name, &saga(&name, via));
            }
        }
    }
    rig.add_effect(
        "undo",
        "apiVersion: sagas/v1\nkind: Effect\nname: undo\n\
         http: {method: POST, url: \"${upstreams.http_peer}/undo/${url(input.saga)}/${url(input.row)}\", body: {}}\n",
    );
}

fn effect(name: &str, provider: &Provider, via: Via, policy: &str) -> String {
    let section = (provider.section)(via, policy);
    let answer = provider.answer;
    let more = if via == Via::Large {
        format!(", notes: [{}]", vec!["\"${input.note}\""; LARGE_PARTS].join(", "))
    } else {
        String::new()
    };
    let on_cancel = if via == Via::Interrupted {
        "on_cancel: interrupt\n"
    } else {
        ""
    };
    let (attempts, patience) = (via.attempts(), via.patience());
    let connect = if via == Via::Mute { "1s" } else { "5s" };
    format!(
        r#"apiVersion: sagas/v1
kind: Effect
name: {name}
{section}
timeout: {{connect: {connect}, total: {patience}}}
retry: {{attempts: {attempts}, backoff: {{initial: 100ms, max: 200ms}}}}
on_ambiguous: {policy}
{on_cancel}breaker: {{scope: effect, min_calls: 1000}}
output: {{type: object, required: [id], properties: {{id: {{enum: [r-1]}}, notes: {{type: array}}}}}}
result: {{id: "${{[{answer}][{answer} == 'nothing' ? 1 : 0]}}"{more}}}
"#
    )
}

/// What starts the saga, and no other one.
fn event(saga: &str) -> String {
    saga.replace('-', "_")
}

fn saga(name: &str, via: Via) -> String {
    let repetition = if matches!(via, Via::Interrupted | Via::Killed) {
        "timeout: 5m"
    } else {
        "retry: {errors: [\"*\"], attempts: 2, backoff: {initial: 100ms}}"
    };
    let event = event(name);
    format!(
        r#"apiVersion: sagas/v1
kind: Saga
name: {name}
start: Row.{event}
key: {{"Row.{event}": event.data.row, "Row.stop_{event}": event.data.row}}
state: {{init: {{row: "", note: ""}}}}
handlers:
  Row.{event}: {{set: {{row: "${{event.data.row}}", note: "${{event.data.note}}"}}}}
  Row.stop_{event}: {{fail: {{code: stopped}}}}
steps:
  work:
    effect: {name}
    with: {{row: "${{state.row}}", note: "${{state.note}}"}}
    {repetition}
    compensate: {{effect: undo, on_unknown: compensate, with: {{row: "${{state.row}}", saga: {name}}}}}
"#
    )
}

/// A runner with all peers.
struct Stage {
    rig: Rig,
    calls: Calls,
    _nats: NatsServer,
    _databases: sql::Databases,
}

impl Stage {
    async fn set(dispatch: &str) -> Self {
        let nats_server = NatsServer::start();
        let calls = Calls::default();
        let certificates = tls::Certificates::new();
        let (databases, of_databases) = sql::start(&calls).await;
        nats::start(&calls, &nats_server.url()).await;
        let mut upstreams = Map::new();
        for (name, address) in [
            http::start(&calls, &certificates).await,
            grpc::start(&calls, &certificates).await,
            smtp::start(&calls, &certificates).await,
            of_databases,
        ]
        .concat()
        {
            upstreams.insert(name, address.into());
        }
        let trusted = json!({"ca_file": "authority.pem"});
        let extra = json!({
            "dispatch": dispatch,
            "upstreams": upstreams,
            "upstream_tls": {"http_refusing": trusted, "http_leaving": trusted},
            "worker": {
                "ack_wait": "5s",
                "recheck_after": "2s",
                "yield_retry": "0s",
                "response_bytes": ANSWER_BYTES_MAX,
                "concurrency": 1_000,
                "consumers": {"by": "effect"},
            },
        });
        let mut rig = Rig::new(Some(nats_server.url()), "30m", Duration::from_secs(1), extra).await;
        rig.clear_definitions();
        rig.add_file("authority.pem", certificates.authority.as_bytes());
        rig.add_file("effects/stock.binpb", &grpc::descriptors());
        define(&rig);
        rig.start().await;
        Self {
            rig,
            calls,
            _nats: nats_server,
            _databases: databases,
        }
    }

    async fn ask(&self, provider: &Provider, row: &Row, policy: &str) {
        let saga = name(provider, row.via, policy);
        let note = match row.note {
            Note::Short => "short".to_owned(),
            Note::TwoLines => "two\nlines".to_owned(),
            Note::Large => "x".repeat(LARGE_BYTES),
        };
        let id = format!("{saga}-{}", row.conduct);
        let asked = json!({"row": row.conduct, "note": note});
        self.rig.send("Row", &id, &event(&saga), asked).await;
    }

    /// Lets instances fail whose calls are under way, so that nobody waits for them any longer.
    async fn stop(&self) {
        for (provider, row, policy) in each(false).filter(|(_, row, _)| row.via == Via::Interrupted) {
            let mark = mark(provider, row, policy, 1);
            until(&self.rig, async || !self.calls.keys(&mark).is_empty()).await;
            let saga = name(provider, row.via, policy);
            let (id, event) = (
                format!("{saga}-{}", row.conduct),
                format!("stop_{}", event(&saga)),
            );
            self.rig
                .send("Row", &id, &event, json!({"row": row.conduct}))
                .await;
        }
    }

    /// The instance once it has ended or asks.
    async fn over(&self, saga: &str, key: &str) -> Option<Value> {
        let begin = Instant::now();
        while begin.elapsed() < END_WITHIN {
            if let Some(view) = self.rig.instance(saga, key).await
                && (view["ended"].is_string()
                    || view["stuck"].as_array().is_some_and(|stuck| !stuck.is_empty()))
            {
                return Some(view);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Waits until an instance has ended or asks, and holds what became of it against the row. Tells what is wrong.
    async fn check(&self, provider: &Provider, row: &Row, policy: &str) -> Vec<String> {
        let saga = name(provider, row.via, policy);
        let Some(view) = self.over(&saga, row.conduct).await else {
            return vec![format!("{saga}/{} does not come to its end", row.conduct)];
        };
        let mut wrong = Vec::new();
        let mut hold = |what: &str, found: Value, expected: Value| {
            if found != expected {
                wrong.push(format!(
                    "{} of {}, on_ambiguous: {policy} ({}): {what} {found}, not {expected}; {view}",
                    row.conduct, provider.name, row.happened,
                ));
            }
        };
        if row.asks(policy) {
            hold("phase", view["phase"].clone(), json!("running"));
            hold("asks about", view["stuck"][0]["step"].clone(), json!("work"));
        } else if let Some(code) = row.code() {
            hold("phase", view["phase"].clone(), json!("failed"));
            hold("failure", view["failure"]["code"].clone(), json!(code));
        } else {
            hold("phase", view["phase"].clone(), json!("completed"));
        }
        let mut keys: Vec<Vec<String>> = Vec::new();
        for attempt in 1..=COMMANDS {
            let made = self.calls.keys(&mark(provider, row, policy, attempt));
            let what = format!("calls in attempt {attempt}");
            hold(&what, json!(made.len()), json!(row.seen(policy, attempt)));
            let mut different = made.clone();
            different.dedup();
            hold(
                "keys in one attempt",
                json!(different.len()),
                json!(made.len().min(1)),
            );
            keys.push(different);
        }
        if let [Some(first), Some(second)] = [keys[0].first(), keys[1].first()] {
            let is_other = row.known == Known::Refused;
            hold(
                "another key in the second attempt",
                json!(first != second),
                json!(is_other),
            );
        }
        let undone = self
            .calls
            .keys(&format!("http/undo/{saga}/{}", row.conduct))
            .len();
        hold("undone", json!(undone), json!(usize::from(row.undoes(policy))));
        wrong
    }

    /// A series of the runner's by its name and the labels of interest, in the order of their names.
    async fn series(&self, series: &str) -> BTreeMap<String, usize> {
        let answer = self.rig.client.get(self.rig.url("/metrics")).send().await;
        let text = answer.expect("answered").text().await.expect("text");
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix(series)?.strip_prefix('{'));
        let samples = lines.filter_map(|line| line.split_once("} "));
        let read = |(labels, value): (&str, &str)| {
            let values: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
            (values.join(" "), value.parse().expect("a number"))
        };
        samples.map(read).collect()
    }

    /// The calls of every effect ended with the classes that the rows say, and as often.
    async fn check_classes(&self) -> Vec<String> {
        let mut expected: BTreeMap<String, usize> = BTreeMap::new();
        for provider in PROVIDERS {
            for row in walked(provider, false).filter(|row| row.via != Via::Interrupted) {
                for policy in POLICIES {
                    let effect = name(provider, row.via, policy);
                    for (class, calls) in row.classes(policy) {
                        *expected.entry(format!("{class} {effect}")).or_default() += calls;
                    }
                }
            }
        }
        let mut found = self.series("saga_runner_effect_calls_total").await;
        found.retain(|labels, calls| !labels.ends_with(" undo") && *calls > 0);
        let mut wrong = Vec::new();
        let labels: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        for labels in labels {
            let (found, expected) = (found.get(labels), expected.get(labels));
            if found != expected {
                wrong.push(format!(
                    "calls by class and effect: {labels}: {found:?}, not {expected:?}"
                ));
            }
        }
        wrong
    }

    /// Calls that nobody waited for were broken off, long before their time was over.
    async fn check_cancelled(&self) {
        for provider in PROVIDERS {
            for row in walked(provider, false).filter(|row| row.via == Via::Interrupted) {
                for policy in POLICIES {
                    let effect = name(provider, row.via, policy);
                    until(&self.rig, async || {
                        let cancelled = self.series("saga_runner_effect_commands_cancelled_total").await;
                        cancelled.get(&effect) == Some(&1)
                    })
                    .await;
                }
            }
        }
    }

    async fn leave(mut self) {
        assert_eq!(self.rig.terminate().await, Some(0), "{}", self.rig.log_tail());
    }
}

/// Every row that is walked, with each policy.
fn each(is_killed: bool) -> impl Iterator<Item = (&'static Provider, &'static Row, &'static str)> {
    PROVIDERS.into_iter().flat_map(move |provider| {
        walked(provider, is_killed)
            .flat_map(move |row| POLICIES.into_iter().map(move |policy| (provider, row, policy)))
    })
}

fn none(wrong: &[String]) {
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

async fn every_row(dispatch: &str) {
    let stage = Stage::set(dispatch).await;
    for (provider, row, policy) in each(false) {
        stage.ask(provider, row, policy).await;
    }
    stage.stop().await;
    let mut wrong = Vec::new();
    for (provider, row, policy) in each(false) {
        wrong.extend(stage.check(provider, row, policy).await);
    }
    none(&wrong);
    stage.check_cancelled().await;
    none(&stage.check_classes().await);
    stage.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_outcome_is_what_the_table_says_through_the_broker() {
    every_row("broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_outcome_is_what_the_table_says_within_the_process() {
    every_row("local").await;
}

/// A call that a kill cuts off is an unknown outcome: made again under its key, or not, or asked about.
async fn killed_in_the_call(dispatch: &str) {
    let mut stage = Stage::set(dispatch).await;
    for (provider, row, policy) in each(true) {
        stage.ask(provider, row, policy).await;
    }
    until(&stage.rig, async || {
        each(true)
            .all(|(provider, row, policy)| !stage.calls.keys(&mark(provider, row, policy, 1)).is_empty())
    })
    .await;
    stage.rig.kill();
    stage.rig.start().await;
    let mut wrong = Vec::new();
    for (provider, row, policy) in each(true) {
        if policy != "retry" {
            wrong.extend(stage.check(provider, row, policy).await);
            continue;
        }
        let saga = name(provider, row.via, policy);
        let done = stage
            .rig
            .wait_for(&saga, row.conduct, |view| view["ended"].is_string())
            .await;
        let keys = stage.calls.keys(&mark(provider, row, policy, 1));
        if done["phase"] != "completed" || keys.len() != 2 || keys[0] != keys[1] {
            wrong.push(format!("{saga}: {done}, calls {keys:?}"));
        }
    }
    none(&wrong);
    stage.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_kill_cuts_off_is_an_unknown_outcome_through_the_broker() {
    killed_in_the_call("broker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_kill_cuts_off_is_an_unknown_outcome_within_the_process() {
    killed_in_the_call("local").await;
}
