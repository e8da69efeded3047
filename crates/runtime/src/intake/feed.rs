//! One shard's side of a stream: what is to be mailed to it, as an unbroken chain of deliveries.
//!
//! Synchronous. Each delivery begins where the one before it ended, so none can be accepted in part, and what
//! one message yields is never split.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::context::ShardEndpoint;
use super::identity::Place;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::shard::mailbox::{Arrival, Delivery, Gates, Mail};

/// How much consecutive messages may put into one delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub inputs: usize,
    pub bytes: usize,
}

/// # Invariants
/// The deliveries in `queue` form a chain from `sent` to `queued`.
#[derive(Debug)]
pub(super) struct Feed {
    pub shard: u16,
    stream: SourceStream,
    mail: mpsc::Sender<Mail>,
    gates: Arc<Gates>,
    queue: VecDeque<Mail>,
    /// Up to where everything is in the mailbox.
    sent: Place,
    /// Sequence up to which everything is in the mailbox or in `queue`.
    queued: u64,
    /// The message whose inputs are being added.
    open: Option<u64>,
    tail_bytes: usize,
    /// Generation of the definitions by which it is asked for and routed.
    routed_by: u64,
}

/// How a mailbox took what was for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    All,
    Full,
    Closed,
}

impl Feed {
    pub fn new(endpoint: &ShardEndpoint, stream: SourceStream, position: Place) -> Self {
        Self {
            shard: endpoint.index,
            stream,
            mail: endpoint.mail.clone(),
            gates: Arc::clone(&endpoint.gates),
            queue: VecDeque::new(),
            sent: position,
            queued: position.sequence,
            open: None,
            tail_bytes: 0,
            routed_by: 0,
        }
    }

    /// Definitions of this generation ask for and route what lies behind the place where the feed has come to. `read`: what
    /// was read up to there, and the feed does not know it yet, was asked for by those of before.
    pub fn follow(&mut self, generation: u64, read: Option<Place>) {
        if generation == self.routed_by {
            return;
        }
        if let Some(read) = read {
            self.watermark(read);
        }
        self.routed_by = generation;
        self.open = None;
    }

    /// Adds one thing that the message at `place` yields. What lies at or below the feed's start was
    /// handed over by another reader and is passed over.
    pub fn push(&mut self, place: Place, arrival: Arrival, bounds: Bounds) {
        let Place { sequence, stamp } = place;
        let same_message = self.open == Some(sequence);
        if sequence <= self.queued && !same_message {
            return;
        }
        let bytes = arrival.bytes();
        if let Some(Mail::Delivery(tail)) = self.queue.back_mut()
            && tail.routed_by == self.routed_by
            && (same_message
                || (tail.inputs.len() < bounds.inputs && self.tail_bytes + bytes <= bounds.bytes))
        {
            tail.inputs.push(arrival);
            tail.sequence = sequence;
            tail.stamp = stamp;
            self.tail_bytes += bytes;
        } else {
            self.queue.push_back(Mail::Delivery(Delivery {
                stream: self.stream,
                after: self.queued,
                sequence,
                stamp,
                routed_by: self.routed_by,
                inputs: vec![arrival],
            }));
            self.tail_bytes = bytes;
        }
        self.queued = sequence;
        self.open = Some(sequence);
    }

    /// Tells the shard that it knows all up to `read`, if it does not know that yet.
    pub fn watermark(&mut self, place: Place) {
        let Place {
            sequence: read,
            stamp,
        } = place;
        if read <= self.queued {
            return;
        }
        if let Some(Mail::Delivery(tail)) = self.queue.back_mut()
            && tail.routed_by == self.routed_by
        {
            tail.sequence = read;
            tail.stamp = stamp;
        } else {
            self.queue.push_back(Mail::Delivery(Delivery {
                stream: self.stream,
                after: self.queued,
                sequence: read,
                stamp,
                routed_by: self.routed_by,
                inputs: Vec::new(),
            }));
        }
        self.queued = read;
        self.open = None;
    }

