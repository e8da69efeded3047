//! `instance start`: starts an instance without an event.

use clap::{Args, ValueEnum};
use serde_json::Map;

use super::wait::{self, WaitArguments};
use crate::app::exit::{self, Failure};
use crate::app::out;
use crate::cli::account::{AccountArguments, IfItTerminates, Start};
use crate::cli::client::{Client, ServerArguments, TenantArguments, escaped};
use crate::cli::given;

#[derive(Debug, Args)]
pub struct StartArguments {
    /// Name of the saga, which declares `input`.
    #[arg(value_name = "SAGA")]
    saga: String,
    /// Key of the instance; generated if not given.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Input as a JSON object, or @FILE to read it from a file.
    #[arg(long, value_name = "JSON|@FILE", default_value = "{}")]
    input: String,
    /// What to do if an instance of this key runs already.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = OnConflict::Fail)]
    on_conflict: OnConflict,
    #[command(flatten)]
    account: AccountArguments<Start, IfItTerminates>,
    #[command(flatten)]
    wait: WaitArguments,
    /// Wait until the instance has ended; needs --wait.
    #[arg(long, requires = "wait")]
    until_end: bool,
    #[command(flatten)]
    tenant: TenantArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnConflict {
    /// Refuse the start (exit code 5).
    Fail,
    /// Change nothing, and print the key of the one that runs.
    UseExisting,
    /// Kill the one that runs and begin the next generation; refused if anything that it did would stay done.
    TerminateExisting,
}

impl OnConflict {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::UseExisting => "use_existing",
            Self::TerminateExisting => "terminate_existing",
        }
    }
}

pub fn start(arguments: &StartArguments) -> Result<(), Failure> {
    let mut body = Map::from_iter([
        ("input".to_owned(), given::object("--input", &arguments.input)?),
        ("on_conflict".to_owned(), arguments.on_conflict.as_str().into()),
        ("by".to_owned(), arguments.account.by.as_str().into()),
        ("reason".to_owned(), arguments.account.reason.as_str().into()),
    ]);
    if let Some(key) = &arguments.key {
        body.insert("key".to_owned(), key.as_str().into());
    }
    let client = Client::new(&arguments.server)?;
    let tenant = client.tenant_path(&arguments.tenant)?;
    let path = format!("{tenant}/sagas/{}/instances", escaped(&arguments.saga));
    let answer = arguments
        .wait
        .post(&client, &path, body, arguments.until_end.then_some("end"))?;
    let outcome = &answer["outcome"];
    if outcome["state"] == "ignored" {
        out::note(format_args!("the instance runs already; nothing was changed"));
    }
    out::line(answer["key"].as_str().unwrap_or_default())?;
    if answer["checked"] == false && !outcome.is_object() {
        return Err(Failure::new(
            exit::NOT_IN_TIME,
            "the start is stored, and no process with the shards has decided it yet: another instance may have the key",
        ));
    }
    if arguments.until_end {
        return match outcome["instance"]["ended"].as_str() {
            Some(_) => {
                let phase = outcome["instance"]["phase"].as_str().unwrap_or_default();
                out::note(format_args!("the instance has ended: {phase}"));
                Ok(())
            }
            None => Err(Failure::new(
                exit::NOT_IN_TIME,
                "the instance has not ended in time",
            )),
        };
    }
    wait::judged(outcome)
}
