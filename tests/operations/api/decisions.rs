//! What an operator decides: about what is stuck or backs off, and about dead letters.

use serde_json::{Value, json};

use crate::api::caller::{instance, items};
use crate::operations::case::{Case, Turn, cases};
use crate::operations::scene::TENANT;

pub const CASES: &[Case] = cases! {
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/retry" => retry,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/skip" => skip,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/resolve" => resolve,
    "POST /v1/tenants/{tenant}/sagas/{saga}/instances/{key}/try-now" => try_now,
    "GET /v1/tenants/{tenant}/dead-letters" => letters,
    "GET /v1/tenants/{tenant}/dead-letters/count" => count_letters,
    "GET /v1/tenants/{tenant}/dead-letters/{id}" => show_letter,
    "POST /v1/tenants/{tenant}/dead-letters/{id}/retry" => retry_letter,
    "POST /v1/tenants/{tenant}/dead-letters/{id}/discard" => discard_letter,
};

/// Decides about the stuck compensation of an instance, and gives the ended instance.
async fn decided(turn: Turn<'_>, verb: &str) -> Value {
    let path = turn.scene.stuck(verb).await;
    let body = json!({"step": "first", "by": "ann", "reason": "by phone"});
    turn.ask_about("repair", verb).body(body).applied().await;
    let view = turn.scene.ended(&path).await;
    let history = view["history"].to_string();
    let verdict = format!(r#""verdict":"{verb}""#);
    for part in [verdict.as_str(), r#""by":"ann""#, r#""reason":"by phone""#] {
        assert!(history.contains(part), "{part}: {history}");
    }
    view
}

/// Every call of an instance that the upstream has seen.
async fn calls(turn: Turn<'_>, key: &str) -> usize {
    let requests = turn.scene.desk.received_requests().await.expect("kept");
    let path = format!("/once/{key}");
    requests
        .iter()
        .filter(|request| request.url.path() == path)
        .count()
}

async fn retry(turn: Turn<'_>) {
    let view = decided(turn, "retry").await;
    assert_eq!(view["ledger"][0]["status"], "undone", "{view}");
    assert_eq!(calls(turn, "retry").await, 2, "it was called again");
}

async fn skip(turn: Turn<'_>) {
    let view = decided(turn, "skip").await;
    assert_eq!(view["ledger"][0]["status"], "kept", "{view}");
    assert_eq!(calls(turn, "skip").await, 1, "it was not called again");
}

async fn resolve(turn: Turn<'_>) {
    let view = decided(turn, "resolve").await;
    assert_eq!(view["ledger"][0]["status"], "undone", "{view}");
    assert_eq!(calls(turn, "resolve").await, 1, "it was not called again");
}

async fn try_now(turn: Turn<'_>) {
    let path = turn.scene.backing_off("try-now").await;
    let body = json!({"step": "call", "by": "ann", "reason": "it is back"});
    turn.ask_about("patience", "try-now").body(body).applied().await;
    let view = turn.scene.ended(&path).await;
    assert_eq!(
        (&view["phase"], &view["steps"][0]["attempt"]),
        (&json!("completed"), &json!(2)),
        "{view}"
    );
}

async fn letters(turn: Turn<'_>) {
    let id = turn.scene.letter("letters").await;
    let page = turn
        .ask(&[])
        .query("saga=ratio&key=letters&reason=expression&kind=event")
        .gives(200)
        .await;
    let [letter] = items(&page) else {
        panic!("one dead letter: {page}");
    };
    assert_eq!(
        (&letter["id"], &letter["subject"], &letter["attempts"]),
        (&json!(id), &json!("event Ratio.Divided"), &json!(1)),
        "{letter}"
    );
    let message = letter["message"].as_str().expect("a message");
    assert!(message.ends_with("division by zero"), "{message}");
}

async fn count_letters(turn: Turn<'_>) {
    turn.scene.letter("count-letters").await;
    let counted = turn
        .ask(&[])
        .query("key=count-letters&by=reason")
        .gives(200)
        .await;
    let expected = json!({"by": "reason", "letters": 1, "groups": [{"value": "expression", "letters": 1}]});
    assert_eq!(counted, expected);
}

async fn show_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("show-letter").await;
    let letter = turn.ask(&[("id", id.as_str())]).gives(200).await;
    assert_eq!(
        (
            &letter["input_id"],
            &letter["input"]["event"]["payload"],
            &letter["retry"]["outcome"],
            &letter["retry"]["reason"],
        ),
        (
            &json!("divided-show-letter"),
            &json!({"ratio": "show-letter", "by": 0}),
            &json!("dead_letter"),
            &json!("expression"),
        ),
        "{letter}"
    );
}

async fn retry_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("retry-letter").await;
    // As it came it fails again, under another id.
    let body = json!({"by": "ann", "reason": "once more"});
    let failed = turn.ask(&[("id", id.as_str())]).body(body).gives(409).await;
    let detail = failed["detail"].as_str().expect("a detail");
    assert!(detail.contains("failed again, expression: "), "{detail}");
    let path = format!("/v1/tenants/{TENANT}/dead-letters?key=retry-letter");
    let page = turn.scene.shown(&path).await;
    let next = items(&page)[0]["id"].as_str().expect("an id");
    assert_ne!(next, id, "{page}");
    assert!(detail.contains(next), "{detail}");
    let wrong = json!({"by": "ann", "reason": "a guess", "data": {"ratio": "retry-letter", "by": 0}});
    let refused = turn.ask(&[("id", next)]).body(wrong).gives(422).await;
    assert_eq!(refused["code"], "SR0518", "{refused}");
    let edited = json!({"by": "ann", "reason": "a typing error", "data": {"ratio": "retry-letter", "by": 5}});
    turn.ask(&[("id", next)]).body(edited).answered(204).await;
    let view = turn.scene.shown(&instance(TENANT, "ratio", "retry-letter")).await;
    assert_eq!(
        (&view["state"]["shares"], &view["blocked_by"]),
        (&json!([20]), &Value::Null),
        "{view}"
    );
    assert_eq!(turn.scene.shown(&path).await["items"], json!([]));
}

async fn discard_letter(turn: Turn<'_>) {
    let id = turn.scene.letter("discard-letter").await;
    let body = json!({"by": "ann", "reason": "sent by a test"});
    let ask = || turn.ask(&[("id", id.as_str())]).body(body.clone());
    ask().answered(204).await;
    let path = instance(TENANT, "ratio", "discard-letter");
    let view = turn.scene.shown(&path).await;
    assert_eq!(
        (&view["state"]["shares"], &view["blocked_by"]),
        (&json!([]), &Value::Null),
        "{view}"
    );
    let newest = &view["history"][0];
    assert_eq!(
        (
            &newest["outcome"],
            &newest["notes"][0]["letter_decided"]["reason"]
        ),
        (&json!("discarded"), &json!("sent by a test")),
        "{view}"
    );
    let again = ask().gives(404).await;
    assert_eq!(again["code"], "SR0502", "{again}");
}
