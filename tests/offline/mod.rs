//! `saga-runner test` on the real binary: what is found, where, and what stays as it was.

mod addresses;
mod aliases;
mod blocked;
mod chaos;
mod coverage;
mod letters;
mod operators;
mod preludes;
mod questions;
mod replay;
mod results;
mod schedules;
mod time;
mod together;
mod waits;
mod wire;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn test(arguments: &[&str]) -> Output {
    run(&[&["test"], arguments].concat())
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .env_clear()
        .stdin(Stdio::null())
        .current_dir(root())
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A project with one saga of two steps, and a test file.
struct Project(TempDir);

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {paid: false}}
handlers:
  Trip.Booked: {set: {cents: "${event.data.cents}"}}
steps:
  room:
    effect: book
    with: {trip: "${key}"}
    compensate: {effect: unbook, with: {trip: "${key}"}}
  pay:
    needs: [room]
    effect: book
    with: {cents: "${state.cents}"}
    set: {paid: true}
timers:
  late: {after: 1h, cancel_when: state.paid, fail: {code: late}}
"#;

const EFFECT: &str = "apiVersion: sagas/v1\nkind: Effect\nname: NAME\ntransform: {}\n";

impl Project {
    fn new(cases: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let project = Self(dir);
        std::fs::create_dir(project.path("sagas")).expect("created");
        std::fs::create_dir(project.path("effects")).expect("created");
        project.write("sagas/trip.yaml", SAGA);
        for name in ["book", "unbook"] {
            let call = "http: {method: POST, url: \"${upstreams.shop}/x\"}";
            let effect = EFFECT.replace("NAME", name).replace("transform: {}", call);
            project.write(&format!("effects/{name}.yaml"), &effect);
        }
        project.write("sagas/trip.test.yaml", cases);
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn cases(&self) -> String {
        std::fs::read_to_string(self.path("sagas/trip.test.yaml")).expect("readable")
    }

    /// Exit code and JSON report.
    fn json(&self, more: &[&str]) -> (Option<i32>, Value) {
        let path = self.path("").display().to_string();
        let output = test(&[&[path.as_str(), "--format", "json"], more].concat());
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)));
        (output.status.code(), report)
    }

    /// `line:column code message` of every finding of every case.
    fn findings(&self, more: &[&str]) -> Vec<String> {
        let (_, report) = self.json(more);
        let cases = report["cases"].as_array().expect("cases").clone();
        let findings = cases
            .iter()
            .flat_map(|case| case["findings"].as_array().expect("findings").clone());
        findings
            .map(|finding| {
                let message = finding["message"].as_str().expect("a message");
                let code = finding["code"].as_str().expect("a code");
                format!("{}:{} {code} {message}", finding["line"], finding["column"])
            })
            .collect()
    }
}

const GOOD: &str = "saga: trip
cases:
  - name: a trip
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}, expect: {timers: {late: 1h}, work: [{effect: book}]}}
      - {advance: 59m, hold: room, expect: {phase: running}}
      - {result: {of: room, ok: {}}, expect: {ledger: [room], work: [{effect: book, with: {cents: 5}}]}}
      - {result: {of: pay, ok: {}}, expect: {phase: completed, state: {paid: true}, timers: []}}
  - name: too late
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {advance: 60m, hold: [pay], expect: {failure: late, steps: {pay: abandoned}, work: [{effect: unbook}], no_other_work: true}}
      - {result: {of: pay, timeout: true}}
      - {result: {of: room.compensate, ok: {}}, expect: {phase: failed}}
";

