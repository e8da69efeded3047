//! What can be done to an instance now: everything that the list says is done, and everything else is refused for the reason that the
//! list gives.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::{MockServer, ResponseTemplate};

use crate::api::caller::{Answer, add_call, get, instance, post, runner, send, service, until};
use crate::api::letters::cli;
use crate::support::rig::Rig;

const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
start: Patient.Opened
key: {"Patient.*": event.data.patient}
state: {init: {heard: []}}
timers:
  remind: {after: 1h, set: {heard: "${state.heard + [0]}"}}
steps:
  ask: {wait: {signal: go, timeout: 1h}}
"#;

const PAY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: pay
start: Pay.Opened
key: {"Pay.*": event.data.pay}
state: {init: {}}
steps:
  charge: {effect: charge, with: {}, compensate: {effect: charge, with: {}, on_unknown: compensate}}
"#;

const SHOP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: shop
start: Shop.Opened
key: {"Shop.*": event.data.shop}
state: {init: {}}
steps:
  order: {effect: order, with: {}, retry: {attempts: 5, backoff: {initial: 10m, max: 10m}}}
"#;

/// The runner, and the services that its effects call.
async fn running() -> (Rig, [MockServer; 2]) {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    let slow = service(ResponseTemplate::new(200).set_delay(Duration::from_mins(10))).await;
    let refusing = service(ResponseTemplate::new(503)).await;
    add_call(
        &rig,
        "charge",
        &slow,
        "timeout: {total: 300ms}\non_ambiguous: ask\n",
    );
    add_call(&rig, "order", &refusing, "retry: {attempts: 1}\n");
    for (name, text) in [("patient", PATIENT), ("pay", PAY), ("shop", SHOP)] {
        rig.add_saga(name, text);
    }
    rig.start().await;
    (rig, [slow, refusing])
}

/// Where an instance is brought before it is asked about.
#[derive(Debug, Clone, Copy)]
enum State {
    Waiting,
    Paused,
    Cancelled,
    Completed,
    Stuck,
    BackingOff,
}

impl State {
    const fn saga(self) -> (&'static str, &'static str) {
        match self {
            Self::Waiting | Self::Paused | Self::Cancelled | Self::Completed => ("patient", "Patient.Opened"),
            Self::Stuck => ("pay", "Pay.Opened"),
            Self::BackingOff => ("shop", "Shop.Opened"),
        }
    }

