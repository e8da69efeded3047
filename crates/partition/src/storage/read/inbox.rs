//! Reads of the inbox: the pending inputs of instances, and the dead letters that block them.

use std::collections::HashMap;

use saga_runner_kernel::ids::{InstanceId, TimeMs};
use saga_runner_kernel::input::Input;
use saga_runner_kernel::view::{Kept, LetterView};

use super::Reader;
use crate::storage::rows::{BlockedRow, DeadLetter, InboxRow, WaitReason, Waiting, decode};
use crate::storage::tables::{DEAD_LETTERS, INBOX};
use crate::storage::{ReadRows, StorageError, keys};

/// The dead letter that stands in an instance's way, and the inputs that wait, with their numbers.
pub type Inbox = (Option<u64>, Vec<(u64, InboxRow)>);

/// A row of an instance in the inbox.
enum Entry {
    /// The instance is blocked, by this dead letter.
    Blocked(u64),
    /// A pending input, with its number.
    Input(u64, Box<InboxRow>),
}

impl Entry {
    fn read(number: u64, value: &[u8]) -> Result<Self, StorageError> {
        if number == keys::PARKED {
            let row: BlockedRow = decode(value, "a blocked instance")?;
            return Ok(Self::Blocked(row.dead_letter));
        }
        let row: InboxRow = decode(value, "an inbox row")?;
        Ok(Self::Input(number, Box::new(row)))
    }
}

/// The rows of one instance, oldest first, until `take` wants no more.
fn scan(
    view: &dyn ReadRows,
    id: &InstanceId,
    mut take: impl FnMut(Entry) -> bool,
) -> Result<(), StorageError> {
    let prefix = keys::instance(id);
    view.scan(INBOX, &prefix, &mut |key, value| match key
        .strip_prefix(prefix.as_slice())
        .and_then(keys::read_number)
    {
        Some(number) => Ok(take(Entry::read(number, &value)?)),
        None => Ok(false),
    })
}

impl Reader {
    /// What waits for an instance, oldest first, with the dead letter that stands in its way.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn inbox(&self, id: &InstanceId, limit: usize) -> Result<Inbox, StorageError> {
        self.view(|view| {
            let (mut behind, mut rows) = (None, Vec::new());
            scan(view, id, |row| {
                match row {
                    Entry::Blocked(dead_letter) => behind = Some(dead_letter),
                    Entry::Input(number, row) => rows.push((number, *row)),
                }
                rows.len() < limit
            })?;
            Ok((behind, rows))
        })
    }

    /// What of an instance's inputs waits for a decision on a dead letter or for a definition.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn kept(&self, id: &InstanceId) -> Result<Kept, StorageError> {
        self.view(|view| kept(view, id))
    }

    /// The instances that have something in the inbox, with what waits for them.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn waiting(&self) -> Result<HashMap<InstanceId, Waiting>, StorageError> {
        self.view(|view| {
            let mut found: HashMap<InstanceId, Waiting> = HashMap::new();
            view.scan(INBOX, &[], &mut |key, value| {
                let mut rest = key;
                let corrupt = || StorageError::Corrupt("a key of the inbox".to_owned());
                let id = keys::read_instance(&mut rest).ok_or_else(corrupt)?;
                let number = keys::read_number(rest).ok_or_else(corrupt)?;
                let waiting = found.entry(id).or_default();
                match Entry::read(number, &value)? {
                    Entry::Blocked(dead_letter) => waiting.behind = Some(dead_letter),
                    Entry::Input(_, row) => waiting.add(row.reason, value.len()),
                }
                Ok(true)
            })?;
            Ok(found)
        })
    }
}

/// Why an input of an instance waits, if one does that is `meant`.
pub(super) fn pending(
    view: &dyn ReadRows,
    id: &InstanceId,
    meant: impl Fn(&Input) -> bool,
) -> Result<Option<WaitReason>, StorageError> {
    let mut reason = None;
    scan(view, id, |row| {
        if let Entry::Input(_, row) = row
            && meant(&row.input)
        {
            reason = Some(row.reason);
        }
        reason.is_none()
    })?;
    Ok(reason)
}

pub(in crate::storage) fn kept(view: &dyn ReadRows, id: &InstanceId) -> Result<Kept, StorageError> {
    let mut kept = Kept::default();
    let (mut behind, mut first) = (None, None);
    scan(view, id, |row| {
        let row = match row {
            Entry::Blocked(dead_letter) => {
                behind = Some(dead_letter);
                return true;
            }
            Entry::Input(_, row) => row,
        };
        if let WaitReason::Early { .. } = row.reason {
            kept.early += 1;
            kept.early_since.get_or_insert(row.input.time);
        }
        if row.reason == WaitReason::Paused {
            kept.inputs += 1;
        }
        if row.reason.is_blocking() {
            kept.inputs += 1;
            first.get_or_insert(row.input.time);
            if row.reason == WaitReason::Unversioned {
                kept.unversioned.get_or_insert(row.input.time);
            }
        }
        true
    })?;
    let Some(number) = behind else {
        return Ok(kept);
    };
    let id = Some(number.to_string());
    let letter: Option<DeadLetter> = view
        .get(DEAD_LETTERS, &keys::number(number))?
        .map(|bytes| decode(&bytes, "a dead letter"))
        .transpose()?;
    let (reason, message, since) = letter.map_or_else(
        || {
            let since = first.unwrap_or(TimeMs(0));
            ("forgotten".to_owned(), "it is no longer kept".to_owned(), since)
        },
        |letter| (letter.reason, letter.message, letter.time),
    );
    kept.behind = Some((LetterView { id, reason, message }, since));
    Ok(kept)
}
