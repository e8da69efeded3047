//! The outcome of a call, and what that says about the world: one table for all providers.
//!
//! A provider finds out which row holds; class, certainty and the breaker's part follow from it. A rule of `classify` has
//! the last word ([`CallFailure::ruled`]).

use std::borrow::Cow;

use super::provider::{CallFailure, Certainty};
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::effect::{AMBIGUOUS, Classify, RuledOutcome};

/// The outcome of a call that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The call could or may not be sent as it is. The class says why.
    Unsendable(&'static str),
    /// There is no connection: refused, no such host, a handshake that failed.
    Unconnected,
    /// The certificate of one side is not accepted by the other, so the call was not carried out.
    Untrusted,
    /// The time was over before anything was sent.
    LateUnsent,
    /// The connection ended before anything was sent.
    LostUnsent,
    /// The peer says that it has not begun: `REFUSED_STREAM`, or above the last stream of `GOAWAY`.
    NotBegun,
    /// The connection ended when the call may have reached the peer.
    Lost,
    /// The time was over when the call may have reached the peer.
    Late,
    /// It was aborted on this side when it may have reached the peer.
    Interrupted,
    /// The peer reports success in bytes that cannot be read.
    Malformed,
    /// The peer reports success in more bytes than are read.
    TooLong,
    /// The peer reports a failure.
    Said(Said),
}

/// What a peer reports that did not carry a call out, or not with certainty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// It understood the call and refuses it.
    Refused,
    /// It refuses without having looked for the idempotency key: who calls is not allowed to, or another call with this key
    /// is under way. That says nothing about other calls with the key.
    TurnedAway,
    /// The call belongs to another address, and calls are not redirected.
    Moved,
    /// The answer is at another address, so the call may have been carried out.
    Elsewhere,
    /// It has too many calls.
    Throttled,
    /// It takes no calls, or none of this kind, at present.
    NotNow,
    /// This call was in the way of another one, or came too early; the peer itself is well.
    Conflict,
    /// It broke down, maybe in the middle of the call.
    Broke,
    /// It has waited for too long, maybe for somebody who carries the call out.
    GaveUp,
    /// Somebody broke the call off, maybe in the middle.
    Cancelled,
}

/// Whether a call may have changed something at its upstream, by what the upstream says of it beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideEffects {
    /// It only reads: made again, or never answered, it does no harm.
    None,
    Possible,
}

impl SideEffects {
    /// Those of a call whose method is declared safe, or not.
    #[must_use]
    pub const fn unless(is_safe: bool) -> Self {
        if is_safe { Self::None } else { Self::Possible }
    }

    #[must_use]
    pub const fn are_none(self) -> bool {
        matches!(self, Self::None)
    }
}

/// What an ending means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    pub class: &'static str,
    pub certainty: Certainty,
    pub end: CallEnd,
}

impl Ending {
    /// No ending of a call without side effects leaves an unknown outcome.
    #[must_use]
    pub const fn meaning(self, side_effects: SideEffects) -> Meaning {
        use CallEnd::{Abandoned, Answered, Failed};
        use Certainty::{NotDone, Refused, Unknown};
        let (class, certainty, end) = match self {
            Self::Unsendable(class) => (class, NotDone, Abandoned),
            Self::Unconnected | Self::LostUnsent | Self::NotBegun => ("transient", NotDone, Failed),
            Self::Untrusted => ("tls.untrusted", NotDone, Failed),
            Self::LateUnsent => ("timeout", NotDone, Failed),
            Self::Lost if side_effects.are_none() => ("transient", NotDone, Failed),
            Self::Late if side_effects.are_none() => ("timeout", NotDone, Failed),
            Self::Lost | Self::Late => (AMBIGUOUS, Unknown, Failed),
            Self::Interrupted => ("cancelled", Unknown, Abandoned),
            Self::Malformed => ("response.malformed", Unknown, Answered),
            Self::TooLong => ("response.size", Unknown, Answered),
            Self::Said(said) => match said {
                Said::Refused => ("permanent", Refused, Answered),
                Said::TurnedAway => ("permanent", NotDone, Answered),
                Said::Moved => ("egress.denied", NotDone, Answered),
                Said::Elsewhere => ("egress.denied", Unknown, Answered),
                Said::Throttled => ("throttled", NotDone, Failed),
                Said::NotNow => ("transient", NotDone, Failed),
                Said::Conflict => ("transient", NotDone, Answered),
                Said::Broke => ("transient", Unknown, Failed),
                Said::GaveUp => ("timeout", Unknown, Failed),
                Said::Cancelled if side_effects.are_none() => ("transient", NotDone, Answered),
                Said::Cancelled => (AMBIGUOUS, Unknown, Answered),
            },
        };
        let certainty = match certainty {
            Unknown if side_effects.are_none() => NotDone,
            certainty => certainty,
        };
        Meaning {
            class,
            certainty,
            end,
        }
    }
}

