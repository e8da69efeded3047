//! What a process may do with a shard: a function of the broker's record, the folder and what the operator says.
//!
//! ```text
//! folder        record                               verdict
//! fresh         none, and the shard never existed    claimed
//! fresh         none or any, and the shard existed   refused, until the loss is adopted
//! has state     none: the broker has lost it         watched; claimed where nobody writes it again
//! has state     of another folder                    refused, until the loss of that one is adopted
//! has state     its own, and further than it         refused as an older copy, until it is adopted
//! has state     its own: stopped, or this very file  claimed
//! has state     its own, of another place            watched; refused where it is renewed, else claimed as a copy
//! ```
//!
//! What is adopted is watched in the same way, so that nobody adopts what is still at work. An owner at work writes a record that
//! is lost again with its next renewal, and then it counts. Pure: reading, watching and
//! writing are in [`super::claim`].

use std::time::Duration;

use super::record::{OwnerRecord, Place, Token};

/// What a folder says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folder {
    pub owner: Token,
    pub epoch: u64,
    pub claim: Token,
    pub log_sequence: u64,
}

/// All that counts.
#[derive(Debug)]
pub struct Question<'q> {
    pub record: Option<&'q OwnerRecord>,
    /// The shard had state at some time.
    pub existed: bool,
    /// None where the folder holds nothing of the shard.
    pub folder: Option<&'q Folder>,
    pub place: &'q Place,
    /// The epoch whose loss the operator adopts.
    pub adopted: Option<u64>,
    /// How long the record was seen unrenewed, or missing; none where it was renewed meanwhile.
    pub quiet: Option<Duration>,
    /// How long it has to be quiet.
    pub patience: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The shard may be claimed with this epoch.
    Claim {
        epoch: u64,
        how: How,
    },
    /// To be asked again when the record was watched for longer.
    Watch,
    Refuse(Refusal),
}

/// On what a claim is founded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The shard is new.
    New,
    /// The folder has had it before, and nobody has worked behind its state.
    Again,
    /// The folder has had it before. It may be a copy whose original was at work until the record went quiet.
    Elsewhere,
    /// The same, and the broker does not know the shard any more.
    RecordLost,
    /// The operator gives up the owner with this epoch.
    Adopted { given_up: u64, fresh: bool },
}

/// Why a shard may not be claimed. `epoch` is the one that would be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The folder holds nothing, and the shard has existed.
    Lost { epoch: u64 },
    /// It belongs to another folder.
    Owned { epoch: u64 },
    /// The folder is an older copy of what was at work last.
    Older { epoch: u64 },
    /// It is at work elsewhere.
    AtWork { epoch: u64 },
}

impl Refusal {
    pub const fn epoch(self) -> u64 {
        match self {
            Self::Lost { epoch } | Self::Owned { epoch } | Self::Older { epoch } | Self::AtWork { epoch } => {
                epoch
            }
        }
    }
}

pub fn decide(question: &Question<'_>) -> Verdict {
    match (question.folder, question.record) {
        (None, None) if !question.existed => Verdict::Claim {
            epoch: 1,
            how: How::New,
        },
        (None, None) => match question.adopted {
            Some(0) => when_missed(question, adopt(question, 0)),
            _ => Verdict::Refuse(Refusal::Lost { epoch: 0 }),
        },
        (Some(folder), None) => when_missed(
            question,
            Verdict::Claim {
                epoch: folder.epoch + 1,
                how: How::RecordLost,
            },
        ),
        (None, Some(record)) => surrendered(question, record, Refusal::Lost { epoch: record.epoch }),
        (Some(folder), Some(record)) if folder.owner != record.owner => {
            surrendered(question, record, Refusal::Owned { epoch: record.epoch })
        }
        (Some(folder), Some(record)) if is_older(folder, record) => {
            surrendered(question, record, Refusal::Older { epoch: record.epoch })
        }
        (Some(folder), Some(record)) => when_quiet(question, record, || Verdict::Claim {
            epoch: folder.epoch.max(record.epoch) + 1,
            how: if is_left(question, record) {
                How::Again
            } else {
                How::Elsewhere
            },
        }),
    }
}

/// Whether the shard was at work behind the state of the folder. The folder is written before the record, so its epoch is
/// never behind that of its own claim.
fn is_older(folder: &Folder, record: &OwnerRecord) -> bool {
    folder.epoch < record.epoch
        || (folder.epoch == record.epoch && folder.claim != record.claim)
        || folder.log_sequence < record.log_floor
}

fn surrendered(question: &Question<'_>, record: &OwnerRecord, refusal: Refusal) -> Verdict {
    if question.adopted != Some(record.epoch) {
        return Verdict::Refuse(refusal);
    }
    when_quiet(question, record, || adopt(question, record.epoch))
}

