//! Several instances in one case: parents and children, sagas that hear each other, an alias with two owners.

use super::Project;

const NONE: [String; 0] = [];

const ORDER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: order
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {receipt: ""}}
steps:
  pay:
    saga: {name: payment, key: "${key}-pay", input: {cents: 5}}
    set: {receipt: "${result.state.receipt}"}
    compensate: {saga: undo}
  ship: {needs: [pay], effect: book, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}}}
"#;

const PAYMENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: payment
input: {type: object, required: [cents], properties: {cents: {type: integer}}}
state: {init: {receipt: "", hurried: false}}
handlers:
  signal.hurry: {set: {hurried: true}}
steps:
  charge:
    effect: book
    with: {cents: "${input.cents}"}
    timeout: 1m
    set: {receipt: "${result.id}"}
    compensate: {effect: unbook, with: {cents: "${input.cents}"}}
timers:
  slow: {after: 30s, set: {hurried: true}}
"#;

fn project(cases: &str) -> Project {
    let project = Project::new(cases);
    project.write("sagas/order.yaml", ORDER);
    project.write("sagas/payment.yaml", PAYMENT);
    project
}

#[test]
fn parent_and_child_play_one_case() {
    let project = project(
        r"
saga: order
results: {book: {id: r-1}}
cases:
  - name: paid
    sagas: [payment]
    start: 2026-01-01T10:00:00Z
    steps:
      - event: Trip.Booked
        data: {trip: t-1}
        expect: {steps: {pay: running}, work: [{saga: payment, request: start, from: order/t-1}, {effect: book, from: payment/t-1-pay, with: {cents: 5}}], in_order: true, no_other_work: true}
      - {advance: 30s, expect: {steps: {pay: running}}}
      - {at: payment, signal: hurry, expect: {state: {hurried: true}, steps: {charge: running}}}
      - {at: payment/t-1-pay, result: {of: charge, ok: {id: r-7}}, expect: {phase: completed, work: [{effect: book, of: ship, from: order/t-1}]}}
      - {advance: 0s, expect: {state: {receipt: r-7}, steps: {pay: done, ship: running}}}
  - name: shipping fails, and the payment is undone
    given: paid
    steps:
      - {result: {of: ship, error: lost}, expect: {phase: compensating, work: [{saga: payment, request: undo}, {effect: unbook, of: charge.compensate}]}}
      - {at: payment, result: {of: charge.compensate, ok: {}}, expect: {phase: cancelled}}
      - {advance: 0s, expect: {phase: failed, failure: lost}}
  - name: the deadline of a child comes
    sagas: [payment]
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {advance: 61s, expect: {phase: running, work: [{effect: unbook, of: charge.compensate}]}}
      - {at: payment, result: {of: charge.compensate, ok: {}}, expect: {phase: failed}}
      - {advance: 0s, expect: {phase: failed, failure: child_failed}}
",
    );
    assert_eq!(project.findings(&["--chaos"]), NONE);
}

