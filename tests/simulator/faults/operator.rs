//! What an operator does: he looks at the health of the process, and accepts what it says is lost.

use std::time::Duration;

use saga_runner::app::Node;
use saga_runner::ports::control::{
    AcceptRequest, AcceptVerb, NodeControl as _, PageRequest, ShardControl as _,
};
use saga_runner::ports::held::{HeldRequest, HeldVerb, PendingReport, PendingRow};

use crate::random::Rng;
use crate::run::{COMMANDS, EVENTS, RESULTS, Simulation};

/// How often he looks.
const EVERY: Duration = Duration::from_secs(4);

/// As much as he reads of a list.
const fn page() -> PageRequest {
    PageRequest::new(None, 100)
}

impl Simulation {
    pub const fn is_looked_after(&self) -> bool {
        self.losses.is_troubled || self.losses.adopted.is_some()
    }

    /// Looks where there may be something, and it is time to.
    pub async fn look_after(&mut self, node: &Node) {
        let now = self.world.clock.passed();
        // A shard without room answers once it has some, and that ends while nobody waits for it.
        if !self.is_looked_after() || now < self.losses.looks_at || self.is_somewhere_full() {
            return;
        }
        self.losses.looks_at = now + EVERY;
        if self.losses.adopted.is_some() {
            self.let_go(node).await;
        }
        let health = node.health().await;
        let told: Vec<AcceptVerb> = [AcceptVerb::Gap, AcceptVerb::Rebind]
            .into_iter()
            .filter(|verb| {
                let mut checks = health.checks.iter();
                checks.any(|check| !check.ok && check.detail.contains(verb.accepts()))
            })
            .collect();
        if told.contains(&AcceptVerb::Gap) && !self.losses.is_told {
            // He thinks about it until he looks again, and the process may be restarted meanwhile.
            self.losses.is_told = true;
            return;
        }
        // What is shown of a stream may be one thing, and what one of the shards has met the other: a refusal says so.
        let verbs = if told.is_empty() {
            &[][..]
        } else {
            &[AcceptVerb::Gap, AcceptVerb::Rebind][..]
        };
        for verb in verbs.iter().copied() {
            for shard in 0..self.plan.shards {
                for stream in [EVENTS, COMMANDS, RESULTS] {
                    self.accept(node, shard, verb, stream).await;
                }
            }
        }
    }

    /// Looks at what the shards hold back that go on from what was adopted, gives some of it up, and lets them send the rest.
    async fn let_go(&mut self, node: &Node) {
        for shard in 0..self.plan.shards {
            let Ok(pending) = node.pending(shard, page()).await else {
                continue;
            };
            if pending.state != "held" || !self.give_up(node, shard, &pending).await {
                continue;
            }
            let request = HeldRequest {
                reason: "it is to be done".to_owned(),
                ..HeldRequest::default()
            };
            let released = node.decide_held(shard, HeldVerb::Release, request).await;
            let is_done = released.is_ok();
            self.world
                .note(format_args!("operator: lets shard {shard} go: {is_done}"));
        }
    }

    /// Gives up some of what a shard holds back, or nothing; whether the rest may go. What he gives up he chooses by the page
    /// that he sees.
    async fn give_up(&mut self, node: &Node, shard: u16, pending: &PendingReport) -> bool {
        let now = self.world.clock.passed().as_millis();
        let mut rng = Rng::new(
            self.plan.seed ^ u64::try_from(now).expect("a short time"),
            "operator",
        );
        if !self.plan.may_discard || rng.chance(400) {
            return true;
        }
        let all = rng.chance(200);
        let is_meant = |rng: &mut Rng, row: &PendingRow| match (all, row.kind) {
            _ if !row.may_be_discarded => false,
            (true, _) => row.may_be_done,
            (false, "fact") => rng.chance(100),
            (false, _) => rng.chance(500),
        };
        let rows = pending.items.iter();
        let rows: Vec<&PendingRow> = rows.filter(|row| is_meant(&mut rng, row)).collect();
        if rows.is_empty() || (all && pending.next.is_some()) {
            return true;
        }
        let request = HeldRequest {
            reason: "it is done already".to_owned(),
            commands: if all {
                Vec::new()
            } else {
                rows.iter().map(|row| row.id).collect()
            },
            all,
            ..HeldRequest::default()
        };
        match node.decide_held(shard, HeldVerb::Discard, request).await {
            Ok(report) => {
                self.world.note(format_args!(
                    "operator: discards {} row(s) of shard {shard}",
                    report.rows
                ));
                for row in report.items {
                    self.world.discarded(row.id.to_string());
                    if row.kind == "fact" {
                        let about = (row.tenant.to_string(), row.saga, row.key);
                        self.losses.discarded_facts.push(about);
                    }
                }
                // He looks once more before he lets the rest go.
                false
            }
            Err(error) => {
                self.world
                    .note(format_args!("operator: does not discard: {error}"));
                false
            }
        }
    }

    async fn accept(&mut self, node: &Node, shard: u16, verb: AcceptVerb, stream: &str) {
        let request = |dry_run| AcceptRequest {
            stream: stream.to_owned(),
            by: String::new(),
            reason: "the broker has lost it".to_owned(),
            dry_run,
            position: None,
        };
        // He reads what would be lost first. By that he is told, also where the process that does it dies before it answers.
        match node.accept(shard, verb, request(true)).await {
            Ok(report) => self.losses.told.push(report),
            Err(error) => {
                self.world
                    .note(format_args!("operator: not {}: {error}", verb.as_str()));
                return;
            }
        }
        match node.accept(shard, verb, request(false)).await {
            Ok(report) => {
                let (from, to) = (report.position, report.new_position);
                self.world.note(format_args!(
                    "operator: {} of shard {shard}, {stream}: {from} to {to}",
                    verb.as_str()
                ));
                self.losses.told.push(report);
            }
            Err(error) => self.world.note(format_args!("operator: {error}")),
        }
    }
}
