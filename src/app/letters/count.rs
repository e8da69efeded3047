//! Dead letters, counted by what they have in common. There is no index: their rows are read, as many as one request may read.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{is_wanted, kind_of};
use crate::app::node::Node;
use crate::kernel::ids::TenantId;
use crate::ports::control::{ControlError, LetterCount, LetterFilter, LetterGroup, LetterTrait};
use crate::storage::read::Bound;
use crate::storage::rows::DeadLetter;

/// Dead letters that one request counts, and bytes of them that it reads.
const COUNTED_MAX: u64 = 200_000;
const PAGE_BYTES: usize = 8 * 1024 * 1024;
const PAGE: usize = 1_000;
/// Values that are told apart while it counts, and groups that are shown.
const VALUES_MAX: usize = 10_000;
const GROUPS_MAX: usize = 1_000;

pub(super) async fn count(
    node: &Node,
    tenant: &TenantId,
    filter: LetterFilter,
    by: LetterTrait,
) -> Result<LetterCount, ControlError> {
    let running = node.running_or_unavailable()?;
    let (mut counted, mut letters, mut incomplete) = (BTreeMap::<String, u64>::new(), 0_u64, false);
    let now = node.clock.now();
    'shards: for shard in running.shards.all() {
        let mut after = None;
        loop {
            let (reader, owned, wanted) = (shard.reader.clone(), tenant.clone(), filter.clone());
            let bound = Bound {
                items: PAGE,
                bytes: PAGE_BYTES,
            };
            let (values, next) = node
                .read(move || {
                    let (found, next) = reader
                        .dead_letters_of(&owned, after, bound, |letter| is_wanted(&wanted, now, letter))?;
                    let values: Vec<String> = found.iter().map(|(_, letter)| value_of(letter, by)).collect();
                    Ok((values, next))
                })
                .await?;
            for value in values {
                letters += 1;
                let has_room = counted.len() < VALUES_MAX;
                match counted.get_mut(&value) {
                    Some(count) => *count += 1,
                    None if has_room => drop(counted.insert(value, 1)),
                    None => incomplete = true,
                }
            }
            if next.is_some() && letters >= COUNTED_MAX {
                incomplete = true;
                break 'shards;
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
    }
    let groups = counted.into_iter();
    let mut groups: Vec<LetterGroup> = groups
        .map(|(value, letters)| LetterGroup { value, letters })
        .collect();
    // Stable: those of one size stay in the order of their names.
    groups.sort_by_key(|group| Reverse(group.letters));
    incomplete |= groups.len() > GROUPS_MAX;
    groups.truncate(GROUPS_MAX);
    Ok(LetterCount {
        by: by.as_str(),
        letters,
        groups,
        incomplete,
        absent_shards: node.absent_shards(),
    })
}

fn value_of(letter: &DeadLetter, by: LetterTrait) -> String {
    match by {
        LetterTrait::Reason => letter.reason.clone(),
        LetterTrait::Saga => letter
            .instance()
            .map(|id| id.saga.to_string())
            .unwrap_or_default(),
        LetterTrait::Kind => kind_of(letter).as_str().to_owned(),
        LetterTrait::Subject => letter.subject.clone(),
    }
}
