//! Results in cases: the runner judges them as it does in production.

use super::Project;

const CASES: &str = r"
saga: trip
cases:
  - name: the room does not fit
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {nr: x}}, expect: {failure: result.schema, ledger: [room], work: [{effect: unbook}]}}
      - {result: {of: room.compensate, ok: {}}, expect: {phase: failed}}
  - name: the worker cannot make a result
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - result: {of: room, ok: {raw: 1}, unusable: result.expression, message: no nr}
        expect: {failure: result.expression, ledger: [room], work: [{effect: unbook}]}
      - {result: {of: room.compensate, ok: {}}, expect: {phase: failed}}
  - name: a class of an unknown outcome
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, timeout: response.malformed}, expect: {failure: response.malformed, phase: compensating, work: [{effect: unbook}]}}
  - name: refused and not refused
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {nr: 4}}}
      - {result: {of: pay, error: transient, refused: true}, expect: {failure: transient}}
      - {result: {of: room.compensate, error: permanent, refused: false}, expect: {phase: compensating}}
";

fn project(cases: &str) -> Project {
    let project = Project::new(cases);
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: book\nhttp: {method: POST, url: \"${upstreams.shop}/x\"}\noutput: {type: object, properties: {nr: {type: integer}}}\n";
    project.write("effects/book.yaml", effect);
    project
}

#[test]
fn a_case_says_what_a_result_may_say() {
    let (code, report) = project(CASES).json(&[]);
    assert_eq!(code, Some(0), "{report:#}");
}

#[test]
fn a_result_that_is_none_of_its_effect_is_told_unless_what_follows_is_expected() {
    let cases = "saga: trip
cases:
  - name: nobody looks
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: text}}
";
    let (code, report) = project(cases).json(&[]);
    assert_eq!(code, Some(1), "{report:#}");
    let message = report["cases"][0]["findings"][0]["message"]
        .as_str()
        .expect("a finding");
    assert!(message.contains("none of the effect book"), "{message}");
    let expected = cases.replace("ok: text}}", "ok: text}, expect: {failure: result.schema}}");
    assert_eq!(project(&expected).json(&[]).0, Some(0));
}

#[test]
fn the_findings_of_the_first_step_are_shown_and_those_behind_it_counted() {
    let cases = "saga: trip
cases:
  - name: another room
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, ok: {nr: 4}}, expect: {phase: failed, steps: {room: failed}}}
      - {result: {of: pay, ok: {}}, expect: {phase: failed}}
      - {cancel: late, expect: {phase: failed}}
";
    let (code, report) = project(cases).json(&[]);
    assert_eq!(code, Some(1), "{report:#}");
    let case = &report["cases"][0];
    assert_eq!(case["findings"].as_array().map(Vec::len), Some(2), "{case:#}");
    assert!(
        case["further"].as_u64().is_some_and(|further| further >= 1),
        "{case:#}"
    );
}

#[test]
fn two_cases_of_one_name_are_refused() {
    let cases = "saga: trip
cases:
  - {name: twice, steps: [{event: Trip.Booked, data: {trip: t-1, cents: 5}}]}
  - {name: twice, steps: [{event: Trip.Booked, data: {trip: t-2, cents: 5}}]}
";
    let output = super::test(&[&project(cases).path("").display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("a case \"twice\" is there already, in line 3"),
        "{shown}"
    );
}

#[test]
fn keys_of_another_outcome_are_refused() {
    for said in [
        "ok: {}, refused: true",
        "error: declined, unusable: result.schema",
        "timeout: never",
    ] {
        let cases = format!(
            "saga: trip\ncases:\n  - name: x\n    steps:\n      - {{event: Trip.Booked, data: {{trip: t-1, cents: 5}}}}\n      - {{result: {{of: room, {said}}}}}\n"
        );
        let output = super::test(&[&project(&cases).path("").display().to_string()]);
        assert_ne!(output.status.code(), Some(0), "{said}");
    }
}

#[test]
fn a_key_that_a_case_does_not_have_is_one_mistake() {
    let booked = "event: Trip.Booked, data: {trip: t-1, cents: 5}";
    for step in [
        "{fax: x}".to_owned(),
        format!("{{{booked}, fax: x}}"),
        "{result: {of: room, fax: {}}}".to_owned(),
        "{callback: {of: room, fax: {}}}".to_owned(),
        format!("{{{booked}, expect: {{fax: x}}}}"),
        format!("{{{booked}, expect: {{work: [{{fax: x}}]}}}}"),
        format!("{{{booked}, expect: {{work: [{{efect: book}}]}}}}"),
    ] {
        let cases = format!("saga: trip\ncases:\n  - name: x\n    steps:\n      - {step}\n");
        let output = super::test(&[&project(&cases).path("").display().to_string()]);
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(shown.matches("error[").count(), 1, "{step}: {shown}");
        assert!(shown.contains("error[SR0105]"), "{step}: {shown}");
    }
}

#[test]
fn an_operators_result_that_does_not_fit_is_refused_and_the_question_stands() {
    let cases = "saga: trip
cases:
  - name: found
    steps:
      - {event: Trip.Booked, data: {trip: t-1, cents: 5}}
      - {result: {of: room, timeout: true}, expect: {steps: {room: stuck}}}
      - {resolve: room, as: done, ok: {nr: x}, expect: {ignored: refused, steps: {room: stuck}}}
      - {resolve: room, as: done, ok: {nr: 4}, expect: {steps: {room: done, pay: running}}}
";
    let project = project(cases);
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: book\nhttp: {method: POST, url: \"${upstreams.shop}/x\"}\non_ambiguous: ask\noutput: {type: object, properties: {nr: {type: integer}}}\n";
    project.write("effects/book.yaml", effect);
    let (code, report) = project.json(&[]);
    assert_eq!(code, Some(0), "{report:#}");
}
