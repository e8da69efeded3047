use saga_runner_language::ids::{DefinitionHash, InstanceId, Key, SagaName, TenantId, TimeMs};

use super::super::pending::CallErrorView;
use super::super::{CommandState, LetterView, ParentView, PausedView, QueueView};
use super::*;
use crate::envelope::EffectProgress;
use crate::record::{Record, Summary};

fn id(key: &str) -> InstanceId {
    InstanceId {
        tenant: TenantId::none(),
        saga: SagaName::parse("order").expect("legal"),
        key: Key::parse(key).expect("legal"),
    }
}

fn live() -> InstanceView {
    let record = Record {
        data: b"{}".to_vec().into(),
        ..Record::opened(1, DefinitionHash([0; 32]), "e-1", TimeMs(1_767_261_600_000))
    };
    InstanceView::new(&id("o-1"), &record, None)
}

fn asked(instance: &InstanceView, pending: &[AwaitedView]) -> Why {
    why(Evidence {
        instance,
        pending,
        hears: &[],
        child: None,
    })
}

fn charge(calls: Option<CallsView>) -> AwaitedView {
    AwaitedView {
        step: "charge".to_owned(),
        effect: Some("charge".to_owned()),
        attempt: 1,
        since: Some("10:00".to_owned()),
        calls,
        ..AwaitedView::default()
    }
}

fn failing() -> CallsView {
    CallsView {
        made: 3,
        outcome_unknown: false,
        error: Some(CallErrorView {
            class: "transient".to_owned(),
            message: "connection refused".to_owned(),
        }),
        next: Some("10:05".to_owned()),
        begun: None,
        worker: "w-1".to_owned(),
        held_by: None,
        upstream: None,
    }
}

#[test]
fn calls_that_fail_are_told_with_their_number_class_and_message() {
    let told = asked(&live(), &[charge(Some(failing()))]);
    assert_eq!(told.cause, Cause::Failing);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; 3 call(s) were made, the last one failed with \
         transient: connection refused; the next one is made at 10:05 or later"
    );
}

#[test]
fn an_open_breaker_is_named() {
    let held = CallsView {
        held_by: Some("breaker".to_owned()),
        upstream: Some("shop".to_owned()),
        ..failing()
    };
    let told = asked(&live(), &[charge(Some(held))]);
    assert_eq!(told.cause, Cause::Breaker);
    assert!(
        told.why.contains("the breaker of shop lets no call through"),
        "{}",
        told.why
    );
}

#[test]
fn a_breaker_that_an_operator_holds_open_is_told_with_the_way_out_and_without_a_time() {
    let held = CallsView {
        held_by: Some("breaker_forced".to_owned()),
        upstream: Some("shop".to_owned()),
        ..failing()
    };
    let told = asked(&live(), &[charge(Some(held))]);
    assert_eq!(told.cause, Cause::Breaker);
    let way_out = "an operator holds the breaker of shop open; `saga-runner breaker auto shop` lets calls through again";
    assert!(told.why.contains(way_out), "{}", told.why);
    assert!(!told.why.contains("the next one"), "{}", told.why);
}

#[test]
fn a_call_that_may_be_under_way_is_told_with_the_time_of_its_end() {
    let held = CallsView {
        made: 0,
        outcome_unknown: true,
        error: None,
        held_by: Some("under_way".to_owned()),
        ..failing()
    };
    let told = asked(&live(), &[charge(Some(held))]);
    assert_eq!(told.cause, Cause::Effect);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; a worker stopped during a call, which may still \
         reach the upstream: its outcome counts as unknown from 10:05"
    );
}

#[test]
fn a_call_that_was_begun_and_has_not_ended_is_told_with_its_time() {
    let progress = EffectProgress {
        outcome_unknown: true,
        begun_ms: 1_767_261_600_000,
        ..EffectProgress::default()
    };
    let told = asked(&live(), &[charge(Some(progress.clone().into()))]);
    assert_eq!(told.cause, Cause::Effect);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; a call was begun at 2026-01-01T10:00:00.000Z or before and has \
         not ended"
    );
    // The call of before has failed since, and another one follows.
    let later = EffectProgress {
        not_before_ms: progress.begun_ms + 1,
        ..progress
    };
    let calls = CallsView::from(later);
    assert_eq!(calls.begun, None);
    assert!(calls.next.is_some(), "{calls:?}");
}

fn queued(workers_ask: bool, unacknowledged: u64) -> AwaitedView {
    let queued = QueueView {
        sequence: 30,
        delivered: 20,
        floor: 10,
        pending: 4,
        unacknowledged,
        workers_ask,
    };
    let command = CommandView::stored("effect-charge", "10:00".to_owned(), Some(queued));
    AwaitedView {
        command: Some(command),
        ..charge(None)
    }
}

#[test]
fn a_command_without_worker_is_told_apart_from_one_behind_others() {
    let told = asked(&live(), &[queued(false, 0)]);
    assert_eq!(told.cause, Cause::NoWorker);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; its command waits in the queue, and no worker takes \
         commands from consumer effect-charge"
    );
    let told = asked(&live(), &[queued(false, 2)]);
    assert_eq!(told.cause, Cause::Queued);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; its command waits in the queue: at most 3 command(s) of \
         consumer effect-charge come before it, and workers have 2 and ask for no more: they are busy, or have stopped"
    );
    let told = asked(&live(), &[queued(true, 2)]);
    assert!(told.why.ends_with("and workers have 2"), "{}", told.why);
}

