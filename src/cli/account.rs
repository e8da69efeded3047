//! Who asks for a change, and why: `--by` and `--reason` of every command that changes something.
//!
//! The audit has both. What else keeps them, and whether a reason has to be given, is up to the command.

use std::fmt::Debug;
use std::marker::PhantomData;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};

/// What keeps both, as their help says it.
pub trait Kept: Debug + Clone {
    const BY: &'static str;
    const REASON: &'static str;
}

/// When a reason has to be given.
pub trait Need: Debug + Clone {
    /// The end of its help.
    const NOTE: &'static str;

    fn of_reason(reason: Arg) -> Arg;
}

/// The audit alone.
#[derive(Debug, Clone)]
pub struct Audit;

impl Kept for Audit {
    const BY: &'static str = "kept in the audit";
    const REASON: &'static str = "kept in the audit";
}

/// The history of the instance that the request is about.
#[derive(Debug, Clone)]
pub struct History;

impl Kept for History {
    const BY: &'static str = "kept in the history";
    const REASON: &'static str = "kept in the history";
}

/// The history of each instance that a job is about.
#[derive(Debug, Clone)]
pub struct Histories;

impl Kept for Histories {
    const BY: &'static str = "kept in the history of each instance";
    const REASON: &'static str = "kept in the history of each instance";
}

/// A cancellation: its reason is the message of the failure.
#[derive(Debug, Clone)]
pub struct Cancellation;

impl Kept for Cancellation {
    const BY: &'static str = "kept in the audit";
    const REASON: &'static str = "kept with the instance";
}

/// A signal: its data say why.
#[derive(Debug, Clone)]
pub struct Signal;

impl Kept for Signal {
    const BY: &'static str = "kept in the history";
    const REASON: &'static str = "kept in the audit";
}

/// A start: it ends another instance only where it may take the place of one.
#[derive(Debug, Clone)]
pub struct Start;

impl Kept for Start {
    const BY: &'static str = "kept in the audit, and with --on-conflict terminate-existing in the history";
    const REASON: &'static str = Self::BY;
}

/// A dead letter, which may be applied with other data.
#[derive(Debug, Clone)]
pub struct Letter;

impl Kept for Letter {
    const BY: &'static str = "kept in the history";
    const REASON: &'static str = "kept in the history; required where the data are edited";
}

/// It may be left out.
#[derive(Debug, Clone)]
pub struct Optional;

impl Need for Optional {
    const NOTE: &'static str = "";

    fn of_reason(reason: Arg) -> Arg {
        reason
    }
}

/// The request is rejected without one.
#[derive(Debug, Clone)]
pub struct Required;

impl Need for Required {
    const NOTE: &'static str = "";

    fn of_reason(reason: Arg) -> Arg {
        reason.required(true)
    }
}

/// The same, except with `--dry-run`.
#[derive(Debug, Clone)]
pub struct UnlessDryRun;

impl Need for UnlessDryRun {
    const NOTE: &'static str = "; required without --dry-run";

    fn of_reason(reason: Arg) -> Arg {
        reason.required_unless_present("dry_run")
    }
}

/// Of a start that may end another instance.
#[derive(Debug, Clone)]
pub struct IfItTerminates;

impl Need for IfItTerminates {
    const NOTE: &'static str = "; required there";

    fn of_reason(reason: Arg) -> Arg {
        reason.required_if_eq("on_conflict", "terminate-existing")
    }
}

/// `--by` and `--reason`.
#[derive(Debug, Clone)]
pub struct AccountArguments<K: Kept = Audit, N: Need = Optional> {
    pub by: String,
    /// Empty where none is given.
    pub reason: String,
    of: PhantomData<(K, N)>,
}

impl<K: Kept, N: Need> AccountArguments<K, N> {
    /// The body of a request that says nothing else.
    pub fn body(&self) -> Value {
        json!({"by": self.by, "reason": self.reason})
    }
}

impl<K: Kept, N: Need> FromArgMatches for AccountArguments<K, N> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |id: &str| matches.get_one::<String>(id).cloned().unwrap_or_default();
        Ok(Self {
            by: text("by"),
            reason: text("reason"),
            of: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<K: Kept, N: Need> Args for AccountArguments<K, N> {
    fn augment_args(command: Command) -> Command {
        let by = Arg::new("by")
            .long("by")
            .env("USER")
            .value_name("NAME")
            .default_value("")
            .help(format!("Name of the operator, {}", K::BY));
        let reason = Arg::new("reason").long("reason").value_name("TEXT").help(format!(
            "Reason, {}{}",
            K::REASON,
            N::NOTE
        ));
        command.arg(by).arg(N::of_reason(reason))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn told<K: Kept, N: Need>(line: &[&str]) -> Result<Value, clap::Error> {
        let dry_run = Arg::new("dry_run").long("dry-run").action(ArgAction::SetTrue);
        let conflict = Arg::new("on_conflict").long("on-conflict");
        let command = Command::new("x").arg(dry_run).arg(conflict);
        let command = AccountArguments::<K, N>::augment_args(command);
        let line = std::iter::once("x").chain(line.iter().copied());
        let matches = command.try_get_matches_from(line)?;
        Ok(AccountArguments::<K, N>::from_arg_matches(&matches)?.body())
    }

    #[test]
    fn a_reason_is_asked_for_where_the_command_needs_one() {
        let by = ["--by", "ann"];
        let ann = json!({"by": "ann", "reason": ""});
        assert_eq!(told::<Audit, Optional>(&by).expect("no reason"), ann);
        assert!(told::<History, Required>(&by).is_err());
        assert!(told::<Audit, UnlessDryRun>(&by).is_err());
        let dry = ["--by", "ann", "--dry-run"];
        assert_eq!(told::<Audit, UnlessDryRun>(&dry).expect("a dry run"), ann);
        assert_eq!(told::<Start, IfItTerminates>(&by).expect("it ends nothing"), ann);
        let terminates = ["--by", "ann", "--on-conflict", "terminate-existing"];
        assert!(told::<Start, IfItTerminates>(&terminates).is_err());
        let both = ["--by", "ann", "--reason", "ticket 4"];
        assert_eq!(
            told::<History, Required>(&both).expect("both"),
            json!({"by": "ann", "reason": "ticket 4"})
        );
    }
}
