//! Questions to operators in cases.

use super::{Project, text};

const CASES: &str = r"
saga: trip
cases:
  - name: the bank has it
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - result: {of: pay, timeout: true}
        expect: {phase: running, steps: {pay: stuck}, work: [{fact: saga.step_asked, payload: {step: pay}}], no_other_work: true}
      - {resolve: pay, expect: {ignored: no_handler}}
      - {skip: pay, expect: {ignored: refused}}
      - {resolve: pay, as: done, ok: {paid_by: card}, expect: {phase: completed, state: {paid: card}}}
  - name: the bank does not have it
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, timeout: true}}
      - {resolve: pay, as: not_done, expect: {failure: timeout, work: [{effect: unbook}]}}
      - {result: {of: room.compensate, ok: {}}, expect: {phase: failed}}
  - name: an operator skips it
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, timeout: true}}
      - {skip: pay, as: not_done, ok: {paid_by: cash}, expect: {phase: completed, state: {paid: cash}, steps: {pay: skipped}}}
  - name: it is sent again
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, timeout: true}}
      - {retry: pay, expect: {work: [{effect: book, of: pay, attempt: 2}], steps: {pay: running}}}
      - {result: {of: pay, ok: {paid_by: card}}, expect: {phase: completed}}
  - name: the answer comes after all
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, timeout: true}}
      - {result: {of: pay, ok: {paid_by: card}}, expect: {phase: completed}}
  - name: nobody answers in time
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, timeout: true}}
      - {advance: 1h, expect: {failure: late, work: [{effect: unbook}]}}
      - {result: {of: room.compensate, ok: {}}, expect: {phase: failed}}
";

fn asking(cases: &str) -> Project {
    let project = Project::new(cases);
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: book\nhttp: {method: POST, url: \"${upstreams.shop}/x\"}\non_ambiguous: ask\n";
    project.write("effects/book.yaml", effect);
    let saga = super::SAGA.replace("set: {paid: true}", "set: {paid: \"${result.paid_by}\"}");
    let saga = saga.replace("cancel_when: state.paid", "cancel_when: \"state.paid != false\"");
    project.write("sagas/trip.yaml", &saga);
    project
}

#[test]
fn a_case_gives_an_unknown_outcome_and_the_answer_of_an_operator() {
    let project = asking(CASES);
    let (code, report) = project.json(&[]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["passed"], 6);
}

#[test]
fn when_everything_fails_in_turn_an_operator_answers_and_every_run_ends() {
    let cases = CASES.replace("saga: trip\n", "saga: trip\nresults: {pay: {paid_by: card}}\n");
    let project = asking(&cases);
    let (code, report) = project.json(&["--chaos"]);
    assert_eq!(code, Some(0), "{report:#}");
}

#[test]
fn an_answer_that_can_be_none_is_shown_at_its_place() {
    let case = |step: &str| {
        format!("saga: trip\ncases:\n  - name: one\n    key: t-1\n    steps:\n      - {{{step}}}\n")
    };
    for (step, message) in [
        ("retry: pay, as: done", "only a resolve and a skip have \"as\""),
        (
            "resolve: pay, ok: {}",
            "\"ok\" is the result of a step that is resolved as done",
        ),
        ("resolve: pay, as: not_done, ok: {}", "resolved as done"),
        (
            "resolve: pay, as: perhaps",
            "as is \"perhaps\", expected done or not_done",
        ),
        ("resolve: all, as: done", "\"as\" is about one step"),
    ] {
        let project = asking(&case(step));
        let output = super::test(&[&project.path("").display().to_string()]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{step}");
        assert!(said.contains(message), "{step}: {said}");
    }
}
