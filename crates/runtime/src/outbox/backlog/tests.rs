//! The backlog against a shard that releases, loses releases, completes and answers refills late.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::kernel::ids::{CommandId, Key, SagaName};

const LIMIT: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    /// A commit with rows of these kinds; `true`: its release is lost.
    Commit(Vec<(u8, u8)>, bool),
    /// The relay asks, if it wants to and has not asked already.
    Ask,
    /// The shard reads the rows for its answer.
    Read,
    /// The answer reaches the relay.
    Answer,
    /// Everything that may go arrives.
    Deliver,
    /// The result of the n-th standing command is applied; `true`: its release is lost.
    Complete(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop::collection::vec((0..4_u8, 0..3_u8), 1..4), prop::bool::weighted(0.2))
            .prop_map(|(rows, lost)| Step::Commit(rows, lost)),
        3 => Just(Step::Ask),
        3 => Just(Step::Read),
        3 => Just(Step::Answer),
        3 => Just(Step::Deliver),
        3 => (0..8_usize, prop::bool::weighted(0.2)).prop_map(|(n, lost)| Step::Complete(n, lost)),
    ];
    prop::collection::vec(step, 1..60)
}

fn item(kind: u8, key: u8, n: u64) -> WorkItem {
    let effect = |name: &str| WorkKind::Effect {
        effect: EffectName::parse(name).expect("legal"),
        payload: Bytes::new(),
    };
    WorkItem {
        instance: InstanceId {
            tenant: TenantId::parse("acme").expect("legal"),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse(&format!("k{key}")).expect("legal"),
        },
        command_id: CommandId(Uuid::from_u128(u128::from(n))),
        idempotency_key: String::new(),
        path: String::new(),
        attempt: 1,
        created: TimeMs(0),
        deadline: TimeMs(0),
        waited_ms: 0,
        causation_id: String::new(),
        root_correlation_id: None,
        traceparent: None,
        hops: 0,
        kind: match kind {
            0 => effect("reserve"),
            1 => effect("charge"),
            2 => WorkKind::Fact {
                fact_type: String::new(),
                payload: Bytes::new(),
            },
            _ => WorkKind::Command {
                aggregate_type: String::new(),
                aggregate_id: String::new(),
                command_type: String::new(),
                payload: Bytes::new(),
                token: None,
                awaited: false,
            },
        },
    }
}

/// A shard and the world, as far as they matter here.
struct World {
    backlog: Backlog,
    next: u64,
    outbox: BTreeMap<WorkRef, WorkItem>,
    arrived: BTreeSet<WorkRef>,
    /// Rows in the order in which they arrived first, per ordered destination and instance.
    order: HashMap<(Destination, InstanceId), Vec<WorkRef>>,
    asked: Option<(Scope, WorkRef)>,
    read: Option<Vec<Row>>,
}

impl World {
    fn new() -> Self {
        Self {
            backlog: Backlog::new(WorkRef::at_position(0), 2, 4),
            next: 0,
            outbox: BTreeMap::new(),
            arrived: BTreeSet::new(),
            order: HashMap::new(),
            asked: None,
            read: None,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Commit(rows, lost) => self.commit(&rows, lost),
            Step::Ask => self.ask(),
            Step::Read => self.read(),
            Step::Answer => self.answer(),
            Step::Deliver => self.deliver(),
            Step::Complete(n, lost) => self.complete(n, lost),
        }
        self.check();
    }

    fn commit(&mut self, kinds: &[(u8, u8)], lost: bool) {
        self.next += 1;
        let mut rows = Vec::new();
        for (index, (kind, key)) in kinds.iter().enumerate() {
            let row = WorkRef {
                log_sequence: self.next,
                index: u16::try_from(index).expect("few"),
            };
            let item = item(*kind, *key, row.position());
            self.outbox.insert(row, item.clone());
            rows.push((row, item));
        }
        if lost {
            self.backlog.spill();
        } else {
            self.backlog.release(rows);
        }
    }

    fn ask(&mut self) {
        if self.asked.is_none() {
            self.asked = self.backlog.ask();
        }
    }

    fn read(&mut self) {
        let Some((_, after)) = &self.asked else {
            return;
        };
        if self.read.is_none() {
            let later = self.outbox.iter().filter(|(row, _)| *row > after);
            self.read = Some(
                later
                    .take(LIMIT)
                    .map(|(row, item)| (*row, item.clone()))
                    .collect(),
            );
        }
    }

    fn answer(&mut self) {
        if let Some(rows) = self.read.take()
            && let Some((scope, _)) = self.asked.take()
        {
            self.backlog.refilled(&scope, rows, LIMIT);
        }
    }

    fn deliver(&mut self) {
        while let Some((row, item)) = self
            .backlog
            .next_publication()
            .or_else(|| self.backlog.next_submission())
        {
            let destination = Destination::of(&item);
            let first = self.arrived.insert(row);
            match &destination {
                Destination::Effect(..) => {}
                Destination::Gateway(_)
                | Destination::Facts
                | Destination::Sagas
                | Destination::Results
                | Destination::Cancellations => {
                    let chain = (destination.clone(), item.instance.clone());
                    if first {
                        self.order.entry(chain).or_default().push(row);
                    }
                    self.backlog.arrived(&destination, &item.instance);
                    self.outbox.remove(&row);
                }
            }
            self.backlog.hand_over(row, &destination);
        }
    }

    fn complete(&mut self, n: usize, lost: bool) {
        let awaits = |row: &&WorkRef| self.arrived.contains(row) && self.outbox.contains_key(row);
        let standing: Vec<WorkRef> = self.outbox.keys().filter(awaits).copied().collect();
        let Some(row) = standing.get(n % standing.len().max(1)).copied() else {
            return;
        };
        self.outbox.remove(&row);
        if lost {
            self.backlog.spill();
        } else {
            self.backlog.complete(&[row]);
        }
    }

    fn check(&self) {
        let floor = self.backlog.floor();
        let missed: Vec<_> = self
            .outbox
            .keys()
            .filter(|row| **row <= floor && !self.arrived.contains(row))
            .collect();
        assert!(missed.is_empty(), "floor {floor:?} is above {missed:?}");
        for (chain, rows) in &self.order {
            assert!(rows.is_sorted(), "{chain:?} out of order: {rows:?}");
        }
        for (destination, queue) in &self.backlog.queues {
            assert!(
                queue.standing <= 2,
                "{destination:?} has {} standing",
                queue.standing
            );
            assert!(
                queue.waiting.len() <= 5,
                "{destination:?} keeps {} rows",
                queue.waiting.len()
            );
        }
    }
}

proptest! {
    #[test]
    fn every_row_arrives_in_order_within_bounds_and_the_floor_tells_the_truth(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        for _ in 0..2_000 {
            if world.outbox.is_empty() {
                break;
            }
            world.step(Step::Ask);
            world.step(Step::Read);
            world.step(Step::Answer);
            world.step(Step::Deliver);
            world.step(Step::Complete(0, false));
            world.backlog.resync();
        }
        prop_assert!(world.outbox.is_empty(), "never arrived: {:?}", world.outbox.keys());
    }
}
