//! `completions` and `man`: what a shell, a reader of manual pages and docs/cli.md are told of the command line, all from its
//! one description.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Args, Command};
use clap_complete::Shell;

use crate::app::exit::Failure;
use crate::app::out;

#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArguments {
    /// Write one page for each command into this folder, instead of the main page to standard output.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print all commands as one Markdown document.
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

pub fn completions(arguments: &CompletionsArguments, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    out::text(String::from_utf8_lossy(&script))
}

pub fn man(arguments: &ManArguments, command: Command) -> Result<(), Failure> {
    if arguments.markdown {
        return out::text(markdown(command));
    }
    if let Some(dir) = &arguments.dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir));
        return written.map_err(|error| Failure::unwritten(dir, error));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(Failure::software)?;
    out::text(String::from_utf8_lossy(&page))
}

/// All commands as one document, which is docs/cli.md.
#[must_use]
pub fn markdown(mut command: Command) -> String {
    command.build();
    let mut out = String::from(
        "# Command line\n\nGenerated: `saga-runner man --markdown > docs/cli.md`. A test compares it with the program.\n\n",
    );
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _infallible = write!(out, "{about}\n\n");
    }
    if let Some(after) = command.get_after_help() {
        let _infallible = write!(out, "```text\n{}\n```\n\n", after.to_string().trim_end());
    }
    sections(&command, "saga-runner", &mut out);
    let text = out.trim_end();
    format!("{text}\n")
}

fn sections(command: &Command, path: &str, out: &mut String) {
    for inner in command
        .get_subcommands()
        .filter(|inner| inner.get_name() != "help")
    {
        let path = format!("{path} {}", inner.get_name());
        if inner.has_subcommands() {
            let _infallible = write!(out, "## {path}\n\n{}\n\n", about(inner));
            sections(inner, &path, out);
        } else {
            let depth = if path.split(' ').count() > 2 { "###" } else { "##" };
            let _infallible = write!(out, "{depth} {path}\n\n{}\n\n", about(inner));
            arguments(inner, out);
        }
    }
}

fn about(command: &Command) -> String {
    let text = command.get_long_about().or(command.get_about());
    text.map(ToString::to_string).unwrap_or_default()
}

fn arguments(command: &Command, out: &mut String) {
    let usage = command.clone().render_usage().to_string();
    let _infallible = write!(out, "```text\n{usage}\n```\n\n");
    let hidden = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let all: Vec<&Arg> = command.get_arguments().filter(hidden).collect();
    if !all.is_empty() {
        out.push_str("| Argument | Default | Environment | Meaning |\n|---|---|---|---|\n");
        for arg in all {
            row(arg, out);
        }
        out.push('\n');
    }
    if let Some(after) = command.get_after_help() {
        let _infallible = write!(out, "```text\n{}\n```\n\n", after.to_string().trim_end());
    }
}

fn row(arg: &Arg, out: &mut String) {
    let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let values = arg.get_value_names().unwrap_or_default();
    let value = values.first().map_or_else(String::new, ToString::to_string);
    let mut name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => format!("<{value}>"),
    };
    if takes && !arg.is_positional() {
        let _infallible = write!(name, " <{value}>");
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let default = match defaults.join(",") {
        text if !takes || text.is_empty() => String::new(),
        text => format!("`{text}`"),
    };
    let environment = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
    let help = arg.get_long_help().or(arg.get_help());
    let mut help = help
        .map(ToString::to_string)
        .unwrap_or_default()
        .replace('\n', " ");
    let possible = arg.get_possible_values();
    if takes && !possible.is_empty() {
        let names: Vec<String> = possible
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let end = if help.ends_with('.') || help.is_empty() {
            ""
        } else {
            "."
        };
        let _infallible = write!(help, "{end} One of {}.", names.join(", "));
    }
    let _infallible = writeln!(
        out,
        "| `{name}` | {default} | {} | {} |",
        environment.unwrap_or_default(),
        help.replace('|', "\\|")
    );
}
