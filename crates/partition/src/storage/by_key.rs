//! Instances by what their keys begin with: the live ones from their table, and of those that have ended the last of each key,
//! which its tombstone names.

use saga_runner_kernel::ids::{InstanceId, SagaName, TenantId};
use saga_runner_kernel::instance_status::InstanceStatus;

use super::listed::{Entries, Entry, ListBound, statuses};
use super::read::{Found, Reader};
use super::tables::{INSTANCES, TOMBSTONES};
use super::{ReadRows, StorageError, TableIndex, keys};

/// The tables in which instances stand by their keys, and how a place in each begins. No place of the index begins so.
const TABLES: [(u8, TableIndex); 2] = [(0, INSTANCES), (1, TOMBSTONES)];

/// Whether a list by the beginning of keys can go on behind this place.
#[must_use]
pub fn is_place(place: &[u8]) -> bool {
    read_place(place).is_some()
}

/// The table, and the instance that was the last.
fn read_place(place: &[u8]) -> Option<(u8, InstanceId)> {
    let (&mark, mut key) = place.split_first()?;
    let id = keys::read_instance(&mut key)?;
    (TABLES.iter().any(|(of, _)| *of == mark) && key.is_empty()).then_some((mark, id))
}

impl Reader {
    /// Instances of a tenant whose keys begin with `beginning`, whose status is `wanted` and whose record `fits`, behind the place
    /// `after`: a saga after the other, of each the live ones and then those that have ended, in the order of their keys.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn by_key(
        &self,
        tenant: &TenantId,
        beginning: &str,
        wanted: impl Fn(&SagaName, &InstanceStatus) -> bool,
        fits: impl Fn(&InstanceId, &Found) -> bool,
        after: Option<&[u8]>,
        bound: ListBound,
    ) -> Result<Entries, StorageError> {
        let after = after.and_then(read_place);
        self.view(|view| {
            let (all, _) = statuses(view, tenant)?;
            let mut sagas: Vec<_> = all
                .into_iter()
                .filter(|found| wanted(&found.saga, &found.status))
                .map(|found| found.saga)
                .collect();
            sagas.dedup();
            let (mut entries, mut left) = (Entries::default(), bound);
            let spots = sagas
                .iter()
                .flat_map(|saga| TABLES.map(|(mark, table)| (saga, mark, table)));
            for (saga, mark, table) in spots {
                let from = match &after {
                    Some((of, id)) if (&id.saga, *of) > (saga, mark) => continue,
                    // The smallest key behind it.
                    Some((of, id)) if (&id.saga, *of) == (saga, mark) => {
                        [&keys::instance(id)[..], &[0]].concat()
                    }
                    Some(_) | None => keys::key_prefix(tenant, saga, beginning),
                };
                let run = Run {
                    prefix: &keys::key_prefix(tenant, saga, beginning),
                    mark,
                    table,
                };
                let takes = |id: &InstanceId, found: &Found| {
                    let listing = found.record().listing.as_deref();
                    let status = listing.map(|listing| &listing.status);
                    status
                        .filter(|status| wanted(&id.saga, status) && fits(id, found))
                        .cloned()
                };
                run.scan(view, &from, takes, &mut left, &mut entries)?;
                if entries.next.is_some() {
                    break;
                }
            }
            Ok(entries)
        })
    }
}

/// The keys of a saga in one table.
struct Run<'r> {
    prefix: &'r [u8],
    mark: u8,
    table: TableIndex,
}

impl Run<'_> {
    /// Adds what `takes` gives a status, from `from` on, until the bound is reached.
    fn scan(
        &self,
        view: &dyn ReadRows,
        from: &[u8],
        takes: impl Fn(&InstanceId, &Found) -> Option<InstanceStatus>,
        left: &mut ListBound,
        entries: &mut Entries,
    ) -> Result<(), StorageError> {
        view.scan(self.table, from, &mut |key, value| {
            if !key.starts_with(self.prefix) {
                return Ok(false);
            }
            let id = keys::read_instance(&mut &key[..])
                .ok_or_else(|| StorageError::Corrupt("a key of an instance".to_owned()))?;
            entries.looked_at += 1;
            left.looked = left.looked.saturating_sub(1);
            let place = || [&[self.mark], key].concat();
            if let Some((found, bytes)) = self.found(view, &id, &value)?
                && let Some(status) = takes(&id, &found)
            {
                left.take(bytes);
                let is_live = matches!(found, Found::Live(_));
                entries.items.push(Entry {
                    last_generation: is_live || view.get(INSTANCES, key)?.is_none(),
                    id,
                    status,
                    found,
                    place: place(),
                });
            }
            if left.is_reached() {
                entries.next = Some(place());
            }
            Ok(!left.is_reached())
        })
    }

    /// The instance of a row, and how many bytes it has; `None` for one that has ended and is not kept any more.
    fn found(
        &self,
        view: &dyn ReadRows,
        id: &InstanceId,
        value: &[u8],
    ) -> Result<Option<(Found, usize)>, StorageError> {
        if self.table == INSTANCES {
            let record = super::read::record(value, id)?;
            return Ok(Some((Found::Live(record), value.len())));
        }
        let ended = super::read::ended_of(view, id, value)?;
        Ok(ended.map(|(summary, bytes)| (Found::Ended(summary), bytes)))
    }
}

