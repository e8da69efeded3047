//! `instance why` and `instance history`: answers for people and for programs.

use clap::Args;

use super::client::Client;
use super::instance::NameArguments;
use super::output::Column;
use super::pages::PageArguments;
use crate::app::exit::Failure;
use crate::app::out;

#[derive(Debug, Args)]
pub struct WhyArguments {
    #[command(flatten)]
    name: NameArguments,
}

#[derive(Debug, Args)]
pub struct HistoryArguments {
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    name: NameArguments,
}

pub fn why(arguments: &WhyArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.name.common.server)?;
    let path = arguments.name.path(&client)?;
    let told = client.get(&format!("{path}/why"))?;
    let output = arguments.name.common.output;
    output.shown(&told, || out::line(told["why"].as_str().unwrap_or_default()))
}

pub fn history(arguments: &HistoryArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.name.common.server)?;
    let path = format!("{}/history", arguments.name.path(&client)?);
    let answer = arguments.page.ask(&client, &path, &[])?;
    if answer["archived"] == true {
        out::note(format_args!("the instance is archived: the archive alone has it"));
    }
    arguments.name.common.output.list(COLUMNS, &answer)
}

const COLUMNS: &[Column] = &[
    Column::time("TIME", "/time"),
    Column::value("OUTCOME", "/outcome"),
    Column::value("INPUT", "/kind"),
    Column::length("NOTES", "/notes"),
    Column::value("ID", "/input").wide(),
];
