//! What there is to see of an instance after a step of a case, as JSON in the shape of expectations.

use serde_json::{Map, Value};

use super::work;
use super::world::planned::is_of_schedule;
use super::world::{Given, World};
use crate::kernel::patch::Outcome;
use crate::kernel::work::WorkItem;

/// An instance and the latest input, ready to be compared.
#[derive(Debug)]
pub struct Seen {
    /// `InstanceView`, with maps by name for steps and timers; `null` without an instance.
    pub instance: Value,
    /// Without what it tells aliases, which are a part of the instance, and schedules.
    pub work: Vec<Value>,
    /// Of each of these, whether work before had its idempotency key.
    pub repeated: Vec<bool>,
    pub ignored: Option<&'static str>,
    /// Reason and message.
    pub rejected: Option<(String, String)>,
    pub deferred: bool,
    /// The input waits behind a dead letter.
    pub waits: bool,
    /// Inputs of the instance wait behind a dead letter from now on.
    pub blocked: bool,
}

impl Seen {
    /// Looks at `world` after `given`.
    #[must_use]
    pub fn after(world: &World, given: &Given) -> Self {
        let told = |item: &&WorkItem| !item.kind.is_incidental() && !is_of_schedule(item);
        let told = || given.work.iter().filter(told);
        Self {
            instance: instance(world),
            work: told().map(|item| work::shown(world, item)).collect(),
            repeated: told().map(|item| world.repeats(item)).collect(),
            ignored: match (given.skipped, given.shown()) {
                (Some(skip), _) => Some(skip.as_str()),
                (None, Some(Outcome::Ignored(reason))) => Some(reason.as_str()),
                (None, _) => None,
            },
            rejected: given.rejection.clone(),
            deferred: given.shown() == Some(Outcome::Deferred),
            waits: given.waits,
            blocked: world.is_blocked(),
        }
    }

    /// The part of the instance that an expectation names.
    #[must_use]
    pub fn part(&self, name: &str) -> Value {
        self.instance.get(name).cloned().unwrap_or(Value::Null)
    }
}

fn instance(world: &World) -> Value {
    let Some(view) = world.view() else {
        return Value::Null;
    };
    let mut view = serde_json::to_value(view).expect("views are plain data");
    for list in ["steps", "timers"] {
        view[list] = by_name(view[list].take());
    }
    view
}

/// A list of named things as a map.
fn by_name(list: Value) -> Value {
    let Value::Array(items) = list else {
        return Value::Null;
    };
    let named = items.into_iter().map(|mut item| {
        let name = item["name"].take();
        if let Some(members) = item.as_object_mut() {
            members.remove("name");
        }
        (name.as_str().unwrap_or_default().to_owned(), item)
    });
    Value::Object(named.collect::<Map<_, _>>())
}