/// The operator is asked about the child, and nobody else can say how it went.
#[test]
fn when_everything_fails_in_turn_an_operator_answers_for_children_too() {
    let project = project(
        "
saga: order
results: {book: {id: r-1}}
cases:
  - name: paid
    sagas: [payment]
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {succeed: all, expect: {phase: completed}}
",
    );
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: book\non_ambiguous: ask\nhttp: {method: POST, url: \"${upstreams.shop}/x\"}\n";
    project.write("effects/book.yaml", effect);
    assert_eq!(project.findings(&["--chaos"]), NONE);
}

#[test]
fn one_case_covers_every_saga_that_plays() {
    let project = project(
        "
saga: order
cases:
  - name: paid
    sagas: [payment]
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {at: payment, result: {of: charge, ok: {id: r-7}}}
",
    );
    let (_, report) = project.json(&["--coverage"]);
    let coverage = report["coverage"].as_array().expect("coverage");
    let missing = |saga: &str| {
        let of = coverage.iter().find(|of| of["saga"] == saga).expect("measured");
        of["uncovered"].to_string()
    };
    assert!(!missing("payment").contains("steps.charge is done"), "{report:#}");
    assert!(missing("order").contains("steps.ship is done"), "{report:#}");
}

#[test]
fn an_instance_that_is_not_there_is_a_finding() {
    for (steps, message) in [
        (
            "{at: payment, signal: hurry}",
            "there is no instance of payment yet",
        ),
        (
            "{at: paiment, signal: hurry}",
            "no saga of this name plays along, but order, payment",
        ),
    ] {
        let project = project(&format!(
            "saga: order\ncases:\n  - name: a\n    key: t-1\n    sagas: [payment]\n    steps: [{steps}]\n"
        ));
        let found = project.findings(&[]);
        assert!(found[0].ends_with(message), "{found:?}");
    }
    let project = project(
        "saga: order\ncases:\n  - name: a\n    sagas: [paiment]\n    steps: [{event: Trip.Booked, data: {trip: t-1}}]\n",
    );
    assert_eq!(project.findings(&[]), ["4:13 SR0602 unknown saga \"paiment\""]);
}

const HALL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: hall
start: Hall.Opened
key: {"Hall.*": event.data.hall}
state: {init: {guest: "", thanked: []}}
handlers:
  Hall.Opened: {set: {guest: "${event.data.guest}"}}
  Hall.Moved: {emit: {publish: {type: seat.moved, payload: {guest: "${state.guest}", to: "${event.data.to}"}}}}
  Hall.Emptied: {emit: {publish: {type: seat.gone}}}
  signal.thanks: {set: {thanked: "${state.thanked + [signal.by]}"}}
steps:
  seat: {publish: {type: seat.confirmed, payload: {guest: "${state.guest}"}}}
  hold: {wait: {signal: close, timeout: 1h}}
"#;

const GUEST: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: guest
start: seat.confirmed
key: {"seat.*": event.data.guest}
events:
  seat.confirmed: {from: hall}
  seat.moved: {from: hall}
  seat.gone: {from: hall, by: {hall: event.aggregate_id}}
state: {init: {seats: []}}
handlers:
  seat.confirmed:
    alias: {hall: "${event.aggregate_id}"}
    emit: {signal: {saga: hall, key: "${event.aggregate_id}", name: thanks, data: {from: "${key}"}}}
  seat.moved: {set: {seats: "${state.seats + [event.data.to]}"}}
steps:
  leave: {wait: {event: seat.gone, timeout: 1h}}
"#;

#[test]
fn sagas_hear_each_others_facts_and_signals_and_an_alias_reaches_all_its_owners() {
    let project = Project::new(
        "
saga: hall
cases:
  - name: a hall and its guests
    sagas: [guest]
    start: 2026-01-01T10:00:00Z
    steps:
      - event: Hall.Opened
        data: {hall: h-1, guest: g-1}
        expect: {state: {thanked: [guest/g-1]}, work: [{fact: seat.confirmed}, {signal: thanks, saga: hall}], in_order: true}
      - {event: Hall.Moved, data: {hall: h-1, to: 7}}
      - {at: guest, advance: 0s, expect: {phase: running, state: {seats: [7]}, aliases: {hall: [h-1]}}}
      - {event: Hall.Opened, id: again, data: {hall: h-1, guest: g-2}, expect: {state: {guest: g-2}}}
      - {event: Hall.Emptied, data: {hall: h-1}}
      - {at: guest, advance: 0s, expect: {phase: completed, aliases: {hall: null}}}
      - {signal: close, expect: {phase: completed}}
",
    );
    project.write("sagas/hall.yaml", HALL);
    project.write("sagas/guest.yaml", GUEST);
    assert_eq!(project.findings(&["--chaos"]), NONE);
}

const CRATE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: crate
start: Crate.Packed
key: {"Crate.*": event.data.id}
events: {Ship.Sailed: {by: {ship: event.data.ship}}}
handlers:
  Crate.Packed: {alias: {ship: "${event.data.ship}"}}
steps:
  sail: {wait: {event: Ship.Sailed, timeout: 1h}}
"#;

#[test]
fn two_instances_of_one_saga_have_one_alias() {
    let project = Project::new(
        "
saga: crate
cases:
  - name: one ship
    sagas: [crate]
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Crate.Packed, data: {id: c-1, ship: s-1}, expect: {steps: {sail: waiting}}}
      - {event: Crate.Packed, data: {id: c-2, ship: s-1}, expect: {phase: running}}
      - {at: crate/c-2, advance: 0s, expect: {steps: {sail: waiting}, aliases: {ship: [s-1]}}}
      - {event: Ship.Sailed, data: {ship: s-1}, expect: {phase: completed}}
      - {at: crate/c-2, advance: 0s, expect: {phase: completed}}
",
    );
    project.write("sagas/crate.yaml", CRATE);
    assert_eq!(project.findings(&["--chaos"]), NONE);
}

