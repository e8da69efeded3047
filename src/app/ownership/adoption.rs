//! What an operator gives up by name when the runner starts.

use std::collections::BTreeMap;
use std::str::FromStr;

/// A shard, and the epoch of the owner that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    pub shard: u16,
    pub epoch: u64,
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@').and_then(|(shard, epoch)| {
            Some(Self {
                shard: shard.parse().ok()?,
                epoch: epoch.parse().ok()?,
            })
        });
        parts.ok_or_else(|| "write SHARD@EPOCH as the refusal prints it, e.g. 0@3".to_owned())
    }
}

/// The losses that an operator adopts, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adoption {
    epochs: BTreeMap<u16, u64>,
    reason: String,
}

impl Adoption {
    #[must_use]
    pub fn new(losses: impl IntoIterator<Item = Loss>, reason: String) -> Self {
        let epochs = losses.into_iter().map(|loss| (loss.shard, loss.epoch));
        Self {
            epochs: epochs.collect(),
            reason,
        }
    }

    /// The epoch that is given up for a shard.
    pub(in crate::app) fn of(&self, shard: u16) -> Option<u64> {
        self.epochs.get(&shard).copied()
    }

    pub(in crate::app) fn losses(&self) -> impl Iterator<Item = Loss> {
        let losses = self.epochs.iter();
        losses.map(|(&shard, &epoch)| Loss { shard, epoch })
    }

    pub(in crate::app) fn reason(&self) -> &str {
        &self.reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_shard_and_epoch() {
        assert_eq!("3@17".parse(), Ok(Loss { shard: 3, epoch: 17 }));
        for bad in ["", "3", "3@", "@3", "a@1", "3@-1", "70000@1", "3@1@2"] {
            assert!(bad.parse::<Loss>().is_err(), "{bad}");
        }
    }
}
