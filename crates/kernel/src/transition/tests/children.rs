//! A saga that starts another one: each has a world of its own, and the test carries the messages.

use std::sync::Arc;

use saga_runner_language::ids::{ClusterId, Key, SagaName};
use saga_runner_language::limits::Limits;
use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;
use crate::children::{
    CHILD_CANCELLED, CHILD_DEPTH_MAX, CHILD_EXISTS, CHILD_FAILED, CHILD_GONE, CHILD_REFUSED, ParentRef,
    SagaMessage,
};
use crate::input::{CancelMode, Control, InputBody, OnConflict, Origin, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome, Patch};
use crate::record::{Phase, Record, StepStatus};
use crate::transition::{Context, apply, refusal};
use crate::work::{WorkItem, WorkKind};

pub(super) const PARENT: &str = r#"
steps:
  pay:
    saga: {name: payment, key: "${key}-pay", input: {amount: 12}}
    set: {paid: "${result.state.paid}", by: "${result.saga + '/' + result.key}"}
    on_error: {child_refused: {continue: true}}
    compensate: {saga: undo}
  ship: {needs: [pay], effect: shipping-create}
"#;
pub(super) const CHILD: &str = r#"
input: {type: object, required: [amount], properties: {amount: {type: integer}}}
state: {init: {paid: "${input.amount}"}}
steps:
  charge: {effect: payments-charge, with: {amount: "${input.amount}"}, compensate: {effect: payments-refund, with: {amount: "${input.amount}"}}}
finally:
  cancelled: {publish: {type: payment.cancelled}}
"#;
pub(super) const PAY: &str = "steps.pay";

pub(super) fn parent() -> World {
    let mut world = World::of(Arc::new(loaded(PARENT)));
    world.event("Order.Placed", &json!({}));
    world
}

pub(super) fn child() -> World {
    let mut world = World::of(Arc::new(loaded(CHILD)));
    world.instance.saga = SagaName::parse("payment").expect("legal");
    world.instance.key = Key::parse("o-1-pay").expect("legal");
    world
}

pub(super) fn cancel(mode: CancelMode) -> Control {
    Control::Cancel {
        reason: String::new(),
        mode,
    }
}

/// A message as the stream brings it to the child.
pub(super) fn control(item: &WorkItem) -> Control {
    let WorkKind::Saga { message, awaited, .. } = &item.kind else {
        panic!("{item:?} goes to no saga");
    };
    let parent = |depth, undoable| ParentRef {
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
        command_id: item.command_id,
        depth,
        waits: *awaited,
        undoable,
        hops: item.hops,
        traceparent: None,
    };
    match message {
        SagaMessage::Start {
            input,
            depth,
            undoable,
        } => Control::Start {
            input: input.clone(),
            parent: Some(parent(*depth, *undoable)),
            on_conflict: OnConflict::Fail,
            traceparent: None,
        },
        SagaMessage::CancelChild { undo, known } => Control::CancelChild {
            parent: parent(0, false),
            undo: *undo,
            known: *known,
        },
        SagaMessage::Signal { name, data } => Control::Signal {
            name: name.clone(),
            data: data.clone(),
            by: item.instance.key.to_string(),
            hops: item.hops,
        },
        SagaMessage::Outcome { .. } => panic!("an outcome goes to the parent"),
        SagaMessage::RegisterAlias { .. }
        | SagaMessage::ReleaseAlias { .. }
        | SagaMessage::AskAlias(_)
        | SagaMessage::AliasRead { .. }
        | SagaMessage::AliasAnswered { .. }
        | SagaMessage::Forward(_) => {
            panic!("it has to do with an alias, not with a child")
        }
    }
}

fn give(child: &mut World, item: &WorkItem) -> Outcome {
    child.control(&item.command_id.to_string(), control(item))
}

/// The newest work item of the parent at `path` comes to the child.
pub(super) fn ask(parent: &World, child: &mut World, path: &str) -> Outcome {
    give(child, parent.newest(path))
}

/// The newest outcome of the child comes to the parent.
pub(super) fn tell(child: &World, parent: &mut World) -> Outcome {
    let (command, outcome) = outcome(child.newest("outcome"));
    parent.result(command, outcome)
}

