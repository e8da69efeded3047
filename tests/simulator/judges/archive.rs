//! What a commit has deleted is in the archive as it ended, and was there before.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use flate2::read::GzDecoder;
use saga_runner::kernel::ids::{InstanceId, TimeMs};
use saga_runner::kernel::recorded::Recorded;
use saga_runner::kernel::subject;
use saga_runner::offline::history;
use saga_runner::ports::broker::StoredMessage;
use serde_json::{Value, json};

use super::{PAGE, found};
use crate::run::{CLUSTER, Simulation};
use crate::situations::Situation;
use crate::world::Deleted;

const STREAM: &str = "WORKFLOW_ARCHIVE";

/// Whether what has ended goes to an archive.
pub fn is_kept(simulation: &Simulation) -> bool {
    simulation.plan.situation == Some(Situation::Archived)
}

/// Whether an instance of this id was deleted.
pub fn has(simulation: &Simulation, id: &InstanceId) -> bool {
    let deleted = simulation.world.all_deleted();
    deleted.iter().any(|deleted| deleted.row.instance == *id)
}

/// Whether an instance may stay live because something was deleted: it was begun again by a repetition, once nothing was known of its
/// key any more, or it tries for a long time to undo a child that is gone.
pub fn explains(simulation: &Simulation, id: &InstanceId) -> bool {
    has(simulation, id) || has_part_of(simulation, id)
}

fn has_part_of(simulation: &Simulation, order: &InstanceId) -> bool {
    let key = format!("{}-", order.key);
    let deleted = simulation.world.all_deleted();
    order.saga.as_str() == "order"
        && deleted.iter().any(|deleted| {
            let part = &deleted.row.instance;
            part.tenant == order.tenant && part.saga.as_str() == "part" && part.key.as_str().starts_with(&key)
        })
}

/// What is due and waits for the archive, one line for each shard.
pub fn waiting(simulation: &Simulation) -> Vec<String> {
    if !is_kept(simulation) {
        return Vec::new();
    }
    let outdated = simulation
        .manifest
        .storage
        .keep()
        .outdated(simulation.world.clock.true_now());
    let disks = simulation.disks.iter().enumerate();
    let due = disks.map(|(shard, disk)| {
        let due = disk.rows.reader().due(outdated, &[], PAGE);
        (shard, due.expect("a store in memory can be read").len())
    });
    let due = due.filter(|(_, count)| *count > 0);
    due.map(|(shard, count)| format!("{count} instance(s) of shard {shard} wait for the archive"))
        .collect()
}

/// An entry, without when it was made.
struct Entry {
    time: TimeMs,
    id: String,
    body: Value,
}

fn header(message: &StoredMessage, wanted: &str) -> Option<String> {
    let mut headers = message.headers.iter();
    let found = headers.find(|(name, _)| name == wanted);
    found.map(|(_, value)| value.clone())
}

fn read(message: &StoredMessage) -> Entry {
    let mut text = String::new();
    GzDecoder::new(&*message.payload)
        .read_to_string(&mut text)
        .expect("an entry is text, compressed");
    let mut body: Value = serde_json::from_str(&text).expect("an entry is JSON");
    let members = body.as_object_mut().expect("an object");
    members.remove("archived_at").expect("when it was made");
    Entry {
        time: message.time,
        id: header(message, "saga-runner-archive-id").expect("an id"),
        body,
    }
}

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut subjects: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for message in simulation.server.archive(STREAM) {
        let entry = read(&message);
        subjects.entry(message.subject).or_default().push(entry);
    }
    let mut faults = Vec::new();
    for (subject, entries) in &subjects {
        let mut bodies: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for entry in entries {
            let told = entry.body.to_string();
            bodies.entry(&entry.id).or_default().insert(told);
        }
        let other = bodies.iter().filter(|(_, bodies)| bodies.len() > 1);
        faults.extend(other.map(|(id, bodies)| {
            let bodies: Vec<_> = bodies.iter().collect();
            format!("{subject} was archived differently as {id}: {bodies:?}")
        }));
    }
    let mut entries = 0;
    for deleted in simulation.world.all_deleted() {
        let subject = subject::archive(CLUSTER, &deleted.row.instance);
        let of_key = subjects.get(&subject).map_or(&[][..], Vec::as_slice);
        entries += of_key.len();
        faults.extend(of(simulation, &deleted, of_key));
    }
    simulation
        .world
        .note(format_args!("{entries} entries were compared"));
    faults
}

