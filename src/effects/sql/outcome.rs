//! What answers and errors of a database mean for a command.

use std::borrow::Cow;

use super::session::{Answer, Fault, Refusal, SqlError};
use crate::effects::certainty::{Ending, Said, SideEffects};
use crate::effects::provider::CallFailure;
use crate::kernel::definition::effect::Returned;
use crate::kernel::json::Json;

/// How far a transaction was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The command was not taken yet, so nothing is known about earlier attempts.
    Before,
    /// Its statement, counted from 1.
    Statement(usize),
    /// The result was being written.
    Completing,
    Commit,
}

/// The answers of the statements so far.
#[derive(Debug, Default)]
pub struct Statements {
    each: Vec<Json<'static>>,
    rows: Vec<Json<'static>>,
    affected: u64,
}

impl Statements {
    /// Takes the answer of the next one, and returns how many rows it gave or touched.
    pub fn add(&mut self, answer: Answer, returned: Returned) -> u64 {
        let count = match returned {
            Returned::Rows => u64::try_from(answer.rows.len()).unwrap_or(u64::MAX),
            Returned::Count => {
                self.affected = self.affected.saturating_add(answer.affected);
                answer.affected
            }
        };
        self.each.push(Json::Map(vec![
            ("rows".into(), Json::List(answer.rows.clone())),
            ("rows_affected".into(), number(count)),
        ]));
        if returned == Returned::Rows {
            self.rows = answer.rows;
        }
        count
    }

    /// What `response` is in expressions.
    pub fn response(self) -> Json<'static> {
        Json::Map(vec![
            ("code".into(), Json::Null),
            ("constraint".into(), Json::Null),
            ("rows".into(), Json::List(self.rows)),
            ("rows_affected".into(), number(self.affected)),
            ("sqlstate".into(), Json::Null),
            ("statements".into(), Json::List(self.each)),
        ])
    }
}

/// What `response` is after an error of the database.
pub fn refused_response(refusal: &Refusal) -> Json<'static> {
    let text = |text: &Option<String>| {
        text.as_ref()
            .map_or(Json::Null, |text| Json::Str(text.clone().into()))
    };
    Json::Map(vec![
        ("code".into(), refusal.code.map_or(Json::Null, Json::Int)),
        ("constraint".into(), text(&refusal.constraint)),
        ("rows".into(), Json::List(Vec::new())),
        ("rows_affected".into(), Json::Int(0)),
        ("sqlstate".into(), text(&refusal.sqlstate)),
        ("statements".into(), Json::List(Vec::new())),
    ])
}

/// The result of a definition that does not say one.
pub fn plain_result(response: &Json<'_>) -> Vec<u8> {
    let members = ["rows", "rows_affected"].map(|name| {
        let value = response.get(name).cloned().unwrap_or(Json::Null);
        (Cow::Borrowed(name), value)
    });
    let mut bytes = Vec::new();
    Json::Map(members.into()).write(&mut bytes);
    bytes
}

fn number(count: u64) -> Json<'static> {
    Json::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The database answered, and the answer is not what the definition asks for: nothing is committed.
pub fn rejected(class: &str, message: String) -> CallFailure {
    CallFailure {
        class: Cow::Owned(class.to_owned()),
        ..CallFailure::of(Ending::Said(Said::Refused), SideEffects::Possible, message)
    }
}