pub(super) fn outcome(item: &WorkItem) -> (saga_runner_language::ids::CommandId, WorkOutcome) {
    match &item.kind {
        WorkKind::Saga {
            message: SagaMessage::Outcome { command, outcome },
            ..
        } => (*command, outcome.clone()),
        other => panic!("{other:?} is not an outcome"),
    }
}

pub(super) fn class(outcome: &WorkOutcome) -> &str {
    match outcome {
        WorkOutcome::Failed { class, .. } => class,
        WorkOutcome::Succeeded { .. } | WorkOutcome::Unusable { .. } => "ok",
        WorkOutcome::TimedOut { .. } => "timeout",
    }
}

/// What a world that has ended makes of a message: a shard gives it the last record.
fn to_ended(world: &World, record: Option<&Record>, id: &str, control: Control) -> Patch {
    let input = world.input(id, Origin::Local, InputBody::Control(control));
    let context = Context {
        limits: &Limits::default(),
        cluster: ClusterId::OFFLINE,
        log_sequence: 900,
        generation: 1,
        again: false,
    };
    apply(&world.definition, &world.instance, record, &input, &context).expect("not rejected")
}

/// Continues an instance whose ledger is opened again.
pub(super) fn reopened(world: &mut World, item: &WorkItem) {
    let summary = world.ended.take().expect("it has ended");
    world.record = Some(summary.record);
    assert_eq!(give(world, item), Outcome::Applied);
}

#[test]
fn the_outcome_of_a_child_is_the_result_of_the_step() {
    let (mut parent, mut child) = (parent(), child());
    assert_eq!(parent.outstanding(), [PAY]);
    assert_eq!(parent.payload(PAY), json!({"amount": 12}));
    assert_eq!(ask(&parent, &mut child, PAY), Outcome::Applied);
    assert_eq!(child.data(), json!({"paid": 12}));
    assert_eq!(child.last().parent.as_ref().map(|parent| parent.depth), Some(1));
    // The broker may bring the message again, and another saga may ask for the same key.
    assert_eq!(
        ask(&parent, &mut child, PAY),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    child.succeed("steps.charge", &json!({}));
    assert_eq!(child.phase(), Phase::Completed);
    assert_eq!(tell(&child, &mut parent), Outcome::Applied);
    assert_eq!(parent.data(), json!({"paid": 12, "by": "payment/o-1-pay"}));
    assert_eq!(parent.outstanding(), ["steps.ship"]);
    parent.succeed("steps.ship", &json!({}));
    assert_eq!(parent.phase(), Phase::Completed);
}

#[test]
fn a_child_that_failed_fails_the_step_and_leaves_nothing_to_undo() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    child.fail("steps.charge", "declined");
    let (_, outcome) = outcome(child.newest("outcome"));
    let WorkOutcome::Failed { class, message, .. } = outcome else {
        panic!("it has failed");
    };
    assert_eq!((class.as_str(), message.as_str()), (CHILD_FAILED, "declined: no"));
    tell(&child, &mut parent);
    assert_eq!(parent.phase(), Phase::Failed);
    assert_eq!(parent.last().failure.as_ref().expect("failed").code, CHILD_FAILED);
    assert!(parent.ledger().is_empty());
}

#[test]
fn a_child_is_cancelled_with_its_parent() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    parent.control("stop", cancel(CancelMode::Compensate));
    assert_eq!(parent.statuses()[0], StepStatus::Abandoned);
    assert_eq!(
        parent.phase(),
        Phase::Compensating,
        "it waits for what becomes of the child"
    );
    assert_eq!(ask(&parent, &mut child, "steps.pay.cancel"), Outcome::Applied);
    assert_eq!(child.phase(), Phase::Compensating, "it waits for the charge");
    child.succeed("steps.charge", &json!({}));
    child.succeed("steps.charge.compensate", &json!({}));
    let (_, told) = outcome(child.newest("outcome"));
    assert_eq!(class(&told), CHILD_CANCELLED);
    tell(&child, &mut parent);
    assert!(parent.ended.is_some() && child.ended.is_some());
}

