//! What can be done to an instance now: everything that the list says is done, and everything else is refused for the reason that the
//! list gives.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures::future::join_all;
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
handlers:
  Patient.Divided: {set: {heard: "${state.heard + [100 / event.data.by]}"}}
timers:
  remind: {after: 1h, set: {heard: "${state.heard + [0]}"}}
steps:
  ask: {wait: {signal: go, timeout: 1h}, set: {heard: "${has(signal.n) ? state.heard + [signal.n] : state.heard}"}}
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

/// What the effect gives is declared, and what undoes it reads that.
const TOLL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: toll
start: Toll.Opened
key: {"Toll.*": event.data.toll}
state: {init: {}}
steps:
  levy: {effect: levy, with: {}, compensate: {effect: charge, with: {receipt: "${result != null ? result.receipt : ''}"}, on_unknown: compensate}}
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
        "timeout: {total: 300ms}\non_ambiguous: ask\nbreaker: {min_calls: 1000}\n",
    );
    add_call(
        &rig,
        "levy",
        &slow,
        "timeout: {total: 300ms}\non_ambiguous: ask\nbreaker: {min_calls: 1000}\noutput: {type: object, required: [receipt, cents], properties: {receipt: {type: string}, cents: {type: integer, minimum: 1}}}\n",
    );
    add_call(
        &rig,
        "order",
        &refusing,
        "retry: {attempts: 1}\nbreaker: {min_calls: 1000}\n",
    );
    for (name, text) in [("patient", PATIENT), ("pay", PAY), ("toll", TOLL), ("shop", SHOP)] {
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
    /// The effect declares its output.
    Declared,
    BackingOff,
}

impl State {
    const fn saga(self) -> (&'static str, &'static str) {
        match self {
            Self::Waiting | Self::Paused | Self::Cancelled | Self::Completed => ("patient", "Patient.Opened"),
            Self::Stuck => ("pay", "Pay.Opened"),
            Self::Declared => ("toll", "Toll.Opened"),
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
            Self::Stuck | Self::Declared => {
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

impl State {
    /// Begins so many instances at once, with the keys `NAME-1`, `NAME-2`, and so on.
    async fn reach_all(self, rig: &Rig, name: &str, count: usize) -> Vec<String> {
        let keys: Vec<String> = (1..=count).map(|number| format!("{name}-{number}")).collect();
        join_all(keys.iter().map(|key| self.reach(rig, key))).await
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
        for part in ["step", "item", "ended", "to"] {
            if !action[part].is_null() {
                body.insert(part.to_owned(), action[part].clone());
            }
        }
        if outcome == "done" && !action["result"].is_null() {
            body.insert("result".to_owned(), action["result"].clone());
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
            State::Declared,
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
        let possible = listed["possible"].as_array().expect("a list");
        let all = possible.iter().map(|action| requests("", action).len()).sum();
        let mut paths = state
            .reach_all(&rig, &format!("{state:?}"), all)
            .await
            .into_iter();
        for action in possible {
            for at in 0..requests("", action).len() {
                let path = paths.next().expect("one for each");
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

/// Carries out a line of a shell, in which `saga-runner` is the program under test.
pub async fn shell(line: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_saga-runner"));
    let folder = program.parent().expect("a folder");
    let mut command = Command::new("sh");
    command
        .args(["-c", line])
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        // The line leads to the runner by itself.
        .env_remove("SAGA_RUNNER_URL")
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited")
}

/// The commands that are listed for an instance.
async fn listed(rig: &Rig, saga: &str, key: &str) -> Vec<String> {
    let told = cli(rig, &["instance", "actions", saga, key, "--tenant", "acme"]).await;
    assert!(told.contains("NOT NOW"), "{told}");
    let commands = told
        .lines()
        .filter_map(|line| line.find("saga-runner ").map(|at| line[at..].to_owned()));
    commands.map(|command| command.trim_end().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_that_is_listed_works_as_it_is_printed() {
    let (rig, _services) = running().await;
    for state in [
        State::Waiting,
        State::Cancelled,
        State::Stuck,
        State::Declared,
        State::BackingOff,
    ] {
        let (saga, _) = state.saga();
        let key = |number: usize| format!("{state:?}'s-{number}");
        state.reach(&rig, &key(0)).await;
        let count = listed(&rig, saga, &key(0)).await.len();
        assert!(count >= 3, "{state:?}: {count}");
        state.reach_all(&rig, &format!("{state:?}'s"), count).await;
        for number in 0..count {
            let commands = listed(&rig, saga, &key(number + 1)).await;
            // One of what is to be chosen, and a reason.
            let line = commands[number]
                .replace("done|not_done", "not_done")
                .replace("TEXT", "'a test'");
            let output = shell(&line).await;
            assert!(output.status.success(), "{line}: {output:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_whose_effect_declares_its_output_is_resolved_as_done_with_what_is_listed() {
    let (rig, _services) = running().await;
    let path = State::Declared.reach(&rig, "t-1").await;
    let told = actions(&rig, &path).await;
    for verb in ["resolve", "skip"] {
        let mut possible = told["possible"].as_array().expect("a list").iter();
        let action = possible.find(|action| action["action"] == verb).expect(verb);
        assert_eq!(action["as"], json!(["done", "not_done"]), "{told}");
        assert_eq!(action["result"], json!({"receipt": "...", "cents": 1}), "{told}");
    }
    let commands = listed(&rig, "toll", "t-1").await;
    let line = commands
        .iter()
        .find(|line| line.contains("resolve") && line.contains("--as done"));
    let line = line.expect("listed");
    assert!(line.contains("--result '{"), "{line}");
    let line = line.replace("\"...\"", "\"R-7\"");
    let output = shell(&line).await;
    assert!(output.status.success(), "{line}: {output:?}");
    until(&rig, &path, |view| view["phase"] == "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_letter_that_blocks_an_instance_is_retried_or_discarded_as_listed() {
    let (rig, _services) = running().await;
    for (number, verb) in ["retry", "discard"].into_iter().enumerate() {
        let key = format!("b-{number}");
        let path = State::Waiting.reach(&rig, &key).await;
        let poison = json!({"patient": key, "by": 0});
        send(&rig, "acme", &format!("p-{number}"), "Patient.Divided", poison).await;
        until(&rig, &path, |view| view["blocked_by"]["dead_letter"].is_object()).await;
        let commands = listed(&rig, "patient", &key).await;
        let wanted = format!("saga-runner dead-letter {verb}");
        let line = commands
            .iter()
            .find(|line| line.starts_with(&wanted))
            .expect(verb);
        let output = shell(line).await;
        // What is wrong with it is still wrong, and the retry says so.
        let code = if verb == "retry" { 5 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_is_sent_by_the_command_line_with_its_data() {
    let (rig, _services) = running().await;
    let path = State::Waiting.reach(&rig, "s-1").await;
    let name = ["instance", "signal", "patient", "s-1", "go"];
    let refused = cli_output(
        &rig,
        &[&name[..], &["--data", "[1]", "--tenant", "acme"]].concat(),
    )
    .await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(64) && told.contains("--data must be a JSON object"),
        "{told}"
    );
    cli(
        &rig,
        &[
            &name[..],
            &["--data", r#"{"n": 7}"#, "--tenant", "acme", "--wait"],
        ]
        .concat(),
    )
    .await;
    let view = until(&rig, &path, |view| view["phase"] == "completed").await;
    assert_eq!(view["state"]["heard"], json!([7]), "{view}");
}

async fn cli_output(rig: &Rig, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(arguments).args(["--url", &rig.url("")]);
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited")
}