#[test]
fn the_shipped_sagas_pass_their_cases_also_when_everything_fails_in_turn() {
    let output = test(&["sagas", "--chaos", "--min-coverage", "90"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("ok     order: a declined card"), "{out}");
    assert!(err.contains("case(s) passed"), "{err}");
}

#[test]
fn a_case_that_holds_says_nothing_and_a_filter_takes_some() {
    let project = Project::new(GOOD);
    let (code, report) = project.json(&["--chaos"]);
    assert_eq!(
        (code, &report["passed"]),
        (Some(0), &Value::from(2)),
        "{report:#}"
    );
    let (code, report) = project.json(&["--filter", "too late"]);
    assert_eq!(code, Some(0));
    assert_eq!(report["cases"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["cases"][0]["line"], 9);
}

#[test]
fn work_succeeds_by_its_name_or_all_of_it_until_none_is_left() {
    let project = Project::new(
        "saga: trip
cases:
  - name: step by step
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {succeed: room, expect: {steps: {room: done, pay: running}, work: [{effect: book, with: {cents: 5}}]}}
      - {succeed: all, expect: {phase: completed, state: {paid: true}}}
  - name: at once
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {succeed: all, expect: {phase: completed}}
      - {succeed: all}
",
    );
    assert_eq!(
        project.findings(&["--chaos"]),
        ["12:19 SR0602 nothing awaits a result of \"any work\""]
    );
}

#[test]
fn every_expectation_that_is_not_met_is_told_with_its_place() {
    let project = Project::new(
        "saga: trip
cases:
  - name: a
    steps:
      - event: Trip.Booked
        data: {trip: t-1, cents: 5}
        expect:
          phase: failed
          state: {cents: 6, paid: false}
          steps: {room: done, pay: pending}
          timers: {late: 2h}
          failure: late
          ledger: [room]
          work: [{effect: unbook}]
  - name: b
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}, expect: {no_other_work: true, rejected: expression}}
  - name: twice
    steps: [&start {event: Trip.Booked, data: {trip: t-1, cents: 5}}, {event: Trip.Booked, id: event-1, data: {trip: t-1, cents: 5}}]
  - name: stale
    steps: [*start, {event: Trip.Moved, data: {trip: t-1}, expect: {ignored: stale}}]
  - name: of others
    steps: [*start, {event: Trip.Moved, data: {trip: t-2}}]
  - name: awaited by none
    steps: [*start, {result: {of: pay, ok: {}}}]
",
    );
    let (code, _) = project.json(&[]);
    assert_eq!(code, Some(1));
    assert_eq!(
        project.findings(&[]),
        [
            "8:18 SR0601 phase: expected \"failed\", found \"running\"",
            "9:26 SR0601 state.cents: expected 6, found 5",
            "12:20 SR0601 failure: expected \"late\", found nothing",
            "10:25 SR0601 steps.room: expected \"done\", found \"running\"",
            "11:26 SR0601 timers.late: expected \"2h\", found \"1h\"",
            "13:19 SR0601 ledger: expected [\"room\"], found []",
            "14:18 SR0601 no such work: {\"effect\":\"unbook\"}",
            "17:67 SR0601 work that is not expected",
            "17:99 SR0601 rejected: expected \"expression\", found nothing",
            "19:72 SR0601 the input is ignored (duplicate)",
            "21:78 SR0601 ignored: expected \"stale\", found \"no_handler\"",
            "23:22 SR0602 the event is for the instance \"t-2\", this is \"t-1\"",
            "25:35 SR0602 nothing awaits a result of \"pay\"",
        ]
    );
}

