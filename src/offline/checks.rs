//! What must hold for every case: the same inputs come to the same end, byte for byte, also when each message is
//! published twice. (Between inputs the record is always written and read.)

use super::codes;
use super::compare::Fault;
use super::file::{Case, Suite};
use super::play::{Cast, Played, play};
use super::world::{Manner, World};

/// Plays a case that went well in all other manners.
#[must_use]
pub fn steadiness(suite: &Suite, case: &Case, players: &Cast, first: &World) -> Vec<Fault> {
    let digest = first.digest();
    let mut faults = Vec::new();
    for (manner, how) in [
        (Manner::Plain, "played a second time"),
        (Manner::Twice, "with every message published twice"),
    ] {
        let Played {
            world,
            faults: mut found,
            later: _,
        } = play(suite, case, players, manner);
        for fault in &mut found {
            fault.message = format!("{how}: {}", fault.message);
            fault.cure = None;
        }
        let same = world.is_some_and(|world| world.digest() == digest);
        if found.is_empty() && !same {
            let message = format!("{how}, the case comes to another end");
            found.push(Fault::new(codes::UNSTEADY, case.span.clone(), message, None));
        }
        faults.append(&mut found);
    }
    faults
}
