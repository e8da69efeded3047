//! `instance actions`: what can be done to an instance now, each as the command that does it.

use clap::Args;
use serde_json::{Value, json};

use super::NameArguments;
use crate::app::exit::Failure;
use crate::app::out;
use crate::cli::client::{Client, quoted};
use crate::cli::output::Column;

#[derive(Debug, Args)]
pub struct ActionsArguments {
    #[command(flatten)]
    name: NameArguments,
}

const POSSIBLE: &[Column] = &[
    Column::value("ACTION", "/action"),
    Column::value("ON", "/on"),
    Column::value("COMMAND", "/command").whole(),
];
const REFUSED: &[Column] = &[
    Column::value("NOT NOW", "/action"),
    Column::value("WHY", "/reason").whole(),
];

pub fn actions(arguments: &ActionsArguments) -> Result<(), Failure> {
    let name = &arguments.name;
    let client = Client::new(&name.common.server)?;
    let answer = name.get(&client, "/actions")?;
    name.common.output.shown(&answer, || {
        let possible = answer["possible"].as_array().into_iter().flatten();
        let letter = answer["dead_letter"].as_str().into_iter();
        let letter = letter.flat_map(|id| letter_rows(name, id));
        let rows = possible.flat_map(|action| rows(name, action)).chain(letter);
        let rows: Vec<Value> = rows.collect();
        if rows.is_empty() {
            out::line("nothing can be done to it now")?;
        } else {
            out::line(name.common.output.table(POSSIBLE, &rows))?;
        }
        let refused = answer["refused"].as_array().map_or(&[][..], Vec::as_slice);
        let refused: Vec<Value> = refused.iter().map(named).collect();
        out::line(format_args!("\n{}", name.common.output.table(REFUSED, &refused)))?;
        if answer["more"] == true {
            out::note("there are more steps, timers and signals than are listed");
        }
        Ok(())
    })
}

/// The name of a verb in the command line, of the last part of a path.
fn verb(action: &Value) -> &str {
    match action["action"].as_str().unwrap_or_default() {
        "timers/{name}/fire" => "fire-timer",
        "timers/{name}/cancel" => "cancel-timer",
        "signals/{name}" => "signal",
        verb => verb,
    }
}

fn named(refused: &Value) -> Value {
    let ended = if refused["ended"] == true { " --ended" } else { "" };
    json!({"action": format!("{}{ended}", verb(refused)), "reason": refused["reason"]})
}

/// One row, or one for each outcome where one of them needs a result.
fn rows(name: &NameArguments, action: &Value) -> Vec<Value> {
    let outcomes = action["as"].as_array().into_iter().flatten();
    let outcomes: Vec<&str> = outcomes.filter_map(Value::as_str).collect();
    let result = &action["result"];
    if result.is_null() {
        let stated = if outcomes.is_empty() {
            String::new()
        } else {
            format!(" --as {}", outcomes.join("|"))
        };
        return vec![row(name, action, &stated)];
    }
    let stated = outcomes.into_iter().map(|outcome| match outcome {
        "done" => format!(" --as done --result {}", quoted(&result.to_string())),
        other => format!(" --as {other}"),
    });
    stated.map(|stated| row(name, action, &stated)).collect()
}

fn row(name: &NameArguments, action: &Value, stated: &str) -> Value {
    let verb = verb(action);
    let (step, item) = (action["step"].as_str(), action["item"].as_u64());
    let other = action["name"].as_str();
    let mut command = format!(
        "saga-runner instance {verb} {} {}",
        quoted(&name.saga),
        quoted(&name.key)
    );
    let option = if verb.ends_with("-timer") { " --timer" } else { "" };
    let other_word = other.map(|other| format!("{option} {}", quoted(other)));
    let step_option = step.map(|step| format!(" --step {}", quoted(step)));
    let item_option = item.map(|item| format!(" --item {item}"));
    command.extend([other_word, step_option, item_option].into_iter().flatten());
    if let Some(to) = action["to"].as_str() {
        command.extend([" --to ", &quoted(to)]);
    }
    if action["undo"] == true {
        command.push_str(" --undo");
    }
    command.push_str(&place(name));
    command.push_str(stated);
    if action["ended"] == true {
        command.push_str(" --ended --yes");
    }
    if matches!(verb, "kill" | "restart" | "delete") {
        command.push_str(" --yes");
    }
    if action["needs_reason"] == true {
        command.push_str(" --reason TEXT");
    }
    let on = match (step.or(other).or(action["to"].as_str()), item) {
        (Some(on), Some(item)) => json!(format!("{on}[{item}]")),
        (on, _) => json!(on),
    };
    json!({"action": verb, "on": on, "command": command})
}

/// The flags that lead to the same tenant of the same runner.
fn place(name: &NameArguments) -> String {
    let tenant = name.common.tenant.named();
    let tenant = tenant.map_or_else(String::new, |tenant| format!(" --tenant {}", quoted(tenant)));
    tenant + &name.common.server.flags()
}

/// What may be decided about the dead letter that blocks the instance.
fn letter_rows(name: &NameArguments, id: &str) -> [Value; 2] {
    let place = place(name);
    [("retry", ""), ("discard", " --yes")].map(|(verb, agreed)| {
        let command = format!("saga-runner dead-letter {verb} {id}{place}{agreed}");
        json!({"action": verb, "on": format!("dead letter {id}"), "command": command})
    })
}
