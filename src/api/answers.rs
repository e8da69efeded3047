//! Bytes of answers that clients have not taken yet: counted, and bounded for all clients together.
//!
//! Only what is long counts ([`PORTION_BYTES`]): short answers are bounded by the number of connections.

use std::sync::Arc;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::response::Response;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pages::PORTION_BYTES;
use super::problem::Problem;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::IntGauge;

/// The room that the answers of a process have.
#[derive(Clone)]
pub struct Answers {
    /// A permit for each byte.
    room: Arc<Semaphore>,
    bytes_max: u32,
    metrics: Arc<Metrics>,
}

/// Room for some bytes.
pub struct Room {
    /// None for an answer that is not refused although there is no room for it.
    permit: Option<OwnedSemaphorePermit>,
    held: IntGauge,
}

/// Bytes of an answer. They give their room back when they have been written to the connection, or are given up.
struct Held {
    bytes: Bytes,
    room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.held.sub(signed(self.bytes.len()));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Room {
    /// The bytes, in this room until the last of them is written.
    pub fn hold(self, bytes: Bytes) -> Bytes {
        self.held.add(signed(bytes.len()));
        Bytes::from_owner(Held { bytes, room: self })
    }
}

impl Answers {
    pub fn new(bytes_max: usize, metrics: Arc<Metrics>) -> Self {
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let permits = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self {
            room: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            bytes_max,
            metrics,
        }
    }

    /// What is longer than all that there may be gets all.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }

    fn room(&self, permit: Option<OwnedSemaphorePermit>) -> Room {
        let held = self.metrics.answers.bytes.clone();
        Room { permit, held }
    }

    /// Room for so many bytes, if there is any now.
    pub fn try_room(&self, bytes: usize) -> Option<Room> {
        let permit = Arc::clone(&self.room).try_acquire_many_owned(self.permits(bytes));
        permit.ok().map(|permit| self.room(Some(permit)))
    }

    /// As [`try_room`](Self::try_room), with what the client is told where there is none.
    pub fn room_or_refusal(&self, bytes: usize) -> Result<Room, Problem> {
        self.try_room(bytes).ok_or_else(|| {
            self.metrics.answers.refused.inc();
            Problem::unavailable(
                "clients have not taken as many bytes of answers as http.answer_bytes_max says; retry later",
            )
        })
    }

    /// Room for so many bytes, once there is any.
    pub async fn room_in_turn(&self, bytes: usize) -> Room {
        let permit = Arc::clone(&self.room).acquire_many_owned(self.permits(bytes));
        // It is never closed.
        self.room(permit.await.ok())
    }

    /// The room of so many bytes instead of that of `room`, if there is any now.
    pub fn fitted(&self, mut room: Room, bytes: usize) -> Option<Room> {
        let wanted = usize::try_from(self.permits(bytes)).unwrap_or(usize::MAX);
        let permit = room.permit.as_mut()?;
        let has = permit.num_permits();
        if has > wanted {
            drop(permit.split(has - wanted));
            return Some(room);
        }
        let more = u32::try_from(wanted - has).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.room).try_acquire_many_owned(more).ok()?;
        permit.merge(more);
        Some(room)
    }

    /// Counts an answer that is whole in memory. Where there is no room for it, it is refused, unless it tells of what was done.
    ///
    /// # Errors
    /// [`Problem`] for one that is refused.
    pub async fn hold(&self, response: Response, may_be_refused: bool) -> Result<Response, Problem> {
        // What is sent in portions has no length.
        let length = response.body().size_hint().exact().unwrap_or_default();
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if bytes <= PORTION_BYTES {
            return Ok(response);
        }
        let room = if may_be_refused {
            self.room_or_refusal(bytes)?
        } else {
            self.try_room(bytes).unwrap_or_else(|| self.room(None))
        };
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await;
        let body = body.map_err(|error| Problem::internal(error.to_string()))?;
        Ok(Response::from_parts(parts, Body::from(room.hold(body))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(bytes_max: usize) -> Answers {
        Answers::new(bytes_max, Arc::new(Metrics::new()))
    }

    fn long(bytes: usize) -> Response {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn an_answer_gives_its_room_back_when_its_last_byte_is_gone() {
        let answers = answers(200_000);
        let held = answers.hold(long(150_000), true).await.expect("room");
        assert_eq!(held.body().size_hint().exact(), Some(150_000));
        let mut bytes = to_bytes(held.into_body(), usize::MAX).await.expect("a body");
        assert_eq!(answers.metrics.answers.bytes.get(), 150_000);
        let problem = answers.hold(long(100_000), true).await.expect_err("no room");
        assert_eq!((problem.status, problem.code), (503, "SR0504"));
        assert_eq!(answers.metrics.answers.refused.get(), 1);
        let rest = bytes.split_off(149_999);
        drop(bytes);
        assert!(answers.hold(long(100_000), true).await.is_err(), "a byte is left");
        drop(rest);
        assert_eq!(answers.metrics.answers.bytes.get(), 0);
        assert!(answers.hold(long(100_000), true).await.is_ok());
    }

    #[tokio::test]
    async fn the_outcome_of_a_change_and_a_short_answer_are_told_although_there_is_no_room() {
        let answers = answers(200_000);
        let _held = answers.hold(long(200_000), true).await.expect("room");
        assert!(answers.hold(long(PORTION_BYTES), true).await.is_ok(), "short");
        let told = answers.hold(long(90_000), false).await.expect("told");
        assert_eq!(answers.metrics.answers.bytes.get(), 290_000);
        drop(told);
        assert_eq!(answers.metrics.answers.bytes.get(), 200_000);
    }

    #[tokio::test]
    async fn an_answer_longer_than_all_that_there_may_be_is_held_alone() {
        let answers = answers(100_000);
        let alone = answers.hold(long(1_000_000), true).await.expect("room");
        assert!(answers.try_room(1).is_none());
        drop(alone);
        assert!(answers.try_room(100_000).is_some());
    }

    #[tokio::test]
    async fn room_is_made_to_fit_and_none_is_lost() {
        let answers = answers(100_000);
        let room = answers.room_in_turn(60_000).await;
        let room = answers.fitted(room, 10_000).expect("smaller");
        let other = answers.try_room(85_000).expect("what was given back");
        assert!(answers.fitted(room, 20_000).is_none(), "there are 5,000 bytes");
        assert!(answers.try_room(15_000).is_some(), "it was given back");
        drop(other);
        assert!(answers.try_room(100_000).is_some());
    }
}