fn adopt(question: &Question<'_>, given_up: u64) -> Verdict {
    let before = question.folder.map_or(0, |folder| folder.epoch);
    Verdict::Claim {
        epoch: given_up.max(before) + 1,
        how: How::Adopted {
            given_up,
            fresh: question.folder.is_none(),
        },
    }
}

/// Waits until it is certain that the owner of the record is not at work.
fn when_quiet(question: &Question<'_>, record: &OwnerRecord, claim: impl FnOnce() -> Verdict) -> Verdict {
    if is_left(question, record) {
        return claim();
    }
    match question.quiet {
        None => Verdict::Refuse(Refusal::AtWork { epoch: record.epoch }),
        Some(quiet) if quiet >= question.patience => claim(),
        Some(_) => Verdict::Watch,
    }
}

/// Whether its owner cannot be at work: it has stopped, or its file is this one, which nobody else has open.
fn is_left(question: &Question<'_>, record: &OwnerRecord) -> bool {
    record.stopped || question.place.is_same_file(&record.place)
}

/// Waits until it is certain that nobody is at work who would write the lost record again.
fn when_missed(question: &Question<'_>, claim: Verdict) -> Verdict {
    match question.quiet {
        Some(quiet) if quiet >= question.patience => claim,
        Some(_) | None => Verdict::Watch,
    }
}

/// What an owner finds in place of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its own, or an earlier one of the same folder: the broker has lost what came later.
    Ours,
    /// None: the broker has lost it.
    Gone,
    /// Somebody else has the shard.
    Taken,
}

