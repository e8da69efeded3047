//! Time in cases: deadlines of work come as it passes, and inputs come at the very instant of a timer.

use super::{Project, test, text};

const BANK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: bank
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {calls: 0}}
handlers:
  Trip.Added: {set: {calls: "${state.calls + event.data.by}"}}
  Trip.Called: {set: {calls: "${state.calls + 1}"}}
steps:
  pay:
    effect: book
    with: {trip: "${key}"}
    timeout: TIMEOUT
    retry: {attempts: 2, errors: [timeout], backoff: {initial: 30s, factor: 1}}
    compensate: {effect: unbook, with: {trip: "${key}"}}
timers:
  late: {after: 1h, fail: {code: late}}
  early: {after: 30m, set: {calls: "${state.calls + 10}"}}
"#;

const NONE: [String; 0] = [];

fn findings(timeout: &str, steps: &str) -> Vec<String> {
    let cases = format!(
        "saga: bank\ncases:\n  - name: time passes\n    chaos: false\n    steps:\n      - {{event: Trip.Booked, data: {{trip: t-1}}}}\n{steps}"
    );
    let project = Project::new("saga: trip\ncases: []\n");
    project.write("sagas/bank.yaml", &BANK.replace("TIMEOUT", timeout));
    project.write("sagas/trip.test.yaml", &cases);
    project.findings(&[])
}

const SILENT: &str = r#"
      - {advance: 9s, expect: {steps: {pay: running}, work: []}}
      - {advance: 1s, expect: {steps: {pay: {status: backing_off, error: timeout}}, timers: {"retry:pay": 30s}}}
      - {advance: 40s, expect: {phase: compensating, failure: timeout, work: [{effect: book, attempt: 2, idempotency_key: same}, {effect: unbook}], in_order: true}}
      - {result: {of: pay.compensate, ok: {}}, expect: {phase: failed}}
"#;

#[test]
fn the_deadline_of_work_comes_as_time_passes() {
    assert_eq!(findings("10s", SILENT), NONE);
    let other = findings("10m", SILENT);
    assert!(
        other[0].starts_with("9:") && other[0].contains("expected \"backing_off\""),
        "{other:?}"
    );
}

#[test]
fn a_deadline_of_held_work_does_not_come_until_time_passes_without() {
    let steps = "
      - {advance: 5m, hold: pay, expect: {steps: {pay: running}}}
      - {advance: 5m, hold: all, expect: {steps: {pay: running}}}
      - {advance: 0s, expect: {steps: {pay: {status: backing_off, error: timeout}}}}
";
    assert_eq!(findings("10s", steps), NONE);
}

#[test]
fn a_hold_that_names_no_work_is_a_finding() {
    let steps = "      - {advance: 5s, hold: [pay, pai]}\n";
    assert_eq!(findings("10s", steps), ["7:29 SR0602 no work is called \"pai\""]);
}

#[test]
fn hold_and_before_at_the_wrong_kind_of_step_are_mistakes_of_the_file() {
    let project = Project::new(
        "saga: trip\ncases:\n  - name: a\n    steps:\n      - {signal: x, hold: pay}\n      - {advance: 1m, before: late}\n",
    );
    let shown = text(&test(&[&project.path("").display().to_string()]).stdout);
    for (place, message) in [
        (
            "5:21",
            "\"hold\" goes with \"advance\", \"schedule\" or \"before\": no time passes here",
        ),
        (
            "6:23",
            "\"before\" goes with what comes at an instant, not with \"advance\"",
        ),
    ] {
        assert!(shown.contains(&format!("trip.test.yaml:{place}\n")), "{shown}");
        assert!(shown.contains(message), "{shown}");
    }
}

#[test]
fn an_input_comes_at_the_instant_of_a_timer_before_it_or_after_it() {
    let before = "
      - {event: Trip.Called, data: {trip: t-1}, before: late, hold: pay, expect: {phase: running, state: {calls: 11}, timers: {late: 0ms}}}
      - {advance: 0s, hold: pay, expect: {phase: compensating, failure: late}}
";
    assert_eq!(findings("2h", before), NONE);
    let after = "
      - {advance: 1h, expect: {phase: compensating, failure: late}}
      - {event: Trip.Called, data: {trip: t-1}, expect: {ignored: no_handler}}
";
    assert_eq!(findings("2h", after), NONE);
    // The result that comes at the last instant is in time.
    let paid = "
      - {result: {of: pay, ok: {}}, before: late, expect: {phase: completed}}
";
    assert_eq!(findings("2h", paid), NONE);
}

#[test]
fn a_timer_that_is_not_set_or_is_cleared_on_the_way_is_a_finding() {
    let unknown = "      - {result: {of: pay, ok: {}}, before: lat}\n";
    assert_eq!(findings("2h", unknown), ["7:45 SR0602 no timer \"lat\" is set"]);
    let cleared = "      - {event: Trip.Called, data: {trip: t-1}, before: late}\n";
    assert_eq!(
        findings("10s", cleared),
        ["7:57 SR0602 what comes before the timer \"late\" clears it"]
    );
}

#[test]
fn a_deadline_behind_a_dead_letter_waits_as_a_result_does() {
    let steps = "
      - {event: Trip.Added, data: {trip: t-1, by: many}, expect: {rejected: expression, blocked: true}}
      - {advance: 10s, expect: {steps: {pay: running}, blocked: true}}
      - {advance: 10s, expect: {steps: {pay: running}, blocked: true}}
      - {dead_letter: discard, expect: {steps: {pay: backing_off}, blocked: false}}
";
    assert_eq!(findings("10s", steps), NONE);
}
