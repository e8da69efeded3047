//! Lists and counts across sagas, from the index: what is asked for is found, whatever happens to instances in between.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, instance, items, post, runner, send, until};
use crate::api::letters::cli;
use crate::support::rig::Rig;

const ASK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: ask
start: Ask.Opened
key: {"Ask.*": event.data.ask}
state: {init: {amount: 0}}
handlers:
  Ask.Opened: {set: {amount: "${event.data.amount}"}}
  Ask.Refused: {fail: {code: refused}}
steps:
  approve: {wait: {signal: approve}}
"#;

const COUNT: &str = "/v1/tenants/acme/instances/count";

fn found(list: &Value) -> Vec<String> {
    let names = items(list).iter().map(|item| {
        let part = |name: &str| item[name].as_str().expect("a text").to_owned();
        format!("{}/{}", part("saga"), part("key"))
    });
    names.collect()
}

async fn list(rig: &Rig, query: &str) -> Value {
    let answer = get(rig, &format!("/v1/tenants/acme/instances?{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn open(rig: &Rig, key: &str, amount: u64) {
    let data = json!({"ask": key, "amount": amount});
    send(rig, "acme", &format!("open-{key}"), "Ask.Opened", data).await;
    until(rig, &instance("acme", "ask", key), |view| {
        view["phase"] == "running"
    })
    .await;
}

async fn started() -> Rig {
    let mut rig = runner(Duration::ZERO).await;
    rig.kill();
    rig.add_saga("ask", ASK);
    rig.start().await;
    for (key, amount) in [("a-1", 10), ("a-2", 200), ("b-1", 300)] {
        open(&rig, key, amount).await;
    }
    send(&rig, "acme", "r-1", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    until(&rig, &instance("acme", "ratio", "r-1"), |view| {
        view["phase"] == "running"
    })
    .await;
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_are_found_across_sagas_by_category_key_age_and_state() {
    let rig = started().await;
    let all = list(&rig, "").await;
    let mut names = found(&all);
    names.sort();
    assert_eq!(names, ["ask/a-1", "ask/a-2", "ask/b-1", "ratio/r-1"]);
    assert!(
        all.get("next").is_none() && all.get("looked_at").is_none(),
        "{all}"
    );
    for (query, expected) in [
        ("saga=ratio", &["ratio/r-1"][..]),
        ("waits_for=handlers", &["ratio/r-1"]),
        ("waits_for=message&key_prefix=a-", &["ask/a-1", "ask/a-2"]),
        ("where=state.amount%20%3E%20100", &["ask/a-2", "ask/b-1"]),
        ("where=key%20%3D%3D%20%22r-1%22", &["ratio/r-1"]),
        ("phase=failed,completed", &[]),
        ("older_than=1h", &[]),
        ("idle_for=1h", &[]),
    ] {
        let mut names = found(&list(&rig, query).await);
        names.sort();
        assert_eq!(names, expected, "{query}");
    }
    let looked = list(&rig, "key_prefix=a-").await;
    assert_eq!(
        looked["looked_at"], 2,
        "only what begins so is looked at: {looked}"
    );

    let counted = get(&rig, COUNT).await.json();
    assert_eq!(counted["instances"], 4, "{counted}");
    let largest = json!({
        "saga": "ask", "phase": "running", "blocked_by": "nothing", "waits_for": "message", "instances": 3,
    });
    assert_eq!(counted["statuses"][0], largest, "{counted}");
    let told = cli(&rig, &["instance", "count", "--tenant", "acme"]).await;
    assert!(
        told.lines()
            .any(|line| line.contains('3') && line.contains("message")),
        "{told}"
    );
    let told = cli(
        &rig,
        &[
            "instance",
            "list",
            "--tenant",
            "acme",
            "--where",
            "state.amount > 100",
        ],
    )
    .await;
    assert!(
        told.contains("a-2") && told.contains("b-1") && !told.contains("a-1"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_follows_pauses_dead_letters_and_ends_and_a_kill_of_the_process() {
    let mut rig = started().await;
    let pause = json!({"reason": "a look", "by": "ada"}).to_string();
    let paused = post(&rig, &format!("{}/pause", instance("acme", "ask", "a-1")), pause).await;
    assert_eq!(paused.status, 202, "{paused:?}");
    until(&rig, "/v1/tenants/acme/instances?blocked_by=paused", |list| {
        found(list) == ["ask/a-1"]
    })
    .await;
    send(
        &rig,
        "acme",
        "d-1",
        "Ratio.Divided",
        json!({"ratio": "r-1", "by": 0}),
    )
    .await;
    until(
        &rig,
        "/v1/tenants/acme/instances?blocked_by=dead_letter",
        |list| found(list) == ["ratio/r-1"],
    )
    .await;
    send(&rig, "acme", "no-a-2", "Ask.Refused", json!({"ask": "a-2"})).await;
    until(
        &rig,
        "/v1/tenants/acme/instances?phase=failed&error=refused",
        |list| found(list) == ["ask/a-2"],
    )
    .await;
    rig.kill();
    rig.start().await;
    let blocked = until(&rig, "/v1/tenants/acme/instances?blocked_by=anything", |list| {
        items(list).len() == 2
    })
    .await;
    assert_eq!(found(&blocked), ["ask/a-1", "ratio/r-1"]);
    let counted = get(&rig, &format!("{COUNT}?saga=ask")).await.json();
    assert_eq!(counted["instances"], 3, "{counted}");
    let told = cli(
        &rig,
        &["instance", "list", "ask", "--tenant", "acme", "--blocked"],
    )
    .await;
    assert!(
        told.contains("a-1") && told.contains("paused") && !told.contains("b-1"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_goes_on_behind_its_page_and_what_cannot_be_asked_is_refused() {
    let mut rig = started().await;
    let (mut names, mut after) = (Vec::new(), String::new());
    for _ in 0..8 {
        let page = list(&rig, &format!("limit=1{after}")).await;
        names.extend(found(&page));
        // The cursor is about stored places, so a restart in between does not matter.
        if names.len() == 2 {
            rig.kill();
            rig.start().await;
            until(&rig, "/v1/tenants/acme/instances?limit=1", |list| {
                items(list).len() == 1
            })
            .await;
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    names.sort();
    assert_eq!(names, ["ask/a-1", "ask/a-2", "ask/b-1", "ratio/r-1"]);
    let path = "/v1/tenants/acme/instances";
    for (query, told) in [
        ("phase=runing", "running"),
        ("blocked_by=", "dead_letter"),
        ("waits_for=effects", "effect"),
        ("older_than=soon", "15m"),
        ("where=state.amount%20%3E", "where"),
        ("where=event.data.x", "event"),
        ("after=none", "cursor"),
        ("state=running", "state"),
    ] {
        let problem = get(&rig, &format!("{path}?{query}"))
            .await
            .is_problem(400, "SR0501");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains(told)),
            "{problem}"
        );
    }
    for query in ["after=0", "key_prefix=a&after=none", "limit=1", "older_than=soon"] {
        get(&rig, &format!("{COUNT}?{query}"))
            .await
            .is_problem(400, "SR0501");
    }
    let other = get(&rig, "/v1/tenants/globex/instances/count").await.json();
    assert_eq!(other["instances"], 0, "nothing of another tenant: {other}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_takes_every_filter_of_the_list_and_counts_what_that_lists() {
    let rig = started().await;
    for filter in [
        "key_prefix=a-",
        "key_prefix=a-&where=state.amount%20%3E%20100",
        "where=state.amount%20%3E%20100",
        "saga=ask&where=state.amount%20%3E%20100",
        "older_than=0s",
        "older_than=1h",
        "idle_for=1h",
        "step=approve",
        "signal=approve",
        "event=Ratio.Closed",
        "upstream=bank",
        "last_generation=true",
        "phase=running&last_generation=true",
    ] {
        let listed = found(&list(&rig, filter).await).len();
        let counted = get(&rig, &format!("{COUNT}?{filter}")).await.json();
        assert_eq!(counted["instances"], listed, "{filter}: {counted}");
        let statuses = counted["statuses"].as_array().expect("statuses");
        let sum: u64 = statuses
            .iter()
            .filter_map(|status| status["instances"].as_u64())
            .sum();
        assert_eq!(json!(sum), counted["instances"], "{filter}: {counted}");
        assert!(counted["looked_at"].is_u64(), "{filter}: {counted}");
        let grouped = get(&rig, &format!("{COUNT}?by=saga&{filter}")).await.json();
        assert_eq!(grouped["instances"], listed, "{filter}: {grouped}");
        assert!(grouped["looked_at"].is_u64(), "{filter}: {grouped}");
    }
    let by_step = get(&rig, &format!("{COUNT}?by=step&key_prefix=a-")).await.json();
    assert_eq!(
        (&by_step["groups"], &by_step["looked_at"]),
        (&json!([{"value": "approve", "instances": 2}]), &json!(2)),
        "{by_step}"
    );
    let words = [
        "instance",
        "count",
        "--tenant",
        "acme",
        "--where",
        "state.amount > 100",
    ];
    let told = cli(&rig, &words).await;
    assert!(told.contains("2 instance(s)"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_goes_on_behind_a_cursor_of_its_filter() {
    let rig = started().await;
    for filter in ["older_than=0s", "key_prefix=a-"] {
        let all = get(&rig, &format!("{COUNT}?{filter}")).await.json();
        assert!(all.get("next").is_none(), "{all}");
        let first = list(&rig, &format!("{filter}&limit=1")).await;
        let next = first["next"].as_str().expect("more");
        let rest = get(&rig, &format!("{COUNT}?{filter}&after={next}")).await.json();
        let count = |counted: &Value| counted["instances"].as_u64().expect("a number");
        assert_eq!(count(&rest) + 1, count(&all), "{filter}: {rest}");
        let steps = get(&rig, &format!("{COUNT}?by=step&{filter}&after={next}"))
            .await
            .json();
        assert_eq!(count(&steps), count(&rest), "{filter}: {steps}");
    }
}

/// Three loans, the last of which is rated, and a ratio that waits for events.
async fn lends() -> Rig {
    const LEND: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: lend
start: Lend.Asked
key: {"Lend.*": event.data.lend}
state: {init: {}}
steps:
  sign: {wait: {signal: sign}}
  credit: {wait: {event: Lend.Rated, timeout: 30d}, on_timeout: {fail: {code: unrated}}}
"#;
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("lend", LEND);
    rig.add_saga("ratio", crate::api::caller::RATIO);
    rig.start().await;
    for key in ["l-1", "l-2", "l-3"] {
        send(
            &rig,
            "acme",
            &format!("e-{key}"),
            "Lend.Asked",
            json!({"lend": key}),
        )
        .await;
    }
    send(&rig, "acme", "e-r", "Ratio.Opened", json!({"ratio": "r-1"})).await;
    let rated = json!({"lend": "l-3"});
    send(&rig, "acme", "rated", "Lend.Rated", rated).await;
    until(&rig, &format!("{COUNT}?by=step"), |counted| {
        let waits = |at: usize| counted["groups"][at]["instances"].clone();
        (&counted["instances"], waits(0), waits(1)) == (&json!(4), json!(3), json!(2))
    })
    .await;
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_are_counted_by_what_their_steps_wait_for() {
    let rig = lends().await;
    for (by, groups) in [
        (
            "saga",
            json!([{"value": "lend", "instances": 3}, {"value": "ratio", "instances": 1}]),
        ),
        ("phase", json!([{"value": "running", "instances": 4}])),
        (
            "waiting",
            json!([{"value": "message", "instances": 3}, {"value": "handlers", "instances": 1}]),
        ),
        ("blocked_by", json!([{"value": "nothing", "instances": 4}])),
        ("error", json!([{"value": "", "instances": 4}])),
        (
            "step",
            json!([{"value": "sign", "instances": 3}, {"value": "credit", "instances": 2}]),
        ),
        ("signal", json!([{"value": "sign", "instances": 3}])),
        (
            "event",
            json!([
                {"value": "Lend.Rated", "instances": 2},
                {"value": "Ratio.Closed", "instances": 1},
                {"value": "Ratio.Divided", "instances": 1},
            ]),
        ),
        ("upstream", json!([])),
    ] {
        let counted = get(&rig, &format!("{COUNT}?by={by}")).await.json();
        assert_eq!(counted["groups"], groups, "{counted}");
        assert_eq!(
            (&counted["by"], &counted["instances"]),
            (&json!(by), &json!(4)),
            "{counted}"
        );
        // A list by the same has as many.
        let listed = ["step", "signal", "event", "upstream"].contains(&by);
        for group in groups.as_array().filter(|_| listed).into_iter().flatten() {
            let value = group["value"].as_str().expect("a text");
            let found = get(&rig, &format!("/v1/tenants/acme/instances?{by}={value}")).await;
            let found = items(&found.json()).len();
            assert_eq!(json!(found), group["instances"], "{by} {value}");
        }
    }
    let counted = get(&rig, &format!("{COUNT}?by=step&saga=ratio")).await.json();
    assert_eq!(
        (&counted["groups"], &counted["looked_at"]),
        (&json!([]), &json!(1)),
        "{counted}"
    );
    get(&rig, &format!("{COUNT}?by=color"))
        .await
        .is_problem(400, "SR0501");
    get(&rig, "/v1/tenants/acme/instances?by=saga")
        .await
        .is_problem(400, "SR0501");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_and_a_job_select_by_what_steps_wait_for() {
    let rig = lends().await;
    for (filter, keys) in [
        ("step=credit&signal=sign", &["l-1", "l-2"][..]),
        ("step=sign&key_prefix=l-3", &["l-3"]),
        ("step=credit&key_prefix=l-3", &[]),
        ("upstream=bank", &[]),
        ("step=Sign", &[]),
    ] {
        let found = get(&rig, &format!("/v1/tenants/acme/instances?{filter}"))
            .await
            .json();
        let mut found: Vec<&str> = items(&found)
            .iter()
            .filter_map(|item| item["key"].as_str())
            .collect();
        found.sort_unstable();
        assert_eq!(found, keys, "{filter}");
    }
    let job = json!({
        "verb": "cancel", "filter": {"step": "credit"}, "reason": "no rates", "dry_run": true,
    });
    let planned = post(&rig, "/v1/tenants/acme/jobs", job.to_string()).await;
    assert!(
        planned.status == 200 && planned.json()["selected"] == 2,
        "{planned:?}"
    );
}