#[test]
fn a_child_that_completes_when_nobody_waits_any_more_is_undone() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    parent.control("stop", cancel(CancelMode::Compensate));
    child.succeed("steps.charge", &json!({}));
    // It was faster than the message that cancels it.
    tell(&child, &mut parent);
    assert_eq!(parent.outstanding(), ["steps.pay.compensate"]);
    let undo = parent.newest("steps.pay.compensate").clone();
    reopened(&mut child, &undo);
    child.succeed("steps.charge.compensate", &json!({}));
    tell(&child, &mut parent);
    assert!(parent.ended.is_some());
    assert_eq!(parent.ledger(), [LedgerStatus::Undone]);
}

#[test]
fn a_completed_child_is_undone_by_its_ledger_and_says_so() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    child.succeed("steps.charge", &json!({}));
    tell(&child, &mut parent);
    parent.fail("steps.ship", "gone");
    let undo = parent.newest("steps.pay.compensate").clone();
    reopened(&mut child, &undo);
    assert_eq!(child.phase(), Phase::Compensating);
    assert_eq!(child.payload("steps.charge.compensate"), json!({"amount": 12}));
    assert_eq!(give(&mut child, &undo), Outcome::Ignored(IgnoreReason::Duplicate));
    child.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(child.phase(), Phase::Cancelled);
    assert!(child.paths().contains(&"finally.cancelled[0]"));
    let (command, told) = outcome(child.newest("outcome"));
    assert_eq!((command, class(&told)), (undo.command_id, "ok"));
    tell(&child, &mut parent);
    assert_eq!(parent.phase(), Phase::Failed);
    assert_eq!(parent.ledger(), [LedgerStatus::Undone]);
}

#[test]
fn a_child_that_nobody_may_undo_forgets_its_ledger() {
    let text = PARENT.replace("    compensate: {saga: undo}\n", "");
    let mut parent = World::of(Arc::new(loaded(&text)));
    parent.event("Order.Placed", &json!({}));
    let mut child = child();
    ask(&parent, &mut child, PAY);
    child.succeed("steps.charge", &json!({}));
    assert!(child.ledger().is_empty());
}

