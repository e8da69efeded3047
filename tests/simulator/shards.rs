//! Which shards a simulated process has open: some begin with a part of them, and some are closed for a while.

use std::time::Duration;

use super::plan::{Action, Plan};
use super::random::Rng;

/// How many shards there are where a part of them is open first, and how large that is.
const MANY: u16 = 8;
const FIRST: usize = 3;
/// Longest time until the last one is closed.
const SPAN_MS: u64 = 60_000;

/// Adds to a plan what a sequence of its own decides.
pub fn decide(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed, "ownership");
    // Who the owner is stays out of it: a shard that another process has taken is not opened again.
    let has_owners = plan.actions.iter().any(|(_, action)| action.concerns_owners());
    if plan.is_calm || has_owners || !rng.chance(250) {
        return;
    }
    if rng.chance(300) {
        plan.shards = MANY;
        let mut others: Vec<u16> = (0..MANY).collect();
        let first = (0..FIRST).map(|_| {
            let at = usize::try_from(rng.below(others.len() as u64)).expect("an index");
            others.swap_remove(at)
        });
        plan.first = Some(first.collect());
    }
    for _ in 0..rng.within(1..=4) {
        let shard = u16::try_from(rng.below(u64::from(plan.shards))).expect("a shard");
        let for_ms = *rng.pick(&[1, 200, 3_000, 30_000]);
        let close = Action::Close { shard, for_ms };
        plan.actions.push((rng.millis(0..=SPAN_MS), close));
    }
    plan.actions.sort_by_key(|(at, _): &(Duration, Action)| *at);
}
