//! Faults that somebody has to answer for: owners that are not alone, folders that are lost, streams that lose what they had.
//! What an operator does about them is here, too.

pub mod early;
mod operator;
mod owners;
pub mod records;
mod strangers;
mod streams;

use std::time::Duration;

use saga_runner::app::ownership::Adoption;
use saga_runner::ports::control::AcceptReport;
use serde_json::{Value, json};

use super::folder::Folder;
use super::plan::Action;
use super::random::Rng;
use super::run::{COMMANDS, EVENTS, End, Ended, RESULTS, Simulation};
use super::runner::Runner;
use super::store::POISON;
use super::upstream::UpstreamFaults;
use super::workload::{Event, TENANTS};
use records::RecordLoss;
pub use strangers::{Stranger, is_of_stranger};
pub use streams::Gone;

/// Longest time into which faults are spread.
const SPAN_MS: u64 = 60_000;

/// On what a process is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Empty,
    /// A copy of the folder as it is now.
    Copy,
    /// The last backup.
    Backup,
}

/// What happens to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its newest messages are lost with the power; others come in their place, then those whose producers have noticed.
    GoesBack {
        count: u64,
        noise: u64,
        resent: bool,
    },
    Purged,
    /// One of its newest messages is removed.
    Removed {
        behind: u64,
    },
    MadeAnew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Somebody keeps a copy of the folder.
    Backup,
    /// Another process is started beside the first one, which stands still for a while.
    Second {
        on: On,
        still_ms: u64,
    },
    /// The process ends, and its folder is not what it was when it is started again.
    Lost {
        on: On,
        is_stopped: bool,
    },
    Stream {
        stream: &'static str,
        loss: Loss,
    },
    Records(RecordLoss),
    /// The file of a shard has no room for further rows.
    MapFull {
        shard: u16,
        for_ms: u64,
    },
    /// Somebody publishes a result who is not to.
    Meddling {
        stranger: Stranger,
        back: usize,
    },
    /// Events that nobody reacts to.
    Noise {
        count: u64,
    },
}

/// What has happened, and what was said about it.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "what has happened, each by itself")]
pub struct Losses {
    backup: Option<Folder>,
    /// The folder is not the one that was at work last: the operator gives that one up once he is told so.
    is_given_up: bool,
    /// The folder holds nothing, and the cluster knows its shards.
    must_be_refused: bool,
    /// The second process works on a copy behind which the first one may have worked.
    is_second_behind: bool,
    /// For the next start.
    adoption: Option<Adoption>,
    /// When a folder was adopted.
    pub adopted: Option<Duration>,
    /// Events that are gone from their stream.
    pub gone: Vec<Gone>,
    /// What an operator was told of it, before and after he accepted it.
    pub told: Vec<AcceptReport>,
    /// Streams that have lost something.
    streams: Vec<&'static str>,
    /// Some stream has; the operator looks from now on.
    is_troubled: bool,
    looks_at: Duration,
    /// The process has told of a gap.
    is_told: bool,
    /// Tenant, saga and key of each fact that an operator has discarded.
    pub discarded_facts: Vec<(String, String, String)>,
}

impl Losses {
    pub fn has_lost(&self, stream: &str) -> bool {
        self.streams.contains(&stream)
    }
}

impl Simulation {
    /// What happens; how the life ends where it does.
    pub async fn suffer(
        &mut self,
        fault: Fault,
        main: &Runner,
        second: &mut Option<Runner>,
    ) -> Option<Ended> {
        match fault {
            Fault::Backup => self.back_up(),
            Fault::Noise { count } => self.noise(count),
            Fault::Records(loss) => self.lose_records(loss),
            Fault::Meddling { stranger, back } => self.meddle(stranger, back),
            Fault::MapFull { shard, for_ms } => {
                let shard = shard % self.plan.shards;
                self.world.note(format_args!("map of shard {shard} is full"));
                self.disks[usize::from(shard)].set_map_full(true);
                let at = self.world.clock.passed() + Duration::from_millis(for_ms);
                self.ends.push((at, End::MapFull(shard)));
            }
            // Whatever is removed one by one before a process has looked at the stream, nobody notices.
            Fault::Stream {
                stream: EVENTS,
                loss: Loss::Removed { .. },
            } if !main.process.reads_events() => {}
            Fault::Stream { stream, loss } => {
                self.lose_of(stream, loss);
                if self.is_untold() {
                    main.process.spare();
                }
            }
            Fault::Second { on, still_ms } => {
                if second.is_some() || self.is_untold() {
                    return None;
                }
                match self.begin_second(main, on, Duration::from_millis(still_ms)) {
                    Some(Ok(runner)) => *second = Some(runner),
                    Some(Err(fault)) => return Some(Ended::Failed(fault)),
                    None => {}
                }
            }
            Fault::Lost { on, is_stopped } => {
                if self.is_untold() || second.is_some() {
                    return None;
                }
                if is_stopped {
                    main.process.go_on();
                    self.server.wake();
                    main.node.drain(Duration::from_secs(10)).await;
                }
                main.process.die();
                self.lose(on);
                return Some(Ended::Died);
            }
        }
        None
    }
}

