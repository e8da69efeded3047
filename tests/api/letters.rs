//! Dead letters: who sees them, what they hold up, and what an operator's decision does.

use std::time::Duration;

use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use crate::api::caller::{add_call, get, instance, items, letters, post, runner, send, service, until};
use crate::support::rig::Rig;

/// What the command line prints about the runner.
pub async fn cli(rig: &Rig, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(arguments).args(["--url", &rig.url("")]);
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("waited");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

async fn divide(rig: &Rig, tenant: &str, id: &str, key: &str, by: i64) {
    let payload = json!({"ratio": key, "by": by});
    send(rig, tenant, id, "Ratio.Divided", payload).await;
}

async fn one_letter(rig: &Rig, tenant: &str) -> Value {
    let page = until(rig, &letters(tenant), |page| !items(page).is_empty()).await;
    assert_eq!(items(&page).len(), 1, "{page}");
    items(&page)[0].clone()
}

async fn decide(rig: &Rig, tenant: &str, letter: &Value, verb: &str) -> crate::api::caller::Answer {
    let id = letter["id"].as_str().expect("an id");
    post(rig, &format!("{}/{id}/{verb}", letters(tenant)), "").await
}

fn shares(view: &Value) -> Vec<i64> {
    let shares = view["state"]["shares"].as_array().expect("shares");
    shares.iter().filter_map(Value::as_i64).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_without_key_is_a_dead_letter_of_its_tenant_alone() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratoi": "r-1"})).await;
    let letter = one_letter(&rig, "acme").await;
    assert_eq!(letter["reason"], "correlation.missing", "{letter}");
    assert!(
        letter["subject"]
            .as_str()
            .is_some_and(|text| text.starts_with("tenant.acme.")),
        "{letter}"
    );
    assert!(
        letter["excerpt"]
            .as_str()
            .is_some_and(|text| text.contains("ratoi")),
        "{letter}"
    );
    assert!(items(&get(&rig, &letters("globex")).await.json()).is_empty());

    for verb in ["retry", "discard"] {
        decide(&rig, "globex", &letter, verb)
            .await
            .is_problem(404, "SR0502");
    }
    decide(&rig, "acme", &letter, "retry")
        .await
        .is_problem(409, "SR0503");
    assert_eq!(decide(&rig, "acme", &letter, "discard").await.status, 204);
    decide(&rig, "acme", &letter, "discard")
        .await
        .is_problem(404, "SR0502");
    assert!(items(&get(&rig, &letters("acme")).await.json()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_input_holds_up_its_own_instance_until_someone_decides() {
    let rig = runner(Duration::ZERO).await;
    for (tenant, key) in [("acme", "r-1"), ("acme", "r-2"), ("globex", "r-1")] {
        send(
            &rig,
            tenant,
            &format!("open-{key}"),
            "Ratio.Opened",
            json!({"ratio": key}),
        )
        .await;
    }
    let poisoned = instance("acme", "ratio", "r-1");
    divide(&rig, "acme", "d-1", "r-1", 1).await;
    divide(&rig, "acme", "d-2", "r-1", 0).await;
    divide(&rig, "acme", "d-3", "r-1", 2).await;
    divide(&rig, "acme", "d-4", "r-1", 4).await;
    // Behind them, for others.
    divide(&rig, "acme", "o-1", "r-2", 5).await;
    divide(&rig, "globex", "d-1", "r-1", 10).await;
    until(&rig, &instance("acme", "ratio", "r-2"), |view| {
        shares(view) == [20]
    })
    .await;
    until(&rig, &instance("globex", "ratio", "r-1"), |view| {
        shares(view) == [10]
    })
    .await;

    let letter = one_letter(&rig, "acme").await;
    assert_eq!(
        (&letter["saga"], &letter["key"]),
        (&json!("ratio"), &json!("r-1")),
        "{letter}"
    );
    assert!(items(&get(&rig, &letters("globex")).await.json()).is_empty());
    let view = get(&rig, &poisoned).await.json();
    assert_eq!(shares(&view), [100], "{view}");

    // Everyone who looks at the instance sees what it waits for, and nobody else's instance does.
    let view = until(&rig, &poisoned, |view| view["blocked_by"]["inputs"] == 2).await;
    let blocked_by = &view["blocked_by"];
    assert_eq!(blocked_by["dead_letter"]["id"], letter["id"], "{view}");
    assert_eq!(blocked_by["dead_letter"]["reason"], "expression", "{view}");
    assert_eq!(blocked_by["since"], letter["time"], "{view}");
    let listed = get(&rig, "/v1/tenants/acme/sagas/ratio/instances").await.json();
    for view in items(&listed) {
        let expected = if view["key"] == "r-1" {
            blocked_by
        } else {
            &Value::Null
        };
        assert_eq!(&view["blocked_by"], expected, "{view}");
    }
    let list = "/v1/tenants/acme/sagas/ratio/instances";
    for (blocked, expected) in [(true, ["r-1"]), (false, ["r-2"])] {
        let listed = get(&rig, &format!("{list}?blocked={blocked}")).await.json();
        let keys: Vec<_> = items(&listed).iter().map(|view| &view["key"]).collect();
        assert_eq!(keys, expected, "{listed}");
        assert!(listed["looked_at"].as_u64() >= Some(1), "{listed}");
    }
    let unclear = get(&rig, &format!("{list}?blocked=yes")).await;
    unclear.is_problem(400, "SR0501");
    let told = cli(
        &rig,
        &["instance", "list", "ratio", "--tenant", "acme", "--blocked"],
    )
    .await;
    let line = told.lines().nth(1).unwrap_or_default();
    let shown = ["r-1  ", "running", "dead_letter", "handlers"];
    assert!(shown.iter().all(|part| line.contains(part)), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
    let gauges = get(&rig, "/metrics").await.text;
    let blocked = gauges
        .lines()
        .filter(|line| line.starts_with("saga_runner_instances_blocked{"));
    let blocked: Vec<&str> = blocked.filter_map(|line| line.rsplit(' ').next()).collect();
    assert!(blocked.contains(&"1"), "{gauges}");
    let retried = post(&rig, &format!("{poisoned}/retry"), "{}").await;
    let problem = retried.is_problem(409, "SR0503").to_string();
    assert!(
        problem.contains(letter["id"].as_str().expect("an id")),
        "{problem}"
    );

    // A retry finds the same mistake, says so, and everything still waits.
    let failed = decide(&rig, "acme", &letter, "retry").await;
    let problem = failed.is_problem(409, "SR0503").to_string();
    let again = one_letter(&rig, "acme").await;
    let now = again["id"].as_str().expect("an id");
    assert!(
        problem.contains("failed again") && problem.contains(now),
        "{problem}"
    );
    assert!(
        again["attempts"].as_u64() > letter["attempts"].as_u64(),
        "{letter} {again}"
    );
    let view = get(&rig, &poisoned).await.json();
    assert_eq!(shares(&view), [100], "{view}");

    assert_eq!(decide(&rig, "acme", &again, "discard").await.status, 204);
    let view = until(&rig, &poisoned, |view| shares(view) == [100, 50, 25]).await;
    assert_eq!(view["blocked_by"], Value::Null, "{view}");
    divide(&rig, "acme", "d-5", "r-1", 5).await;
    until(&rig, &poisoned, |view| shares(view) == [100, 50, 25, 20]).await;
    assert!(items(&get(&rig, &letters("acme")).await.json()).is_empty());
}

/// Charges when it is opened. An event can be poison, and one more may wait behind it.
const TILL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: till
start: Till.Opened
key: {"Till.*": event.data.till}
state: {init: {share: 0, notes: 0}}
handlers:
  Till.Divided: {set: {share: "${100 / event.data.by}"}}
  Till.Noted: {set: {notes: "${state.notes + 1}"}}
steps:
  charge:
    effect: charge
    with: {till: "${key}"}
    set: {receipt: "${result.receipt}"}
    compensate: {effect: refund, with: {till: "${key}"}, on_unknown: compensate}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_discard_a_result_completes_its_step_as_an_unknown_outcome_and_its_instance_ends() {
    let extra = json!({"limits": {"inbox_inputs": 1}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    let answer = json!({"receipt": "r-1", "card": "canary-of-the-card"});
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_secs(2));
    let bank = service(slow.set_body_json(answer)).await;
    let refunds = service(ResponseTemplate::new(200).set_body_json(json!({}))).await;
    let result = "result: {receipt: \"${response.body.receipt}\", card: \"${response.body.card}\"}\n";
    add_call(&rig, "charge", &bank, &format!("{result}redact: [result.card]\n"));
    add_call(&rig, "refund", &refunds, "");
    rig.add_saga("till", TILL);
    rig.start().await;

    // While the bank is asked, an event becomes poison and another one takes the only place behind it.
    for (id, kind, by) in [
        ("t-1", "Till.Opened", 1),
        ("t-2", "Till.Divided", 0),
        ("t-3", "Till.Noted", 1),
    ] {
        send(&rig, "acme", id, kind, json!({"till": "t", "by": by})).await;
    }
    let page = until(&rig, &letters("acme"), |page| items(page).len() == 2).await;
    let [poison, unplaced] = [items(&page)[0].clone(), items(&page)[1].clone()];
    assert_eq!(poison["reason"], "expression", "{page}");
    assert_eq!(unplaced["reason"], "inbox.overflow", "{page}");
    let excerpt = unplaced["excerpt"].as_str().expect("an excerpt");
    assert!(
        excerpt.contains("r-1") && !excerpt.contains("canary"),
        "what the bank said, as far as it may be told: {excerpt}"
    );

    decide(&rig, "acme", &unplaced, "discard")
        .await
        .is_problem(409, "SR0503");
    assert_eq!(decide(&rig, "acme", &poison, "discard").await.status, 204);
    let till = instance("acme", "till", "t");
    until(&rig, &till, |view| view["state"]["notes"] == 1).await;
    assert_eq!(decide(&rig, "acme", &unplaced, "discard").await.status, 204);
    let view = until(&rig, &till, |view| view["phase"] == "failed").await;
    assert_eq!(view["failure"]["code"], "result.refused", "{view}");
    let refunds = refunds.received_requests().await.expect("they are recorded");
    assert_eq!(refunds.len(), 1);
    assert!(items(&get(&rig, &letters("acme")).await.json()).is_empty());
}

async fn edit(rig: &Rig, letter: &Value, data: &Value) -> crate::api::caller::Answer {
    let id = letter["id"].as_str().expect("an id");
    let body = json!({"by": "ada", "reason": "ticket 7", "data": data}).to_string();
    post(rig, &format!("{}/{id}/retry", letters("acme")), body).await
}

/// Its events are checked before their handlers see them.
const TALLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tally
start: Tally.Opened
key: {"Tally.*": event.data.tally}
state: {init: {sum: 0}}
events:
  Tally.Counted:
    schema:
      type: object
      required: [tally, count, by]
      properties: {tally: {type: string}, count: {type: integer}, by: {type: string}}
handlers:
  Tally.Counted: {set: {sum: "${state.sum + event.data.count}"}}
machine:
  initial: open
  states:
    open: {handlers: {Tally.Closed: {to: closed}}}
    closed: {final: true}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_tells_what_is_wrong_and_is_edited_in_its_place() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("tally", TALLY);
    rig.add_saga("ratio", crate::api::caller::RATIO);
    rig.start().await;
    send(&rig, "acme", "o-1", "Tally.Opened", json!({"tally": "t-1"})).await;
    send(
        &rig,
        "acme",
        "c-1",
        "Tally.Counted",
        json!({"tally": "t-1", "count": "7"}),
    )
    .await;
    let letter = one_letter(&rig, "acme").await;
    assert_eq!(
        (&letter["reason"], &letter["kind"]),
        (&json!("event.schema"), &json!("event"))
    );
    let path = format!("{}/{}", letters("acme"), letter["id"].as_str().expect("an id"));
    let shown = get(&rig, &path).await.json();
    assert_eq!(
        shown["input"]["event"]["payload"],
        json!({"tally": "t-1", "count": "7"}),
        "{shown}"
    );
    assert_eq!(shown["input_id"], "c-1", "{shown}");
    let version = &shown["definition"];
    assert!(version["met"].is_string(), "{shown}");
    assert_eq!(
        (&version["met"], &version["met"]),
        (&version["instance"], &version["active"]),
        "{shown}"
    );
    let wrong: Vec<&Value> = shown["violations"].as_array().expect("a list").iter().collect();
    assert_eq!(wrong.len(), 2, "{shown}");
    assert!(
        wrong[0]["message"]
            .as_str()
            .is_some_and(|told| told.contains("\"by\"")),
        "{shown}"
    );
    assert_eq!(wrong[1]["at"], "count", "{shown}");
    assert_eq!(
        shown["expected"]["required"].as_array().map(Vec::len),
        Some(3),
        "{shown}"
    );
    assert_eq!(
        (&shown["retry"]["outcome"], &shown["retry"]["reason"]),
        (&json!("dead_letter"), &json!("event.schema")),
        "{shown}"
    );

    // What does not fit either is refused with its reason, and so is an edit without one.
    let refused = edit(&rig, &letter, &json!({"tally": "t-1", "count": 7})).await;
    let problem = refused.is_problem(422, "SR0518");
    assert_eq!(problem["errors"][0]["reason"], "event.schema", "{problem}");
    let silent = json!({"data": {"tally": "t-1", "count": 7, "by": "ada"}}).to_string();
    post(&rig, &format!("{path}/retry"), silent)
        .await
        .is_problem(400, "SR0501");
    let both = json!({"reason": "x", "data": {}}).to_string();
    post(&rig, &format!("{path}/discard"), both)
        .await
        .is_problem(400, "SR0501");
    assert_eq!(get(&rig, &path).await.json(), shown, "nothing was changed");

    let corrected = json!({"tally": "t-1", "count": 7, "by": "ada"});
    assert_eq!(edit(&rig, &letter, &corrected).await.status, 204);
    edit(&rig, &letter, &corrected).await.is_problem(404, "SR0502");
    let tally = instance("acme", "tally", "t-1");
    until(&rig, &tally, |view| view["state"]["sum"] == 7).await;
    // The producer repeats the original.
    send(
        &rig,
        "acme",
        "c-1",
        "Tally.Counted",
        json!({"tally": "t-1", "count": "7"}),
    )
    .await;
    send(
        &rig,
        "acme",
        "c-2",
        "Tally.Counted",
        json!({"tally": "t-1", "count": 1, "by": "bob"}),
    )
    .await;
    until(&rig, &tally, |view| view["state"]["sum"] == 8).await;
    assert!(items(&get(&rig, &letters("acme")).await.json()).is_empty());

    edit_is_told(&rig, &tally, &corrected).await;
}

/// The history tells who has edited the event and why, and its inputs what it was before and is now.
async fn edit_is_told(rig: &Rig, tally: &str, corrected: &Value) {
    let history = get(rig, &format!("{tally}/history")).await.json();
    let edited = items(&history)
        .iter()
        .find(|row| row["outcome"] == "edited")
        .expect("an entry");
    let said = &edited["notes"][0]["letter_decided"];
    assert_eq!(
        (&said["by"], &said["reason"]),
        (&json!("ada"), &json!("ticket 7")),
        "{history}"
    );
    let inputs = get(rig, &format!("{tally}/inputs")).await.json();
    let of_edit: Vec<&Value> = inputs["inputs"].as_array().expect("a list").iter().collect();
    let edits = of_edit
        .iter()
        .find(|input| input["outcome"] == "edited")
        .expect("an entry");
    assert_eq!(
        edits["input"]["edited_letter"]["original"]["count"], "7",
        "{inputs}"
    );
    assert_eq!(edits["input"]["edited_letter"]["edited"], *corrected, "{inputs}");
    let applied = of_edit
        .iter()
        .find(|input| input["id"] == "c-1" && input["outcome"] == "applied");
    let applied = applied.expect("an entry");
    assert_eq!(applied["input"]["event"]["payload"], *corrected, "{inputs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_filtered_and_counted_by_what_they_have_in_common() {
    let rig = runner(Duration::ZERO).await;
    for key in ["r-1", "r-2", "s-1"] {
        send(
            &rig,
            "acme",
            &format!("open-{key}"),
            "Ratio.Opened",
            json!({"ratio": key}),
        )
        .await;
        divide(&rig, "acme", &format!("d-{key}"), key, 0).await;
    }
    send(&rig, "acme", "bad", "Ratio.Opened", json!({"ratoi": "r-1"})).await;
    let list = letters("acme");
    until(&rig, &list, |page| items(page).len() == 4).await;
    for (query, expected) in [
        ("key_prefix=r-", 2),
        ("key=r-1", 1),
        ("saga=ratio", 3),
        ("kind=event", 3),
        ("kind=message", 1),
        ("stream=events", 4),
        ("stream=results", 0),
        ("subject_prefix=event%20Ratio.Div", 3),
        ("reason=expression&key_prefix=s", 1),
        ("newer_than=1h", 4),
        ("older_than=1h", 0),
    ] {
        let page = get(&rig, &format!("{list}?{query}")).await.json();
        assert_eq!(items(&page).len(), expected, "{query}: {page}");
        let counted = get(&rig, &format!("{list}/count?{query}")).await.json();
        assert_eq!(counted["letters"], expected, "{query}: {counted}");
    }
    let counted = get(&rig, &format!("{list}/count")).await.json();
    let groups = json!([
        {"value": "expression", "letters": 3},
        {"value": "correlation.missing", "letters": 1},
    ]);
    assert_eq!(
        (&counted["by"], &counted["groups"]),
        (&json!("reason"), &groups),
        "{counted}"
    );
    let counted = get(&rig, &format!("{list}/count?by=saga")).await.json();
    assert_eq!(
        counted["groups"][0],
        json!({"value": "ratio", "letters": 3}),
        "{counted}"
    );
    for query in ["kind=x", "stream=x", "older_than=x", "saag=ratio", "by=reason"] {
        get(&rig, &format!("{list}?{query}"))
            .await
            .is_problem(400, "SR0501");
    }
    for query in ["by=x", "limit=1", "by=reason&by=saga"] {
        let refused = get(&rig, &format!("{list}/count?{query}")).await;
        refused.is_problem(400, "SR0501");
    }
    let told = cli(
        &rig,
        &["dead-letter", "count", "--tenant", "acme", "--by", "kind"],
    )
    .await;
    assert!(
        told.contains("event") && told.contains("4 dead letter(s)"),
        "{told}"
    );
    // A letter is shown to people, edited without an editor, and told why it is not.
    let page = get(&rig, &format!("{list}?key=r-1")).await.json();
    let id = items(&page)[0]["id"].as_str().expect("an id").to_owned();
    let told = cli(&rig, &["dead-letter", "show", &id, "--tenant", "acme"]).await;
    assert!(
        told.contains("dead_letter: expression") && told.contains("\"by\": 0"),
        "{told}"
    );
    let data = json!({"ratio": "r-1", "by": 20}).to_string();
    let arguments = [
        "dead-letter",
        "retry",
        &id,
        "--tenant",
        "acme",
        "--reason",
        "x",
        "--data",
        &data,
    ];
    cli(&rig, &arguments).await;
    until(&rig, &instance("acme", "ratio", "r-1"), |view| {
        shares(view) == [5]
    })
    .await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_edited_in_the_editor_of_the_operator() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "open", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    divide(&rig, "acme", "d", "r-1", 0).await;
    let letter = one_letter(&rig, "acme").await;
    let id = letter["id"].as_str().expect("an id").to_owned();
    let url = rig.url("");
    let edited = move |editor: &'static str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command.args([
            "dead-letter",
            "edit",
            &id,
            "--tenant",
            "acme",
            "--reason",
            "ticket 7",
        ]);
        command.args(["--url", &url]).env("VISUAL", editor);
        command.output().expect("it runs")
    };
    let same = tokio::task::block_in_place(|| edited("true"));
    assert!(same.status.success(), "{same:?}");
    assert!(
        String::from_utf8_lossy(&same.stderr).contains("nothing was changed"),
        "{same:?}"
    );
    let gone = tokio::task::block_in_place(|| edited("false"));
    assert_eq!(gone.status.code(), Some(66), "{gone:?}");
    let wrong = tokio::task::block_in_place(|| edited("sed -i s/0/0.0/"));
    assert_eq!(wrong.status.code(), Some(65), "{wrong:?}");
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    let kept = told
        .split_whitespace()
        .find(|word| word.contains("saga-runner-dead-letter-"));
    let kept = kept.unwrap_or_else(|| panic!("{told}")).trim_end_matches(':');
    std::fs::remove_file(kept).unwrap_or_else(|error| panic!("{kept}: {error}"));
    assert_eq!(one_letter(&rig, "acme").await["id"], letter["id"]);
    let right = tokio::task::block_in_place(|| edited("sed -i s/0/50/"));
    assert!(right.status.success(), "{right:?}");
    until(&rig, &instance("acme", "ratio", "r-1"), |view| {
        shares(view) == [2]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_about_all_dead_letters_needs_no_filter() {
    let rig = runner(Duration::ZERO).await;
    send(&rig, "acme", "e-1", "Ratio.Opened", json!({"ratoi": "r-1"})).await;
    one_letter(&rig, "acme").await;
    let jobs = "/v1/tenants/acme/jobs";
    let job = json!({"verb": "retry_letters", "all": true, "reason": "a test", "dry_run": true});
    let planned = post(&rig, jobs, job.to_string()).await;
    assert_eq!(
        (planned.status, &planned.json()["selected"]),
        (200, &json!(1)),
        "{planned:?}"
    );
    for (verb, missing) in [
        ("retry_letters", "say which dead letters are meant, or `all`"),
        ("cancel", "say which instances are meant"),
    ] {
        let job = json!({"verb": verb, "reason": "a test", "dry_run": true});
        let refused = post(&rig, jobs, job.to_string()).await.is_problem(400, "SR0501");
        let detail = refused["detail"].as_str().expect("a sentence");
        assert!(detail.contains(missing), "{detail}");
    }
}
