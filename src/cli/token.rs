//! `token`: credentials for the API.

use clap::{Args, Subcommand};
use serde_json::json;

use super::output::OutputArguments;
use crate::app::exit::{self, Failure};
use crate::app::{NewToken, out};

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print it with the line for `http.tokens_file`, which holds its hash.
    New(NewArguments),
}

#[derive(Debug, Args)]
pub struct NewArguments {
    /// Name of the person or program; the audit and the histories of instances show it.
    name: String,
    /// Roles: viewer, operator or admin, each for a tenant or for all.
    #[arg(long, value_name = "ROLE@TENANT,ROLE@*")]
    roles: String,
    #[command(flatten)]
    output: OutputArguments,
}

pub fn token(command: &TokenCommand) -> Result<(), Failure> {
    let TokenCommand::New(arguments) = command;
    let drawn = NewToken::draw(&arguments.name, &arguments.roles)
        .map_err(|wrong| Failure::new(exit::USAGE, wrong))?;
    let answer = json!({"name": arguments.name, "token": drawn.token, "line": drawn.line});
    arguments.output.shown(&answer, || {
        out::text(format_args!("{}\n{}\n", drawn.token, drawn.line))
    })
}
