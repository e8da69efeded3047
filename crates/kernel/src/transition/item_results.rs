//! Results of the items of a loop, kept only where something reads them.

use saga_runner_language::definition::model::{BODY_OF_FOREACH, Foreach, OnItemError, Step};
use saga_runner_language::expr::Root;
use saga_runner_language::json::write_string;
use serde_bytes::ByteBuf;

use super::run::Run;
use super::slot::Slot;

/// Remembers the result of a step of an item, where the result of the loop is read.
pub(super) fn keep(run: &mut Run<'_>, slot: Slot, payload: &[u8]) {
    let Some((group, _)) = slot.foreach(run) else {
        return;
    };
    if !are_read(Slot::of(group).step(run)) {
        return;
    }
    if let Some(item) = run.item_mut(slot) {
        item.results.retain(|(step, _)| *step != slot.step);
        item.results.push((slot.step, ByteBuf::from(payload)));
    }
}

/// The result of an item that is over: that of its one step, or a map by step.
pub(super) fn of_item(run: &Run<'_>, slot: Slot, foreach: &Foreach, index: u32) -> Option<Vec<u8>> {
    if !are_read(slot.step(run)) {
        return None;
    }
    let items = run.slot(slot).items.as_ref()?;
    let item = items.running.get(items.position(index)?)?;
    let definition = run.ground.definition;
    let name = |step: u16| definition.steps.get(usize::from(step));
    let mut json = Vec::new();
    if foreach.on_item_error == OnItemError::Collect {
        json.extend_from_slice(b"{\"ok\":");
    }
    let is_one = name(foreach.steps.start).is_some_and(|step| step.name.ends_with(BODY_OF_FOREACH));
    if is_one {
        let result = item.results.first();
        json.extend_from_slice(result.map_or(b"null", |(_, json)| json.as_slice()));
    } else {
        let mut results: Vec<_> = item.results.iter().collect();
        results.sort_by_key(|(step, _)| name(*step).map(Step::title));
        json.push(b'{');
        for (at, (step, result)) in results.iter().enumerate() {
            if at > 0 {
                json.push(b',');
            }
            write_string(name(*step).map_or("", Step::title), &mut json);
            json.push(b':');
            json.extend_from_slice(result);
        }
        json.push(b'}');
    }
    if foreach.on_item_error == OnItemError::Collect {
        json.push(b'}');
    }
    Some(json)
}

pub(super) fn are_read(step: &Step) -> bool {
    step.keeps_result || step.set.iter().any(|(_, template)| template.reads(Root::Result))
}