/// Draws them: of one kind in most cases, so that others do not hide what it does.
pub fn draw(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    if rng.chance(200) {
        for _ in 0..rng.within(1..=10) {
            let count = *rng.pick(&[1, 3, 20]);
            add(rng, actions, Fault::Noise { count });
        }
    }
    if rng.chance(100) {
        let (shard, for_ms) = (
            u16::try_from(rng.below(8)).expect("small"),
            rng.within(100..=6_000),
        );
        add(rng, actions, Fault::MapFull { shard, for_ms });
    }
    match rng.below(100) {
        0..=9 => poison(rng, actions),
        10..=19 => meddling(rng, actions),
        20..=39 => second(rng, actions),
        40..=46 => {
            for _ in 0..rng.within(1..=3) {
                let is_stopped = rng.chance(300);
                add(
                    rng,
                    actions,
                    Fault::Lost {
                        on: On::Copy,
                        is_stopped,
                    },
                );
            }
        }
        47..=60 => lost(rng, actions),
        61..=80 => {
            for _ in 0..rng.within(1..=2) {
                let loss = loss(rng);
                add(rng, actions, Fault::Stream { stream: EVENTS, loss });
            }
        }
        _ => {
            for _ in 0..rng.within(1..=3) {
                let (stream, loss) = (*rng.pick(&[RESULTS, COMMANDS]), loss(rng));
                add(rng, actions, Fault::Stream { stream, loss });
            }
        }
    }
}

/// Upstreams that answer something else than they should.
pub fn odd_upstreams(rng: &mut Rng) -> UpstreamFaults {
    let mut some = |chance: u64, most: u64| if rng.chance(chance) { rng.below(most) } else { 0 };
    UpstreamFaults {
        malformed: some(120, 200),
        overdue: some(120, 100),
        poisonous: some(40, 150),
        lying: some(60, 200),
        ..UpstreamFaults::default()
    }
}

/// Somebody fills cups, and some of it kills the process that takes it.
fn poison(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    for cup in 0..rng.within(1..=2) {
        let key = format!("c{cup}");
        let mut at = rng.within(0..=SPAN_MS / 2);
        let drops = rng.within(2..=6);
        let mut push = |at: u64, name: &'static str, number: u64, data: Value| {
            let event = Event {
                tenant: TENANTS[0],
                sequence: number + 1,
                id: format!("{name}-{key}-{number}"),
                kind: "Cup",
                name,
                key: key.clone(),
                data,
                repeats: false,
            };
            actions.push((Duration::from_millis(at), Action::Event(event)));
        };
        push(at, "Cup.Opened", 0, json!({"cup": key}));
        for number in 1..=drops {
            at += rng.below(6_000);
            let what = if rng.chance(300) {
                POISON.to_owned()
            } else {
                format!("d{number}")
            };
            push(at, "Cup.Filled", number, json!({"cup": key, "what": what}));
        }
        push(at + rng.below(6_000), "Cup.Emptied", 0, json!({"cup": key}));
    }
}

fn meddling(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    for _ in 0..rng.within(1..=6) {
        let kinds = [Stranger::Doubles, Stranger::Contradicts, Stranger::WasNeverAsked];
        let stranger = *rng.pick(&kinds);
        let back = usize::try_from(rng.below(4)).expect("few");
        add(rng, actions, Fault::Meddling { stranger, back });
    }
}

fn second(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    for _ in 0..rng.within(1..=3) {
        let on = *rng.pick(&[On::Empty, On::Copy, On::Copy, On::Backup]);
        let still_ms = *rng.pick(&[0, 4_000, 12_000, 17_000, 40_000]);
        add(rng, actions, Fault::Backup);
        add(rng, actions, Fault::Second { on, still_ms });
    }
}

fn lost(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>) {
    let on = *rng.pick(&[On::Empty, On::Backup]);
    if on == On::Backup {
        add(rng, actions, Fault::Backup);
    }
    let is_stopped = rng.chance(300);
    add(rng, actions, Fault::Lost { on, is_stopped });
}

fn loss(rng: &mut Rng) -> Loss {
    match rng.below(10) {
        0..=4 => Loss::GoesBack {
            count: *rng.pick(&[1, 2, 5, 20, 200]),
            noise: *rng.pick(&[0, 1, 3, 12, 60]),
            resent: rng.chance(500),
        },
        5 | 6 => Loss::Purged,
        7 => Loss::Removed { behind: rng.below(4) },
        _ => Loss::MadeAnew,
    }
}

fn add(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>, fault: Fault) {
    actions.push((rng.millis(0..=SPAN_MS), Action::Fault(fault)));
}

/// Whether an event is one of this aggregate.
fn is_of(event: &Event, kind: &str, key: &str) -> bool {
    event.kind == kind && event.key == key
}