#[test]
fn an_effect_that_no_file_declares_comes_before_other_work() {
    let ship = AwaitedView {
        step: "ship".to_owned(),
        ..charge(None)
    };
    let undeclared = AwaitedView {
        undeclared: true,
        ..charge(None)
    };
    let told = asked(&live(), &[ship, undeclared.clone()]);
    assert_eq!(told.cause, Cause::NoEffect);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; no file declares this effect any more, so that no worker \
         takes its command: restore the file and reload; 1 more are pending"
    );
    let called = AwaitedView {
        calls: Some(failing()),
        ..undeclared
    };
    assert_eq!(asked(&live(), &[called]).cause, Cause::Failing);
}

#[test]
fn a_first_call_in_progress_is_told_as_one() {
    let with_worker = AwaitedView {
        command: Some(CommandView::without_message(CommandState::WithWorker)),
        ..charge(None)
    };
    let told = asked(&live(), &[with_worker]);
    assert_eq!(told.cause, Cause::Effect);
    assert_eq!(
        told.why,
        "step charge waits for the result of effect charge since 10:00; a worker was given its command and has not answered: \
         the call is in progress"
    );
}

#[test]
fn a_worker_that_is_missing_comes_before_other_work_and_after_a_failed_call_too() {
    let ship = AwaitedView {
        step: "ship".to_owned(),
        ..charge(None)
    };
    let told = asked(&live(), &[ship, queued(false, 0)]);
    assert_eq!(told.cause, Cause::NoWorker);
    assert!(told.why.starts_with("step charge"), "{}", told.why);
    let failed = AwaitedView {
        calls: Some(failing()),
        ..queued(false, 0)
    };
    let told = asked(&live(), &[failed]);
    assert_eq!(told.cause, Cause::NoWorker);
    assert!(told.why.contains("connection refused"), "{}", told.why);
}

#[test]
fn a_dead_letter_comes_before_other_pending_inputs() {
    let blocked = BlockedView {
        since: "10:00".to_owned(),
        dead_letter: Some(LetterView {
            id: Some("1-7".to_owned()),
            reason: "expression".to_owned(),
            message: "division by zero".to_owned(),
        }),
        definition: None,
        inputs: 4,
        overdue: Vec::new(),
        questions: 0,
        paused: None,
    };
    let instance = InstanceView {
        blocked_by: Some(blocked),
        ..live()
    };
    let told = asked(&instance, &[charge(None)]);
    assert_eq!(told.cause, Cause::DeadLetter);
    for part in ["dead letter 1-7", "division by zero", "4 input(s) wait"] {
        assert!(told.why.contains(part), "{part}: {}", told.why);
    }
}

#[test]
fn a_pause_says_who_paused_why_and_since_when() {
    let blocked = BlockedView {
        since: "10:00".to_owned(),
        dead_letter: None,
        definition: None,
        inputs: 2,
        overdue: Vec::new(),
        questions: 0,
        paused: Some(PausedView {
            by: "ada".to_owned(),
            reason: "ticket 4711".to_owned(),
            since: "10:00".to_owned(),
        }),
    };
    let instance = InstanceView {
        blocked_by: Some(blocked),
        ..live()
    };
    let told = asked(&instance, &[charge(None)]);
    assert_eq!(told.cause, Cause::Paused);
    assert_eq!(
        told.why,
        "it is paused since 10:00, by ada (ticket 4711); 2 input(s) wait until it is resumed"
    );
}

#[test]
fn troubles_come_before_what_merely_waits() {
    let waits = AwaitedView {
        step: "confirm".to_owned(),
        waits_for: WaitsFor::Message,
        messages: vec!["signal approve".to_owned()],
        due: Some("11:00".to_owned()),
        ..AwaitedView::default()
    };
    let told = asked(&live(), &[waits.clone(), charge(Some(failing()))]);
    assert_eq!(told.cause, Cause::Failing);
    assert!(told.why.ends_with("; 1 more are pending"), "{}", told.why);
    let told = asked(&live(), &[waits]);
    assert_eq!(
        told.why,
        "step confirm waits for signal approve, at most until 11:00"
    );
}

#[test]
fn a_child_says_why_it_does_not_end() {
    let child = asked(&live(), &[charge(Some(failing()))]);
    let step = AwaitedView {
        step: "ship".to_owned(),
        waits_for: WaitsFor::Child,
        child: Some(ParentView {
            saga: "shipment".to_owned(),
            key: "s-1".to_owned(),
        }),
        ..AwaitedView::default()
    };
    let told = why(Evidence {
        instance: &live(),
        pending: &[step],
        hears: &[],
        child: Some(&child),
    });
    assert_eq!(told.cause, Cause::Child);
    assert!(
        told.why.starts_with(
            "step ship waits for the end of instance s-1 of saga shipment, which is running: step charge"
        ),
        "{}",
        told.why
    );
}

#[test]
fn an_instance_with_handlers_alone_names_the_events_it_waits_for() {
    let hears = ["event Order.Paid".to_owned(), "signal approve".to_owned()];
    let told = why(Evidence {
        instance: &live(),
        pending: &[],
        hears: &hears,
        child: None,
    });
    assert_eq!(
        (told.cause, told.why.as_str()),
        (Cause::Handlers, "it waits for event Order.Paid or signal approve")
    );
}

#[test]
fn an_ended_instance_says_so() {
    let record = Record {
        data: b"{}".to_vec().into(),
        ..Record::opened(1, DefinitionHash([0; 32]), "e-1", TimeMs(0))
    };
    let summary = Summary {
        record,
        ended: TimeMs(1_767_261_600_000),
    };
    let told = asked(&InstanceView::ended(&id("o-1"), &summary, None), &[]);
    assert_eq!(
        (told.cause, told.why.as_str()),
        (Cause::Ended, "it is over: running at 2026-01-01T10:00:00.000Z")
    );
}
