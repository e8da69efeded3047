//! Dead letters whose data an operator has edited: applied once, in the place of what came, and told in the history.

use bytes::Bytes;
use serde_json::{Value, json};

use super::letters::{UNDONE, overflown, world_of};
use super::world::{
    EVENTS, RESULTS, Shard, World, added, compile, divided, event, list, opened, pay, result, set_of,
};
use crate::kernel::envelope::{Principal, Role};
use crate::kernel::letters::LetterOrder;
use crate::kernel::patch::Note;
use crate::kernel::recorded::LetterDecision::{Discard, Retry};
use crate::shard::mailbox::Refused;
use crate::storage::rows::{HistoryOutcome, HistoryRow};

fn edit(data: &Value) -> LetterOrder {
    edit_as(Role::Operator, data.to_string())
}

fn edit_as(role: Role, data: String) -> LetterOrder {
    LetterOrder {
        edited: Some(Bytes::from(data)),
        principal: Principal {
            who: "ada".to_owned(),
            role,
            reason: "ticket 7".to_owned(),
        },
        ..LetterOrder::from(Retry)
    }
}

/// `a` with a division by zero before an addition; the number of the letter.
async fn blocked(world: &World) -> (Shard, u64) {
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 3)]).await;
    shard.until_idle().await;
    let number = shard.dead_letters()[0].0;
    (shard, number)
}

fn outcomes(history: &[HistoryRow]) -> Vec<(&str, &str)> {
    let rows = history.iter().rev();
    rows.map(|row| (row.input_id.as_str(), row.outcome.as_str()))
        .collect()
}

