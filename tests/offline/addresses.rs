//! Which piece of work a case means: an attempt, a turn, an item, a generation; its key, and the order of work.

use super::Project;

const POLL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: poll
start: Trip.Booked
reuse: {after: [failed, cancelled]}
key: {"Trip.*": event.data.trip}
state: {init: {seen: "", done: false}}
steps:
  ask:
    repeat: {until: state.done, max: 5, delay: 1m}
    effect: book
    with: {trip: "${key}"}
    set: {seen: "${result.text}", done: "${result.done}"}
"#;

const LINES: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: lines
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {lines: []}}
handlers: {Trip.Booked: {set: {lines: "${event.data.lines}"}}}
steps:
  all:
    foreach: {over: state.lines, as: line, parallel: 3}
    effect: book
    with: {line: "${line}"}
    retry: {attempts: 3, backoff: {initial: 1m, factor: 1}}
    compensate: {effect: unbook, with: {line: "${input.line}"}}
"#;

fn findings(name: &str, saga: &str, steps: &str) -> Vec<String> {
    let cases = format!("saga: {name}\ncases:\n  - name: addresses\n    chaos: false\n    steps:\n{steps}");
    let project = Project::new(&cases);
    project.write(&format!("sagas/{name}.yaml"), saga);
    project.findings(&[])
}

const NONE: [String; 0] = [];

#[test]
fn an_older_turn_is_addressed_by_its_number() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}, expect: {work: [{effect: book, idempotency_key: new}]}}
      - {result: {of: ask, ok: {text: a, done: false}}, expect: {state: {seen: a}}}
      - {advance: 1m, expect: {work: [{effect: book, idempotency_key: new}]}}
      - {result: {of: {step: ask, turn: 0}, ok: {text: a, done: false}}, expect: {ignored: duplicate, state: {seen: a}}}
      - {result: {of: {step: ask, turn: 0}, ok: {text: b, done: true}}, expect: {rejected: result.conflict, state: {seen: a}}}
      - {result: {of: {step: ask, turn: 1}, ok: {text: c, done: true}}, expect: {phase: completed, state: {seen: c}}}
";
    assert_eq!(findings("poll", POLL, steps), NONE);
}

#[test]
fn an_attempt_and_an_item_are_addressed_by_their_numbers() {
    let steps = "
      - event: Trip.Booked
        data: {trip: t-1, lines: [a, b, c]}
        expect: {work: [{effect: book, with: {line: a}}, {effect: book, with: {line: b}}, {effect: book, with: {line: c}}], in_order: true}
      - {result: {of: {step: all, item: 1}, timeout: true}}
      - {advance: 1m, expect: {work: [{effect: book, with: {line: b}, attempt: 2, idempotency_key: same}], no_other_work: true}}
      - {result: {of: {step: all, item: 1, attempt: 1}, ok: {}}, expect: {steps: {all: running}}}
      - {result: {of: {step: all, item: 2}, error: refused}, expect: {phase: compensating}}
";
    assert_eq!(findings("lines", LINES, steps), NONE);
}

#[test]
fn a_refused_attempt_is_followed_by_one_with_a_new_key() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1, lines: [a]}}
      - {result: {of: all, error: transient, refused: true}}
      - {advance: 1m, expect: {work: [{effect: book, idempotency_key: same}]}}
";
    let found = findings("lines", LINES, steps);
    assert_eq!(
        found,
        ["9:71 SR0601 work of all[0].idempotency_key: expected \"same\", found \"new\""]
    );
}

#[test]
fn work_that_is_sent_in_another_order_is_told() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1, lines: [a, b]}, expect: {work: [{with: {line: b}, effect: book}, {with: {line: a}, effect: book}], in_order: true}}
";
    let found = findings("lines", LINES, steps);
    assert_eq!(found, ["7:79 SR0601 the work is sent in another order"]);
}

#[test]
fn a_life_of_a_key_is_addressed_by_its_number() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: ask, error: refused}, expect: {phase: failed}}
      - {event: Trip.Booked, data: {trip: t-1}, expect: {phase: running, work: [{effect: book, idempotency_key: new}]}}
      - {result: {of: {step: ask, generation: 1}, error: refused}, expect: {ignored: orphan, phase: running}}
      - {result: {of: {step: ask, generation: 2}, ok: {text: b, done: true}}, expect: {phase: completed}}
";
    assert_eq!(findings("poll", POLL, steps), NONE);
}

#[test]
fn an_address_that_no_work_has_is_a_finding() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1, lines: [a]}}
      - {result: {of: {step: all, item: 7}, ok: {}}}
";
    assert_eq!(
        findings("lines", LINES, steps),
        ["8:23 SR0602 nothing awaits a result of \"all, item 7\""]
    );
}

const ASKED: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: asked
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {told: []}}
handlers:
  Trip.Asked: {emit: {name: tell, effect: book, with: {n: "${event.data.n}"}, compensate: {effect: unbook, with: {n: "${input.n}"}}}}
  result.tell: {set: {told: "${state.told + [result.text]}"}}
timers:
  remind: {during: paid, after: 10m, emit: {name: reminder, effect: book, with: {n: 0}}}
steps:
  paid: {wait: {event: Trip.Paid, timeout: 1h}}
"#;

#[test]
fn effects_of_handlers_and_timers_are_addressed_by_their_own_names() {
    let steps = "
      - {event: Trip.Booked, data: {trip: t-1}}
      - {event: Trip.Asked, data: {trip: t-1, n: 1}, expect: {work: [{effect: book, with: {n: 1}, idempotency_key: new}]}}
      - {event: Trip.Asked, data: {trip: t-1, n: 2}, expect: {work: [{effect: book, with: {n: 2}, idempotency_key: new}]}}
      - {result: {of: \"tell[1]\", ok: {text: b}}, expect: {state: {told: [b]}}}
      - {advance: 10m, hold: all, expect: {work: [{effect: book, with: {n: 0}}]}}
      - {result: {of: reminder, ok: {text: r}}}
      - {result: {of: {step: tell, item: 0}, ok: {text: a}}, expect: {state: {told: [b, a]}}}
      - {cancel: no more, expect: {work: [{effect: unbook, with: {n: 1}}]}}
      - {succeed: \"tell[0].compensate\", expect: {work: [{effect: unbook, with: {n: 2}}]}}
      - {succeed: tell.compensate, expect: {phase: cancelled}}
";
    assert_eq!(findings("asked", ASKED, steps), NONE);
}