#[test]
fn an_ended_child_repeats_its_outcome_and_refuses_another_parent() {
    let (parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    child.succeed("steps.charge", &json!({}));
    let told = outcome(child.newest("outcome"));
    let start = parent.newest(PAY);
    let again = to_ended(
        &child,
        Some(child.last()),
        &start.command_id.to_string(),
        control(start),
    );
    assert_eq!((again.record.is_some(), again.ended.is_some()), (false, false));
    assert_eq!(outcome(&again.work[0]), told);

    let mut other = parent.newest(PAY).clone();
    other.command_id = saga_runner_language::ids::CommandId(uuid::Uuid::from_u128(7));
    let refused = to_ended(&child, Some(child.last()), "other", control(&other));
    let (command, told) = outcome(&refused.work[0]);
    assert_eq!((command, class(&told)), (other.command_id, CHILD_EXISTS));
    assert_eq!(
        (&refused.work[0].instance, refused.record),
        (&child.instance, None)
    );
}

#[test]
fn a_child_that_cannot_begin_says_why() {
    let mut child = child();
    let bad = PARENT.replace("amount: 12", "amount: many");
    let mut parent = World::of(Arc::new(loaded(&bad)));
    parent.event("Order.Placed", &json!({}));
    assert_eq!(ask(&parent, &mut child, PAY), Outcome::Applied);
    assert!(child.record.is_none());
    let (_, told) = outcome(child.newest("outcome"));
    assert_eq!(class(&told), CHILD_REFUSED);
    tell(&child, &mut parent);
    assert_eq!(parent.outstanding(), ["steps.ship"], "the step says what follows");

    let input = child.input(
        "x",
        Origin::Local,
        InputBody::Control(control(parent.newest(PAY))),
    );
    let context = Context {
        limits: &Limits::default(),
        cluster: ClusterId::OFFLINE,
        log_sequence: 1,
        generation: 1,
        again: false,
    };
    let patch = refusal(&child.instance, &input, &context, "no such saga").expect("the parent waits");
    assert_eq!(class(&outcome(&patch.work[0]).1), CHILD_REFUSED);
}

#[test]
fn no_saga_starts_itself_nor_too_deep() {
    let own = PARENT.replace(
        "name: payment, key: \"${key}-pay\"",
        "name: probe, key: \"${key}\"",
    );
    let mut parent = World::of(Arc::new(loaded(&own)));
    parent.event("Order.Placed", &json!({}));
    assert!(parent.paths().iter().all(|path| *path != PAY));
    assert_eq!(parent.last().failure.as_ref().expect("failed").code, CHILD_EXISTS);

    let nested =
        "input: {type: object}\nsteps: {pay: {saga: {name: probe, key: \"${key}+\"}, wait: outcome}}\n";
    let deepest = |depth| {
        let mut world = World::of(Arc::new(loaded(nested)));
        let mut asks = super::super::super::children::ParentRef {
            saga: SagaName::parse("probe").expect("legal"),
            key: Key::parse("up").expect("legal"),
            command_id: saga_runner_language::ids::CommandId(uuid::Uuid::from_u128(7)),
            depth,
            waits: true,
            undoable: false,
            hops: 1,
            traceparent: None,
        };
        asks.hops = 1;
        let start = Control::Start {
            input: bytes::Bytes::from_static(b"{}"),
            parent: Some(asks),
            on_conflict: OnConflict::Fail,
            traceparent: None,
        };
        world.control("s", start);
        world
    };
    assert_eq!(deepest(CHILD_DEPTH_MAX - 1).outstanding(), [PAY]);
    let world = deepest(CHILD_DEPTH_MAX);
    assert_eq!(world.last().failure.as_ref().expect("failed").code, CHILD_REFUSED);
    assert!(deepest(CHILD_DEPTH_MAX + 1).record.is_none());
}

#[test]
fn a_step_need_not_wait_and_still_undoes_what_it_started() {
    let text = PARENT.replace(
        "    set:",
        "    wait: none\n    on_timeout: {continue: true}\n    #set:",
    );
    let text: String = text
        .lines()
        .filter(|line| !line.contains("#set"))
        .fold(String::new(), |all, line| all + line + "\n");
    let mut parent = World::of(Arc::new(loaded(&text)));
    parent.event("Order.Placed", &json!({}));
    assert_eq!(parent.outstanding(), ["steps.ship"]);
    let mut child = child();
    ask(&parent, &mut child, PAY);
    parent.fail("steps.ship", "gone");
    assert_eq!(ask(&parent, &mut child, "steps.pay.compensate"), Outcome::Applied);
    assert_eq!(child.phase(), Phase::Compensating, "it is stopped");
    child.fail("steps.charge", "declined");
    assert_eq!(child.phase(), Phase::Cancelled);
    tell(&child, &mut parent);
    assert_eq!(parent.phase(), Phase::Failed);
}

#[test]
fn a_child_without_an_answer_is_cancelled_and_undone() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    parent.time_out(PAY);
    assert_eq!(parent.last().failure.as_ref().expect("failed").code, "timeout");
    assert_eq!(ask(&parent, &mut child, "steps.pay.cancel"), Outcome::Applied);
    assert_eq!(ask(&parent, &mut child, "steps.pay.compensate"), Outcome::Applied);
    child.fail("steps.charge", "declined");
    let (command, told) = outcome(child.newest("outcome"));
    assert_eq!(
        (command, class(&told)),
        (parent.newest("steps.pay.compensate").command_id, "ok")
    );
    tell(&child, &mut parent);
    assert_eq!(parent.phase(), Phase::Failed);
}

#[test]
fn undoing_what_is_not_there_succeeds_only_where_it_may_never_have_been() {
    let (mut parent, child) = (parent(), child());
    parent.time_out(PAY);
    let undo = parent.newest("steps.pay.compensate");
    let patch = to_ended(&child, None, "u", control(undo));
    assert_eq!(class(&outcome(&patch.work[0]).1), "ok");
    let Control::CancelChild {
        parent: asks, undo, ..
    } = control(undo)
    else {
        panic!("a cancellation");
    };
    let known = Control::CancelChild {
        parent: asks,
        undo,
        known: true,
    };
    let patch = to_ended(&child, None, "u", known);
    assert_eq!(class(&outcome(&patch.work[0]).1), CHILD_GONE);
}