/// An error of a transaction that was not committed, so nothing has reached the database as far as the world can see.
pub fn failure(error: &SqlError, stage: Stage, side_effects: SideEffects) -> CallFailure {
    let place = match stage {
        Stage::Statement(at) => format!("statement {at}: "),
        Stage::Before | Stage::Completing | Stage::Commit => String::new(),
    };
    let of = |ending, message: &str| CallFailure::of(ending, side_effects, format!("{place}{message}"));
    // Once the command is taken, no earlier attempt is under way or done.
    let said = match stage {
        Stage::Before => Said::TurnedAway,
        Stage::Statement(_) | Stage::Completing | Stage::Commit => Said::Refused,
    };
    let refused = |class: &str, message: &str| CallFailure {
        class: Cow::Owned(class.to_owned()),
        ..CallFailure::of(
            Ending::Said(said),
            SideEffects::Possible,
            format!("{place}{message}"),
        )
    };
    match error {
        SqlError::Refused(refusal) => match refusal.fault.meaning(side_effects) {
            Meaning::Passes(ending) => of(ending, &told(refusal)),
            Meaning::Refuses(class) => refused(class, &told(refusal)),
        },
        SqlError::Lost(reason) => of(Ending::LostUnsent, reason),
        SqlError::Untrusted(reason) => of(Ending::Untrusted, reason),
        SqlError::Denied(reason) => of(Ending::Unsendable("egress.denied"), reason),
        SqlError::Bind(reason) => refused("bind", reason),
        SqlError::Column(reason) => refused("column", reason),
        SqlError::TooLarge(reason) => refused("response.size", reason),
    }
}

/// What a fault says about another attempt.
enum Meaning {
    /// The same statements may well succeed another time.
    Passes(Ending),
    /// They are refused, with this class.
    Refuses(&'static str),
}

impl Fault {
    const fn meaning(self, side_effects: SideEffects) -> Meaning {
        match self {
            Self::Unique => Meaning::Refuses("unique_violation"),
            Self::ForeignKey => Meaning::Refuses("foreign_key_violation"),
            Self::Check => Meaning::Refuses("check_violation"),
            Self::NotNull => Meaning::Refuses("not_null_violation"),
            Self::Exclusion => Meaning::Refuses("exclusion_violation"),
            Self::NoTable | Self::NoColumn | Self::Other => Meaning::Refuses("permanent"),
            // A reader asks a replica by intent; it is the statement that is wrong.
            Self::ReadOnly if side_effects.are_none() => Meaning::Refuses("permanent"),
            Self::Conflict | Self::Stale => Meaning::Passes(Ending::Said(Said::Conflict)),
            Self::TimedOut | Self::Ended => Meaning::Passes(Ending::LateUnsent),
            Self::Unavailable | Self::ReadOnly => Meaning::Passes(Ending::Said(Said::NotNow)),
        }
    }
}

fn told(refusal: &Refusal) -> String {
    let message = &refusal.message;
    match (&refusal.sqlstate, refusal.code) {
        (Some(sqlstate), None) => format!("{sqlstate}: {message}"),
        (_, Some(code)) => format!("{code}: {message}"),
        (None, None) => message.clone(),
    }
}

/// Whether an error in place of the answer to a commit leaves open the outcome of it.
pub fn is_unknown(error: &SqlError) -> bool {
    match error {
        // What the database checks at a commit, or who was in the way: it was refused.
        SqlError::Refused(refusal) => !matches!(
            refusal.fault,
            Fault::Unique
                | Fault::ForeignKey
                | Fault::Check
                | Fault::NotNull
                | Fault::Exclusion
                | Fault::Conflict
                | Fault::Ended
        ),
        SqlError::Lost(_)
        | SqlError::Untrusted(_)
        | SqlError::Denied(_)
        | SqlError::Bind(_)
        | SqlError::Column(_)
        | SqlError::TooLarge(_) => true,
    }
}

/// The commit was sent and not answered. The next attempt finds the row of the command, or does not.
pub fn committed_unknown(error: &SqlError) -> CallFailure {
    let reason = match error {
        SqlError::Refused(refusal) => told(refusal),
        SqlError::Lost(reason)
        | SqlError::Untrusted(reason)
        | SqlError::Denied(reason)
        | SqlError::Bind(reason)
        | SqlError::Column(reason)
        | SqlError::TooLarge(reason) => reason.clone(),
    };
    let message = format!("the commit was not answered: {reason}");
    CallFailure::of(Ending::Lost, SideEffects::Possible, message)
}
