//! The transaction of one command: its statements, the judgement about them, and the commit.

use std::time::Duration;

use tokio::time::Instant;

use super::Sql;
use super::connect::Held;
use super::journal::Claim;
use super::outcome::{self, Stage, Statements, committed_unknown, failure, is_unknown};
use super::session::{self, Bounds, End, SqlError};
use crate::effects::certainty::SideEffects;
use crate::effects::provider::{CallContext, CallFailure, CallOutcome, Provider as _};
use crate::effects::rendering::Verdict;
use crate::kernel::json::Json;

/// Most rows that one statement may give.
const ROWS_MAX: usize = 1_000;
/// How long a server may go by what it was told last about the time that is left.
const TOLD_FOR: Duration = Duration::from_millis(100);
/// What an orderly end of a failed transaction may take. Beyond that the connection is closed.
const ROLLBACK: Duration = Duration::from_secs(1);

/// How far an attempt got before its commit.
pub(super) enum Done<'p> {
    /// Everything but the commit.
    Ready(Held<'p>, Vec<u8>),
    /// There is nothing to commit.
    Ended(CallOutcome),
}

impl Sql {
    /// Everything up to the commit; nothing has happened before that.
    pub(super) async fn prepare(
        &self,
        call: &CallContext<'_>,
        command: &Json<'_>,
        values: &[Vec<Json<'static>>],
        until: Instant,
    ) -> Done<'_> {
        let mut made: Option<Result<(), CallFailure>> = None;
        loop {
            let mut held = match self.database.pool.begin(until).await {
                Ok(held) => held,
                Err(error) => return self.refused(&error, Stage::Before, call, command),
            };
            let claim = match &self.database.journal {
                None => Ok(Claim::Ours),
                Some(journal) => journal.claim(&mut held, call).await,
            };
            match claim {
                Ok(Claim::Ours) => return self.carry_out(held, call, command, values, until).await,
                Ok(Claim::Done(payload)) => {
                    roll_back(held).await;
                    return Done::Ended(CallOutcome::Succeeded { payload });
                }
                Ok(Claim::Taken(by)) => {
                    roll_back(held).await;
                    return Done::Ended(CallOutcome::Failed(self.database.taken(call, &by)));
                }
                // Somebody else may make it at the same time, so a failure to do so counts only if it is not there.
                Ok(Claim::NoTable) => {
                    roll_back(held).await;
                    match made {
                        None => made = Some(self.database.make_table(until).await),
                        Some(Err(failure)) => return Done::Ended(CallOutcome::Failed(failure)),
                        Some(Ok(())) => {
                            let message = "the table of commands is gone again";
                            let failure = CallFailure::not_done("permanent", message);
                            return Done::Ended(CallOutcome::Failed(failure));
                        }
                    }
                }
                Err(SqlError::Refused(refusal)) if refusal.fault == session::Fault::NoColumn => {
                    roll_back(held).await;
                    return Done::Ended(CallOutcome::Failed(self.database.outdated(&refusal.message)));
                }
                Err(error) => {
                    let refused = self.refused(&error, Stage::Before, call, command);
                    leave(held, &error).await;
                    return refused;
                }
            }
        }
    }