    /// Answers a barrier: all that the stream held at `as_of` lies at or below `read`.
    pub fn barrier(&mut self, read: Place, as_of: TimeMs) {
        self.watermark(read);
        let stream = self.stream;
        self.queue.push_back(Mail::Barrier { stream, as_of });
        self.open = None;
    }

    /// Tells the shard that a reader was opened.
    pub fn opened(&mut self, again: bool) {
        let stream = self.stream;
        self.queue.push_back(Mail::Opened { stream, again });
        self.open = None;
    }

    /// Puts into the mailbox what it takes.
    pub fn flush(&mut self) -> Flushed {
        self.open = None;
        if self.gates.is_closed(self.stream) && !self.queue.is_empty() {
            return if self.mail.is_closed() {
                Flushed::Closed
            } else {
                Flushed::Full
            };
        }
        while !self.queue.is_empty() {
            match self.mail.try_reserve() {
                Ok(permit) => {
                    if let Some(mail) = self.queue.pop_front() {
                        self.sent = end_of(&mail).unwrap_or(self.sent);
                        permit.send(mail);
                    }
                }
                Err(TrySendError::Full(())) => return Flushed::Full,
                Err(TrySendError::Closed(())) => return Flushed::Closed,
            }
        }
        Flushed::All
    }

    /// Waits until the mailbox takes more, and gives it the next piece; [`Feed::flush`] tells whether it takes the others.
    ///
    /// # Cancel safety
    /// Nothing is sent.
    pub async fn room(&mut self) {
        tokio::select! {
            biased;
            () = self.mail.closed() => return,
            () = self.gates.open(self.stream) => {}
        }
        // A closed mailbox is not an error here: the next flush reports it. Room that was waited for is used at once: given
        // back, it would go to whoever waits next, and so from one to the other for ever.
        if let Ok(permit) = self.mail.reserve().await
            && let Some(mail) = self.queue.pop_front()
        {
            self.sent = end_of(&mail).unwrap_or(self.sent);
            permit.send(mail);
        }
    }

    pub fn sent(&self) -> Place {
        self.sent
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether everything is in the mailbox.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn mailbox(&self) -> &mpsc::Sender<Mail> {
        &self.mail
    }

    /// Inputs that are not yet in the mailbox.
    pub fn waiting_inputs(&self) -> usize {
        let deliveries = self.queue.iter().filter_map(delivery_of);
        deliveries.map(|delivery| delivery.inputs.len()).sum()
    }

    pub fn has_barrier(&self) -> bool {
        self.queue.iter().any(|mail| matches!(mail, Mail::Barrier { .. }))
    }

    pub fn has_opening(&self) -> bool {
        self.queue.iter().any(|mail| matches!(mail, Mail::Opened { .. }))
    }

    /// Forgets what is not yet in the mailbox and goes on behind `position`.
    pub fn restart(&mut self, position: Place) {
        self.queue.clear();
        self.sent = position;
        self.queued = position.sequence;
        self.open = None;
    }

    /// Takes over from another reader, which mailed all up to `position`: what was kept from there on is the
    /// next to be mailed. Kept deliveries must hold one message each.
    pub fn take_over(&mut self, position: Place) {
        let after = position.sequence;
        self.queue
            .retain(|mail| end_of(mail).is_none_or(|end| end.sequence > after));
        if let Some(Mail::Delivery(first)) = self.queue.front_mut() {
            first.after = after;
        }
        self.sent = position;
        self.queued = self.queued.max(after);
        self.open = None;
    }
}

fn end_of(mail: &Mail) -> Option<Place> {
    delivery_of(mail).map(|delivery| Place {
        sequence: delivery.sequence,
        stamp: delivery.stamp,
    })
}

const fn delivery_of(mail: &Mail) -> Option<&Delivery> {
    if let Mail::Delivery(delivery) = mail {
        Some(delivery)
    } else {
        None
    }
}
