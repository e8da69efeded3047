//! `dead-letter`: inputs that could not be applied, and decisions about them.

use clap::{Args, Subcommand};

use super::client::{Client, CommonArguments, escaped};
use super::confirm::ConfirmArguments;
use super::output::Column;
use super::pages::PageArguments;
use crate::app::exit::Failure;
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum DeadLetterCommand {
    /// List inputs that could not be applied, oldest first.
    List(ListArguments),
    /// Show one, with its reason, message and the first KiB of its payload.
    Show(LetterArguments),
    /// Apply it again; first fix the cause.
    Retry(LetterArguments),
    /// Delete it; inputs that wait behind it are applied without it.
    Discard(DiscardArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Only those of instances of this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    /// Only those of instances with this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only those with this reason, e.g. expression.
    #[arg(long, value_name = "CODE")]
    reason: Option<String>,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct LetterArguments {
    /// Id of the dead letter, as the list prints it.
    id: String,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct DiscardArguments {
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    letter: LetterArguments,
}

pub fn dead_letter(command: &DeadLetterCommand) -> Result<(), Failure> {
    match command {
        DeadLetterCommand::List(arguments) => list(arguments),
        DeadLetterCommand::Show(letter) => {
            let client = Client::new(&letter.common.server)?;
            let shown = client.get(&letter.path(&client)?)?;
            letter.common.output.object(FIELDS, &shown)
        }
        DeadLetterCommand::Retry(letter) => decide(letter, "retry"),
        DeadLetterCommand::Discard(DiscardArguments { confirm, letter }) => {
            let consequence = format!(
                "dead letter {} is deleted, and its input never applied",
                letter.id
            );
            confirm.agreed(&consequence, &letter.id)?;
            decide(letter, "discard")
        }
    }
}

impl LetterArguments {
    fn path(&self, client: &Client) -> Result<String, Failure> {
        let tenant = client.tenant_path(&self.common.tenant)?;
        Ok(format!("{tenant}/dead-letters/{}", escaped(&self.id)))
    }
}

fn decide(letter: &LetterArguments, verb: &str) -> Result<(), Failure> {
    let client = Client::new(&letter.common.server)?;
    let path = format!("{}/{verb}", letter.path(&client)?);
    client.post(&path)?;
    let done = if verb == "retry" {
        "will be applied again"
    } else {
        "is discarded"
    };
    out::note(format_args!("dead letter {} {done}", letter.id));
    Ok(())
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/dead-letters", client.tenant_path(&arguments.common.tenant)?);
    let filters = [
        ("saga", &arguments.saga),
        ("key", &arguments.key),
        ("reason", &arguments.reason),
    ];
    let filters = filters
        .into_iter()
        .filter_map(|(name, wanted)| Some((name, wanted.clone()?)));
    let answer = arguments.page.ask(&client, &path, &filters.collect::<Vec<_>>())?;
    arguments.common.output.list(COLUMNS, &answer)
}

const COLUMNS: &[Column] = &[
    Column::value("ID", "/id"),
    Column::time("TIME", "/time"),
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("REASON", "/reason"),
    Column::value("MESSAGE", "/message"),
];

const FIELDS: &[Column] = &[
    Column::value("Id", "/id"),
    Column::time("Time", "/time"),
    Column::value("Saga", "/saga"),
    Column::value("Key", "/key"),
    Column::value("Reason", "/reason"),
    Column::value("Message", "/message"),
    Column::value("Subject", "/subject"),
    Column::value("Excerpt", "/excerpt"),
];
