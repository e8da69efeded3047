//! The graph of an instance: that of the version which it runs under, with where each part of it stands.

use std::time::Duration;

use serde_json::{Value, json};
use wiremock::{MockServer, ResponseTemplate};

use crate::api::caller::{add_call, get, instance, post, send, service, until};
use crate::api::forwarding::{pair, unavailable};
use crate::api::letters::cli;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

const SALE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: sale
start: Sale.Opened
key: {"Sale.*": event.data.sale}
state: {init: {loud: true}}
steps:
  reserve: {effect: good, with: {}, compensate: {effect: good, with: {}}}
  approve: {needs: [reserve], wait: {signal: approve, timeout: 1h}}
  charge: {needs: [approve], effect: bad, with: {}, compensate: {effect: good, with: {}}}
  tell: {needs: [charge], if: "state.loud", effect: good, with: {}, compensate: none}
"#;

const ROUTE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: route
input: {type: object}
state: {init: {far: "${input.far}"}}
steps:
  carry:
    choice:
      - when: state.far > 100
        steps:
          fly: {wait: {signal: landed}}
      - else:
          steps:
            drive: {wait: {signal: parked}}
  done: {needs: [carry], effect: good, with: {}, compensate: none}
"#;

const PARCELS: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcels
start: Parcels.Opened
key: {"Parcels.*": event.data.parcels}
state: {init: {parts: [1, 2, 3]}}
steps:
  send:
    foreach: {over: state.parts, as: part, parallel: 2}
    steps:
      pack: {effect: good, with: {}, compensate: {effect: good, with: {}}}
      ship: {needs: [pack], effect: slow, with: {}, compensate: {effect: good, with: {}}}
"#;

const DOOR: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: door
start: Door.Built
key: {"Door.*": event.data.door}
state: {init: {}}
timers:
  inspect: {after: 1h, emit: {effect: good, name: look, with: {}}}
machine:
  initial: shut
  states:
    shut: {handlers: {Door.Opened: {to: open}}}
    open: {handlers: {Door.Shut: {to: shut}, Door.Removed: {to: gone}}}
    gone: {final: true}
"#;

async fn running() -> (Rig, [MockServer; 3]) {
    let rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    let good = service(ResponseTemplate::new(200).set_body_json(json!({}))).await;
    let bad = service(ResponseTemplate::new(422)).await;
    let slow = service(ResponseTemplate::new(200).set_delay(Duration::from_mins(10))).await;
    for (name, upstream) in [("good", &good), ("bad", &bad), ("slow", &slow)] {
        add_call(&rig, name, upstream, "");
    }
    for (name, text) in [
        ("sale", SALE),
        ("route", ROUTE),
        ("parcels", PARCELS),
        ("door", DOOR),
    ] {
        rig.add_saga(name, text);
    }
    let mut rig = rig;
    rig.start().await;
    (rig, [good, bad, slow])
}

fn graph(saga: &str, key: &str) -> String {
    format!("{}/graph", instance("acme", saga, key))
}

fn node<'g>(graph: &'g Value, id: &str) -> &'g Value {
    let mut nodes = graph["nodes"].as_array().expect("nodes").iter();
    nodes
        .find(|node| node["id"] == id)
        .unwrap_or_else(|| panic!("{id}: {graph:#}"))
}

fn state<'g>(graph: &'g Value, id: &str) -> &'g str {
    node(graph, id)["state"].as_str().unwrap_or("-")
}

fn states<'g>(graph: &'g Value, ids: &[&str]) -> Vec<&'g str> {
    ids.iter().map(|id| state(graph, id)).collect()
}

