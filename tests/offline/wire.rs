//! What instances tell each other comes as the runner writes it and reads it.

use super::Project;

const NONE: [String; 0] = [];

const ASKER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: asker
start: Talk.Begun
key: {"Talk.*": event.data.talk}
handlers:
  Talk.Begun: {emit: {signal: {saga: hearer, key: "${key}", name: tell, data: {said: "${event.data.said}"}}}}
steps: {end: {delay: 1h}}
"#;

const HEARER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: hearer
start: Ear.Opened
key: {"Ear.*": event.data.talk}
state: {init: {heard: false}}
handlers:
  signal.tell: {set: {heard: true}}
steps: {end: {delay: 1h}}
"#;

/// A list in lists, `depth` levels.
fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn told(depth: usize, expected: &str) -> Vec<String> {
    let project = Project::new(&format!(
        "saga: asker
cases:
  - name: they talk
    sagas: [hearer]
    chaos: false
    steps:
      - {{event: Ear.Opened, data: {{talk: t-1}}}}
      - {{event: Talk.Begun, data_file: said.json, expect: {{{expected}}}}}
"
    ));
    project.write("sagas/asker.yaml", ASKER);
    project.write("sagas/hearer.yaml", HEARER);
    let said = format!(r#"{{"talk": "t-1", "said": {}}}"#, nested(depth));
    project.write("sagas/said.json", &said);
    project.findings(&[])
}

/// The event may have so many levels, and the state; the message that tells them has levels of its own.
#[test]
fn a_value_nested_too_deep_for_a_message_is_refused() {
    assert_eq!(told(60, "phase: running"), NONE);
    assert_eq!(told(63, "rejected: payload.depth"), NONE);
}

const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Scanned: {by: {tracking: event.data.no}}}
state: {init: {scanned: ""}}
handlers:
  Carrier.Scanned: {set: {scanned: "${event.time}"}}
steps:
  label: {effect: book, with: {id: "${key}"}, alias: {tracking: "${result.no}"}, compensate: {effect: unbook, with: {id: "${key}"}}}
  deliver: {needs: [label], delay: 1h}
"#;

#[test]
fn an_event_that_an_alias_keeps_has_the_time_at_which_it_was_published() {
    let project = Project::new(
        "
saga: parcel
cases:
  - name: the carrier is faster
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Parcel.Packed, data: {id: p-1}}
      - {event: Carrier.Scanned, data: {no: T-1}, expect: {deferred: true}}
      - {advance: 20s}
      - {result: {of: label, ok: {no: T-1}}, expect: {state: {scanned: '2026-01-01T10:00:00Z'}}}
",
    );
    project.write("sagas/parcel.yaml", PARCEL);
    assert_eq!(project.findings(&["--chaos"]), NONE);
}