#[test]
fn a_child_that_is_stuck_says_so_and_an_attempt_to_undo_it_lets_it_try_again() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    child.succeed("steps.charge", &json!({}));
    tell(&child, &mut parent);
    parent.fail("steps.ship", "gone");
    let undo = parent.newest("steps.pay.compensate").clone();
    reopened(&mut child, &undo);
    while child.phase() == Phase::Compensating {
        child.fail("steps.charge.compensate", "no");
        child.advance(3_600_000);
    }
    assert_eq!(child.phase(), Phase::CompensationFailed);
    tell(&child, &mut parent);
    parent.advance(3_600_000);
    let again = parent.newest("steps.pay.compensate").clone();
    assert_ne!(again.command_id, undo.command_id);
    assert_eq!(give(&mut child, &again), Outcome::Applied);
    child.succeed("steps.charge.compensate", &json!({}));
    tell(&child, &mut parent);
    assert_eq!((parent.phase(), child.phase()), (Phase::Failed, Phase::Cancelled));
    let value: Value = parent.data();
    assert_eq!(value["paid"], json!(12));
}

#[test]
fn cancelling_the_parent_may_let_the_child_run() {
    for (mode, undone) in [(CancelMode::Drain, true), (CancelMode::Abandon, false)] {
        let (mut parent, mut child) = (parent(), child());
        ask(&parent, &mut child, PAY);
        parent.control("stop", cancel(mode));
        assert!(!parent.paths().contains(&"steps.pay.cancel"), "{mode:?}");
        child.succeed("steps.charge", &json!({}));
        tell(&child, &mut parent);
        assert_eq!(
            parent.outstanding().contains(&"steps.pay.compensate"),
            undone,
            "{mode:?}"
        );
    }
}

#[test]
fn a_child_is_cancelled_before_room_is_spent_on_word_to_the_workers() {
    let text = PARENT.replace("steps:\n", "steps:\n  scan: {effect: fraud-scan}\n");
    let mut parent = World::of(Arc::new(loaded(&text)));
    parent.event("Order.Placed", &json!({}));
    parent.limits.work_items = 1;
    assert_eq!(
        parent.control("stop", cancel(CancelMode::Compensate)),
        Outcome::Applied
    );
    assert!(parent.paths().contains(&"steps.pay.cancel"));
    assert!(!parent.paths().contains(&"steps.scan.cancel"));
}

#[test]
fn a_child_is_undone_after_what_it_does_at_its_end() {
    let text = CHILD.replace(
        "finally:\n",
        "finally:\n  completed: {effect: receipt-send, name: receipt}\n",
    );
    let mut child = World::of(Arc::new(loaded(&text)));
    child.instance = self::child().instance;
    let text = PARENT.replace("    set:", "    wait: none\n    #set:");
    let text: String = text
        .lines()
        .filter(|line| !line.contains("#set"))
        .fold(String::new(), |all, line| all + line + "\n");
    let mut parent = World::of(Arc::new(loaded(&text)));
    parent.event("Order.Placed", &json!({}));
    ask(&parent, &mut child, PAY);
    child.succeed("steps.charge", &json!({}));
    assert_eq!(child.phase(), Phase::Finishing);
    parent.fail("steps.ship", "gone");
    assert_eq!(ask(&parent, &mut child, "steps.pay.compensate"), Outcome::Applied);
    assert_eq!(child.phase(), Phase::Finishing);
    let receipt = child.outbox.values().next().expect("the receipt").path.clone();
    child.succeed(&receipt, &json!({}));
    assert_eq!(child.outstanding(), ["steps.charge.compensate"]);
    child.succeed("steps.charge.compensate", &json!({}));
    tell(&child, &mut parent);
    assert_eq!((parent.phase(), child.phase()), (Phase::Failed, Phase::Cancelled));
}
