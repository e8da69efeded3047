//! Commands to a cluster at work: orders that have ended, have failed, are stuck, or are blocked by dead letters.

use std::collections::BTreeSet;
use std::fs;

use saga_runner::cli::description;
use serde_json::{Value, json};

use super::requests::event;
use super::stage::{Fills, Stage, replace};
use super::{Scene, exit, pages_of, placed};
use crate::support::shell_blocks::{Shown, commands, pages, read};

/// Orders whose payment has no answer, so that step `charge` is stuck. The pages call them `o-17`: one cannot be resolved twice.
const STUCK: [&str; 3] = ["slow-171", "slow-172", "slow-173"];
/// Orders behind a dead letter, with the amounts that cannot be read. A corrected saga reads those with a comma.
const BLOCKED: [(&str, &str); 4] = [
    ("slow-181", "1,999"),
    ("slow-182", "1,999"),
    ("slow-183", "1,999"),
    ("slow-184", "19.99"),
];

/// Commands that only read. Where a page names one in the middle of a sentence, with all that it needs, it is run, too.
const READS: [&str; 29] = [
    "audit list",
    "breaker list",
    "config check",
    "config show",
    "consumers list",
    "dead-letter count",
    "dead-letter list",
    "dead-letter show",
    "definition list",
    "definition show",
    "doctor",
    "graph",
    "instance actions",
    "instance count",
    "instance graph",
    "instance list",
    "instance show",
    "instance watch",
    "instance why",
    "job list",
    "job show",
    "outbox list",
    "rates",
    "schedule list",
    "schema",
    "shard list",
    "streams check",
    "timer list",
    "validate",
];

pub fn play() {
    let mut stage = stage();
    let last = ["docs/runbooks.md", "docs/operations.md"];
    for (page, commands) in pages_of(Scene::Shop, &["docs/testing.md"], &last) {
        if page == "docs/runbooks.md" {
            make_trouble(&stage);
        }
        for shown in &commands {
            let fills = prepare(&stage, shown);
            stage.run(shown, &fills, exit(shown));
        }
    }
    run_mentions(&mut stage);
    stage.end();
}

/// A runner with orders that are completed and one whose card was declined. Orders can be amended.
fn stage() -> Stage {
    let mut stage = Stage::new().with_nats().with_project();
    stage.start_upstream();
    let saga = stage.folder.join("sagas/order.yaml");
    replace(
        &saga,
        "  Order.CancelRequested:\n    schema:",
        "  Order.Amended:\n    schema:\n      type: object\n      required: [order_id, amount]\n      \
         properties: {order_id: {type: string}, amount: {type: string}}\n  Order.CancelRequested:\n    schema:",
    );
    replace(
        &saga,
        "\nhandlers:\n",
        "\nhandlers:\n  Order.Amended:\n    set: {total_cents: \"${int(event.data.amount)}\"}\n",
    );
    let sent = event("Placed", "o-6", &placed("o-6")).to_string();
    fs::write(stage.folder.join("event.json"), sent).expect("written");
    let home = stage.path("home");
    fs::create_dir(&home).expect("created");
    let profiles = format!("profiles: {{prod: {{url: \"http://{}\"}}}}\n", stage.api);
    fs::write(home.join("config.yaml"), profiles).expect("written");
    stage.set("SAGA_RUNNER_HOME", home.to_str().expect("text"));
    stage.set("EDITOR", "sed -i s/,//");
    stage.join_cluster();
    stage.start();
    for (key, phase) in [
        ("o-1", "completed"),
        ("o-2", "completed"),
        ("declined-1", "failed"),
    ] {
        stage.publish("Placed", key, &placed(key));
        stage.until(&format!("{key} is {phase}"), |stage| {
            instance(stage, key)["phase"] == phase
        });
    }
    stage
}

fn instance(stage: &Stage, key: &str) -> Value {
    stage.tenant(&format!("sagas/order/instances/{key}"))
}

/// The dead letter of an order.
fn letter(stage: &Stage, key: &str) -> Option<String> {
    let list = stage.tenant(&format!("dead-letters?key={key}"));
    list["items"][0]["id"].as_str().map(str::to_owned)
}

/// Payments get no answer, amounts cannot be read, an event does not fit its schema; and the corrected saga is not loaded yet.
fn make_trouble(stage: &Stage) {
    let effect = stage.folder.join("effects/payments-charge.yaml");
    replace(
        &effect,
        "timeout: {connect: 1s, total: 8s}",
        "timeout: {connect: 1s, total: 1s}",
    );
    replace(
        &effect,
        "retry: {attempts: 4, errors: [transient, throttled, timeout], backoff: {initial: 200ms, factor: 2, max: 2s}}",
        "retry: {attempts: 1}\non_ambiguous: ask",
    );
    stage.must(&["saga-runner", "definition", "reload"]);
    let keys = || STUCK.into_iter().chain(BLOCKED.map(|(key, _)| key));
    for key in keys() {
        stage.publish("Placed", key, &placed(key));
    }
    for key in keys() {
        stage.until(&format!("{key} is stuck"), |stage| {
            instance(stage, key)["stuck"][0]["step"] == "charge"
        });
    }
    for (key, amount) in BLOCKED {
        stage.publish("Amended", key, &json!({"order_id": key, "amount": amount}));
    }
    let mut unreadable = placed("bad-1");
    unreadable["total_cents"] = json!("much");
    stage.publish("Placed", "bad-1", &unreadable);
    for key in BLOCKED.map(|(key, _)| key).into_iter().chain(["bad-1"]) {
        stage.until(&format!("{key} has a dead letter"), |stage| {
            letter(stage, key).is_some()
        });
    }
    replace(
        &stage.folder.join("sagas/order.yaml"),
        "int(event.data.amount)",
        "int(event.data.amount.replace(',', ''))",
    );
}

