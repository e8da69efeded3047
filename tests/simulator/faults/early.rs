//! Results that stand in their stream before what they follow from: folder and events go back, and producers store again what
//! was lost, behind the results of the first time.

use std::time::Duration;

use super::{Fault, Loss, On, SPAN_MS};
use crate::plan::Action;
use crate::random::Rng;
use crate::run::EVENTS;

/// Draws these faults from a sequence of their own, so that seeds without them stay what they are.
pub fn draw(seed: u64, actions: &mut Vec<(Duration, Action)>) {
    let mut rng = Rng::new(seed, "early results");
    if !rng.chance(50)
        || actions
            .iter()
            .any(|(_, action)| action.concerns_owners() || action.is_loss())
    {
        return;
    }
    let mut at = rng.within(5_000..=SPAN_MS / 2);
    let mut add = |rng: &mut Rng, fault: Fault| {
        actions.push((Duration::from_millis(at), Action::Fault(fault)));
        at += rng.within(1_000..=15_000);
    };
    add(&mut rng, Fault::Backup);
    let loss = Loss::GoesBack {
        count: *rng.pick(&[2, 5, 20, 200]),
        noise: *rng.pick(&[0, 1, 12]),
        resent: true,
    };
    add(&mut rng, Fault::Stream { stream: EVENTS, loss });
    let (on, is_stopped) = (On::Backup, rng.chance(300));
    add(&mut rng, Fault::Lost { on, is_stopped });
}