    /// Begins an instance and brings it there.
    async fn reach(self, rig: &Rig, key: &str) -> String {
        let (saga, event) = self.saga();
        let path = instance("acme", saga, key);
        send(rig, "acme", key, event, json!({saga: key})).await;
        let status = |view: &Value, wanted: &str| view["steps"][0]["status"] == wanted;
        let verb = match self {
            Self::Stuck => {
                until(rig, &path, |view| status(view, "stuck")).await;
                return path;
            }
            Self::BackingOff => {
                until(rig, &path, |view| status(view, "backing_off")).await;
                return path;
            }
            Self::Waiting => None,
            Self::Paused => Some("pause"),
            Self::Cancelled => Some("cancel"),
            Self::Completed => Some("signals/go"),
        };
        until(rig, &path, |view| status(view, "waiting")).await;
        if let Some(verb) = verb {
            let answer = post(rig, &format!("{path}/{verb}?wait=20s"), "{}").await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        path
    }
}

/// The requests that an action stands for: one for each outcome that it may state.
fn requests(path: &str, action: &Value) -> Vec<(String, Value)> {
    let name = action["name"].as_str().unwrap_or_default();
    let verb = action["action"]
        .as_str()
        .expect("an action")
        .replace("{name}", name);
    let outcomes = action["as"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![Value::Null]);
    let body = |outcome: Value| {
        let mut body = serde_json::Map::new();
        for part in ["step", "item", "ended"] {
            if !action[part].is_null() {
                body.insert(part.to_owned(), action[part].clone());
            }
        }
        if !outcome.is_null() {
            body.insert("as".to_owned(), outcome);
        }
        if action["needs_reason"] == true {
            body.insert("reason".to_owned(), json!("a test"));
        }
        Value::Object(body)
    };
    outcomes
        .into_iter()
        .map(|outcome| (format!("{path}/{verb}?wait=20s"), body(outcome)))
        .collect()
}

/// Sends a request; that of a deletion has no verb in its path.
async fn ask(rig: &Rig, url: &str, body: &Value) -> Answer {
    let Some((path, query)) = url.split_once("/delete?") else {
        return post(rig, url, body.to_string()).await;
    };
    let url = rig.url(&format!("{path}?{query}"));
    let request = rig.client.delete(url).header("content-type", "application/json");
    Answer::of(request.body(body.to_string())).await
}

async fn actions(rig: &Rig, path: &str) -> Value {
    let answer = get(rig, &format!("{path}/actions")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn names(actions: &Value) -> BTreeSet<&str> {
    let possible = actions["possible"].as_array().expect("a list").iter();
    possible
        .map(|action| action["action"].as_str().expect("a name"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_possible_action_is_done_and_any_other_is_refused_for_the_reason_given() {
    let (rig, _services) = running().await;
    for (state, wanted) in [
        (
            State::Waiting,
            &[
                "cancel",
                "kill",
                "pause",
                "signals/{name}",
                "skip",
                "timers/{name}/cancel",
                "timers/{name}/fire",
            ][..],
        ),
        (
            State::Paused,
            &[
                "cancel",
                "kill",
                "resume",
                "signals/{name}",
                "skip",
                "timers/{name}/cancel",
                "timers/{name}/fire",
            ],
        ),
        (State::Cancelled, &["delete", "restart", "retry"]),
        (State::Completed, &["delete"]),
        (
            State::Stuck,
            &["cancel", "kill", "pause", "resolve", "retry", "skip"],
        ),
        (
            State::BackingOff,
            &["cancel", "kill", "pause", "skip", "timers/{name}/fire", "try-now"],
        ),
    ] {
        let path = state.reach(&rig, &format!("{state:?}-0")).await;
        let listed = actions(&rig, &path).await;
        assert_eq!(
            names(&listed),
            wanted.iter().copied().collect(),
            "{state:?}: {listed}"
        );
        for refused in listed["refused"].as_array().expect("a list") {
            let action = json!({
                "action": refused["action"],
                "ended": refused["ended"],
                "needs_reason": true,
            });
            for (url, body) in requests(&path, &action) {
                let answer = ask(&rig, &url, &body).await;
                let told = answer.is_problem(409, "SR0503");
                assert_eq!(told["detail"], refused["reason"], "{state:?}: {refused}");
            }
        }
        let mut count = 0;
        for action in listed["possible"].as_array().expect("a list") {
            for at in 0..requests("", action).len() {
                count += 1;
                let path = state.reach(&rig, &format!("{state:?}-{count}")).await;
                let (url, body) = requests(&path, action).swap_remove(at);
                let answer = ask(&rig, &url, &body).await;
                let outcome = &answer.json()["outcome"];
                // What is paused keeps signals until it is resumed.
                let is_kept = outcome["reason"] == "paused" && action["action"] == "signals/{name}";
                assert!(
                    is_kept || outcome["state"] == "applied",
                    "{state:?}: {action}: {answer:?}"
                );
            }
        }
    }
    let missing = get(&rig, &format!("{}/actions", instance("acme", "pay", "nobody"))).await;
    missing.is_problem(404, "SR0502");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_lists_actions_as_commands_that_work() {
    let (rig, _services) = running().await;
    let path = State::Waiting.reach(&rig, "it's-1").await;
    let told = cli(
        &rig,
        &["instance", "actions", "patient", "it's-1", "--tenant", "acme"],
    )
    .await;
    let command = r"saga-runner instance signal patient 'it'\''s-1' go";
    assert!(told.contains(command), "{told}");
    assert!(
        told.contains("NOT NOW") && told.contains("is not paused"),
        "{told}"
    );
    let signal = [
        "instance", "signal", "patient", "it's-1", "go", "--data", "{}", "--tenant", "acme", "--wait",
    ];
    cli(&rig, &signal).await;
    until(&rig, &path, |view| view["phase"] == "completed").await;
    let told = cli(
        &rig,
        &["instance", "actions", "patient", "it's-1", "--tenant", "acme"],
    )
    .await;
    assert!(
        told.contains("saga-runner instance delete patient") && !told.contains("instance pause"),
        "{told}"
    );
}
