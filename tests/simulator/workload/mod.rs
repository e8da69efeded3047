//! What the outside world does while nothing goes wrong: what producers publish, and what people and other systems ask for.

mod bills;
mod lists;
pub mod operator;
mod orders;
mod pays;
mod requests;
mod small;
mod trips;

use std::time::Duration;

use serde_json::{Value, json};

pub use requests::{FORGED, Request, Verb, ada};

use super::plan::Action;
use super::random::Rng;

/// Tenants use the same keys, so whoever mixes them up is seen.
pub const TENANTS: [&str; 2] = ["acme", "beta"];

/// Longest time in which something is sent.
pub const SPAN_MS: u64 = 60_000;

/// An event, as its producer means it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub tenant: &'static str,
    pub id: String,
    /// Type of the aggregate.
    pub kind: &'static str,
    pub name: &'static str,
    pub key: String,
    /// Number of the event of its aggregate, the first being 1.
    pub sequence: u64,
    pub data: Value,
    /// The producer sends it once more.
    pub repeats: bool,
}

impl Event {
    pub fn subject(&self) -> String {
        format!("tenant.{}.aggregate.{}.{}", self.tenant, self.kind, self.key)
    }

    pub fn body(&self) -> Value {
        json!({
            "tenant_id": self.tenant, "event_id": self.id, "event_type": self.name, "aggregate_type": self.kind,
            "aggregate_id": self.key, "sequence": self.sequence, "schema_version": 1, "payload": self.data,
            "metadata": {"correlation_id": self.key},
        })
    }
}

/// What nothing of another tenant may ever contain.
pub fn mark(tenant: &str) -> String {
    format!("mark-of-{tenant}")
}

/// All that is sent, in any order; `is_plain`: only what can be judged where something is lost.
pub fn draw(rng: &mut Rng, is_plain: bool) -> Vec<(Duration, Action)> {
    let mut script = Script {
        rng,
        tenant: TENANTS[0],
        is_plain,
        actions: Vec::new(),
    };
    let both = !is_plain && script.rng.chance(500);
    for tenant in TENANTS.into_iter().take(1 + usize::from(both)) {
        script.tenant = tenant;
        // Half as much of each where there are two.
        let part = if both { 2 } else { 1 };
        lists::draw(&mut script, part);
        bills::draw(&mut script, part);
        pays::draw(&mut script, part);
        if !is_plain {
            orders::draw(&mut script, part);
            small::draw(&mut script, part);
        }
    }
    script.actions
}

/// Trips, of some seeds, drawn from a sequence of their own: seeds without them stay what they are.
pub fn trips(seed: u64) -> Vec<(Duration, Action)> {
    let mut rng = Rng::new(seed, "trips");
    if !rng.chance(400) {
        return Vec::new();
    }
    let tenant = *rng.pick(&TENANTS);
    let mut script = Script {
        rng: &mut rng,
        tenant,
        is_plain: false,
        actions: Vec::new(),
    };
    trips::draw(&mut script);
    script.actions
}

/// Instances that somebody pauses and resumes, of some seeds, drawn from a sequence of their own.
pub fn some_pauses(seed: u64, actions: &[(Duration, Action)]) -> Vec<(Duration, Action)> {
    let mut rng = Rng::new(seed, "pauses");
    if !rng.chance(400) {
        return Vec::new();
    }
    pauses(&mut rng, 300, actions)
}

/// Somebody pauses and resumes `share` of a thousand instances.
pub fn pauses(rng: &mut Rng, share: u64, actions: &[(Duration, Action)]) -> Vec<(Duration, Action)> {
    let opened = actions.iter().filter_map(|(at, action)| match action {
        Action::Event(event) => Some((*at, event)),
        _ => None,
    });
    let sagas = [
        ("Pay.Opened", "pay"),
        ("Trip.Opened", "trip"),
        ("Bill.Opened", "bill"),
    ];
    let opened = opened.filter_map(|(at, event)| {
        let (_, saga) = sagas.into_iter().find(|(name, _)| *name == event.name)?;
        Some((at, event.tenant, saga, event.key.clone()))
    });
    let mut found = Vec::new();
    for (at, tenant, saga, key) in opened {
        if !rng.chance(share) {
            continue;
        }
        let pause = at + Duration::from_millis(rng.within(0..=4_000));
        let resume = pause + Duration::from_millis(rng.within(1..=12_000));
        for (at, verb) in [(pause, Verb::Pause), (resume, Verb::Resume)] {
            let request = Request {
                tenant,
                saga,
                key: key.clone(),
                id: format!("{saga}-{key}-{}-{verb:?}", at.as_millis()),
                by_api: rng.chance(500),
                verb,
            };
            found.push((at, Action::Ask(request)));
        }
    }
    found
}

/// What one tenant does, as it is written down.
struct Script<'r> {
    rng: &'r mut Rng,
    tenant: &'static str,
    is_plain: bool,
    actions: Vec<(Duration, Action)>,
}

impl Script<'_> {
    fn event(&mut self, at_ms: u64, name: &'static str, key: &str, number: u64, data: Value) {
        let (kind, _) = name.split_once('.').expect("an aggregate's type and a dot");
        let mut data = data;
        data["mark"] = mark(self.tenant).into();
        let event = Event {
            tenant: self.tenant,
            id: format!("{name}-{key}-{number}"),
            kind,
            name,
            key: key.to_owned(),
            sequence: number + 1,
            data,
            repeats: false,
        };
        if self.rng.chance(60) {
            let again = Event {
                repeats: true,
                ..event.clone()
            };
            let later = at_ms + 1 + self.rng.below(3_000);
            self.act(later, Action::Event(again));
        }
        self.act(at_ms, Action::Event(event));
    }

    fn ask(&mut self, at_ms: u64, saga: &'static str, key: &str, verb: Verb) {
        let request = Request {
            tenant: self.tenant,
            saga,
            key: key.to_owned(),
            id: format!("{saga}-{key}-{at_ms}"),
            by_api: self.rng.chance(500),
            verb,
        };
        self.act(at_ms, Action::Ask(request));
    }

    fn act(&mut self, at_ms: u64, action: Action) {
        self.actions.push((Duration::from_millis(at_ms), action));
    }
}
