//! What a seed decides: limits, workload and faults, all of it before the simulation begins.

use std::time::Duration;

use serde_json::{Value, json};

use super::faults::{self, Fault};
use super::random::Rng;
use super::server::Faults;
use super::situations::Situation;
use super::upstream::UpstreamFaults;
use super::workload::{self, Event, Request, SPAN_MS};

/// How far the clock of the machine is set ahead, or back.
const CLOCK_STEP_MAX_MS: u64 = 600_000;

/// What happens from outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Somebody publishes an event.
    Event(Event),
    /// Somebody wants something of an instance.
    Ask(Request),
    /// Bytes that are no event, on the subject of this aggregate.
    Garbage {
        tenant: &'static str,
        kind: &'static str,
        key: String,
    },
    /// The process dies at the so manieth call of a port from now on.
    Crash {
        calls: u64,
    },
    /// The process dies, and nobody starts it for so long.
    Down {
        for_ms: u64,
    },
    /// It is told to stop, and started again.
    Restart,
    Reload,
    /// Other definitions are put in force: a saga more, and others anew.
    Change,
    Cut {
        for_ms: u64,
    },
    DropOnTheWay,
    DiskFull {
        shard: u16,
        for_ms: u64,
    },
    ClockStep {
        ms: i64,
    },
    /// A shard is closed while the others go on, and opened again.
    Close {
        shard: u16,
        for_ms: u64,
    },
    /// Upstreams do nothing for some time.
    UpstreamsAway {
        for_ms: u64,
    },
    Fault(Fault),
}

impl Action {
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Fault(Fault::Stream { .. } | Fault::Meddling { .. })) || self.is_of_owners()
    }

    pub fn is_of_owners(&self) -> bool {
        matches!(self, Self::Fault(Fault::Second { .. } | Fault::Lost { .. }))
    }

    /// It is about what the broker knows of owners, which the embedded one has beside what it knows of.
    pub fn concerns_owners(&self) -> bool {
        self.is_of_owners() || matches!(self, Self::Fault(Fault::Records(_)))
    }
}

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "a seed decides each by itself")]
pub struct Plan {
    pub seed: u64,
    pub shards: u16,
    /// Those that each life of the process begins with, where these are not all; the others are opened at the end.
    pub first: Option<Vec<u16>>,
    /// Settings beside those that every simulation has.
    pub settings: Value,
    pub broker: Faults,
    /// How long the broker remembers message ids.
    pub window_ms: i64,
    pub upstream: UpstreamFaults,
    /// By time.
    pub actions: Vec<(Duration, Action)>,
    /// Nothing goes wrong, though the process may be stopped and started: then nothing is done twice.
    pub is_calm: bool,
    /// An operator may discard some of what an adopted shard holds back.
    pub may_discard: bool,
    /// A process that ends takes its host with it.
    pub reboots: bool,
    pub is_on_mdbx: bool,
    /// The write sets of all commits are captured, and give the same rows.
    pub is_captured: bool,
    pub situation: Option<Situation>,
}

impl Plan {
    /// What somebody has written down: nothing goes wrong beside that.
    pub fn scripted(shards: u16, settings: Value, mut actions: Vec<(Duration, Action)>) -> Self {
        actions.sort_by_key(|(at, _)| *at);
        Self {
            // No multiple of those that have judges of their own.
            seed: 1,
            shards,
            first: None,
            settings,
            broker: Faults::default(),
            window_ms: 120_000,
            upstream: UpstreamFaults::default(),
            actions,
            is_calm: false,
            may_discard: false,
            reboots: false,
            is_on_mdbx: false,
            is_captured: false,
            situation: None,
        }
    }

