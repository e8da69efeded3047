//! Recorded histories: replayed on the version of then and on a changed one, and turned into a case.

use std::sync::Arc;

use saga_runner::kernel::children::ParentRef;
use saga_runner::kernel::definition::{SourceFile, load};
use saga_runner::kernel::ids::{ClusterId, CommandId, InstanceId, Key, SagaName, TenantId, TimeMs};
use saga_runner::kernel::input::{Control, Input, InputBody, OnConflict, Origin, WorkOutcome, WorkResult};
use saga_runner::kernel::patch::Outcome;
use saga_runner::kernel::recorded::{Recorded, RecordedBody};
use saga_runner::kernel::work::WorkKind;
use saga_runner::offline::file::EventSpec;
use saga_runner::offline::world::{Manner, World};
use serde_json::json;

use super::{Project, SAGA, run, text};

const START: TimeMs = TimeMs(1_767_225_600_000);

/// A trip that is booked and paid after twenty minutes, as a runner records it.
struct Recording {
    world: World,
    lines: Vec<Recorded>,
}

impl Recording {
    fn of(project: &Project) -> Self {
        let mut recording = Self::empty(project);
        let booked = EventSpec {
            event_type: "Trip.Booked".to_owned(),
            data: r#"{"trip":"t-1","cents":5}"#.into(),
            version: 1,
            id: Some("e-7".to_owned()),
            correlation_id: None,
            aggregate_id: None,
            from: None,
        };
        let event = recording.world.event(&booked).expect("legal");
        recording.take("e-7", InputBody::Event(event));
        recording.world.now = START.plus_ms(1_200_000);
        recording.succeed("room");
        recording.succeed("pay");
        recording
    }

    /// A step of another saga has started it, and waits for its end.
    fn of_child(project: &Project) -> Self {
        let mut recording = Self::empty(project);
        let parent = ParentRef {
            saga: SagaName::parse("journey").expect("legal"),
            key: Key::parse("j-1").expect("legal"),
            command_id: CommandId(uuid::Uuid::nil()),
            depth: 1,
            waits: true,
            undoable: true,
            hops: 0,
            traceparent: None,
        };
        let start = Control::Start {
            input: r#"{"cents":5}"#.into(),
            parent: Some(parent),
            on_conflict: OnConflict::Fail,
            traceparent: None,
        };
        recording.take("s-1", InputBody::Control(start));
        recording.succeed("pay");
        recording
    }

    fn empty(project: &Project) -> Self {
        let file = |name: &str| SourceFile {
            path: name.to_owned(),
            text: Arc::from(std::fs::read_to_string(project.path(name)).expect("readable")),
        };
        let loaded = load(
            &[file("sagas/trip.yaml")],
            &[file("effects/book.yaml"), file("effects/unbook.yaml")],
        );
        let instance = InstanceId {
            tenant: TenantId::parse("acme").expect("legal"),
            saga: loaded.sagas[0].name.clone(),
            key: Key::parse("t-1").expect("legal"),
        };
        let world = World::new(Arc::clone(&loaded.sagas[0]), instance, START, Manner::Plain);
        Self {
            world,
            lines: Vec::new(),
        }
    }

    fn succeed(&mut self, name: &str) {
        let items = self.world.outbox.values();
        let item = items
            .into_iter()
            .find(|item| self.world.name(item) == name)
            .expect("awaited");
        let WorkKind::Effect { effect, .. } = &item.kind else {
            panic!("{name} is an effect");
        };
        let result = WorkResult {
            command_id: item.command_id,
            effect: Some(effect.clone()),
            outcome: WorkOutcome::Succeeded { payload: "{}".into() },
        };
        self.take(&result.command_id.to_string(), InputBody::Result(result));
    }

    fn take(&mut self, id: &str, body: InputBody) {
        let input = Input {
            instance: self.world.instance.clone(),
            id: id.to_owned(),
            time: self.world.now,
            origin: Origin::Local,
            body,
        };
        let given = self.world.give(&input);
        assert_eq!(given.outcome, Some(Outcome::Applied));
        self.lines.push(Recorded {
            cluster: ClusterId::OFFLINE,
            tenant: "acme".to_owned(),
            saga: "trip".to_owned(),
            key: "t-1".to_owned(),
            generation: 1,
            definition: self.world.definition.hash.to_string(),
            id: id.to_owned(),
            time_ms: input.time.0,
            input: RecordedBody::of(&input.body),
            outcome: "applied".to_owned(),
            reason: None,
            notes: given.notes,
            work: Vec::new(),
        });
    }

