//! Effects over NATS: the runner's own connection, a service that answers, streams and buckets that others made.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, jetstream};
use bytes::Bytes;
use futures::StreamExt as _;
use saga_runner::effects::Worker;
use saga_runner::kernel::definition::{EffectDefinition, SourceFile, load};
use saga_runner::kernel::ids::EffectName;
use saga_runner::kernel::work::{WorkItem, WorkKind};
use serde_json::{Value, json};

use crate::work::rig::{Rig, effect_name, enqueue, item};

const INPUT: &str = r#"{"warehouse":"north-1","sku":"sku-7"}"#;
const RETRY: &str = "retry: {attempts: 2, backoff: {initial: 100ms, max: 100ms}}\ntimeout: {total: 400ms}\n";

fn definition(name: &EffectName, section: &str) -> EffectDefinition {
    let head = "apiVersion: sagas/v1\nkind: Effect\nname:";
    let source = SourceFile {
        path: "effect.yaml".to_owned(),
        text: format!("{head} {name}\n{RETRY}{section}").into(),
    };
    let mut loaded = load(&[], &[source]);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    Arc::into_inner(loaded.effects.remove(0)).expect("nobody else has it")
}

/// A command of an effect of its own, so that no worker takes another's.
fn work(rig: &Rig, n: u128, input: &str) -> WorkItem {
    let kind = WorkKind::Effect {
        effect: EffectName::parse(&format!("effect-{n}")).unwrap(),
        payload: Bytes::from(input.to_owned()),
    };
    item(rig, "o-1", n, kind)
}

/// The recorded result of one command.
async fn outcome(rig: &Rig, section: &str, item: &WorkItem) -> Value {
    let WorkKind::Effect { effect, .. } = &item.kind else {
        panic!("no effect");
    };
    let worker = rig.worker(definition(effect, section), "http://nowhere");
    enqueue(rig, item).await;
    let result = rig.result(item).await;
    worker.drain(Duration::from_secs(5)).await;
    result
}

async fn client(rig: &Rig) -> Client {
    async_nats::connect(rig.nats_url()).await.unwrap()
}

/// Answers every request to `subject` and tells what it was asked.
async fn service(
    client: &Client,
    subject: &'static str,
    headers: &[(&'static str, &'static str)],
    body: &'static str,
) -> tokio::sync::mpsc::UnboundedReceiver<Message> {
    let mut requests = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    let (heard, asked) = tokio::sync::mpsc::unbounded_channel();
    let client = client.clone();
    let mut answer = HeaderMap::new();
    for (name, value) in headers {
        answer.insert(*name, *value);
    }
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = request.reply.clone().expect("a request");
            heard.send(request).unwrap();
            let body = Bytes::from_static(body.as_bytes());
            client
                .publish_with_headers(reply, answer.clone(), body)
                .await
                .unwrap();
        }
    });
    asked
}

const RESERVE: &str = "nats:\n  request: \"stock.${input.warehouse}.reserve\"\n  headers: {X-Order: \"${command.key}\"}\n  \
    body: {sku: \"${input.sku}\"}\n";

fn kind_and_class(result: &Value) -> (&str, &str) {
    let class = &result["payload"]["class"];
    (
        result["result_type"].as_str().unwrap_or_default(),
        class.as_str().unwrap_or_default(),
    )
}

