//! The shard's side of a relay, played by a test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::work::{WorkItem, WorkRef};
use saga_runner::outbox::{self, LocalFirst, Relay, Rest, Submitter};
use saga_runner::shard::mailbox::{Mail, Refused, Relayed, Released, Verdict};
use tokio::sync::mpsc;

use super::PATIENCE;

pub struct RelayOptions {
    pub settings: outbox::Settings,
    pub gateway: Option<String>,
    /// Rows up to this one are of an earlier life of the process.
    pub began_after: u64,
    /// What the outbox holds when the relay starts.
    pub outbox: Vec<(WorkRef, WorkItem)>,
    pub mailbox: usize,
    pub local: Option<LocalFirst>,
    /// One that never closes where there is none.
    pub fence: Option<Arc<outbox::Fence>>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            settings: outbox::Settings {
                retry_initial: Millis(10),
                retry_max: Millis(50),
                ..outbox::Settings::default()
            },
            gateway: None,
            began_after: 0,
            outbox: Vec::new(),
            mailbox: 16,
            local: None,
            fence: None,
        }
    }
}

/// The shard's side of a relay.
pub struct ShardSide {
    pub(super) relay: Option<Relay>,
    pub(super) submitter: Option<Arc<Submitter>>,
    pub released: mpsc::Sender<Released>,
    pub(super) mailbox: mpsc::Receiver<Mail>,
    pub relayed: Arc<Relayed>,
    pub spilled: Arc<AtomicBool>,
    pub outbox: BTreeMap<WorkRef, WorkItem>,
    pub verdicts: Vec<Verdict>,
    pub delivered: Vec<WorkRef>,
    /// Rows whose calls were said to begin.
    pub begun: Vec<WorkRef>,
    /// Rows of which that was taken back.
    pub not_called: Vec<WorkRef>,
    /// Closes before it is answered that a call begins.
    pub closes: Option<Arc<outbox::Fence>>,
    pub(super) refills: usize,
}

impl ShardSide {
    /// What submits the commands for aggregates.
    pub fn submitter(&self) -> &Submitter {
        self.submitter.as_ref().expect("the test has a gateway")
    }

    /// Commits the rows and releases them.
    pub async fn release(&mut self, rows: Vec<(WorkRef, WorkItem)>) {
        self.outbox.extend(rows.iter().cloned());
        self.send(rows, Vec::new(), Vec::new()).await;
    }

    pub async fn complete(&mut self, rows: Vec<WorkRef>) {
        for row in &rows {
            self.outbox.remove(row);
        }
        self.send(Vec::new(), rows, Vec::new()).await;
    }

    pub async fn overdue(&mut self, row: WorkRef) {
        let item = self.outbox[&row].clone();
        self.send(Vec::new(), Vec::new(), vec![(row, item)]).await;
    }

    async fn send(
        &mut self,
        work: Vec<(WorkRef, WorkItem)>,
        completed: Vec<WorkRef>,
        overdue: Vec<(WorkRef, WorkItem)>,
    ) {
        let released = Released {
            shard: 0,
            work,
            completed,
            overdue,
        };
        self.released.send(released).await.unwrap();
    }

    /// Answers mail until `done` holds.
    pub async fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "still waiting; verdicts {:?}",
                self.verdicts
            );
            // Woken by mail, or to look again at what changes without mail.
            if let Ok(mail) = tokio::time::timeout(Duration::from_millis(10), self.mailbox.recv()).await {
                self.handle(mail.expect("the relay runs"));
            }
        }
    }

    /// Lets the relay read what the outbox held when it started.
    pub async fn until_started(&mut self) {
        self.until(|shard| shard.refills > 0).await;
    }

    pub async fn until_floor(&mut self, row: WorkRef) {
        let encoded = row.log_sequence << 16 | u64::from(row.index);
        self.until(|shard| shard.relayed.floor.load(Ordering::Acquire) >= encoded)
            .await;
    }

    /// Ends the relay as a shutdown does.
    pub async fn drain(&mut self, timeout: Duration) {
        self.relay.take().expect("drained once").drain(timeout).await;
        self.take_mail();
    }

    /// Answers mail until the relay has come to this rest.
    pub async fn come_to_rest(&mut self, rest: Rest) {
        let relay = self.relay.take().expect("not drained");
        let asked = tokio::spawn(async move {
            relay.until(rest).await;
            relay
        });
        self.until(|_| asked.is_finished()).await;
        self.relay = Some(asked.await.unwrap());
        self.take_mail();
    }

    /// Reads what is in the mailbox now.
    fn take_mail(&mut self) {
        while let Ok(mail) = self.mailbox.try_recv() {
            self.handle(mail);
        }
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Verdict(verdict) => self.verdicts.push(verdict),
            Mail::Delivered(rows) => {
                for row in &rows {
                    self.outbox.remove(row);
                }
                self.delivered.extend(rows);
            }
            Mail::CallBegins { row, reply } => {
                if let Some(fence) = &self.closes {
                    fence.close();
                }
                if self.outbox.contains_key(&row) {
                    self.begun.push(row);
                    let _gone = reply.send(Ok(()));
                } else {
                    let _gone = reply.send(Err(Refused::Conflict("the command is completed".into())));
                }
            }
            Mail::NotCalled(row) => self.not_called.push(row),
            Mail::Refill { after, limit, reply } => {
                let rows = self
                    .outbox
                    .iter()
                    .filter(|(row, _)| after.is_none_or(|after| **row > after));
                let page = rows.take(limit).map(|(row, item)| (*row, item.clone())).collect();
                reply.send(page).unwrap();
                self.refills += 1;
            }
            other => panic!("unexpected mail {other:?}"),
        }
    }
}