    /// The statements, the judgement about them, and the result in the row of the command.
    async fn carry_out<'p>(
        &'p self,
        mut held: Held<'p>,
        call: &CallContext<'_>,
        command: &Json<'_>,
        values: &[Vec<Json<'static>>],
        until: Instant,
    ) -> Done<'p> {
        let mut answers = Statements::default();
        let mut told = Instant::now();
        let mut bytes_left = self.settings.response_bytes;
        for (at, (prepared, values)) in self.statements.iter().zip(values).enumerate() {
            let bounds = Bounds {
                rows: ROWS_MAX,
                bytes: bytes_left,
            };
            // The server counts each statement by itself; what is left for all of them is told again only where it
            // has become less.
            let now = Instant::now();
            let bounded = if now.duration_since(told) < TOLD_FOR {
                Ok(())
            } else {
                told = now;
                held.bound(until.saturating_duration_since(now)).await
            };
            let answer = match bounded {
                Ok(()) => held.run(&prepared.statement, values, bounds).await,
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    let refused = self.refused(&error, Stage::Statement(at + 1), call, command);
                    leave(held, &error).await;
                    return refused;
                }
            };
            bytes_left = bytes_left.saturating_sub(answer.bytes);
            let count = answers.add(answer, prepared.statement.returned);
            if let Some(expect) = &prepared.expect
                && !(expect.rows_min..=expect.rows_max).contains(&count)
            {
                roll_back(held).await;
                let message = format!("statement {}: {count} rows", at + 1);
                return Done::Ended(CallOutcome::Failed(outcome::rejected(&expect.class, message)));
            }
        }
        let response = answers.response();
        let mut verdict = Verdict::on(
            &response,
            &self.definition,
            call,
            command,
            self.settings.expression_steps,
        );
        if let Some(rule) = verdict.rule().filter(|rule| rule.class != "succeeded") {
            roll_back(held).await;
            let message = "a rule of `classify` rejects the answer".to_owned();
            let failure = outcome::rejected("", message).ruled(rule, self.side_effects());
            return Done::Ended(CallOutcome::Failed(failure));
        }
        let payload = match self.result(&mut verdict, &response) {
            Ok(payload) => payload,
            Err(failure) => {
                roll_back(held).await;
                return Done::Ended(CallOutcome::Failed(failure));
            }
        };
        if let Some(journal) = &self.database.journal
            && let Err(error) = journal.complete(&mut held, call.command, &payload).await
        {
            let refused = self.refused(&error, Stage::Completing, call, command);
            leave(held, &error).await;
            return refused;
        }
        Done::Ready(held, payload)
    }

    /// The result, which is rendered before the commit: one that cannot be rendered undoes the statements.
    fn result(&self, verdict: &mut Verdict<'_>, response: &Json<'_>) -> Result<Vec<u8>, CallFailure> {
        if self.definition.result.is_none() {
            return Ok(outcome::plain_result(response));
        }
        let bytes_max = self.settings.response_bytes;
        match verdict.result() {
            CallOutcome::Succeeded { payload } if payload.len() > bytes_max => {
                let message = format!("the result is longer than {bytes_max} bytes");
                Err(outcome::rejected("response.size", message))
            }
            CallOutcome::Succeeded { payload } => Ok(payload),
            CallOutcome::Unusable { class, message, .. } => Err(outcome::rejected(class, message)),
            CallOutcome::Failed(failure) => Err(outcome::rejected(&failure.class, failure.message)),
        }
    }

    /// What an error means: the definition's own rules first, then the built-in ones.
    fn refused<'p>(
        &self,
        error: &SqlError,
        stage: Stage,
        call: &CallContext<'_>,
        command: &Json<'_>,
    ) -> Done<'p> {
        let failure = failure(error, stage, self.side_effects());
        let (SqlError::Refused(refusal), Stage::Statement(_)) = (error, stage) else {
            return Done::Ended(CallOutcome::Failed(failure));
        };
        let response = outcome::refused_response(refusal);
        let steps = self.settings.expression_steps;
        let mut verdict = Verdict::on(&response, &self.definition, call, command, steps);
        Done::Ended(match verdict.rule() {
            None => CallOutcome::Failed(verdict.redacted(failure)),
            Some(rule) if rule.class == "succeeded" => match self.result(&mut verdict, &response) {
                Ok(payload) => CallOutcome::Succeeded { payload },
                Err(failure) => CallOutcome::Failed(failure),
            },
            Some(rule) => CallOutcome::Failed(verdict.redacted(failure.ruled(rule, self.side_effects()))),
        })
    }

    pub(super) async fn commit(&self, held: Held<'_>, payload: Vec<u8>, until: Instant) -> CallOutcome {
        let ended = tokio::time::timeout_at(until, held.end(End::Commit)).await;
        let ended = ended.unwrap_or_else(|_| Err(SqlError::Lost("no answer in time".to_owned())));
        match ended {
            Ok(()) => CallOutcome::Succeeded { payload },
            // Nothing was changed, so nothing is unknown.
            Err(_) if self.side_effects().are_none() => CallOutcome::Succeeded { payload },
            Err(error) if is_unknown(&error) => CallOutcome::Failed(committed_unknown(&error)),
            Err(error) => CallOutcome::Failed(failure(&error, Stage::Commit, SideEffects::Possible)),
        }
    }
}

/// Ends a transaction that is not to happen.
async fn roll_back(held: Held<'_>) {
    let ended = tokio::time::timeout(ROLLBACK, held.end(End::RollBack)).await;
    if !matches!(ended, Ok(Ok(()))) {
        tracing::debug!(
            ?ended,
            "a transaction was not rolled back; its connection is closed"
        );
    }
}

/// Ends a transaction after an error: in an orderly way where the connection is known to be well.
pub(super) async fn leave(held: Held<'_>, error: &SqlError) {
    match error {
        SqlError::Refused(refusal) if refusal.fault != session::Fault::Stale => roll_back(held).await,
        SqlError::Refused(_)
        | SqlError::Lost(_)
        | SqlError::Untrusted(_)
        | SqlError::Denied(_)
        | SqlError::Bind(_)
        | SqlError::Column(_)
        | SqlError::TooLarge(_) => drop(held),
    }
}