/// Whether a shard is still the owner's, whose last record is `mine`.
pub fn standing(found: Option<&OwnerRecord>, mine: &OwnerRecord) -> Standing {
    match found {
        None => Standing::Gone,
        Some(found) if found.is_claim_of(mine) => Standing::Ours,
        Some(found) if found.owner == mine.owner && found.epoch < mine.epoch => Standing::Ours,
        Some(_) => Standing::Taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ids::TimeMs;

    const PATIENCE: Duration = Duration::from_secs(15);
    const MINE: Token = Token([1; 16]);
    const THEIRS: Token = Token([2; 16]);
    const CLAIM: Token = Token([3; 16]);

    fn place(boot: &str, file: Option<(u64, u64)>) -> Place {
        Place {
            host: "a".to_owned(),
            boot: boot.to_owned(),
            file,
        }
    }

    fn here() -> Place {
        place("here", Some((1, 7)))
    }

    /// What the folder `MINE` has left in the broker: epoch 3, log up to 100.
    fn left() -> OwnerRecord {
        OwnerRecord {
            owner: MINE,
            epoch: 3,
            claim: CLAIM,
            place: here(),
            stopped: false,
            since: TimeMs(0),
            renewed: TimeMs(0),
            sends_ms: 10_000,
            log_floor: 100,
            positions: [0; 3],
            unneeded: [0; 3],
        }
    }

    fn folder() -> Folder {
        Folder {
            owner: MINE,
            epoch: 3,
            claim: CLAIM,
            log_sequence: 120,
        }
    }

    /// The verdict on these, in the place of the folder, before anything was watched.
    fn verdict(folder: Option<Folder>, record: Option<&OwnerRecord>) -> Verdict {
        asked(folder, record, |question| question)
    }

    fn asked<'q>(
        folder: Option<Folder>,
        record: Option<&'q OwnerRecord>,
        with: impl for<'a> FnOnce(Question<'a>) -> Question<'a>,
    ) -> Verdict {
        decide(&with(Question {
            record,
            existed: record.is_some(),
            folder: folder.as_ref(),
            place: &here(),
            adopted: None,
            quiet: Some(Duration::ZERO),
            patience: PATIENCE,
        }))
    }

    fn claim(epoch: u64, how: How) -> Verdict {
        Verdict::Claim { epoch, how }
    }

    #[test]
    fn a_new_shard_is_claimed_and_a_lost_one_is_not() {
        assert_eq!(verdict(None, None), claim(1, How::New));
        let existed = |adopted, quiet| {
            asked(None, None, |question| Question {
                existed: true,
                adopted,
                quiet: Some(quiet),
                ..question
            })
        };
        assert_eq!(
            existed(None, PATIENCE),
            Verdict::Refuse(Refusal::Lost { epoch: 0 })
        );
        let adopted = How::Adopted {
            given_up: 0,
            fresh: true,
        };
        assert_eq!(existed(Some(0), Duration::ZERO), Verdict::Watch);
        assert_eq!(existed(Some(0), PATIENCE), claim(1, adopted));
        assert_eq!(
            verdict(None, Some(&left())),
            Verdict::Refuse(Refusal::Lost { epoch: 3 })
        );
    }

    #[test]
    fn the_folder_goes_on_at_once_where_nobody_else_can_have_it() {
        let again = claim(4, How::Again);
        assert_eq!(verdict(Some(folder()), Some(&left())), again, "this very file");
        let stopped = OwnerRecord {
            place: place("there", Some((9, 9))),
            stopped: true,
            ..left()
        };
        assert_eq!(
            verdict(Some(folder()), Some(&stopped)),
            again,
            "stopped elsewhere"
        );
        // It died between folder and record.
        let ahead = Folder {
            epoch: 4,
            claim: Token([9; 16]),
            ..folder()
        };
        assert_eq!(verdict(Some(ahead), Some(&left())), claim(5, How::Again));
    }

    #[test]
    fn the_folder_at_another_place_waits_until_the_record_was_quiet() {
        for elsewhere in [
            place("there", Some((1, 7))),
            place("here", Some((1, 8))),
            place("", Some((1, 7))),
        ] {
            let record = OwnerRecord {
                place: elsewhere,
                ..left()
            };
            let after = |quiet| {
                asked(Some(folder()), Some(&record), |question| Question {
                    quiet,
                    ..question
                })
            };
            assert_eq!(after(Some(Duration::ZERO)), Verdict::Watch);
            assert_eq!(
                after(Some(PATIENCE.saturating_sub(Duration::from_millis(1)))),
                Verdict::Watch
            );
            assert_eq!(after(Some(PATIENCE)), claim(4, How::Elsewhere));
            assert_eq!(after(None), Verdict::Refuse(Refusal::AtWork { epoch: 3 }));
        }
    }

    #[test]
    fn a_lost_record_is_written_again_with_the_next_epoch_once_nobody_else_does() {
        let missed = |quiet| {
            asked(Some(folder()), None, |question| Question {
                quiet: Some(quiet),
                ..question
            })
        };
        assert_eq!(missed(Duration::ZERO), Verdict::Watch);
        assert_eq!(missed(PATIENCE), claim(4, How::RecordLost));
    }

    #[test]
    fn another_folder_is_refused_however_old_the_record() {
        let record = OwnerRecord {
            owner: THEIRS,
            stopped: true,
            ..left()
        };
        assert_eq!(
            verdict(Some(folder()), Some(&record)),
            Verdict::Refuse(Refusal::Owned { epoch: 3 })
        );
    }

    #[test]
    fn an_older_copy_is_refused() {
        let older = Verdict::Refuse(Refusal::Older { epoch: 3 });
        for copy in [
            Folder { epoch: 2, ..folder() },
            Folder {
                log_sequence: 99,
                ..folder()
            },
            Folder {
                claim: Token([9; 16]),
                ..folder()
            },
        ] {
            assert_eq!(verdict(Some(copy), Some(&left())), older, "{copy:?}");
        }
    }

    #[test]
    fn a_shard_given_up_by_epoch_is_adopted_once_its_record_is_quiet() {
        let other = OwnerRecord {
            owner: THEIRS,
            place: place("there", Some((9, 9))),
            ..left()
        };
        let older = OwnerRecord {
            epoch: 5,
            ..other.clone()
        };
        for (folder, record) in [
            (None, &other),
            (Some(folder()), &other),
            (Some(folder()), &OwnerRecord { owner: MINE, ..older }),
        ] {
            let after = |adopted, quiet| {
                asked(folder, Some(record), |question| Question {
                    adopted: Some(adopted),
                    quiet,
                    ..question
                })
            };
            let epoch = record.epoch;
            assert!(
                matches!(after(epoch - 1, Some(PATIENCE)), Verdict::Refuse(_)),
                "another epoch"
            );
            assert_eq!(after(epoch, Some(Duration::ZERO)), Verdict::Watch);
            assert_eq!(
                after(epoch, None),
                Verdict::Refuse(Refusal::AtWork { epoch }),
                "it is at work"
            );
            let how = How::Adopted {
                given_up: epoch,
                fresh: folder.is_none(),
            };
            assert_eq!(after(epoch, Some(PATIENCE)), claim(epoch + 1, how));
        }
    }

    #[test]
    fn an_owner_knows_its_record_from_what_others_have_written() {
        let mine = left();
        let renewed = OwnerRecord {
            renewed: TimeMs(5),
            log_floor: 7,
            ..left()
        };
        assert_eq!(standing(Some(&renewed), &mine), Standing::Ours);
        let before = OwnerRecord {
            epoch: 2,
            claim: Token([9; 16]),
            ..left()
        };
        assert_eq!(
            standing(Some(&before), &mine),
            Standing::Ours,
            "the broker went back"
        );
        assert_eq!(standing(None, &mine), Standing::Gone);
        for taken in [
            OwnerRecord { epoch: 4, ..left() },
            OwnerRecord {
                claim: Token([9; 16]),
                ..left()
            },
            OwnerRecord {
                owner: THEIRS,
                epoch: 1,
                ..left()
            },
        ] {
            assert_eq!(standing(Some(&taken), &mine), Standing::Taken, "{taken:?}");
        }
    }
}
