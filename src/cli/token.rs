//! `token`: credentials for the API.

use clap::{Args, Subcommand};

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
}

pub fn token(command: &TokenCommand) -> Result<(), Failure> {
    let TokenCommand::New(arguments) = command;
    let drawn = NewToken::draw(&arguments.name, &arguments.roles)
        .map_err(|wrong| Failure::new(exit::USAGE, wrong))?;
    out::text(format!("{}\n{}\n", drawn.token, drawn.line))
}