    fn write(&self, project: &Project) -> String {
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|line| serde_json::to_string(line).expect("plain data"))
            .collect();
        project.write("history.jsonl", &lines.join("\n"));
        project.path("history.jsonl").display().to_string()
    }
}

fn project() -> Project {
    Project::new("saga: trip\ncases: []\n")
}

#[test]
fn the_version_of_then_repeats_what_it_did() {
    let project = project();
    let mut recording = Recording::of(&project);
    let history = recording.write(&project);
    let folder = project.path("").display().to_string();
    let output = run(&["replay", &folder, "--history", &history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "ok       trip/t-1: 3 input(s)\n");
    // A recording that tells something else is found out.
    recording.lines[1].notes.clear();
    recording.write(&project);
    let output = run(&["replay", &folder, "--history", &history]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(
        shown.starts_with("DIVERGES trip/t-1: at input 2 (result of "),
        "{shown}"
    );
    assert!(shown.contains("+ {\"step_done\":{\"step\":\"room\"}}"), "{shown}");
}

#[test]
fn another_version_is_run_beside_it_and_told_by_its_first_other_work() {
    let project = project();
    let history = Recording::of(&project).write(&project);
    let folder = project.path("").display().to_string();
    project.write("old.yaml", SAGA);
    let old = project.path("old.yaml").display().to_string();
    let changed = SAGA.replace(
        "with: {cents: \"${state.cents}\"}",
        "with: {cents: \"${state.cents + 1}\"}",
    );
    project.write("sagas/trip.yaml", &changed);
    let output = run(&["replay", &folder, "--history", &history]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("--recorded"),
        "{}",
        text(&output.stderr)
    );
    let output = run(&["replay", &folder, "--history", &history, "--recorded", &old]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.starts_with("DIVERGES trip/t-1: at input 2 (result of "),
        "{shown}"
    );
    assert!(
        shown.contains("- work     \"cents\": 5") && shown.contains("+ work     \"cents\": 6"),
        "{shown}"
    );
    // The answer about a version is as good as its text.
    project.write(
        "old.json",
        &json!({"hash": "sha256:0", "source": SAGA}).to_string(),
    );
    let answer = project.path("old.json").display().to_string();
    let output = run(&["replay", &folder, "--history", &history, "--recorded", &answer]);
    assert_eq!(text(&output.stdout), shown, "{}", text(&output.stderr));
    // What changes nothing for this instance is not a divergence, though every command has another id.
    project.write("sagas/trip.yaml", &SAGA.replace("after: 1h", "after: 2h"));
    let output = run(&["replay", &folder, "--history", &history, "--recorded", &old]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn an_input_whose_message_is_gone_is_named() {
    let project = project();
    let mut recording = Recording::of(&project);
    recording.lines[1].input = RecordedBody::Missing {
        kind: "result of book".to_owned(),
    };
    let history = recording.write(&project);
    let folder = project.path("").display().to_string();
    let output = run(&["replay", &folder, "--history", &history]);
    assert_eq!(output.status.code(), Some(1));
    let why = text(&output.stderr);
    assert!(
        why.contains("trip/t-1: the message of input 2 (result of book) is no longer in its stream"),
        "{why}"
    );
}

#[test]
fn a_history_becomes_a_case_that_holds() {
    let project = project();
    let history = Recording::of(&project).write(&project);
    let folder = project.path("").display().to_string();
    let output = run(&["test", &folder, "--from-history", &history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let case = text(&output.stdout);
    assert!(case.contains("- advance: \"20m\""), "{case}");
    assert!(
        case.contains("- result: {of: room, ok: {}}") || case.contains("ok: {}, of: room"),
        "{case}"
    );
    project.write("sagas/trip.test.yaml", &case);
    let (code, report) = project.json(&[]);
    assert_eq!(
        (code, &report["passed"]),
        (Some(0), &serde_json::Value::from(1)),
        "{case}{report:#}"
    );
}

/// In a case there is nobody to tell how it ended.
#[test]
fn the_history_of_a_child_becomes_a_case_that_holds() {
    let project = project();
    project.write(
        "sagas/trip.yaml",
        "apiVersion: sagas/v1\nkind: Saga\nname: trip\ninput: {type: object}\nsteps:\n  pay: {effect: book, with: {cents: \"${input.cents}\"}, compensate: {effect: unbook, with: {}}}\n",
    );
    let history = Recording::of_child(&project).write(&project);
    let folder = project.path("").display().to_string();
    let output = run(&["test", &folder, "--from-history", &history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let case = text(&output.stdout);
    project.write("sagas/trip.test.yaml", &case);
    let (code, report) = project.json(&[]);
    assert_eq!(code, Some(0), "{case}{report:#}");
}