#[cfg(test)]
mod tests {
    use saga_runner_kernel::ids::{DefinitionHash, Key, TimeMs};
    use saga_runner_kernel::instance_status::{BlockedCause, Listing, Waits};
    use saga_runner_kernel::record::{Phase, Record, Summary};

    use super::*;
    use crate::storage::Memory;
    use crate::storage::listed::StatusChanges;
    use crate::storage::rows::EndedRow;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("legal")
    }

    /// Puts an instance; one that has completed has ended under this log sequence.
    fn put(store: &Memory, of: &str, saga: &str, key: &str, number: u64, phase: Phase) {
        let id = InstanceId {
            tenant: tenant(of),
            saga: SagaName::parse(saga).expect("legal"),
            key: Key::parse(key).expect("legal"),
        };
        let listing = Listing {
            status: InstanceStatus {
                phase,
                blocked_by: BlockedCause::Nothing,
                waits_for: Waits::Nothing,
                error: String::new(),
            },
            sequence: number,
        };
        let record = Record {
            phase,
            listing: Some(Box::new(listing.clone())),
            ..Record::opened(1, DefinitionHash([7; 32]), "e-1", TimeMs(1))
        };
        let written = store.write::<_, StorageError>(|batch| {
            let mut changes = StatusChanges::default();
            let ended = phase == Phase::Completed;
            if ended {
                let summary = Summary {
                    record,
                    ended: TimeMs(5),
                };
                let row = EndedRow {
                    instance: id.clone(),
                    summary,
                    until: None,
                };
                batch.end(number, &row)?;
            } else {
                batch.put_record(&id, &record)?;
            }
            if ended {
                batch.enlist_ended(&id, &listing, &mut changes)?;
            } else {
                batch.enlist_live(&id, &listing, &mut changes)?;
            }
            batch.count_statuses(&changes)
        });
        written.expect("there is room");
    }

    /// `saga/key` of all pages with so many items each.
    fn pages(store: &Memory, beginning: &str, phases: &[Phase], items: usize) -> Vec<String> {
        let (mut found, mut after) = (Vec::new(), None::<Vec<u8>>);
        loop {
            let bound = ListBound {
                items,
                bytes: usize::MAX,
                looked: 1_000,
            };
            let page = store.reader().by_key(
                &tenant("acme"),
                beginning,
                |_, status| phases.contains(&status.phase),
                |_, _| true,
                after.as_deref(),
                bound,
            );
            let page = page.expect("whole");
            assert!(page.items.len() <= items);
            found.extend(
                page.items
                    .iter()
                    .map(|entry| format!("{}/{}", entry.id.saga, entry.id.key)),
            );
            match page.next {
                Some(next) => after = Some(next),
                None => return found,
            }
        }
    }

    #[test]
    fn keys_that_begin_with_the_text_are_listed_with_any_size_of_a_page() {
        let store = Memory::default();
        for (number, (of, saga, key, phase)) in (1..).zip([
            ("acme", "order", "o-1", Phase::Running),
            ("acme", "order", "o-10", Phase::Failed),
            ("acme", "order", "o-2", Phase::Running),
            ("acme", "order", "o-11", Phase::Completed),
            ("acme", "order", "o", Phase::Running),
            ("acme", "pay", "o-1", Phase::Running),
            ("acme", "pay", "o-12", Phase::Completed),
            ("acme", "other", "p-1", Phase::Running),
            ("globex", "order", "o-1", Phase::Running),
            // The key was used before: its ended instance is the one that its tombstone names.
            ("acme", "pay", "o-1", Phase::Completed),
        ]) {
            put(&store, of, saga, key, number, phase);
            if key == "o-1" && phase == Phase::Completed {
                put(&store, of, saga, key, number + 100, Phase::Running);
            }
        }
        let all = [Phase::Running, Phase::Failed, Phase::Completed];
        for items in [1, 2, 3, 100] {
            assert_eq!(
                pages(&store, "o-1", &all, items),
                [
                    "order/o-1",
                    "order/o-10",
                    "order/o-11",
                    "pay/o-1",
                    "pay/o-1",
                    "pay/o-12"
                ]
            );
            assert_eq!(pages(&store, "o-1", &[Phase::Failed], items), ["order/o-10"]);
            assert_eq!(pages(&store, "o-2", &all, items), ["order/o-2"]);
            assert!(pages(&store, "x", &all, items).is_empty());
        }
    }

    #[test]
    fn a_place_of_another_list_is_none_of_this_one() {
        let key = keys::instance(&InstanceId {
            tenant: tenant("acme"),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse("o-1").expect("legal"),
        });
        assert!(is_place(&[&[0], &key[..]].concat()) && is_place(&[&[1], &key[..]].concat()));
        for other in [
            key.clone(),
            [&[2], &key[..]].concat(),
            [&[0], &key[..], &[0]].concat(),
            vec![0],
            Vec::new(),
        ] {
            assert!(!is_place(&other), "{other:?}");
        }
    }
}
