//! What an operator does: he looks at the health of the process, and accepts what it says is lost.

use std::time::Duration;

use saga_runner::app::Node;
use saga_runner::ports::control::{
    AcceptRequest, AcceptVerb, NodeControl as _, PageRequest, ShardControl as _,
};
use saga_runner::ports::held::{HeldRequest, HeldVerb};

use crate::run::{COMMANDS, EVENTS, RESULTS, Simulation};

/// How often he looks.
const EVERY: Duration = Duration::from_secs(4);

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

    /// Lets the shards send that go on from what was adopted, once they have read what the streams tell.
    async fn let_go(&self, node: &Node) {
        for shard in 0..self.plan.shards {
            let page = PageRequest {
                limit: 100,
                after: None,
            };
            let pending = node.pending(shard, page).await;
            if !pending.is_ok_and(|pending| pending.state == "held") {
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

    async fn accept(&mut self, node: &Node, shard: u16, verb: AcceptVerb, stream: &str) {
        let request = |dry_run| AcceptRequest {
            stream: stream.to_owned(),
            reason: "the broker has lost it".to_owned(),
            dry_run,
            position: None,
        };
        // He reads what would be lost first.
        if let Err(error) = node.accept(shard, verb, request(true)).await {
            self.world
                .note(format_args!("operator: not {}: {error}", verb.as_str()));
            return;
        }
        match node.accept(shard, verb, request(false)).await {
            Ok(report) => {
                let (from, to) = (report.position, report.new_position);
                self.world.note(format_args!(
                    "operator: {} of shard {shard}, {stream}: {from} to {to}",
                    verb.as_str()
                ));
                self.losses.accepted.push(report);
            }
            Err(error) => self.world.note(format_args!("operator: {error}")),
        }
    }
}