#[tokio::test]
async fn a_request_carries_the_key_and_its_answer_is_the_result() {
    let rig = Rig::on_nats().await;
    let client = client(&rig).await;
    let mut asked = service(
        &client,
        "stock.*.reserve",
        &[("X-Shelf", "b4")],
        r#"{"reserved":3}"#,
    )
    .await;
    let item = work(&rig, 1, INPUT);
    let section = format!(
        "{RESERVE}result: {{count: \"${{response.body.reserved}}\", shelf: '${{response.headers[\"x-shelf\"]}}'}}\n"
    );
    let result = outcome(&rig, &section, &item).await;
    assert_eq!(result["result_type"], "Succeeded", "{result}");
    assert_eq!(result["payload"], json!({"count": 3, "shelf": "b4"}));
    let request = asked.recv().await.unwrap();
    assert_eq!(request.subject.as_str(), "stock.north-1.reserve");
    assert_eq!(&*request.payload, br#"{"sku":"sku-7"}"#);
    let headers = request.headers.unwrap();
    let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Idempotency-Key"), Some(item.idempotency_key.clone()));
    assert_eq!(header("X-Order").as_deref(), Some("o-1"));
    assert!(header("traceparent").is_some());
}

#[tokio::test]
async fn error_headers_of_a_service_have_the_classes_of_http() {
    let rig = Rig::on_nats().await;
    let client = client(&rig).await;
    for (n, subject, code, kind, class) in [
        (1, "a.*.reserve", "404", "Failed", "permanent"),
        (2, "b.*.reserve", "429", "Failed", "throttled"),
        (3, "c.*.reserve", "503", "Failed", "transient"),
        (4, "d.*.reserve", "504", "TimedOut", "timeout"),
        (5, "e.*.reserve", "what", "TimedOut", "transient"),
        (7, "g.*.reserve", "500", "TimedOut", "transient"),
        (8, "h.*.reserve", "502", "TimedOut", "transient"),
        (9, "i.*.reserve", "501", "Failed", "transient"),
        (10, "j.*.reserve", "408", "TimedOut", "timeout"),
        (11, "k.*.reserve", "425", "Failed", "transient"),
        (12, "l.*.reserve", "42", "TimedOut", "transient"),
    ] {
        let headers = [
            ("Nats-Service-Error-Code", code),
            ("Nats-Service-Error", "no such shelf"),
        ];
        let _asked = service(&client, subject, &headers, "").await;
        let section = RESERVE.replace("stock.", &subject[..2]);
        let result = outcome(&rig, &section, &work(&rig, n, INPUT)).await;
        assert_eq!(kind_and_class(&result), (kind, class), "{code}: {result}");
        let message = result["payload"]["message"].as_str().unwrap();
        assert!(message.contains("no such shelf"), "{message}");
    }
    let _asked = service(
        &client,
        "f.*.reserve",
        &[("Nats-Service-Error-Code", "409")],
        r#"{"had":true}"#,
    )
    .await;
    let section = format!(
        "{}classify: [{{when: response.code == 409, as: succeeded}}]\n",
        RESERVE.replace("stock.", "f.")
    );
    let result = outcome(&rig, &section, &work(&rig, 6, INPUT)).await;
    assert_eq!(result["payload"], json!({"had": true}), "{result}");
}

#[tokio::test]
async fn a_service_that_breaks_down_leaves_the_outcome_open_unless_it_only_reads() {
    let rig = Rig::on_nats().await;
    let client = client(&rig).await;
    let broken = [("Nats-Service-Error-Code", "500")];
    let _asked = service(&client, "stock.*.reserve", &broken, "").await;
    let reading = RESERVE.replace("nats:\n", "nats:\n  read_only: true\n");
    let result = outcome(&rig, &reading, &work(&rig, 1, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("Failed", "transient"), "{result}");
    // The code says what happened, unless a rule knows better.
    let known =
        format!("{RESERVE}classify: [{{when: response.code == 500, as: transient, outcome: not_done}}]\n");
    let result = outcome(&rig, &known, &work(&rig, 2, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("Failed", "transient"), "{result}");
    // No call follows where none may be the second one, whatever the class.
    let mut asked = service(&client, "once.*.reserve", &broken, "").await;
    let once = format!("{}on_ambiguous: fail\n", RESERVE.replace("stock.", "once."));
    let result = outcome(&rig, &once, &work(&rig, 3, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("TimedOut", "transient"), "{result}");
    assert_eq!(result["metadata"]["calls"], 1);
    assert!(
        asked.recv().await.is_some() && asked.try_recv().is_err(),
        "asked once"
    );
}

#[tokio::test]
async fn an_answer_that_calls_itself_json_and_is_none_leaves_the_outcome_open() {
    let rig = Rig::on_nats().await;
    let client = client(&rig).await;
    let json = [("Content-Type", "application/json")];
    let _asked = service(&client, "stock.*.reserve", &json, "{\"a\":NaN}").await;
    let result = outcome(&rig, RESERVE, &work(&rig, 1, INPUT)).await;
    assert_eq!(
        kind_and_class(&result),
        ("TimedOut", "response.malformed"),
        "{result}"
    );
    let _asked = service(&client, "large.*.reserve", &json, "{\"a\":18446744073709551615}").await;
    let result = outcome(&rig, &RESERVE.replace("stock.", "large."), &work(&rig, 2, INPUT)).await;
    assert_eq!(
        result["payload"],
        json!({"a": "18446744073709551615"}),
        "{result}"
    );
}

#[tokio::test]
async fn silence_is_an_unknown_outcome_unless_the_request_only_reads_and_no_listener_is_a_known_failure() {
    let rig = Rig::on_nats().await;
    let result = outcome(&rig, RESERVE, &work(&rig, 1, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("Failed", "transient"), "{result}");
    assert!(
        result["payload"]["message"]
            .as_str()
            .unwrap()
            .contains("nobody listens")
    );

    let client = client(&rig).await;
    let _silent = client.subscribe("stock.*.reserve").await.unwrap();
    client.flush().await.unwrap();
    let result = outcome(&rig, RESERVE, &work(&rig, 2, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("TimedOut", "ambiguous"), "{result}");
    let reading = RESERVE.replace("nats:\n", "nats:\n  read_only: true\n");
    let result = outcome(&rig, &reading, &work(&rig, 3, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("Failed", "timeout"), "{result}");
}

#[tokio::test]
async fn a_message_reaches_every_listener() {
    let rig = Rig::on_nats().await;
    let client = client(&rig).await;
    let mut heard = client.subscribe("notes.>").await.unwrap();
    client.flush().await.unwrap();
    let section = "nats:\n  publish: \"notes.${command.tenant}.sold\"\n  body: \"${input}\"\n";
    let result = outcome(&rig, section, &work(&rig, 1, INPUT)).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]),
        (&json!("Succeeded"), &json!({}))
    );
    let message = heard.next().await.unwrap();
    assert_eq!(message.subject.as_str(), "notes.acme.sold");
    let body: Value = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!(body, serde_json::from_str::<Value>(INPUT).unwrap());
}

#[tokio::test]
async fn a_stream_keeps_one_message_of_a_piece_of_work_and_a_bucket_its_value() {
    let rig = Rig::on_nats().await;
    let stream = jetstream::new(client(&rig).await);
    let ledger = stream
        .create_stream(jetstream::stream::Config {
            name: "LEDGER".to_owned(),
            subjects: vec!["ledger.>".to_owned()],
            ..Default::default()
        })
        .await
        .unwrap();
    let section = "nats: {store: \"ledger.${input.sku}\", body: {sold: 1}}\n";
    let first = outcome(&rig, section, &work(&rig, 1, INPUT)).await;
    assert_eq!(
        first["payload"],
        json!({"stream": "LEDGER", "sequence": 1, "duplicate": false}),
        "{first}"
    );
    // The same piece of work once more, as after an answer that was lost.
    let mut again = work(&rig, 2, INPUT);
    again.idempotency_key = work(&rig, 1, INPUT).idempotency_key;
    let second = outcome(&rig, section, &again).await;
    assert_eq!(second["payload"]["duplicate"], true, "{second}");
    assert_eq!(ledger.get_info().await.unwrap().state.messages, 1);

    let nowhere = section.replace("ledger.", "unkept.");
    let result = outcome(&rig, &nowhere, &work(&rig, 3, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("Failed", "transient"), "{result}");

    let put = "nats: {put: {bucket: shelves, key: \"stock.${input.sku}\"}, body: {count: 4}}\n";
    let result = outcome(&rig, put, &work(&rig, 4, INPUT)).await;
    assert_eq!(kind_and_class(&result), ("Failed", "transient"), "{result}");
    let bucket = stream
        .create_key_value(jetstream::kv::Config {
            bucket: "shelves".to_owned(),
            ..Default::default()
        })
        .await
        .unwrap();
    let result = outcome(&rig, put, &work(&rig, 5, INPUT)).await;
    assert_eq!(result["payload"], json!({"revision": 1}), "{result}");
    let value = bucket.get("stock.sku-7").await.unwrap().unwrap();
    assert_eq!(&*value, br#"{"count":4}"#);

    let messenger = Arc::clone(&rig.broker).messenger().unwrap();
    let read = messenger.value("shelves", "stock.sku-7").await.unwrap();
    assert_eq!(read.as_deref(), Some(&br#"{"count":4}"#[..]));
    bucket.delete("stock.sku-7").await.unwrap();
    assert_eq!(messenger.value("shelves", "stock.sku-7").await.unwrap(), None);
    assert!(messenger.value("no-such", "stock.sku-7").await.is_err());
}

#[tokio::test]
async fn no_value_leads_a_message_elsewhere() {
    let rig = Rig::on_nats().await;
    let client = client(&rig).await;
    let mut heard = client.subscribe(">").await.unwrap();
    client.flush().await.unwrap();
    for (n, value) in ["north.south", "*", ">", "a b", "", "a\\nb", &"x".repeat(200)]
        .into_iter()
        .enumerate()
    {
        let input = format!(r#"{{"warehouse":"{value}","sku":"s"}}"#);
        let section = RESERVE.replace("request", "publish");
        let result = outcome(&rig, &section, &work(&rig, n as u128 + 1, &input)).await;
        assert_eq!(
            kind_and_class(&result),
            ("Failed", "subject.illegal"),
            "{value:?}: {result}"
        );
    }
    client.publish("stock.end", Bytes::new()).await.unwrap();
    let first = loop {
        let message = heard.next().await.unwrap();
        if message.subject.starts_with("stock.") {
            break message;
        }
    };
    assert_eq!(first.subject.as_str(), "stock.end");
}

#[tokio::test]
async fn a_runner_without_nats_refuses_such_an_effect() {
    let rig = Rig::new().await;
    let refused = Worker::start(&rig.spec(
        "test",
        vec![definition(&effect_name(), RESERVE)],
        "http://nowhere",
        Arc::clone(&rig.metrics),
    ));
    let error = refused.err().expect("there is nothing to send over").to_string();
    assert!(
        error.contains("charge") && error.contains("broker: {kind: nats}"),
        "{error}"
    );
}