    #[allow(
        clippy::too_many_lines,
        reason = "one draw after another: their order is the meaning of a seed"
    )]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "plan");
        let situation = Situation::of(seed);
        let is_calm = rng.chance(100);
        let is_calm = situation.map_or(is_calm, Situation::is_calm);
        let mut actions = Vec::new();
        if is_calm {
            upkeep(&mut rng, &mut actions);
        } else if situation.is_none() {
            // Few kinds at a time, so that none hides what another one does.
            let kinds = rng.below(100);
            if kinds < 65 {
                faults(&mut rng, &mut actions);
            }
            if kinds >= 45 {
                faults::draw(&mut rng, &mut actions);
            }
            faults::records::draw(seed, &mut actions);
            faults::early::draw(seed, &mut actions);
        }
        // Something is lost, or a stranger has a hand in it: then only what can be judged nevertheless is done.
        let is_plain =
            situation.is_some_and(Situation::is_loss) || actions.iter().any(|(_, action)| action.is_loss());
        actions.extend(workload::draw(&mut rng, is_plain));
        if !is_plain && situation.is_none() {
            actions.extend(workload::trips(seed));
            let pauses = workload::some_pauses(seed, &actions);
            actions.extend(pauses);
        }
        if !is_plain && rng.chance(300) {
            actions.push((rng.millis(0..=SPAN_MS), Action::Change));
        }
        actions.sort_by_key(|(at, _)| *at);
        let some = |rng: &mut Rng, most: u64| if rng.chance(400) { rng.below(most) } else { 0 };
        let latency_ms = *rng.pick(&[0, 1, 5, 40]);
        let broker = Faults {
            unavailable: some(&mut rng, 60),
            lost: some(&mut rng, 30),
            unanswered: some(&mut rng, 60),
            late: some(&mut rng, 60),
            receipts_lost: some(&mut rng, 80),
            latency_ms,
            horizon_ms: *rng.pick(&[0, 20, 100]),
            ahead: *rng.pick(&[0, 0, 3, 16]),
        };
        let upstream = UpstreamFaults {
            unreachable: some(&mut rng, 150),
            unanswered: some(&mut rng, 100),
            silent: some(&mut rng, 60),
            refused: some(&mut rng, 120),
            latency_ms: *rng.pick(&[2, 50, 1_000, 9_000]),
            ..faults::odd_upstreams(&mut rng)
        };
        let shards = if rng.chance(60) {
            8
        } else {
            u16::try_from(rng.within(1..=3)).expect("few")
        };
        let mut settings = settings(&mut rng);
        // The embedded broker lies in the folder of the runner: there is no other one.
        let is_alone = !actions.iter().any(|(_, action)| action.concerns_owners());
        if !is_alone || rng.chance(500) {
            settings["broker"] = json!({"kind": "nats"});
        }
        if !is_alone {
            // Longer than any process stands still.
            settings["shard"]["timer_hold_max"] = json!("10m");
        }
        let mut plan = Self {
            seed,
            shards,
            first: None,
            // Longer than what is looked up before it is sent.
            window_ms: if settings["relay"]["recheck_after"] == "2s" {
                *rng.pick(&[3_000, 120_000])
            } else {
                120_000
            },
            settings,
            broker: if is_calm {
                Faults {
                    latency_ms,
                    ..Faults::default()
                }
            } else {
                broker
            },
            upstream: if is_calm {
                UpstreamFaults {
                    latency_ms: *rng.pick(&[50, 2_000, 6_000]),
                    ..UpstreamFaults::default()
                }
            } else {
                upstream
            },
            actions,
            is_calm,
            may_discard: true,
            reboots: rng.chance(300),
            is_on_mdbx: seed % 100 == 50,
            is_captured: seed % 4 == 2,
            situation,
        };
        match situation {
            Some(situation) => situation.arrange(&mut plan),
            None => super::shards::decide(&mut plan),
        }
        plan
    }

    /// All keys that are opened of one type of aggregate, with their tenants.
    pub fn keys(&self, kind: &str) -> Vec<(&'static str, String)> {
        let mut keys: Vec<(&'static str, String)> = self
            .actions
            .iter()
            .filter_map(|(_, action)| match action {
                Action::Event(event) if event.kind == kind && event.name.ends_with(".Opened") => {
                    Some((event.tenant, event.key.clone()))
                }
                _ => None,
            })
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }

    pub fn garbage(&self) -> usize {
        let is_garbage = |(_, action): &&(Duration, Action)| matches!(action, Action::Garbage { .. });
        self.actions.iter().filter(is_garbage).count()
    }
}

