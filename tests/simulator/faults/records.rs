//! The broker loses what it knows of the cluster and of the owners of its shards.

use std::time::Duration;

use super::{Fault, On};
use crate::plan::Action;
use crate::random::Rng;
use crate::run::Simulation;

/// What happens to the bucket of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordLoss {
    /// It is deleted with all that it has.
    Bucket,
    /// One entry is removed.
    Entry(u64),
    /// So many of the newest writes are lost with the power, and their revisions will mean others.
    GoesBack(u64),
}

/// Draws these faults from a sequence of their own, so that seeds without them stay what they are.
pub fn draw(seed: u64, actions: &mut Vec<(Duration, Action)>) {
    let mut rng = Rng::new(seed, "records");
    if !rng.chance(120) || actions.iter().any(|(_, action)| action.is_loss()) {
        return;
    }
    for _ in 0..rng.within(1..=3) {
        let loss = match rng.below(3) {
            0 => RecordLoss::Bucket,
            1 => RecordLoss::Entry(rng.below(8)),
            _ => RecordLoss::GoesBack(*rng.pick(&[1, 2, 5, 30])),
        };
        super::add(&mut rng, actions, Fault::Records(loss));
    }
    // Whoever was at work goes on, is started again at another place, or has a second process beside it.
    let on = On::Copy;
    match rng.below(4) {
        0 => {
            let is_stopped = rng.chance(300);
            super::add(&mut rng, actions, Fault::Lost { on, is_stopped });
        }
        1 => {
            let still_ms = *rng.pick(&[0, 4_000, 17_000, 40_000]);
            super::add(&mut rng, actions, Fault::Second { on, still_ms });
        }
        _ => {}
    }
}

impl Simulation {
    pub fn lose_records(&mut self, loss: RecordLoss) {
        // A cluster that is not there yet has nothing to lose.
        if self.folder.is_in_use() {
            self.server.lose_records(loss);
        }
    }
}
