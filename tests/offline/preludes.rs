//! Cases that stand on others, and steps that are repeated.

use super::{Project, test, text};

const NONE: [String; 0] = [];

const PAID: &str = "saga: trip
cases:
  - name: booked
    start: 2026-01-01T10:00:00Z
    key: t-1
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}, expect: {work: [{effect: book, with: {trip: t-1}}]}}
  - name: a room
    given: booked
    steps:
      - {result: {of: room, ok: {}}, expect: {ledger: [room]}}
  - name: paid in time
    given: a room
    steps:
      - {advance: 59m, hold: pay, expect: {timers: {late: 1m}}}
      - {result: {of: pay, ok: {}}, expect: {phase: completed}}
  - name: paid too late
    given: a room
    steps:
      - {advance: 1h, hold: pay, expect: {failure: late, work: [{effect: unbook}]}}
";

#[test]
fn a_case_begins_where_the_case_that_is_given_ends() {
    let project = Project::new(PAID);
    assert_eq!(project.findings(&["--chaos"]), NONE);
    assert_eq!(project.findings(&["--filter", "too late"]), NONE);
}

#[test]
fn a_failing_given_case_is_reported_at_its_place_and_once_at_each_use() {
    let project = Project::new(
        &PAID
            .replace("ledger: [room]", "ledger: []")
            .replace("failure: late,", "failure: early,"),
    );
    assert_eq!(
        project.findings(&[]),
        [
            "11:55 SR0601 ledger: expected [], found [{\"status\":\"held\",\"step\":\"room\"}]",
            "13:12 SR0602 the case \"a room\" does not hold",
            "18:12 SR0602 the case \"a room\" does not hold",
        ]
    );
    let (_, report) = project.json(&[]);
    assert_eq!(report["cases"][3]["further"], 1, "{report:#}");
}

#[test]
fn a_case_that_is_not_there_or_stands_on_itself_is_a_mistake_of_the_file() {
    for (from, to, message) in [
        ("given: a room", "given: rooms", "no case is called \"rooms\""),
        ("key: t-1", "given: paid in time", "stands on this case itself"),
        (
            "given: booked",
            "given: booked\n    key: t-2",
            "\"key\" is that of the case that is given",
        ),
    ] {
        let project = Project::new(&PAID.replacen(from, to, 1));
        let shown = text(&test(&[&project.path("").display().to_string()]).stdout);
        assert!(shown.contains(message), "{shown}");
    }
}

const TALLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tally
start: Tally.Opened
key: {"Tally.*": event.data.id}
state: {init: {n: 0}}
handlers: {Tally.Added: {set: {n: "${state.n + 1}"}}}
steps: {w: {wait: {signal: close, timeout: 1000h}}}
"#;

fn tally(steps: &str) -> Project {
    let project = Project::new(&format!(
        "saga: tally\ncases:\n  - name: many\n    steps:\n      - {{event: Tally.Opened, data: {{id: t-1}}}}\n{steps}"
    ));
    project.write("sagas/tally.yaml", TALLY);
    project
}

#[test]
fn steps_are_repeated_within_each_other_and_each_round_is_checked() {
    let project = tally(
        "      - repeat: 400
        steps:
          - repeat: 2
            steps:
              - {event: Tally.Added, data: {id: t-1}}
          - {advance: 1h, expect: {steps: {w: waiting}}}
      - {signal: close, expect: {phase: completed, state: {n: 800}}}
",
    );
    assert_eq!(project.findings(&[]), NONE);
    let project = tally(
        "      - {repeat: 5, steps: [{event: Tally.Added, data: {id: t-1}}, {advance: 300h, expect: {steps: {w: waiting}}}]}
",
    );
    assert_eq!(
        project.findings(&[]),
        ["6:104 SR0601 steps.w: expected \"waiting\", found \"failed\", in round 4 of 5"]
    );
}

#[test]
fn more_steps_than_a_case_may_have_are_refused() {
    let project = tally("      - {repeat: 1000, steps: [{repeat: 1000, steps: [{advance: 1ms}]}]}\n");
    let shown = text(&test(&[&project.path("").display().to_string()]).stdout);
    assert!(
        shown.contains("1000001 steps, at most 100000 are allowed"),
        "{shown}"
    );
}