fn has_edge(graph: &Value, edge: &Value) -> bool {
    graph["edges"].as_array().expect("edges").contains(edge)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_and_what_undoes_them_stand_where_the_instance_stands() {
    let (rig, _services) = running().await;
    send(&rig, "acme", "s-1", "Sale.Opened", json!({"sale": "s-1"})).await;
    let path = graph("sale", "s-1");
    let waits = until(&rig, &path, |graph| state(graph, "step:approve") == "waiting").await;
    let steps = [
        "start",
        "step:reserve",
        "step:approve",
        "step:charge",
        "step:tell",
    ];
    assert_eq!(
        states(&waits, &steps),
        ["done", "done", "waiting", "pending", "pending"],
        "{waits:#}"
    );
    assert_eq!(
        states(&waits, &["undo:reserve", "undo:charge"]),
        ["held", "-"],
        "{waits:#}"
    );
    let approve = node(&waits, "step:approve");
    assert_eq!(
        (&approve["kind"], &approve["waits_for"]),
        (&json!("wait"), &json!("signal approve")),
        "{approve}"
    );
    assert!(approve["due"].is_string(), "{approve}");
    assert_eq!(node(&waits, "step:reserve")["attempt"], 1, "{waits:#}");
    assert_eq!(
        (&waits["phase"], &waits["generation"]),
        (&json!("running"), &json!(1))
    );
    for edge in [
        json!({"from": "start", "to": "step:reserve", "kind": "next"}),
        json!({"from": "step:reserve", "to": "undo:reserve", "kind": "undo"}),
        json!({"from": "step:charge", "to": "step:tell", "kind": "next", "label": "if state.loud"}),
    ] {
        assert!(has_edge(&waits, &edge), "{edge}: {waits:#}");
    }

    let answer = post(
        &rig,
        &format!("{}/signals/approve", instance("acme", "sale", "s-1")),
        "{}",
    )
    .await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let failed = until(&rig, &path, |graph| graph["phase"] == "failed").await;
    assert_eq!(
        states(&failed, &steps)[..4],
        ["done", "done", "done", "failed"],
        "{failed:#}"
    );
    assert_eq!(
        states(&failed, &["undo:reserve", "undo:charge"]),
        ["undone", "-"],
        "{failed:#}"
    );
    assert!(node(&failed, "step:charge")["error"].is_string(), "{failed:#}");
    let waits = |node: &Value| node.get("waits_for").is_some();
    assert!(
        !failed["nodes"].as_array().expect("nodes").iter().any(waits),
        "{failed:#}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_choice_the_branch_that_is_taken_is_under_way_and_the_others_are_skipped() {
    let (rig, _services) = running().await;
    let body = json!({"key": "r-1", "input": {"far": 7}});
    let starts = "/v1/tenants/acme/sagas/route/instances";
    assert!(post(&rig, starts, body.to_string()).await.status < 300);
    let path = graph("route", "r-1");
    let told = until(&rig, &path, |graph| state(graph, "step:drive") == "waiting").await;
    assert_eq!(
        states(&told, &["step:carry", "step:fly", "step:done"]),
        ["running", "skipped", "pending"],
        "{told:#}"
    );
    assert_eq!(node(&told, "step:carry")["kind"], "choice");
    for (to, label) in [("step:fly", "if state.far > 100"), ("step:drive", "otherwise")] {
        let edge = json!({"from": "step:carry", "to": to, "kind": "part", "label": label});
        assert!(has_edge(&told, &edge), "{edge}: {told:#}");
    }

    // A later version does not change what the instance runs under, nor does its end.
    let before = told["definition"].clone();
    rig.add_saga("route", &ROUTE.replace("drive:", "cycle:"));
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    assert!(
        post(&rig, starts, body.to_string().replace("r-1", "r-2"))
            .await
            .status
            < 300
    );
    let later = until(&rig, &graph("route", "r-2"), |graph| {
        graph["nodes"].to_string().contains("step:cycle")
    })
    .await;
    assert_ne!(later["definition"], before);
    assert_eq!(get(&rig, &path).await.json(), told);
    rig.remove_file("sagas/route.yaml");
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    assert_eq!(get(&rig, &path).await.json(), told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_over_a_list_tells_how_many_of_its_items_are_where() {
    let (rig, _services) = running().await;
    send(&rig, "acme", "p-1", "Parcels.Opened", json!({"parcels": "p-1"})).await;
    let told = until(&rig, &graph("parcels", "p-1"), |graph| {
        node(graph, "step:ship")["states"]["running"] == 2
    })
    .await;
    let each = node(&told, "step:send");
    assert_eq!(
        (&each["kind"], &each["does"], &each["state"]),
        (
            &json!("foreach"),
            &json!(["for each of state.parts"]),
            &json!("running")
        ),
        "{each}"
    );
    assert_eq!(each["items"]["total"], 3, "{each}");
    let (pack, ship) = (node(&told, "step:pack"), node(&told, "step:ship"));
    assert_eq!(
        (&pack["state"], &pack["states"]),
        (&json!("done"), &json!({"done": 2})),
        "{pack}"
    );
    assert_eq!(
        (&ship["state"], &ship["waits_for"]),
        (&json!("running"), &json!("the result of effect slow"))
    );
    let undo = node(&told, "undo:pack");
    assert_eq!(
        (&undo["state"], &undo["states"]),
        (&json!("held"), &json!({"held": 2})),
        "{undo}"
    );
    assert!(
        has_edge(
            &told,
            &json!({"from": "step:send", "to": "step:pack", "kind": "part"})
        ),
        "{told:#}"
    );
    let table = cli(&rig, &["instance", "graph", "parcels", "p-1", "--tenant", "acme"]).await;
    assert!(
        table.contains("held (2 held)") && table.contains("running (0 of 3 done, 0 failed)"),
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_machine_the_state_that_it_is_in_is_marked_and_the_timers_that_run() {
    let (rig, _services) = running().await;
    send(&rig, "acme", "d-1", "Door.Built", json!({"door": "d-1"})).await;
    let path = graph("door", "d-1");
    let shut = until(&rig, &path, |graph| state(graph, "state:shut") == "current").await;
    assert_eq!(
        states(&shut, &["state:open", "state:gone", "timer:inspect"]),
        ["-", "-", "set"],
        "{shut:#}"
    );
    assert_eq!(node(&shut, "state:shut")["waits_for"], "event Door.Opened");
    assert_eq!(node(&shut, "state:gone")["kind"], "final_state");
    assert!(node(&shut, "timer:inspect")["due"].is_string());
    for edge in [
        json!({"from": "state:shut", "to": "state:open", "kind": "transition", "label": "Door.Opened"}),
        json!({"from": "timer:inspect", "to": "step:timers.inspect.look", "kind": "next"}),
    ] {
        assert!(has_edge(&shut, &edge), "{edge}: {shut:#}");
    }
    send(&rig, "acme", "d-2", "Door.Opened", json!({"door": "d-1"})).await;
    until(&rig, &path, |graph| state(graph, "state:open") == "current").await;
    send(&rig, "acme", "d-3", "Door.Removed", json!({"door": "d-1"})).await;
    let gone = until(&rig, &path, |graph| graph["phase"] == "completed").await;
    assert_eq!(
        states(
            &gone,
            &["state:shut", "state:open", "state:gone", "timer:inspect"]
        ),
        ["-", "-", "current", "-"],
        "{gone:#}"
    );
    assert!(node(&gone, "state:gone").get("waits_for").is_none(), "{gone:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_graph_of_an_instance_is_drawn_as_that_of_its_file_with_its_states() {
    let (rig, _services) = running().await;
    send(&rig, "acme", "s-1", "Sale.Opened", json!({"sale": "s-1"})).await;
    until(&rig, &graph("sale", "s-1"), |graph| {
        state(graph, "step:approve") == "waiting"
    })
    .await;
    let drawn = |format: &'static str| {
        let rig = &rig;
        async move {
            let arguments = [
                "instance", "graph", "sale", "s-1", "--tenant", "acme", "--format", format,
            ];
            cli(rig, &arguments).await
        }
    };
    let mermaid = drawn("mermaid").await;
    for part in [
        "title: sale s-1: running",
        "[\"approve<br/>waits for signal approve<br/>waiting\"]",
        "[/\"good<br/>held\"/]",
        "style n0 fill:#dcfce7",
    ] {
        assert!(mermaid.contains(part), "{part}: {mermaid}");
    }
    let file = rig.folder().join("sagas/sale.yaml").display().to_string();
    let definitions = rig.folder().display().to_string();
    let command = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(["graph", &file, "--definitions", &definitions])
        .output()
        .expect("it runs");
    let offline = String::from_utf8(command.stdout).expect("text");
    let arrows = |drawn: &str| -> Vec<String> {
        let lines = drawn.lines().filter(|line| line.contains("->"));
        lines.map(str::to_owned).collect()
    };
    assert!(arrows(&offline).len() > 3, "{offline}");
    assert_eq!(arrows(&mermaid), arrows(&offline), "{offline}");
    let dot = drawn("dot").await;
    assert!(
        dot.starts_with("digraph \"sale s-1: running\" {") && dot.ends_with("}\n"),
        "{dot}"
    );
    assert!(drawn("svg").await.starts_with("<svg "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_not_there_or_of_another_tenant_has_no_graph() {
    let (rig, _services) = running().await;
    send(&rig, "acme", "s-1", "Sale.Opened", json!({"sale": "s-1"})).await;
    until(&rig, &graph("sale", "s-1"), |_| true).await;
    for path in [
        graph("sale", "s-2"),
        graph("sold", "s-1"),
        format!("{}/graph", instance("globex", "sale", "s-1")),
        format!("{}/graph", instance("initech", "sale", "s-1")),
    ] {
        get(&rig, &path).await.is_problem(404, "SR0502");
    }
    let path = format!("{}?depth=2", graph("sale", "s-1"));
    get(&rig, &path).await.is_problem(400, "SR0501");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_shards_shows_the_graph_of_the_one_that_has_them() {
    let (server, upstream) = (NatsServer::start(), unavailable().await);
    let (owner, asked) = pair(&server, &upstream, json!({})).await;
    let body = json!({"key": "g-1", "input": {}});
    assert!(
        post(&owner, crate::api::conflicts::STARTS, body.to_string())
            .await
            .status
            < 300
    );
    let path = graph("patient", "g-1");
    let told = until(&asked, &path, |graph| state(graph, "step:ask") == "waiting").await;
    assert_eq!(get(&owner, &path).await.json(), told);
    get(&asked, &graph("patient", "g-2"))
        .await
        .is_problem(404, "SR0502");
}
