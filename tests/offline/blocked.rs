//! Dead letters in cases: the instance waits behind them as it does in production, and goes on when an operator has decided.

use super::Project;

const TALLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tally
start: Tally.Opened
key: {"Tally.*": event.data.id}
state: {init: {n: 0}}
handlers: {Tally.Added: {set: {n: "${state.n + event.data.by}"}}}
steps: {w: {wait: {signal: close, timeout: 1h}}}
"#;

fn cases(steps: &str) -> String {
    format!(
        "saga: tally\ncases:\n  - name: poison\n    key: t-1\n    chaos: false\n    steps:\n      - {{event: Tally.Opened, data: {{id: t-1}}}}\n{steps}"
    )
}

fn played(steps: &str) -> (Option<i32>, String) {
    let project = Project::new(&cases(steps));
    project.write("sagas/tally.yaml", TALLY);
    let (code, report) = project.json(&[]);
    (code, format!("{report:#}"))
}

const POISON: &str = "      - {event: Tally.Added, data: {id: t-1, by: many}, expect: {rejected: expression, blocked: true}}\n";

#[test]
fn events_behind_a_dead_letter_wait_until_it_is_discarded() {
    let (code, report) = played(&format!(
        "{POISON}      - {{event: Tally.Added, data: {{id: t-1, by: 5}}, expect: {{state: {{n: 0}}, blocked: true}}}}
      - {{event: Tally.Added, data: {{id: t-1, by: 2}}, expect: {{blocked: true}}}}
      - {{dead_letter: discard, expect: {{state: {{n: 7}}, blocked: false}}}}\n"
    ));
    assert_eq!(code, Some(0), "{report}");
}

#[test]
fn a_retry_of_a_dead_letter_that_still_fails_leaves_the_instance_blocked() {
    let (code, report) = played(&format!(
        "{POISON}      - {{dead_letter: retry, expect: {{rejected: expression, blocked: true, state: {{n: 0}}}}}}\n"
    ));
    assert_eq!(code, Some(0), "{report}");
}

#[test]
fn a_case_that_does_not_expect_an_input_to_wait_fails() {
    let (code, report) = played(&format!(
        "{POISON}      - {{event: Tally.Added, data: {{id: t-1, by: 5}}, expect: {{state: {{n: 5}}}}}}\n"
    ));
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("waits behind a dead letter"), "{report}");
}

#[test]
fn a_decision_without_a_dead_letter_is_a_finding() {
    let (code, report) = played("      - {dead_letter: retry}\n");
    assert_eq!(code, Some(1), "{report}");
    assert!(
        report.contains("no dead letter stands before the instance"),
        "{report}"
    );
}

#[test]
fn a_key_is_free_again_when_its_ended_instance_is_kept_no_longer() {
    let (code, report) = played(
        "      - {signal: close, expect: {phase: completed}}
      - {event: Tally.Opened, data: {id: t-1}, expect: {ignored: ended}}
      - {advance: 8d}
      - {event: Tally.Opened, data: {id: t-1}, expect: {phase: running}}\n",
    );
    assert_eq!(code, Some(0), "{report}");
}

#[test]
fn another_event_under_an_id_that_was_used_is_rejected_and_blocks_nothing() {
    let (code, report) = played(
        "      - {event: Tally.Added, id: a-1, data: {id: t-1, by: 5}, expect: {state: {n: 5}}}
      - {event: Tally.Added, id: a-1, data: {id: t-1, by: 7}, expect: {rejected: event_id.conflict, blocked: false, state: {n: 5}}}
      - {event: Tally.Added, id: a-1, data: {id: t-1, by: 5}, expect: {ignored: duplicate}}\n",
    );
    assert_eq!(code, Some(0), "{report}");
}

#[test]
fn a_reason_that_never_comes_out_is_a_mistake_of_the_file() {
    let project = Project::new(&cases(
        "      - {event: Tally.Added, data: {id: t-1, by: 5}, expect: {ignored: conflict}}\n",
    ));
    project.write("sagas/tally.yaml", TALLY);
    let output = super::test(&[&project.path("").display().to_string()]);
    let shown = super::text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("error[SR0108]: \"conflict\""), "{shown}");
}
