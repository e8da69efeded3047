//! Situations that need several things at once, which faults drawn one by one hardly ever bring together. Each is a kind of
//! seed of its own, without other faults of the process.

use std::time::Duration;

use serde_json::json;

use super::faults::{Fault, Loss};
use super::plan::{Action, Plan};
use super::random::Rng;
use super::run::EVENTS;
use super::workload;

/// So many of a thousand seeds have one.
const SHARE: u64 = 160;
/// So many of a thousand other seeds have [`Situation::PoisonWhilePaused`].
const SHARE_PAUSED: u64 = 30;
/// So many of a thousand seeds without any of them have [`Situation::Archived`].
const SHARE_ARCHIVED: u64 = 40;
/// So many of a thousand seeds without any of those have [`Situation::DiesInCalls`].
const SHARE_DIES: u64 = 30;
/// Longest time for which the connection is away, in milliseconds.
const CUT_MS: u64 = 9_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
    /// The process is told to stop while calls are under way.
    StopsInCalls,
    /// Events wait within a shard while timers are due that they would clear.
    EventsHeld,
    /// Messages are removed while nobody can read them.
    RemovedUnread,
    /// A stream goes back while nobody can read it, and has grown again when somebody can.
    GrownAgain,
    /// Results that kill the process come while their instances are paused.
    PoisonWhilePaused,
    /// What has ended goes to the archive soon, while the process dies and the broker does not answer.
    Archived,
    /// The process dies while calls are on their way to their upstream, which they reach after it lives again.
    DiesInCalls,
}

impl Situation {
    const DRAWN: [Self; 4] = [
        Self::StopsInCalls,
        Self::EventsHeld,
        Self::RemovedUnread,
        Self::GrownAgain,
    ];

    pub fn of(seed: u64) -> Option<Self> {
        let mut rng = Rng::new(seed, "situation");
        if rng.chance(SHARE) {
            return Some(*rng.pick(&Self::DRAWN));
        }
        if rng.chance(SHARE_PAUSED) {
            return Some(Self::PoisonWhilePaused);
        }
        if Rng::new(seed, "archived").chance(SHARE_ARCHIVED) {
            return Some(Self::Archived);
        }
        let mut rng = Rng::new(seed, "dies_in_calls");
        rng.chance(SHARE_DIES).then_some(Self::DiesInCalls)
    }

    /// Nothing goes wrong but this.
    pub const fn is_calm(self) -> bool {
        matches!(self, Self::StopsInCalls)
    }

    pub const fn is_loss(self) -> bool {
        matches!(self, Self::RemovedUnread | Self::GrownAgain)
    }

    /// Adds to a plan what brings it about.
    pub fn arrange(self, plan: &mut Plan) {
        let mut rng = Rng::new(plan.seed, "arrangement");
        match self {
            Self::StopsInCalls => stops_in_calls(plan, &mut rng),
            Self::EventsHeld => events_held(plan, &mut rng),
            Self::RemovedUnread => removed_unread(plan, &mut rng),
            Self::GrownAgain => grown_again(plan, &mut rng),
            Self::PoisonWhilePaused => poison_while_paused(plan, &mut rng),
            Self::Archived => archived(plan, &mut rng),
            Self::DiesInCalls => dies_in_calls(plan, &mut rng),
        }
        plan.actions.sort_by_key(|(at, _): &(Duration, Action)| *at);
    }
}

fn stops_in_calls(plan: &mut Plan, rng: &mut Rng) {
    plan.settings["dispatch"] = json!("local");
    plan.upstream.latency_ms = *rng.pick(&[3_000, 6_000]);
    let opened = times(plan, "Pay.Opened");
    for _ in 0..rng.within(1..=2) {
        // A payment calls for about as long as this.
        let after = rng.millis(100..=8_000);
        let at = if opened.is_empty() {
            Duration::ZERO
        } else {
            *rng.pick(&opened)
        };
        plan.actions.push((at + after, Action::Restart));
    }
}

fn dies_in_calls(plan: &mut Plan, rng: &mut Rng) {
    plan.settings["dispatch"] = json!("local");
    plan.upstream.latency_ms = 9_000;
    let opened = times(plan, "Pay.Opened");
    for _ in 0..rng.within(1..=3) {
        // The second call of a payment begins within half of this.
        let after = rng.millis(500..=14_000);
        let at = if opened.is_empty() {
            Duration::ZERO
        } else {
            *rng.pick(&opened)
        };
        let for_ms = rng.within(1..=800);
        plan.actions.push((at + after, Action::Down { for_ms }));
    }
}