/// Makes what a command is about, and fills in what the page cannot know.
fn prepare(stage: &Stage, shown: &Shown) -> Fills {
    let has = |word: &str| shown.words.iter().any(|other| other == word);
    let mut fills = Fills::new();
    let mut fill = |text: &str, instead: String| fills.push((text.to_owned(), instead));
    if has("o-17") {
        let which = match (has("not_done"), has("retry")) {
            (true, _) => 1,
            (_, true) => 2,
            _ => 0,
        };
        fill("o-17", STUCK[which].to_owned());
    }
    if has("1-3") {
        let key = match shown.words[2].as_str() {
            "edit" => "slow-182",
            "discard" => "slow-183",
            _ => "slow-181",
        };
        fill("1-3", letter(stage, key).expect("a dead letter"));
    }
    if has("JOB") {
        fill("JOB", newest_job(stage));
    }
    if shown.begins("saga-runner instance delete") {
        // Other pages look at the first order.
        fill("o-1", "o-2".to_owned());
    }
    if has("shop.example.com:443") {
        let url = format!("http://{}/admin/breakers/{}", stage.admin, stage.upstream);
        let answer = stage.request("POST", &url, Some(&json!({"state": "closed"})));
        let (status, text) = answer.expect("an answer");
        assert!(status.is_success(), "{status}: {text}");
        fill("shop.example.com:443", stage.upstream.clone());
    }
    if exit(shown) == 1 && shown.begins("saga-runner definition migrate") {
        load_without_a_step(stage);
    }
    fills
}

fn newest_job(stage: &Stage) -> String {
    let jobs = stage.tenant("jobs");
    let id = jobs["items"][0]["id"].as_str();
    id.unwrap_or_else(|| panic!("there is no job: {jobs}")).to_owned()
}

/// Loads a version of the saga in which a step that instances have done has no place.
fn load_without_a_step(stage: &Stage) {
    let saga = stage.folder.join("sagas/order.yaml");
    let text = fs::read_to_string(&saga).expect("readable");
    let (before, rest) = text.split_once("  fraud:\n").expect("a step");
    let (_, after) = rest.split_once("  charge:\n").expect("the next step");
    let after = after.replace("needs: [reserve, fraud]", "needs: [reserve]");
    fs::write(&saga, format!("{before}  charge:\n{after}")).expect("written");
    stage.must(&["saga-runner", "definition", "reload"]);
}

/// Runs the commands that only read and stand in the middle of a sentence, each once.
fn run_mentions(stage: &mut Stage) {
    let versions = stage.must(&["saga-runner", "definition", "list", "-o", "json"]);
    let versions: Value = serde_json::from_str(&versions).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    // They decide about dead letters.
    stage.until("no job is carried on", |stage| {
        let jobs = stage.tenant("jobs");
        let mut states = jobs["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|job| &job["state"]);
        states.all(|state| state != "selecting" && state != "running")
    });
    let letters = stage.tenant("dead-letters");
    let names = [
        ("SAGA", "order".to_owned()),
        ("KEY", "o-1".to_owned()),
        ("ID", text(&letters["items"][0]["id"])),
        ("HASH", text(&versions["items"][0]["hash"])),
        ("JOB", newest_job(stage)),
        ("FILE", "config/saga-runner.yaml".to_owned()),
        ("URL", format!("http://{}", stage.api)),
        ("PATH", ".".to_owned()),
        ("REASON", "expression".to_owned()),
    ];
    let mut seen = BTreeSet::new();
    for mention in mentions() {
        let words: Vec<String> = mention
            .words
            .iter()
            .map(|word| {
                let name = names.iter().find(|(name, _)| name == word);
                name.map_or(word, |(_, instead)| instead).clone()
            })
            .collect();
        // Some leave out what a sentence does not need.
        let is_whole = description().try_get_matches_from(&words).is_ok();
        if is_whole && seen.insert(words.clone()) {
            stage.run(&Shown { words, ..mention }, &[], 0);
        }
    }
    assert!(seen.len() > 20, "{seen:?}");
}

/// The commands that only read, as texts in backticks name them.
fn mentions() -> Vec<Shown> {
    let mut found = Vec::new();
    for page in pages() {
        let text = read(&page);
        // With the block before it each text keeps its line.
        let mut line = 1;
        for (part, text) in text.split("```").enumerate() {
            for (at, span) in text.split('`').enumerate() {
                let is_mention =
                    part.is_multiple_of(2) && !at.is_multiple_of(2) && span.starts_with("saga-runner ");
                if is_mention {
                    let command = commands(span).and_then(|mut list| list.pop());
                    found.extend(command.filter(only_reads).map(|command| Shown {
                        page: page.clone(),
                        line,
                        ..command
                    }));
                }
                line += span.matches('\n').count();
            }
        }
    }
    found
}

fn only_reads(command: &Shown) -> bool {
    READS
        .iter()
        .any(|words| command.begins(&format!("saga-runner {words}")))
}