/// Bounds small enough to be met.
fn settings(rng: &mut Rng) -> Value {
    json!({
        "dispatch": *rng.pick(&["broker", "broker", "local"]),
        "shard": {
            "mailbox": *rng.pick(&[4, 64, 4_096]),
            "batch_inputs": *rng.pick(&[1, 4, 64, 512]),
            "outbox_soft": *rng.pick(&[1, 3, 20, 50_000]),
            "held_deliveries": *rng.pick(&[1, 16, 1_024]),
            "idle_commit": *rng.pick(&["10ms", "100ms"]),
            "sweep_every": *rng.pick(&["1s", "5s"]),
            "sweep_after": *rng.pick(&["4s", "10s"]),
            "full_pause": "500ms",
            // Longer than any connection is away.
            "timer_hold_max": *rng.pick(&["20s", "10m"]),
        },
        "intake": {
            "buffer": *rng.pick(&[1, 8, 1_024]),
            "batch_messages": *rng.pick(&[1, 8, 256]),
            "delivery_inputs": *rng.pick(&[1, 4, 64]),
            "watermark_messages": *rng.pick(&[1, 256]),
            "detach_after": *rng.pick(&["20ms", "250ms"]),
            "detach_behind": *rng.pick(&[5, 10_000]),
            "attach_within": *rng.pick(&[3, 1_000]),
            "attach_inputs": *rng.pick(&[2, 4_096]),
        },
        "relay": {
            "publish_in_flight": *rng.pick(&[1, 4, 1_024]),
            "per_tenant_in_flight": *rng.pick(&[1, 3, 1_000]),
            "rows_in_memory": *rng.pick(&[1, 5, 2_000]),
            "refill_rows": *rng.pick(&[1, 10, 1_000]),
            "retry_max": "2s",
            "recheck_after": *rng.pick(&["2s", "60s"]),
            "trim_interval": *rng.pick(&["2s", "20s"]),
            "gate_horizon": *rng.pick(&["70s", "1h"]),
        },
        "worker": {
            "ack_wait": *rng.pick(&["3s", "30s"]),
            "concurrency": *rng.pick(&[2, 1_024]),
            "yield_retry": *rng.pick(&["0ms", "100ms"]),
            "unacknowledged_max": *rng.pick(&[2, 4_096]),
            "answered_max": *rng.pick(&[1, 65_536]),
            "cancellations_max": *rng.pick(&[1, 65_536]),
            "recheck_after": *rng.pick(&["1s", "60s"]),
        },
    })
}

/// What is done to a process that nothing happens to.
fn upkeep(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    for _ in 0..rng.within(0..=3) {
        let action = rng
            .pick(&[Action::Restart, Action::Restart, Action::Reload])
            .clone();
        actions.push((rng.millis(0..=SPAN_MS), action));
    }
}

fn faults(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    for _ in 0..rng.within(0..=7) {
        let action = match rng.below(11) {
            0..=2 => Action::Crash {
                calls: rng.within(1..=400),
            },
            3 => Action::Restart,
            4 => Action::Reload,
            5 => Action::Cut {
                for_ms: rng.within(1..=9_000),
            },
            6 => Action::DropOnTheWay,
            7 => match rng.below(3) {
                0 => Action::ClockStep {
                    ms: i64::try_from(rng.below(2 * CLOCK_STEP_MAX_MS)).expect("small")
                        - CLOCK_STEP_MAX_MS.cast_signed(),
                },
                _ => Action::DiskFull {
                    shard: u16::try_from(rng.below(3)).expect("small"),
                    for_ms: rng.within(100..=6_000),
                },
            },
            8 | 9 => Action::UpstreamsAway {
                for_ms: *rng.pick(&[500, 5_000, 45_000, 45_000]),
            },
            _ => Action::Crash {
                calls: rng.within(1..=60),
            },
        };
        actions.push((rng.millis(0..=SPAN_MS), action));
    }
}