fn events_held(plan: &mut Plan, rng: &mut Rng) {
    plan.shards = 1;
    let shard = &mut plan.settings["shard"];
    shard["outbox_soft"] = json!(*rng.pick(&[1, 3]));
    shard["held_deliveries"] = json!(*rng.pick(&[16, 1_024]));
    plan.upstream.latency_ms = 9_000;
    // What was begun before stays in the outbox until it is over.
    if rng.chance(500) {
        let paid = times(plan, "Bill.Paid");
        let at = if paid.is_empty() {
            Duration::ZERO
        } else {
            *rng.pick(&paid)
        };
        let away = Action::UpstreamsAway {
            for_ms: *rng.pick(&[5_000, 45_000]),
        };
        plan.actions
            .push((at.saturating_sub(rng.millis(1..=3_000)), away));
    }
}

fn removed_unread(plan: &mut Plan, rng: &mut Rng) {
    let added = times(plan, "List.Added");
    let at = if added.is_empty() {
        rng.millis(0..=CUT_MS)
    } else {
        *rng.pick(&added)
    };
    let cut = Action::Cut {
        for_ms: rng.within(1_000..=CUT_MS),
    };
    plan.actions.push((at.saturating_sub(rng.millis(1..=300)), cut));
    let loss = if rng.chance(300) {
        Loss::Purged
    } else {
        Loss::Removed { behind: rng.below(2) }
    };
    let gone = Action::Fault(Fault::Stream { stream: EVENTS, loss });
    plan.actions.push((at + rng.millis(1..=50), gone));
}

fn grown_again(plan: &mut Plan, rng: &mut Rng) {
    let count = *rng.pick(&[1, 1, 2, 3, 5]);
    let events: Vec<Duration> = plan
        .actions
        .iter()
        .filter(|(_, action)| matches!(action, Action::Event(_)))
        .map(|(at, _)| *at)
        .collect();
    // One more than what is lost comes while the connection is away, or two.
    let more = usize::try_from(count + rng.below(2)).expect("few");
    let patience = Duration::from_millis(CUT_MS);
    let spans: Vec<(Duration, Duration)> = events
        .windows(more + 1)
        .map(|span| (span[0], span[more]))
        .filter(|(first, last)| last.saturating_sub(*first) < patience && *first > Duration::from_secs(2))
        .collect();
    let Some((first, last)) = (!spans.is_empty()).then(|| *rng.pick(&spans)) else {
        return;
    };
    let begin = first.saturating_sub(rng.millis(1..=200));
    let for_ms = last.saturating_sub(begin).as_millis();
    let for_ms = u64::try_from(for_ms).expect("short") + rng.within(1..=100);
    plan.actions.push((begin, Action::Cut { for_ms }));
    let loss = Loss::GoesBack {
        count,
        noise: 0,
        resent: rng.chance(200),
    };
    let back = Action::Fault(Fault::Stream { stream: EVENTS, loss });
    plan.actions.push((begin, back));
    // Somebody else looks at the stream where the process begins anew.
    if rng.chance(300) {
        let calls = rng.within(1..=20);
        plan.actions.push((begin, Action::Crash { calls }));
    }
}

fn poison_while_paused(plan: &mut Plan, rng: &mut Rng) {
    plan.upstream.poisonous = rng.within(100..=500);
    let pauses = workload::pauses(rng, 600, &plan.actions);
    plan.actions.extend(pauses);
}

fn archived(plan: &mut Plan, rng: &mut Rng) {
    let archive = match rng.below(4) {
        0 => json!({"entry_bytes_max": 16_384}),
        1 => json!({"inputs_bytes_max": 2_000}),
        _ => json!({}),
    };
    // By number, or by age; never while an instance is wanted by others that have not ended long ago.
    plan.settings["storage"] = match rng.below(3) {
        0 => json!({"keep_ended": "40s", "archive": archive}),
        1 => json!({"keep_ended": "1s", "archive": archive}),
        _ => json!({"keep_ended_count": *rng.pick(&[0, 1, 4]), "archive": archive}),
    };
    for _ in 0..rng.within(1..=6) {
        let action = match rng.below(6) {
            0..=2 => Action::Crash {
                calls: rng.within(1..=200),
            },
            3 => Action::Restart,
            4 => Action::Cut {
                for_ms: rng.within(1..=CUT_MS),
            },
            _ => Action::DiskFull {
                shard: u16::try_from(rng.below(3)).expect("small"),
                for_ms: rng.within(100..=6_000),
            },
        };
        plan.actions.push((rng.millis(0..=workload::SPAN_MS), action));
    }
}

/// When events of this name are published.
fn times(plan: &Plan, name: &str) -> Vec<Duration> {
    let mut times = Vec::new();
    for (at, action) in &plan.actions {
        if matches!(action, Action::Event(event) if event.name == name && !event.repeats) {
            times.push(*at);
        }
    }
    times
}
