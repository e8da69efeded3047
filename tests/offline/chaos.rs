//! `--chaos`: late successes, cancels, misfits and silence, and what must hold at each end.

use super::{Project, test, text};

/// The compensation needs a receipt that only the last word of the bank has.
const BANK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: bank
start: Trip.Booked
key: {"Trip.*": event.data.trip}
steps:
  pay:
    effect: book
    with: {trip: "${key}"}
    WAIT
    compensate: {effect: unbook, with: {id: "${RECEIPT}"}, on_unknown: ignore}
"#;

fn findings(wait: &str, receipt: &str, steps: &str) -> Vec<String> {
    let project = Project::new(&format!(
        "saga: bank\ncases:\n  - name: paid\n    steps:\n      - {{event: Trip.Booked, data: {{trip: t-1}}}}\n{steps}"
    ));
    let saga = BANK.replace("WAIT", wait).replace("RECEIPT", receipt);
    project.write("sagas/bank.yaml", &saga);
    project.findings(&["--chaos"])
}

fn found(findings: &[String], plan: &str) -> bool {
    findings
        .iter()
        .any(|finding| finding.contains(&format!("when {plan}:")))
}

#[test]
fn a_cancel_at_any_point_and_a_late_success_must_lead_to_an_end() {
    let paid = "      - {result: {of: pay, ok: {}}, expect: {phase: completed}}\n";
    let told = findings("", "result.receipt", paid);
    for plan in [
        "an operator cancels after input 1",
        "pay times out and succeeds at once after that",
        "pay times out and succeeds late",
    ] {
        assert!(found(&told, plan), "{plan}: {told:#?}");
    }
    assert!(
        !found(&told, "pay times out"),
        "it says `on_unknown: ignore`: {told:#?}"
    );
    let receipt = "has(result.receipt) ? result.receipt : ''";
    assert_eq!(findings("", receipt, paid), Vec::<String>::new());
}

#[test]
fn a_callback_that_does_not_come_must_lead_to_an_end() {
    let steps = "      - {result: {of: pay, ok: {}}, expect: {steps: {pay: waiting}}}
      - {callback: {of: pay, ok: {receipt: r-1}}, expect: {phase: completed}}\n";
    let wait = "wait: {callback: true, timeout: 1h}";
    let told = findings(wait, "result.receipt", steps);
    assert!(found(&told, "the callback of step 3 does not come"), "{told:#?}");
    let receipt = "has(result.receipt) ? result.receipt : ''";
    assert_eq!(findings(wait, receipt, steps), Vec::<String>::new());
}

#[test]
fn a_result_that_does_not_fit_its_effect_is_tried() {
    let project = Project::new(
        "saga: bank\ncases:\n  - name: paid\n    steps:\n      - {event: Trip.Booked, data: {trip: t-1}}\n      - {result: {of: pay, ok: {receipt: r-1}}}\n",
    );
    let saga = BANK.replace("WAIT", "").replace("RECEIPT", "result.receipt");
    project.write("sagas/bank.yaml", &saga);
    let effect = "apiVersion: sagas/v1\nkind: Effect\nname: book\nhttp: {method: POST, url: \"${upstreams.shop}/x\"}\noutput: {type: object, required: [receipt], properties: {receipt: {type: string}}}\n";
    project.write("effects/book.yaml", effect);
    let told = project.findings(&["--chaos"]);
    assert!(
        found(&told, "pay gives a result that does not fit its effect"),
        "{told:#?}"
    );
}

#[test]
fn what_was_tried_is_told_when_a_case_has_failed_too() {
    let project = Project::new(
        "saga: trip
cases:
  - name: wrong
    steps: [{event: Trip.Booked, data: {trip: t-1, cents: 5}, expect: {phase: failed}}]
  - name: right
    steps: [{event: Trip.Booked, data: {trip: t-1, cents: 5}}, {succeed: all}]
",
    );
    let output = test(&[&project.path("").display().to_string(), "--chaos"]);
    let said = text(&output.stderr);
    assert!(said.contains("run(s) in which something goes wrong"), "{said}");
    assert!(said.contains("1 of 2 case(s) failed"), "{said}");
}
