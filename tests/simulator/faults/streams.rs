//! Streams that lose what they had.

use saga_runner::kernel::ids::{Key, TenantId, shard_of};
use saga_runner::kernel::input::SourceStream;
use saga_runner::ports::broker::StoredMessage;
use saga_runner_partition::storage::StorageError;

use super::Loss;
use crate::plan::Action;
use crate::run::{EVENTS, Simulation};
use crate::workload::{Event, TENANTS};

/// An event that is gone from its stream.
#[derive(Debug, Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "what is known of it, each by itself"
)]
pub struct Gone {
    pub sequence: u64,
    pub event: Event,
    /// The runner had stored what it made of it.
    pub was_read: bool,
    /// It stood where something else had been read that the stream had lost before. Where both were gone when somebody looked
    /// again, nothing tells them apart.
    pub stood_in_place: bool,
    /// It was stored again, in its order.
    pub is_resent: bool,
    /// It was removed; else its sequence may mean another message by now.
    pub is_removed: bool,
    /// The process died before it could tell of it, and the next one does not know that it was ever there.
    pub is_unheard: bool,
}

impl Simulation {
    pub fn noise(&mut self, count: u64) {
        for number in 0..count {
            let subject = format!("tenant.{}.aggregate.Noise.n{number}", TENANTS[0]);
            self.server.append(EVENTS, subject, b"{}".to_vec());
        }
    }

    pub fn lose_of(&mut self, stream: &'static str, loss: Loss) {
        // A cluster that is not there yet begins with what it finds.
        if !self.folder.is_in_use() {
            return;
        }
        let gone = match loss {
            Loss::GoesBack { count, .. } => self.server.go_back(stream, count),
            Loss::Purged => self.server.purge(stream),
            Loss::Removed { behind } => {
                let sequence = self.server.last(stream).saturating_sub(behind);
                self.server.remove(stream, sequence)
            }
            Loss::MadeAnew => self.server.recreate(stream),
        };
        self.losses.is_troubled = true;
        let (noise, resent) = match loss {
            Loss::GoesBack { noise, resent, .. } => (noise, resent),
            _ => (0, false),
        };
        if stream == EVENTS {
            // Before an operator has acted, positions mean what stood there before an earlier loss.
            let is_first = !self.losses.has_lost(EVENTS);
            self.note_gone(
                &gone,
                is_first,
                resent,
                matches!(loss, Loss::Purged | Loss::Removed { .. }),
            );
            let mut gone = self.losses.gone.iter().rev().take(gone.len());
            if gone.any(|gone| gone.is_removed && !gone.was_read) {
                self.losses.is_told = false;
            }
            self.noise(noise);
        }
        self.losses.streams.push(stream);
        if resent && stream == EVENTS {
            for message in gone {
                match self.event_at(&message) {
                    Some(event) => self.publish(event),
                    None => {
                        self.server
                            .append(EVENTS, message.subject, message.payload.to_vec());
                    }
                }
            }
        }
    }

    fn event_at(&self, message: &StoredMessage) -> Option<Event> {
        let body: serde_json::Value = serde_json::from_slice(&message.payload).ok()?;
        let id = body["event_id"].as_str()?;
        let mut stored = self.stored.iter();
        stored
            .find(|(_, event)| event.id == id)
            .map(|(_, event)| event.clone())
    }

    fn note_gone(&mut self, gone: &[StoredMessage], is_first: bool, is_resent: bool, is_removed: bool) {
        for message in gone {
            let Some(event) = self.event_at(message) else {
                continue;
            };
            let is_passed = self.position_of(&event.key) >= message.sequence;
            self.losses.gone.push(Gone {
                sequence: message.sequence,
                event,
                was_read: is_first && is_passed,
                stood_in_place: !is_first && is_passed,
                is_resent,
                is_removed,
                is_unheard: false,
            });
        }
    }

    /// Up to where the shard of a key has stored what it made of the events.
    fn position_of(&self, key: &str) -> u64 {
        let shard = self.shard_of(key);
        let disk = &self.folder.disks[usize::from(shard)];
        let row = disk
            .rows
            .write::<_, StorageError>(|batch| batch.position(SourceStream::AggregateEvents))
            .expect("a store in memory can be read");
        row.map_or(0, |row| row.sequence)
    }

    pub fn shard_of(&self, key: &str) -> u16 {
        let tenant = TenantId::parse(TENANTS[0]).expect("a tenant");
        shard_of(&tenant, &Key::parse(key).expect("a key"), self.plan.shards)
    }

    /// Some event of this aggregate is gone, and nobody can tell whether a runner has ever seen it.
    pub fn is_excused(&self, kind: &str, key: &str) -> bool {
        let mut gone = self.losses.gone.iter();
        gone.any(|gone| super::is_of(&gone.event, kind, key) && !gone.was_read && !gone.is_resent)
    }

    /// It had begun before the state was adopted on which the runner works.
    pub fn is_adopted(&self, kind: &str, key: &str) -> bool {
        let Some(adopted) = self.losses.adopted else {
            return false;
        };
        let mut actions = self.plan.actions.iter();
        actions.any(|(at, action)| {
            *at <= adopted && matches!(action, Action::Event(event) if super::is_of(event, kind, key))
        })
    }

    /// The process has died by what it was to write.
    pub fn note_poisoned(&mut self) {
        if self.is_untold() {
            let gone = self.losses.gone.iter_mut();
            gone.filter(|gone| gone.is_removed && !gone.was_read)
                .for_each(|gone| gone.is_unheard = true);
        }
    }

    /// Events are gone that were not read, and the runner has said nothing of it yet.
    pub fn is_untold(&self) -> bool {
        let unread = |gone: &&super::Gone| gone.is_removed && !gone.was_read;
        !self.losses.is_told && self.losses.gone.iter().any(|gone| unread(&gone))
    }
}
