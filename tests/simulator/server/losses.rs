//! What a broker loses: its newest messages with the power, and what somebody removes.

use std::collections::BTreeMap;

use saga_runner::ports::broker::StoredMessage;

use super::Server;
use super::stream::Stream;
use crate::faults::records::RecordLoss;

impl Server {
    /// The power fails, and the newest messages of a stream were not on the disk yet: those that are lost.
    pub fn go_back(&self, name: &str, count: u64) -> Vec<StoredMessage> {
        let mut state = self.lock();
        let Some(stream) = state.streams.get_mut(name) else {
            return Vec::new();
        };
        let lost = stream.go_back(count);
        let end = stream.last;
        // It was started again, and knows none of its clients.
        state.connection += 1;
        drop(state);
        self.world
            .note(format_args!("{name} goes back by {} to {end}", lost.len()));
        self.wake();
        lost
    }

    /// Its owner removes all that the stream has.
    pub fn purge(&self, name: &str) -> Vec<StoredMessage> {
        self.world.note(format_args!("{name} is purged"));
        let mut state = self.lock();
        let stream = state.streams.get_mut(name);
        stream.map_or_else(Vec::new, |stream| {
            let gone = stream.standing();
            stream.trim(stream.last + 1);
            stream.note_gone(&gone);
            gone
        })
    }

    /// Somebody removes one message.
    pub fn remove(&self, name: &str, sequence: u64) -> Vec<StoredMessage> {
        self.world
            .note(format_args!("message {sequence} of {name} is removed"));
        let mut state = self.lock();
        let stream = state.streams.get_mut(name);
        stream.map_or_else(Vec::new, |stream| {
            let gone = stream.messages.remove(&sequence);
            let gone: Vec<_> = gone.into_iter().map(|stored| stored.message).collect();
            stream.newest.retain(|_, newest| *newest != sequence);
            stream.note_gone(&gone);
            gone
        })
    }

    /// Whether the owner of some shard is known. What a process could not write is not.
    pub fn has_owner_records(&self) -> bool {
        let state = self.lock();
        let mut keys = state.buckets.values().flat_map(BTreeMap::keys);
        keys.any(|key| key.contains(".shard."))
    }

    /// The broker loses what it has in its buckets.
    pub fn lose_records(&self, loss: RecordLoss) {
        self.world.note(format_args!("records are lost: {loss:?}"));
        let mut state = self.lock();
        match loss {
            RecordLoss::Bucket => {
                state.buckets.clear();
                state.puts.clear();
            }
            RecordLoss::Entry(number) => {
                let mut keys: Vec<(String, String)> = Vec::new();
                for (bucket, entries) in &state.buckets {
                    keys.extend(entries.keys().map(|key| (bucket.clone(), key.clone())));
                }
                if !keys.is_empty() {
                    let at = usize::try_from(number).expect("small") % keys.len();
                    let (bucket, key) = &keys[at];
                    let entries = state.buckets.get_mut(bucket);
                    let value = entries.and_then(|entries| entries.remove(key));
                    state.revision += 1;
                    state.puts.push((bucket.clone(), key.clone(), value));
                }
            }
            RecordLoss::GoesBack(count) => {
                for _ in 0..count {
                    let Some((bucket, key, before)) = state.puts.pop() else {
                        break;
                    };
                    state.revision -= 1;
                    let Some(entries) = state.buckets.get_mut(&bucket) else {
                        continue;
                    };
                    match before {
                        Some(before) => drop(entries.insert(key, before)),
                        None => drop(entries.remove(&key)),
                    }
                }
                // It was started again, and knows none of its clients.
                state.connection += 1;
            }
        }
        drop(state);
        self.wake();
    }

    /// The stream is deleted and made anew: what it had.
    pub fn recreate(&self, name: &str) -> Vec<StoredMessage> {
        let now_ns = self.now().0 * 1_000_000;
        let mut state = self.lock();
        state.created_ns = (state.created_ns + 1).max(now_ns);
        let created = state.created_ns;
        let gone = state.streams.get_mut(name).map_or_else(Vec::new, |stream| {
            let gone = stream.standing();
            stream.begin_anew(created);
            gone
        });
        drop(state);
        self.world.note(format_args!("{name} is made anew"));
        self.wake();
        gone
    }
}

impl Stream {
    fn standing(&self) -> Vec<StoredMessage> {
        let messages = self.messages.values();
        messages.map(|stored| stored.message.clone()).collect()
    }

    /// The sequences of its newest messages will mean others.
    fn go_back(&mut self, count: u64) -> Vec<StoredMessage> {
        let end = self.last.saturating_sub(count).max(self.first() - 1);
        let lost = self.messages.split_off(&(end + 1));
        self.last = end;
        self.ids.retain(|(_, _, sequence)| *sequence <= end);
        self.known.retain(|_, sequence| *sequence <= end);
        let mut newest = BTreeMap::new();
        for (sequence, stored) in &self.messages {
            newest.insert(stored.message.subject.clone(), *sequence);
        }
        self.newest = newest;
        for queue in self.queues.values_mut() {
            queue.next = queue.next.min(end + 1);
            queue.seen = queue.seen.min(end);
            queue.held.retain(|sequence, _| *sequence <= end);
        }
        let lost: Vec<_> = lost.into_values().map(|stored| stored.message).collect();
        self.note_gone(&lost);
        lost
    }

    /// They are gone without the runner's doing.
    fn note_gone(&mut self, gone: &[StoredMessage]) {
        let Some(first) = gone.first().map(|message| message.sequence) else {
            return;
        };
        let last = gone.last().map_or(first, |message| message.sequence);
        for (message, is_gone) in &mut self.archive {
            *is_gone |= (first..=last).contains(&message.sequence);
        }
    }

    fn begin_anew(&mut self, created_ns: i64) {
        let mut anew = Self::new(&self.spec, created_ns, self.window_ms);
        anew.archive = std::mem::take(&mut self.archive);
        for (_, is_gone) in &mut anew.archive {
            *is_gone = true;
        }
        *self = anew;
    }

    /// The messages that are missing between the first and the last.
    pub fn removed(&self) -> Vec<u64> {
        let range = self.first()..=self.last;
        range
            .filter(|sequence| !self.messages.contains_key(sequence))
            .collect()
    }
}