impl Said {
    /// What an error code of a service over NATS reports. From 400 to 599 they are those of HTTP.
    #[must_use]
    pub const fn of_service(code: i64) -> Self {
        match code {
            400..=599 => Self::of_status(code),
            _ => Self::Broke,
        }
    }

    /// What a status of HTTP that is not a success reports.
    #[must_use]
    pub const fn of_status(code: i64) -> Self {
        match code {
            // Not modified: no redirect, and no answer to a request without a condition.
            304 => Self::Refused,
            302 | 303 => Self::Elsewhere,
            300..=399 => Self::Moved,
            // RFC 9110 for the first three; 409 is what a repeated key gets whose first request is not finished
            // (draft-ietf-httpapi-idempotency-key-header, 2.7).
            401 | 403 | 407 | 409 => Self::TurnedAway,
            408 | 504 => Self::GaveUp,
            425 => Self::Conflict,
            429 => Self::Throttled,
            100..=499 => Self::Refused,
            501 | 503 | 505 => Self::NotNow,
            // RFC 9110, 15: a status of no known kind is to be taken as a 5xx.
            _ => Self::Broke,
        }
    }
}

impl CallFailure {
    /// The failure that an ending is.
    #[must_use]
    pub fn of(ending: Ending, side_effects: SideEffects, message: impl Into<String>) -> Self {
        let meaning = ending.meaning(side_effects);
        Self {
            class: Cow::Borrowed(meaning.class),
            message: message.into(),
            certainty: meaning.certainty,
            end: meaning.end,
            retry_after: None,
        }
    }

    /// The same as a rule of the definition has it: its class, and its word on what happened.
    ///
    /// A class that stands for an unknown outcome makes it unknown; one that asks for another attempt under the same
    /// idempotency key takes a refusal for not done.
    #[must_use]
    pub fn ruled(self, rule: &Classify, side_effects: SideEffects) -> Self {
        let certainty = match (rule.outcome, &*rule.class) {
            (Some(RuledOutcome::Refused), _) => Certainty::Refused,
            (Some(RuledOutcome::NotDone), _) => Certainty::NotDone,
            (Some(RuledOutcome::Unknown), _) | (None, AMBIGUOUS | "timeout") => Certainty::Unknown,
            (None, "transient" | "throttled") if self.certainty == Certainty::Refused => Certainty::NotDone,
            (None, _) => self.certainty,
        };
        Self {
            class: Cow::Owned(rule.class.clone()),
            certainty: match certainty {
                Certainty::Unknown if side_effects.are_none() => Certainty::NotDone,
                certainty => certainty,
            },
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::expr::{Expr, Root};

    fn ruled(said: Said, class: &str, outcome: Option<RuledOutcome>, side_effects: SideEffects) -> Certainty {
        let rule = Classify {
            when: Expr::compile("true", &[Root::Response]).expect("an expression"),
            class: class.to_owned(),
            outcome,
        };
        let failure = CallFailure::of(Ending::Said(said), side_effects, "").ruled(&rule, side_effects);
        assert_eq!(failure.class, class);
        failure.certainty
    }

    #[test]
    fn a_rule_says_what_happened_by_its_class_or_aloud() {
        use Certainty::{NotDone, Refused, Unknown};
        for (said, class, outcome, certainty) in [
            (Said::NotNow, "ambiguous", None, Unknown),
            (Said::Refused, "timeout", None, Unknown),
            (Said::Refused, "transient", None, NotDone),
            (Said::Refused, "throttled", None, NotDone),
            (Said::Refused, "declined", None, Refused),
            (Said::Broke, "transient", None, Unknown),
            (Said::Broke, "declined", None, Unknown),
            (Said::Broke, "transient", Some(RuledOutcome::NotDone), NotDone),
            (Said::Broke, "declined", Some(RuledOutcome::Refused), Refused),
            (Said::Refused, "declined", Some(RuledOutcome::Unknown), Unknown),
            (Said::Throttled, "timeout", Some(RuledOutcome::NotDone), NotDone),
        ] {
            assert_eq!(
                ruled(said, class, outcome, SideEffects::Possible),
                certainty,
                "{said:?} {class} {outcome:?}"
            );
        }
        assert_eq!(
            ruled(Said::Refused, "ambiguous", None, SideEffects::None),
            NotDone
        );
    }

    #[test]
    fn a_call_that_changes_nothing_leaves_no_unknown_outcome() {
        for ending in [
            Ending::Lost,
            Ending::Late,
            Ending::Interrupted,
            Ending::Malformed,
            Ending::TooLong,
            Ending::Said(Said::Elsewhere),
            Ending::Said(Said::Broke),
            Ending::Said(Said::GaveUp),
            Ending::Said(Said::Cancelled),
        ] {
            assert_eq!(
                ending.meaning(SideEffects::Possible).certainty,
                Certainty::Unknown,
                "{ending:?}"
            );
            assert_eq!(
                ending.meaning(SideEffects::None).certainty,
                Certainty::NotDone,
                "{ending:?}"
            );
        }
    }
}
