//! The start of a `foreach`: its list is read, and the numbers that bound the loop are computed once.

use std::ops::RangeInclusive;

use saga_runner_language::definition::loops::{ITEMS_MAX, PARALLEL_MAX, TOO_MANY_ITEMS};
use saga_runner_language::definition::model::{Count, Foreach, ItemJoin, Tolerance};
use saga_runner_language::expr::write_sorted;
use saga_runner_language::json::Json;

use super::ends::{self, Defeat};
use super::joins::NoNumber;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, joins};
use crate::items::{Bounds, Items};
use crate::patch::Note;
use crate::record::StepStatus;

/// Takes the list of a loop.
pub(super) fn start<'a>(run: &mut Run<'a>, slot: Slot, foreach: &'a Foreach) -> Result<(), Rejection> {
    let step = slot.step(run);
    let place = || format!("{}.foreach.over", Place::Step { name: &step.name });
    let list = run.evaluate(&foreach.over, Locals::default(), place)?;
    let Json::List(list) = list else {
        return Err(Rejection {
            reason: "expression",
            message: format!("{}: the value is not a list", place()),
        });
    };
    let Numbers {
        max,
        parallel,
        at_least,
        tolerate,
    } = match numbers(run, slot, foreach) {
        Ok(numbers) => numbers,
        Err(why) => return why.defeats(run, slot),
    };
    let state = run.slot_mut(slot);
    state.status = StepStatus::Running;
    let chunk = foreach
        .chunk
        .map_or(1, |size| usize::try_from(size).unwrap_or(usize::MAX));
    let count = list.len().div_ceil(chunk.max(1));
    if count > usize::try_from(max).unwrap_or(usize::MAX) {
        let message = format!("{count} items, at most {max} are allowed");
        let defeat = Defeat {
            class: TOO_MANY_ITEMS,
            message: &message,
        };
        return ends::failed(run, slot, defeat);
    }
    let packed = |items: &[Json<'_>]| {
        let mut json = Vec::new();
        for (at, item) in items.iter().enumerate() {
            json.push(if at == 0 { b'[' } else { b',' });
            write_sorted(item, &mut json);
        }
        json.push(b']');
        json
    };
    let items: Vec<Vec<u8>> = match foreach.chunk {
        Some(size) => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            list.chunks(size).map(packed).collect()
        }
        None => list
            .iter()
            .map(|item| {
                let mut json = Vec::new();
                write_sorted(item, &mut json);
                json
            })
            .collect(),
    };
    let total = u32::try_from(items.len()).unwrap_or(u32::MAX);
    let bounds = Bounds {
        parallel,
        at_least,
        tolerated: tolerate.map(|tolerate| match tolerate {
            Tolerated::Items(items) => items,
            Tolerated::Percent(percent) => {
                let items = u64::from(total) * u64::from(percent) / 100;
                u32::try_from(items).unwrap_or(u32::MAX)
            }
        }),
    };
    let items = Items::new(foreach.steps.start, &items, bounds);
    run.note(Note::ItemsStarted {
        step: step.name.clone(),
        items: items.total,
    });
    run.slot_mut(slot).items = Some(Box::new(items));
    Ok(())
}

/// The numbers of a loop.
struct Numbers {
    max: u32,
    parallel: u32,
    at_least: Option<u32>,
    tolerate: Option<Tolerated>,
}

#[derive(Clone, Copy)]
enum Tolerated {
    Items(u32),
    Percent(u32),
}

/// What the numbers of a loop are now.
fn numbers<'a>(run: &mut Run<'a>, slot: Slot, foreach: &'a Foreach) -> Result<Numbers, NoNumber> {
    let mut read = |key: &str, count: &'a Count, range: RangeInclusive<u32>| {
        let place = format!(
            "{}.foreach.{key}",
            Place::Step {
                name: &slot.step(run).name
            }
        );
        joins::number(run, count, range, &place)
    };
    let parallel = read("parallel", &foreach.parallel, 1..=PARALLEL_MAX)?;
    let max = read("max", &foreach.max, 1..=ITEMS_MAX)?;
    let at_least = match &foreach.join {
        ItemJoin::All => None,
        ItemJoin::AtLeast(count) => Some(read("join.at_least", count, 1..=ITEMS_MAX)?),
    };
    let tolerate = match &foreach.tolerate {
        None => None,
        Some(Tolerance::Percent(percent)) => Some(Tolerated::Percent(*percent)),
        Some(Tolerance::Items(count)) => {
            let items = read("tolerate", count, 0..=ITEMS_MAX)?;
            Some(Tolerated::Items(items))
        }
    };
    Ok(Numbers {
        max,
        parallel,
        at_least,
        tolerate,
    })
}