fn by_four() -> Value {
    json!({"list": "a", "by": 4})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_edited_event_is_applied_once_in_its_place_and_the_history_keeps_both() {
    let world = World::new();
    let (shard, number) = blocked(&world).await;
    shard.decide(number, edit(&by_four())).await.unwrap();
    assert_eq!(shard.items("a"), json!([25, 3]), "before what came later");
    assert_eq!(shard.dead_letters(), []);
    let twice = shard.decide(number, edit(&by_four())).await;
    assert_eq!(twice, Err(Refused::NotFound("dead letter")));
    let history = shard.history(&list("a"));
    assert_eq!(
        outcomes(&history),
        [
            ("List.Opened/a/1", "applied"),
            ("List.Divided/a/2", "dead"),
            ("List.Divided/a/2", "edited"),
            ("List.Divided/a/2", "applied"),
            ("List.Added/a/3", "applied"),
        ]
    );
    assert_eq!(
        history[2].outcome,
        HistoryOutcome::Edited {
            number,
            original: Bytes::from(json!({"by": 0}).to_string()),
            edited: Bytes::from(by_four().to_string()),
        }
    );
    let said = Note::LetterDecided {
        by: "ada".to_owned(),
        reason: "ticket 7".to_owned(),
        job: String::new(),
    };
    assert_eq!(history[2].notes, [said]);
    assert!(history[1].notes.contains(&Note::Edited), "{history:?}");

    // The producer sends the original once more, and the process is started anew in between.
    shard.stop().await;
    let shard = world.start();
    shard.deliver(EVENTS, 4, vec![divided("a", 2, 0)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([25, 3]), "it is a repetition");
    assert_eq!(shard.dead_letters(), []);
    // Something else under its id still is a conflict.
    shard.deliver(EVENTS, 5, vec![divided("a", 2, 5)]).await;
    shard.until_idle().await;
    assert_eq!(shard.dead_letters()[0].1.reason, "event_id.conflict");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_edit_that_cannot_be_applied_is_refused_and_changes_nothing() {
    let world = World::new();
    let (shard, number) = blocked(&world).await;
    let before = shard.history(&list("a"));
    for (data, reason) in [
        (json!({"list": "a", "by": 0}).to_string(), "expression"),
        (json!({"list": "a"}).to_string(), "expression"),
        (json!({"list": "b", "by": 4}).to_string(), "input.instance"),
        (json!([1]).to_string(), "input.data"),
        ("{\"list\": \"a\", ".to_owned(), "input.data"),
        (format!("{}1{}", "[".repeat(99), "]".repeat(99)), "input.data"),
    ] {
        let refused = shard.decide(number, edit_as(Role::Operator, data.clone())).await;
        match refused {
            Err(Refused::Unfit { reason: found, .. }) => assert_eq!(found, reason, "{data}"),
            other => panic!("{data}: {other:?}"),
        }
    }
    assert_eq!(shard.history(&list("a")), before);
    assert_eq!(shard.dead_letters()[0].0, number);
    assert_eq!(shard.inbox("a").1, ["List.Added/a/3"]);
    // What waits behind another letter is edited when its turn comes.
    shard.deliver(EVENTS, 4, vec![divided("b", 4, 0)]).await;
    shard.decide(number, Discard).await.unwrap();
    assert_eq!(shard.items("a"), json!([3]));
    shard.stop().await;
}

/// Its input is divided at the start, so an event may begin no instance.
const SHARE: &str = r"
apiVersion: sagas/v1
kind: Saga
name: list
start: List.Opened
key: {'List.*': event.data.list}
state:
  init: {items: []}
handlers:
  List.Opened: {set: {items: ['${100 / event.data.by}']}}
machine:
  initial: open
  states:
    open: {handlers: {List.Closed: {to: closed}}}
    closed: {final: true}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_edited_start_begins_its_instance_and_the_decision_is_the_first_row_of_its_history() {
    let mut world = World::new();
    world.definitions = set_of(vec![compile(SHARE)]);
    let shard = world.start();
    let opening = event(list("a"), "List.Opened", 1, &json!({"list": "a", "by": 0}));
    shard.deliver(EVENTS, 1, vec![opening.clone()]).await;
    shard.until_idle().await;
    let letters = shard.dead_letters();
    assert_eq!(letters[0].1.met, Some(compile(SHARE).hash));
    shard.decide(letters[0].0, edit(&by_four())).await.unwrap();
    let history = shard.history(&list("a"));
    assert_eq!(
        outcomes(&history),
        [("List.Opened/a/1", "edited"), ("List.Opened/a/1", "applied")]
    );
    shard.deliver(EVENTS, 2, vec![opening]).await;
    shard.until_idle().await;
    assert_eq!(shard.history(&list("a")).len(), 2, "it began once");
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_result_of_an_effect_is_edited_by_an_admin_alone() {
    let mut world = world_of(compile(UNDONE));
    let (shard, charge) = overflown(&mut world).await;
    let letters = shard.dead_letters();
    shard.decide(letters[0].0, Discard).await.unwrap();
    let number = letters[1].0;
    let corrected = json!({"receipt": "r-9"}).to_string();
    let refused = shard
        .decide(number, edit_as(Role::Operator, corrected.clone()))
        .await;
    assert!(matches!(refused, Err(Refused::Forbidden(_))), "{refused:?}");
    let refused = shard
        .decide(number, edit_as(Role::Admin, json!({"slip": 1}).to_string()))
        .await;
    assert!(matches!(refused, Err(Refused::Unfit { .. })), "{refused:?}");
    assert_eq!(shard.state(&pay("p"), "receipt"), Value::Null);
    shard
        .decide(number, edit_as(Role::Admin, corrected))
        .await
        .unwrap();
    let ended = shard.ended(&pay("p")).expect("its one step is done");
    let state: Value = serde_json::from_slice(&ended.data).unwrap();
    assert_eq!(state["receipt"], "r-9");
    // What the bank said comes a second way.
    shard
        .deliver(RESULTS, 2, vec![result(&charge, 1, &json!({"receipt": "r"}))])
        .await;
    shard.until_idle().await;
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}
