//! What operators do to instances, in cases.

use super::Project;

const NONE: [String; 0] = [];

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {calls: 0, paid: false}}
handlers:
  Trip.Called: {set: {calls: "${state.calls + 1}"}}
steps:
  room: {effect: book, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}}}
  pay:
    needs: [room]
    effect: book
    with: {trip: "${key}"}
    retry: {attempts: 3, errors: [transient], backoff: {initial: 10m}}
    set: {paid: true}
timers:
  late: {after: 1h, cancel_when: state.paid, fail: {code: late}}
"#;

const RENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
input: {type: object, required: [months], properties: {months: {type: integer}}}
steps:
  pay: {effect: book, with: {months: "${input.months}"}, compensate: {effect: unbook, with: {}}}
"#;

fn findings(saga: &str, steps: &str) -> Vec<String> {
    let project = Project::new(&format!(
        "saga: trip\ncases:\n  - name: an operator\n    start: 2026-01-01T10:00:00Z\n    key: t-1\n    steps:\n{steps}"
    ));
    project.write("sagas/trip.yaml", saga);
    project.findings(&["--chaos"])
}

#[test]
fn a_paused_instance_keeps_what_comes_until_it_is_resumed() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {pause: to look at it, expect: {phase: running, work: []}}
      - {pause: once more, expect: {ignored: nothing_to_do}}
      - {event: Trip.Called, data: {trip: t-1}, expect: {deferred: true, state: {calls: 0}}}
      - {result: {of: room, ok: {}}, expect: {deferred: true, steps: {room: running}}}
      - {resume: it is well, expect: {state: {calls: 1}, steps: {room: done, pay: running}, work: [{effect: book, of: pay}], no_other_work: true}}
      - {resume: once more, expect: {ignored: nothing_to_do}}
      - {succeed: all, expect: {phase: completed}}
";
    assert_eq!(findings(SAGA, steps), NONE);
}

#[test]
fn a_killed_instance_ends_at_once_and_undoes_nothing() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: room, ok: {}}}
      - {kill: it is beyond help, expect: {phase: cancelled, failure: killed, work: [], timers: [], ledger: [{step: room, status: held}]}}
      - {kill: once more, expect: {ignored: ended}}
      - {result: {of: pay, ok: {}}, expect: {phase: cancelled, work: [], ledger: [{step: room, status: held}]}}
";
    assert_eq!(findings(SAGA, steps), NONE);
}

#[test]
fn an_operator_makes_the_next_attempt_of_what_backs_off() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {try_now: all, expect: {ignored: nothing_to_do}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, error: transient}, expect: {steps: {pay: backing_off}, timers: {\"retry:pay\": 10m}, work: []}}
      - {try_now: room, expect: {ignored: nothing_to_do}}
      - {try_now: pay, expect: {steps: {pay: running}, timers: [late], work: [{effect: book, of: pay, attempt: 2}]}}
      - {result: {of: pay, error: transient}}
      - {try_now: all, expect: {work: [{effect: book, of: pay, attempt: 3}]}}
      - {result: {of: pay, ok: {}}, expect: {phase: completed}}
";
    assert_eq!(findings(SAGA, steps), NONE);
}

#[test]
fn an_operator_fires_and_cancels_timers() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {fire_timer: early, expect: {ignored: nothing_to_do}}
      - {fire_timer: late, expect: {failure: late, phase: compensating}}
      - {result: {of: room, ok: {}}, expect: {work: [{effect: unbook}]}}
      - {succeed: all, expect: {phase: failed}}
";
    assert_eq!(findings(SAGA, steps), NONE);
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {cancel_timer: late, expect: {timers: []}}
      - {cancel_timer: late, expect: {ignored: nothing_to_do}}
      - {advance: 2h, hold: all, expect: {phase: running, failure: null}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, error: transient}}
      - {cancel_timer: \"retry:pay\", expect: {ignored: nothing_to_do, timers: [\"retry:pay\"]}}
      - {fire_timer: \"retry:pay\", expect: {work: [{effect: book, of: pay, attempt: 2}]}}
      - {succeed: all, expect: {phase: completed}}
";
    assert_eq!(findings(SAGA, steps), NONE);
}

#[test]
fn an_ended_instance_is_begun_again_from_where_it_failed() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: room, ok: {}}}
      - {retry_ended: {}, expect: {ignored: nothing_to_do}}
      - {result: {of: pay, error: declined}, expect: {phase: compensating}}
      - {succeed: all, expect: {phase: failed, ledger: [{step: room, status: undone}]}}
      - {retry_ended: {}, expect: {phase: running, failure: null, steps: {room: running, pay: pending}, work: [{effect: book, of: room, idempotency_key: new}]}}
      - {succeed: all, expect: {phase: completed}}
";
    assert_eq!(findings(SAGA, steps), NONE);
}

/// Nobody knows what became of the payment, and nothing undoes it.
#[test]
fn an_unknown_outcome_is_resolved_before_an_ended_instance_begins_again() {
    let steps = |found: &str, then: &str| {
        format!(
            "
      - {{event: Trip.Booked, data: {{trip: t-1}}}}
      - {{result: {{of: room, ok: {{}}}}}}
      - {{result: {{of: pay, timeout: true}}, expect: {{phase: compensating}}}}
      - {{succeed: all, expect: {{phase: failed}}}}
      - {{retry_ended: {{}}, expect: {{ignored: refused}}}}
      - {{retry_ended: {{room: done}}, expect: {{ignored: refused}}}}
      - {{retry_ended: {{pay: {found}}}, expect: {{steps: {{room: running, pay: {then}}}}}}}
      - {{succeed: all, expect: {{phase: completed}}}}
"
        )
    };
    for (found, then) in [
        ("done", "done"),
        ("{ok: {receipt: r-1}}", "done"),
        ("not_done", "pending"),
    ] {
        assert_eq!(findings(SAGA, &steps(found, then)), NONE, "{found}");
    }
}

#[test]
fn an_ended_instance_is_restarted_with_its_input() {
    let steps = "
      - {start: {months: 3}, expect: {phase: running}}
      - {restart: too early, expect: {ignored: nothing_to_do}}
      - {result: {of: pay, error: declined}, expect: {phase: failed}}
      - {restart: the card is well, expect: {phase: running, failure: null, work: [{effect: book, with: {months: 3}, idempotency_key: new}]}}
      - {result: {of: {step: pay, generation: 1}, ok: {}}, expect: {ignored: orphan}}
      - {result: {of: {step: pay, generation: 2}, ok: {}}, expect: {phase: completed}}
      - {restart: once more, expect: {ignored: refused}}
";
    assert_eq!(findings(RENT, steps), NONE);
}
