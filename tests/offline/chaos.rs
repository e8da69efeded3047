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
fn the_variants_tried_are_reported_when_a_case_failed_too() {
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
    assert!(said.contains("run(s) with injected failures"), "{said}");
    assert!(said.contains("1 of 2 case(s) failed"), "{said}");
}

/// An instance remembers the last 64 events; one that an alias has found has no sequence by which older ones are known.
#[test]
fn events_come_again_long_after_they_were_taken() {
    let scanned = |times: usize| {
        let project = Project::new(&format!(
            "saga: parcel
cases:
  - name: scanned often
    steps:
      - {{event: Parcel.Packed, data: {{id: p-1}}}}
      - repeat: {times}
        steps:
          - {{event: Carrier.Scanned, data: {{no: p-1}}}}
"
        ));
        project.write(
            "sagas/parcel.yaml",
            r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Scanned: {by: {tracking: event.data.no}}}
state: {init: {scans: 0}}
handlers:
  Parcel.Packed: {alias: {tracking: "${event.data.id}"}}
  Carrier.Scanned: {set: {scans: "${state.scans + 1}"}}
steps: {deliver: {delay: 1h}}
"#,
        );
        project.findings(&["--chaos"])
    };
    assert_eq!(scanned(60), Vec::<String>::new());
    let told = scanned(70);
    let message =
        "SR0603 \"Carrier.Scanned\" (event-2) comes again after input 66, and is applied again by parcel/p-1";
    assert!(told[0].ends_with(message), "{told:#?}");
}

/// Once an ended instance is forgotten, an event that starts one starts one.
#[test]
fn a_repeated_event_may_begin_again_where_nothing_is_left_of_the_instance() {
    let project = Project::new(
        "saga: parcel
cases:
  - name: sent twice
    steps:
      - {event: Parcel.Packed, data: {id: p-1}}
      - {result: {of: label, ok: {}}, expect: {phase: completed}}
      - {event: Parcel.Packed, id: second, data: {id: p-1}, expect: {phase: running}}
      - {result: {of: label, ok: {}}, expect: {phase: completed}}
      - {advance: 25h, expect: {phase: null}}
",
    );
    project.write(
        "sagas/parcel.yaml",
        r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
reuse: always
keep_ended: 24h
steps: {label: {effect: book, with: {id: "${key}"}, compensate: none}}
"#,
    );
    assert_eq!(project.findings(&["--chaos"]), Vec::<String>::new());
}
