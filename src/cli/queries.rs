//! `instance why` and `instance history`: answers for people and for programs.

use clap::Args;
use serde_json::Value;

use super::client::{Client, escaped};
use super::instance::NameArguments;
use super::notes;
use super::pages::PageArguments;
use crate::app::exit::Failure;
use crate::app::out;

/// Dead letters that are asked for to name those of a history.
const LETTERS_MAX: usize = 500;

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
    let told = arguments.name.get(&client, "/why")?;
    let output = arguments.name.common.output;
    output.shown(&told, || out::line(told["why"].as_str().unwrap_or_default()))
}

pub fn history(arguments: &HistoryArguments) -> Result<(), Failure> {
    let HistoryArguments { page, name } = arguments;
    let client = Client::new(&name.common.server)?;
    let path = format!("{}/history", name.path(&client)?);
    let answer = page.ask(&client, &path, &[]);
    let mut answer = answer.inspect_err(|failure| name.explain(&client, failure))?;
    if answer["archived"] == true {
        out::note(format_args!("the instance is archived: the archive alone has it"));
    }
    let output = name.common.output;
    if let Some(entries) = answer["items"].as_array_mut()
        && output.is_for_people()
        && entries.iter().any(|entry| entry["outcome"] == "dead")
    {
        notes::name_letters(entries, &letters(&client, name));
    }
    output.list(&notes::columns("TIME"), &answer)
}

/// The dead letters of the instance. Without them its history can be read as well, so it does not matter why there are none.
fn letters(client: &Client, name: &NameArguments) -> Vec<Value> {
    let asked = client.tenant_path(&name.common.tenant).and_then(|tenant| {
        let (saga, key) = (escaped(&name.saga), escaped(&name.key));
        client.get(&format!(
            "{tenant}/dead-letters?limit={LETTERS_MAX}&saga={saga}&key={key}"
        ))
    });
    let mut found = asked.unwrap_or_default();
    let letters = found["items"].as_array_mut().map(std::mem::take);
    letters.unwrap_or_default()
}