#[test]
fn an_update_changes_what_is_not_met_and_nothing_else() {
    let project = Project::new(
        "# about trips
saga: trip
cases:
  - name: a
    steps:
      - event: Trip.Booked   # the start
        data: {trip: t-1, cents: 5}
        expect:
          phase: failed   # no
          state: {cents: 6, paid: false}
      - result: {of: room, error: full}
        expect:
",
    );
    let (code, report) = project.json(&["--update"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(
        project.cases(),
        "# about trips
saga: trip
cases:
  - name: a
    steps:
      - event: Trip.Booked   # the start
        data: {trip: t-1, cents: 5}
        expect:
          phase: running   # no
          state: {cents: 5, paid: false}
      - result: {of: room, error: full}
        expect: {failure: full, phase: failed, state: {cents: 5, paid: false}, work: []}
"
    );
    let before = project.cases();
    assert_eq!(project.json(&["--update"]).0, Some(0));
    assert_eq!(project.cases(), before);
}

#[test]
fn mistakes_of_a_test_file_are_told_all_at_once() {
    let project = Project::new(
        "saga: trip
cases:
  - name: a
    start: yesterday
    steps:
      - {event: Trip, dat: {}}
      - {advance: 5 parsecs}
      - {result: {of: room}, expect: {phase: finished, ignored: bored, work: {effect: x}}}
      - {cancel: no more, data: {}}
",
    );
    let path = project.path("").display().to_string();
    let output = test(&[&path]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    for place in [
        "4:12", "6:17", "6:23", "7:19", "8:10", "8:46", "8:65", "8:78", "9:27",
    ] {
        assert!(
            shown.contains(&format!("trip.test.yaml:{place}\n")),
            "{place}: {shown}"
        );
    }
}

#[test]
fn a_saga_that_cannot_end_after_a_failure_is_found_by_chaos() {
    let project = Project::new(
        "saga: trip
cases:
  - name: a trip
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {}}}
      - {result: {of: pay, ok: {}}}
",
    );
    assert_eq!(project.findings(&["--chaos"]), Vec::<String>::new());
    // Its compensation has but one attempt.
    let saga = SAGA.replace(
        "compensate: {effect: unbook,",
        "compensate: {effect: unbook, retry: {attempts: 1},",
    );
    project.write("sagas/trip.yaml", &saga);
    let found = project.findings(&["--chaos"]);
    assert_eq!(
        found.first().map(String::as_str),
        Some(
            "3:11 SR0604 when room times out and room.compensate fails once: the instance stays compensation_failed and awaits nothing"
        ),
        "{found:#?}"
    );
    assert_eq!(found.len(), 14, "{found:#?}");
}

#[test]
fn junit_has_a_suite_for_each_file_and_a_failure_for_each_finding() {
    let project = Project::new(
        &GOOD
            .replace("{phase: completed,", "{phase: \"<&\u{e9}\", ")
            .replace("\"<&\u{e9}\"", "failed"),
    );
    let path = project.path("").display().to_string();
    let file = project.path("out.xml").display().to_string();
    let output = test(&[&path, "--junit", &file]);
    assert_eq!(output.status.code(), Some(1));
    let xml = std::fs::read_to_string(&file).expect("written");
    assert!(xml.contains("<testsuites tests=\"2\" failures=\"1\">"), "{xml}");
    assert!(
        xml.contains("<testcase name=\"a trip\" classname=\"trip\""),
        "{xml}"
    );
    assert!(
        xml.contains("message=\"phase: expected &quot;failed&quot;, found &quot;completed&quot;\""),
        "{xml}"
    );
}

#[test]
fn a_folder_without_tests_and_definitions_with_mistakes_are_refused() {
    let empty = tempfile::tempdir().expect("a temporary directory");
    let output = test(&[&empty.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(66));
    let project = Project::new(GOOD);
    project.write("sagas/trip.yaml", &SAGA.replace("needs: [room]", "needs: [rom]"));
    let output = test(&[&project.path("").display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("SR0115"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn coverage_finds_the_effects_of_states_and_of_the_end() {
    let project = Project::new("saga: trip\ncases: []\n");
    let saga = "apiVersion: sagas/v1
kind: Saga
name: stay
start: Stay.Begun
key: {\"Stay.*\": event.data.stay}
machine:
  initial: booking
  states:
    booking:
      entry:
        emit:
          - {effect: book, name: room}
      handlers: {result.room: {to: booked}}
    booked: {final: true}
finally:
  completed:
    - {publish: {type: stay.over}}
    - {effect: unbook, name: free}
";
    project.write("sagas/stay.yaml", saga);
    let (_, report) = project.json(&["--coverage"]);
    let sagas = report["coverage"].as_array().expect("a list");
    let stay = sagas
        .iter()
        .find(|saga| saga["saga"] == "stay")
        .expect("measured");
    let line = |branch: &str| {
        let mut uncovered = stay["uncovered"].as_array().expect("a list").iter();
        let found = uncovered.find(|uncovered| uncovered["branch"] == branch);
        found.map(|found| found["line"].clone())
    };
    assert_eq!(
        line("steps.machine.booking.room is done"),
        Some(12.into()),
        "{stay:#}"
    );
    assert_eq!(
        line("steps.finally.completed.free is done"),
        Some(18.into()),
        "{stay:#}"
    );
}

#[test]
fn coverage_names_each_branch_that_no_case_runs_with_its_line() {
    let project = Project::new(GOOD);
    let (code, report) = project.json(&["--coverage", "--filter", "a trip"]);
    assert_eq!(code, Some(0));
    let coverage = &report["coverage"][0];
    let uncovered: Vec<String> = coverage["uncovered"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|branch| {
            format!(
                "{} {}",
                branch["line"],
                branch["branch"].as_str().expect("a name")
            )
        })
        .collect();
    assert_eq!(
        uncovered,
        [
            "11 steps.room fails",
            "14 steps.room.compensate is run",
            "14 steps.room.compensate.on_unknown is taken",
            "14 steps.room.compensate.on_exhausted is taken",
            "15 steps.pay fails",
            "4 a cancel is taken",
            "21 timers.late fires"
        ]
    );
    assert_eq!(
        (&coverage["branches"], &coverage["covered"]),
        (&Value::from(12), &Value::from(5))
    );
    assert_eq!(project.json(&["--min-coverage", "50"]).0, Some(0));
    assert_eq!(project.json(&["--min-coverage", "90"]).0, Some(1));
}

fn graph(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .env_clear()
        .current_dir(root())
        .arg("graph")
        .args(arguments)
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_saga_is_drawn_as_mermaid_with_steps_needs_compensations_and_states() {
    let order = graph(&["sagas/order.yaml"]);
    for line in [
        "[\"charge<br/>payments-charge\"]",
        "[/\"payments-refund\"/]",
        "([\"Order.Placed\"])",
    ] {
        assert!(order.contains(line), "{line}: {order}");
    }
    assert_eq!(order.matches("-.->").count(), 3, "{order}");
    let consolidate = graph(&["sagas/consolidate.yaml"]);
    assert!(
        consolidate.contains("|\"Line.Ready, timer.flush\"|"),
        "{consolidate}"
    );
    assert!(consolidate.contains("(((\"closed\")))"), "{consolidate}");
}

#[test]
fn a_picture_is_the_same_each_time_and_is_xml_without_script() {
    for saga in ["sagas/order.yaml", "sagas/consolidate.yaml"] {
        let svg = graph(&[saga, "--format", "svg"]);
        assert_eq!(svg, graph(&[saga, "--format", "svg"]));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("<script"));
    }
}

#[test]
fn a_case_answers_for_the_sagas_that_a_saga_starts() {
    let cases = r"saga: folder
cases:
  - name: a folder in a folder
    key: a
    steps:
      - start: {depth: 1}
        expect: {work: [{saga: folder, key: a-1, input: {depth: 0}, request: start}], no_other_work: true}
      - result: {of: inside, ok: {state: {size: 3}}}
        expect: {state: {size: 3}, work: [{effect: book}]}
      - result: {of: room, error: full}
        expect: {work: [{saga: folder, key: a-1, request: undo, of: inside.compensate}]}
      - result: {of: inside.compensate, ok: {}}
        expect: {phase: failed, failure: full}
  - name: taken back
    key: b
    steps:
      - start: {depth: 1}
      - cancel: enough
        expect: {phase: compensating, work: [{saga: folder, key: b-1, request: cancel}]}
      - {result: {of: inside, error: child_cancelled}, expect: {phase: cancelled}}
  - name: the child fails
    key: c
    steps:
      - start: {depth: 1}
      - result: {of: inside, error: child_failed}
        expect: {phase: failed, failure: child_failed, work: []}
";
    let project = Project::new(cases);
    project.write(
        "sagas/folder.yaml",
        r#"
apiVersion: sagas/v1
kind: Saga
name: folder
input: {type: object, required: [depth], properties: {depth: {type: integer}}}
state: {init: {size: 1}}
steps:
  inside:
    if: input.depth > 0
    saga: {name: folder, key: "${key}-1", input: {depth: "${input.depth - 1}"}}
    set: {size: "${result.state.size}"}
    compensate: {saga: undo}
  room: {needs: [inside], effect: book}
"#,
    );
    let (code, report) = project.json(&["--chaos"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["cases"].as_array().map(Vec::len), Some(3));
}

#[cfg(feature = "wasm")]
#[test]
fn cases_of_a_program_are_played_and_let_fail_and_count_no_branches() {
    let output = test(&[
        "examples/programs",
        "--chaos",
        "--coverage",
        "--min-coverage",
        "90",
    ]);
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    assert!(
        out.contains("ok     parcels: after a day it is given up"),
        "{out}"
    );
    let row = out.lines().find(|line| line.starts_with("parcels "));
    let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words, ["parcels", "0", "0", "100"], "{out}");
    assert!(errors.contains("6 case(s) passed"), "{errors}");
    assert!(
        errors.contains("1 case(s) end with the instance still running"),
        "{errors}"
    );
}
