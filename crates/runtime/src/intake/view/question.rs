//! What the broker is asked about the stream, and what its answers mean: whether it is the same stream, and whether it has
//! lost what was not read yet.

use std::future::pending;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::View;
use super::probe::{Probe, Silence};
use crate::intake::context::Halt;
use crate::intake::guard::{Removed, Survey, survey};
use crate::intake::identity::{Place, Seen, judge, open};
use crate::ports::broker::BrokerError;
use crate::ports::clock::Clock as _;

/// What the broker is being asked about the stream.
pub(super) struct Question {
    purpose: Purpose,
    read: Place,
    answer: BoxFuture<'static, Result<Survey, BrokerError>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To open a reader.
    Open,
    /// To prove how far everything was read.
    Probe,
    /// To see that nothing had been removed when the reader knew of nothing more.
    Confirm,
    /// To see whether anything was removed.
    Look,
}

impl View {
    pub(super) fn ask(&mut self, purpose: Purpose) {
        self.guard.ask();
        let name = self.ctx.name(self.stream).to_owned();
        let broker = Arc::clone(&self.ctx.broker);
        // Before a reader is opened nothing is looked up: that is done behind it. Where none is, the answer alone
        // lets the position move.
        let progress = self.ctx.progress(self.stream);
        let place = match purpose {
            Purpose::Open => None,
            Purpose::Probe | Purpose::Confirm | Purpose::Look if self.filters.is_empty() => {
                Some(progress.to_look_up_now(self.ctx.clock.monotonic()))
            }
            Purpose::Probe | Purpose::Confirm | Purpose::Look => {
                progress.to_look_up(self.ctx.clock.monotonic())
            }
        };
        self.question = Some(Question {
            purpose,
            read: self.read,
            answer: survey(
                (broker, Arc::clone(&self.ctx.clock)),
                (self.stream, name),
                self.removed.clone(),
                place.into_iter().collect(),
            )
            .boxed(),
        });
    }

    pub(super) fn answered(&mut self, answer: Result<Survey, BrokerError>) {
        let Some(question) = self.question.take() else {
            return;
        };
        let survey = match answer {
            Ok(survey) => survey,
            Err(error) if question.purpose == Purpose::Open => return self.unopened(&error),
            Err(error) => {
                self.guard.unanswered();
                tracing::warn!(stream = self.ctx.name(self.stream), %error, "stream state is unknown");
                if question.purpose == Purpose::Confirm {
                    self.probe = None;
                }
                if self.reader.is_none() {
                    self.connected(false);
                }
                return;
            }
        };
        // What the old filters left out is not known to be silent.
        if self.widen() {
            return;
        }
        if let Some(halt) = self.examine(&survey, question.read.sequence) {
            return self.halt(halt);
        }
        if !survey.seen.is_empty() {
            self.ctx.progress(self.stream).stands(question.read);
        }
        let (state, as_of) = (survey.state, survey.as_of);
        self.ctx.progress(self.stream).heard_of(state.last_sequence);
        self.identity = Some(state.identity.clone());
        match question.purpose {
            Purpose::Look => {}
            Purpose::Confirm => {
                if let Some(probe) = &mut self.probe {
                    probe.silence = Silence::Confirmed;
                }
            }
            Purpose::Open => {
                let progress = self.ctx.progress(self.stream);
                let mark = progress.to_look_up_now(self.ctx.clock.monotonic());
                let places = vec![mark, self.read, progress.furthest()];
                let broker = Arc::clone(&self.ctx.broker);
                self.opening = Some(open(broker, self.reader_spec(), places).boxed());
            }
            Purpose::Probe => {
                let now = self.ctx.clock.monotonic();
                let silence = if self.filters.is_empty() {
                    self.connected(true);
                    Silence::Found { after: 0, due: now }
                } else {
                    Silence::Sought { at: now }
                };
                self.probe = Some(Probe {
                    as_of,
                    covered: Place::end_of(&state),
                    silence,
                });
            }
        }
    }

    /// Why the stream must not be read on, if it must not. `read`: as far as it was read when it was looked at.
    fn examine(&mut self, survey: &Survey, read: u64) -> Option<Halt> {
        let (name, state) = (self.ctx.name(self.stream), &survey.state);
        if self
            .identity
            .as_ref()
            .is_some_and(|known| *known != state.identity)
        {
            return Some(Halt {
                reason: "stream.identity",
                lost_from: None,
                message: format!(
                    "stream {name} was deleted and created again, its sequences mean other messages"
                ),
            });
        }
        let unseen = Seen {
            place: Place {
                sequence: read,
                stamp: None,
            },
            found: None,
        };
        if let Some(halt) = judge(state, &[unseen]).or_else(|| judge(state, &survey.seen)) {
            return Some(halt);
        }
        let removed: Vec<u64> = match &survey.removed {
            Removed::AsKnown => Vec::new(),
            Removed::Listed(listed) => {
                let before = self.ctx.progress(self.stream).removed_before(listed);
                self.removed = Some(Arc::clone(listed));
                let news = listed.iter().copied();
                news.filter(|sequence| before.binary_search(sequence).is_err())
                    .collect()
            }
            Removed::Many(count) => {
                if self.removed.take().is_some() || self.identity.is_none() {
                    tracing::warn!(
                        stream = name,
                        count,
                        "too many messages were removed one by one to see whether each was read before"
                    );
                }
                Vec::new()
            }
        };
        let lost = self
            .guard
            .answered(state.first_sequence, &removed, self.read.sequence);
        // Where nothing matters, nothing is lost.
        let lost = lost.filter(|_| !self.filters.is_empty())?;
        self.old_news = self.removed.as_ref().map(|removed| {
            let before = self.ctx.progress(self.stream).removed_before(removed);
            let is_old = |sequence: &u64| lost.tells_of(*sequence) || before.binary_search(sequence).is_ok();
            removed.iter().copied().filter(is_old).collect()
        });
        Some(lost.halt(name))
    }
}

impl Question {
    pub(super) fn is_probe(&self) -> bool {
        self.purpose == Purpose::Probe
    }

    pub(super) fn is_for_probe(&self) -> bool {
        matches!(self.purpose, Purpose::Probe | Purpose::Confirm)
    }
}

/// # Cancel safety
/// The question stays.
pub(super) async fn answer_of(question: &mut Option<Question>) -> Result<Survey, BrokerError> {
    match question {
        Some(question) => (&mut question.answer).await,
        None => pending().await,
    }
}
