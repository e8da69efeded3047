//! What a shard does while the disk is full: it waits, and takes mail that may say what can be deleted.

use super::{End, ShardLoop};
use crate::shard::batch::Item;
use crate::shard::mailbox::Mail;

impl ShardLoop {
    /// Waits for room on the disk. Mail is taken meanwhile, since it may say what can be deleted, and as much as the
    /// mailbox holds; the word to stop comes beside it.
    pub async fn wait_for_room(&mut self) -> Result<(), End> {
        let pause = self.settings.full_pause.duration();
        let backlog_max = self.settings.mailbox;
        let (mailbox, backlog, stopping) = (&mut self.mailbox, &mut self.backlog, &mut self.stopping);
        let until = tokio::time::sleep(pause);
        // An error: nobody can tell any more, nor does anybody wait.
        let told = stopping.wait_for(|stopping| *stopping);
        tokio::pin!(until, told);
        let stopped = loop {
            tokio::select! {
                biased;
                _ = &mut told => break true,
                () = &mut until => break false,
                mail = mailbox.recv(), if backlog.len() < backlog_max => match mail {
                    None | Some(Mail::Stop) => break true,
                    Some(mail) => backlog.push_back(mail),
                },
            }
        };
        if stopped { Err(End::Stopped) } else { Ok(()) }
    }

    /// Takes the deletions out of the mail that came while the disk was full.
    pub fn deletions_of_backlog(&mut self) -> Vec<Item> {
        let mut deletions = Vec::new();
        for mail in std::mem::take(&mut self.backlog) {
            if let Mail::Delivered(rows) = mail {
                deletions.push(Item::Delivered(rows));
            } else {
                self.backlog.push_back(mail);
            }
        }
        deletions
    }
}