/// What does not hold of one that was deleted.
fn of(simulation: &Simulation, deleted: &Deleted, entries: &[Entry]) -> Vec<String> {
    let record = &deleted.row.summary.record;
    let id = format!("{} {}", deleted.row.instance, record.generation);
    let life = json!([
        record.generation,
        record.version,
        record.start_event,
        record.started.rfc3339()
    ]);
    let mut of_life = entries.iter().filter(|entry| {
        let instance = &entry.body["instance"];
        json!([
            instance["generation"],
            instance["version"],
            instance["start_event"],
            instance["started"]
        ]) == life
    });
    let Some(entry) = of_life.next() else {
        return vec![format!(
            "{id} was deleted, and the archive has not got it at version {}",
            record.version
        )];
    };
    let mut faults = Vec::new();
    if entry.time > deleted.at {
        faults.push(format!("{id} was deleted before the archive had it"));
    }
    let (body, mut differs) = (&entry.body, Vec::new());
    let mut compare = |what: &str, expected: Value, found: &Value| {
        if expected != *found {
            differs.push(format!("{id}: {what} is archived as {found}, not {expected}"));
        }
    };
    compare(
        "its phase",
        json!(record.phase.as_str()),
        &body["instance"]["phase"],
    );
    if body["truncated"] == false {
        let state: Value = serde_json::from_slice(&record.data).expect("state is JSON");
        compare("its state", state, &body["instance"]["state"]);
        let rows = deleted.history.iter();
        let rows = rows.map(|row| json!([row.input_id, row.outcome.as_str()]));
        let archived = body["history"].as_array().expect("a history").iter();
        let archived = archived.map(|row| json!([row["input"], row["outcome"]]));
        compare("its history", rows.collect(), &archived.collect());
    }
    faults.extend(differs);
    if let Some(inputs) = body["inputs"].as_array() {
        let rows = deleted.history.iter().rev();
        let ids: Vec<&str> = rows.map(|row| row.input_id.as_str()).collect();
        let archived: Vec<&str> = inputs
            .iter()
            .map(|input| input["id"].as_str().expect("an id"))
            .collect();
        if ids != archived {
            faults.push(format!(
                "{id}: its inputs are archived as {archived:?}, not {ids:?}"
            ));
        }
        faults.extend(replayed(simulation, deleted, body));
    }
    faults
}

/// Whether the archived inputs do the same once more.
fn replayed(simulation: &Simulation, deleted: &Deleted, body: &Value) -> Option<String> {
    let id = &deleted.row.instance;
    // A replay ends at the first that was left out. And it goes on with the next generation, where one has waited for the end.
    let all = simulation.world.all_deleted();
    let of_key = all.iter().filter(|other| other.row.instance == *id);
    let is_alone = of_key.count() == 1 && found(simulation, id).is_none();
    if !body["inputs_left_out"].is_null() || !is_alone {
        return None;
    }
    let inputs: Vec<Recorded> = serde_json::from_value(body["inputs"].clone()).expect("recorded inputs");
    let versions = simulation.versions();
    let definition = versions
        .by_hash(&deleted.row.summary.record.definition)
        .expect("a definition");
    match history::replay(&inputs, None, definition) {
        Ok(None) => None,
        Ok(Some(found)) => Some(format!(
            "{id} from the archive goes another way at input {}, {}: {}",
            found.input, found.what, found.difference
        )),
        Err(why) => Some(format!("{id} from the archive cannot be played again: {why}")),
    }
}