/// The hearer recognises repetitions by the sequences of its aggregates, so two facts of one transition have two.
#[test]
fn facts_of_one_transition_have_sequences_that_rise() {
    let project = Project::new(
        r"
saga: teller
cases:
  - name: both are heard
    sagas: [hearer]
    chaos: false
    steps:
      - {event: Talk.Begun, data: {talk: t-1}}
      - {at: hearer, advance: 0s, expect: {state: {rises: true, heard: 2}}}
",
    );
    project.write(
        "sagas/teller.yaml",
        r#"
apiVersion: sagas/v1
kind: Saga
name: teller
start: Talk.Begun
key: {"Talk.*": event.data.talk}
state: {init: {}}
handlers:
  Talk.Begun:
    emit:
      - {publish: {type: talk.one, payload: {talk: "${key}"}}}
      - {publish: {type: talk.two, payload: {talk: "${key}"}}}
steps: {end: {delay: 1h}}
"#,
    );
    project.write(
        "sagas/hearer.yaml",
        r#"
apiVersion: sagas/v1
kind: Saga
name: hearer
start: talk.one
key: {"talk.*": event.data.talk}
events: {talk.one: {from: teller}, talk.two: {from: teller}}
state: {init: {first: 0, heard: 0, rises: false}}
handlers:
  talk.one: {set: {first: "${event.sequence}", heard: 1}}
  talk.two: {set: {rises: "${event.sequence > state.first}", heard: 2}}
steps: {end: {delay: 1h}}
"#,
    );
    assert_eq!(project.findings(&[]), NONE);
}

/// The parent cannot name the timer of its child otherwise.
#[test]
fn an_input_comes_right_before_a_timer_of_another_instance() {
    let told = |steps: &str| {
        let project = project(&format!(
            "saga: order
cases:
  - name: in time
    sagas: [payment]
    start: 2026-01-01T10:00:00Z
    chaos: false
    steps:
      - {{event: Trip.Booked, data: {{trip: t-1}}}}
{steps}"
        ));
        project.findings(&[])
    };
    let steps = "
      - {cancel: too late, before: {timer: slow, at: payment}, hold: all}
      - {at: payment, advance: 0s, hold: all, expect: {phase: cancelling}}
";
    // The child is cancelled before its timer comes, so the timer has nothing to say.
    let found = told(&steps.replace("phase: cancelling", "state: {hurried: false}"));
    assert_eq!(found, NONE);
    let found = told(&steps.replace("phase: cancelling", "state: {hurried: true}"));
    assert_eq!(found.len(), 1, "{found:?}");
    let found = told("\n      - {signal: hurry, before: {timer: slow, at: payment/t-9}}\n");
    assert!(found[0].ends_with("SR0602 no timer \"slow\" is set"), "{found:?}");
    let found = told("\n      - {signal: hurry, before: {timer: slow, at: hotel}}\n");
    assert!(
        found[0].ends_with("SR0602 no saga of this name plays along, but order, payment"),
        "{found:?}"
    );
}
