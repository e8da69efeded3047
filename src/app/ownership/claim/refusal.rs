//! Why a start is refused, as a sentence that says what the operator can do.

use super::candidate::Candidate;
use crate::app::StartError;
use crate::app::ownership::record::OwnerRecord;
use crate::app::ownership::verdict::Refusal;

/// Why the start is refused, for all shards of which the first one is.
pub(super) fn refused(refusals: &[(&Candidate, Refusal)]) -> Option<StartError> {
    let (candidate, first) = refusals.first()?;
    let alike = |refusal: &Refusal| std::mem::discriminant(refusal) == std::mem::discriminant(first);
    let others = refusals.iter().filter(|(_, refusal)| alike(refusal)).count() - 1;
    let others = if others > 0 {
        format!(" (and {others} more)")
    } else {
        String::new()
    };
    let flags: Vec<String> = refusals
        .iter()
        .map(|(candidate, refusal)| format!("{}@{}", candidate.shard, refusal.epoch()))
        .collect();
    let flags = flags.join(",");
    let (shard, dir) = (candidate.shard, candidate.dir.display());
    let whose = candidate
        .record()
        .map_or_else(|| "nobody knows whose".to_owned(), OwnerRecord::whose);
    Some(match first {
        Refusal::Lost { .. } => StartError::Lost(format!(
            "shard {shard}{others}: {dir} holds no data of it, and the cluster knows it ({whose}); mount or restore its folder, or give it up: run --adopt-loss {flags} --reason TEXT"
        )),
        Refusal::Owned { .. } => StartError::Owned(format!(
            "shard {shard}{others}: it belongs to another folder than {dir} ({whose}); start the runner on that one, or give it up: run --adopt-loss {flags} --reason TEXT"
        )),
        Refusal::AtWork { .. } => StartError::Owned(format!(
            "shard {shard}{others}: another process has it open ({whose}); stop that process first"
        )),
        Refusal::Older { .. } => {
            let (log, epoch) = candidate
                .folder
                .map_or((0, 0), |folder| (folder.log_sequence, folder.epoch));
            let floor = candidate.record().map_or(0, |record| record.log_floor);
            StartError::Older(format!(
                "shard {shard}{others}: {dir} is an older copy, with a log up to {log} (epoch {epoch}): the shard was at work up to {floor} at least ({whose}); start on the newest folder, or go on from this one: run --adopt-loss {flags} --reason TEXT"
            ))
        }
    })
}
