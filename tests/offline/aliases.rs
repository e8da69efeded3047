//! Events that find the instance by an alias, in cases.

use super::{Project, test, text};

const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Delivered: {by: {tracking: event.data.no}}, Carrier.Scanned: {by: {tracking: event.data.no}}}
state: {init: {scans: 0}}
no_instance: NOBODY
handlers:
  Carrier.Scanned: {set: {scans: "${state.scans + 1}"}}
steps:
  label: {effect: book, with: {id: "${key}"}, alias: {tracking: "${result.no}"}, compensate: {effect: unbook, with: {id: "${key}"}}}
  deliver: {needs: [label], wait: {event: Carrier.Delivered, timeout: 1h}}
"#;

const CASES: &str = r"
saga: parcel
cases:
  - name: delivered
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Parcel.Packed, data: {id: p-1}, expect: {aliases: {tracking: null}, work: [{effect: book}], no_other_work: true}}
      - {result: {of: label, ok: {no: T-1}}, expect: {aliases: {tracking: [T-1]}, work: [], no_other_work: true}}
      - {event: Carrier.Scanned, data: {no: T-1}, expect: {state: {scans: 1}}}
      - {event: Carrier.Scanned, data: {no: T-2}, expect: {deferred: true, state: {scans: 1}}}
      - {advance: 61s, expect: {ignored: no_instance, state: {scans: 1}}}
      - {event: Carrier.Delivered, data: {no: T-1}, expect: {phase: completed, aliases: {tracking: null}}}
  - name: the carrier is faster
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Carrier.Scanned, data: {no: T-1}, expect: {deferred: true}}
      - {event: Parcel.Packed, data: {id: p-1}}
      - {event: Carrier.Delivered, data: {no: T-1}, expect: {deferred: true}}
      - {result: {of: label, ok: {no: T-1}}, expect: {phase: completed, state: {scans: 1}}}
      - {advance: 2m, expect: {phase: completed}}
  - name: a timer of an instance that has an alias
    steps:
      - {event: Parcel.Packed, data: {id: p-1}}
      - {result: {of: label, ok: {no: T-1}}}
      - {advance: 1h, expect: {failure: timeout, work: [{effect: unbook}]}}
      - {result: {of: label.compensate, ok: {}}, expect: {phase: failed}}
";

fn project(saga: &str, cases: &str) -> Project {
    let project = Project::new(cases);
    project.write("sagas/trip.yaml", saga);
    project
}

#[test]
fn an_event_comes_by_an_alias_that_the_instance_has_or_will_have() {
    let saga = PARCEL.replace("NOBODY", "ignore");
    let (code, report) = project(&saga, CASES).json(&["--chaos"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["passed"], 3);
}

#[test]
fn a_case_reports_its_first_wrong_expectation_about_aliases() {
    let saga = PARCEL.replace("NOBODY", "dead_letter");
    // Of a case the first step is told that does not go as it says. As the saga has it here, what nobody is there for is a
    // dead letter after a minute.
    for (expected, wrong, told) in [
        (
            "aliases: {tracking: [T-1]}",
            "aliases: {tracking: [T-9]}",
            vec!["aliases.tracking"],
        ),
        (
            "deferred: true, state: {scans: 1}",
            "state: {scans: 2}",
            vec!["state.scans"],
        ),
        (
            "expect: {ignored: no_instance",
            "expect: {phase: running",
            vec!["the input is rejected (no_instance)"],
        ),
    ] {
        let cases = CASES.replacen(expected, wrong, 1);
        let findings = project(&saga, &cases).findings(&[]);
        assert_eq!(findings.len(), told.len(), "{findings:#?}");
        for (finding, told) in findings.iter().zip(told) {
            assert!(finding.contains(told), "{findings:#?}");
        }
    }
}

#[test]
fn an_alias_refuses_the_instance_and_takes_it_after_all() {
    let cases = r"
saga: parcel
cases:
  - name: refused
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Parcel.Packed, data: {id: p-1}}
      - {refuse_alias: {tracking: T-1}, expect: {ignored: no_instance, aliases: {tracking: null}}}
      - {result: {of: label, ok: {no: T-1}}, expect: {aliases: {tracking: [T-1]}}}
      - {refuse_alias: {tracking: T-1}, expect: {aliases: {tracking: [{value: T-1, refused: true}]}, work: [], no_other_work: true}}
      - {refuse_alias: {tracking: T-1}, expect: {ignored: duplicate}}
      - {event: Carrier.Scanned, data: {no: T-1}, expect: {deferred: true, state: {scans: 0}}}
      - {accept_alias: {tracking: T-1}, expect: {aliases: {tracking: [T-1]}, state: {scans: 1}}}
      - {accept_alias: {tracking: T-1}, expect: {ignored: duplicate}}
      - {event: Carrier.Delivered, data: {no: T-1}, expect: {phase: completed}}
";
    let saga = PARCEL.replace("NOBODY", "ignore");
    let refused = project(&saga, cases);
    assert_eq!(refused.findings(&["--chaos"]), [""; 0]);
    let wrong = cases.replace("{value: T-1, refused: true}", "T-1");
    let found = project(&saga, &wrong).findings(&[]);
    assert!(found[0].contains("aliases.tracking"), "{found:#?}");
    for bad in ["{}", "{tracking: T-1, order: o-1}", "{tracking: \"\"}", "T-1"] {
        let wrong = cases.replacen(
            "refuse_alias: {tracking: T-1}",
            &format!("refuse_alias: {bad}"),
            1,
        );
        let project = project(&saga, &wrong);
        let shown = text(&test(&[&project.path("").display().to_string()]).stdout);
        let told = "the name of an alias with its value as a map";
        assert!(shown.contains(told), "{bad}: {shown}");
    }
}
