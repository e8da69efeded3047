//! `definition`: the versions of sagas that a running cluster keeps.

mod archived;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use similar::TextDiff;

use self::archived::{Version, differences};
use super::account::AccountArguments;
use super::client::{Client, ServerArguments, escaped};
use super::given;
use super::node;
use super::output::{Column, Mood, OutputArguments, text};
use super::pages::warn_of_absent_shards;
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum DefinitionCommand {
    /// List the versions of sagas that are active or still in use.
    List(ListArguments),
    /// Print the file of one version.
    #[command(
        after_help = "`-o json` prints the whole text that the cluster keeps (`source`), with schemas and program, as `replay --recorded` reads it."
    )]
    Show(ShowArguments),
    /// Compare the files of two versions of a saga, and the schemas of their effects.
    #[command(
        after_help = "Exits with 1 if they differ. With --file, only the files are compared. Example: what the last reload changed, and what a file would change:\n  \
        saga-runner definition diff sha256:1f2e3d sha256:4c5b6a\n  \
        saga-runner definition diff sha256:4c5b6a --file sagas/order.yaml"
    )]
    Diff(DiffArguments),
    /// Reload the definitions of a running process, and print what changed, or the errors.
    Reload(node::ReloadArguments),
    /// Migrate the running instances of a saga to its active version, or to another one.
    #[command(
        after_help = "Exits with 1 if an instance cannot be migrated. Example: check first, then migrate:\n  \
        saga-runner definition migrate order --dry-run\n  \
        saga-runner definition migrate order --reason 'ticket 4711'\n\n\
        Undo it:\n  \
        saga-runner definition migrate order --undo --reason 'ticket 4712'"
    )]
    Migrate(MigrateArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Only this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct ShowArguments {
    /// Hash of the version; its first six digits suffice if they are unique.
    hash: String,
    /// Print what the version has besides its file, too, as comments: schemas of its effects, schemas, the program.
    #[arg(long)]
    schemas: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct DiffArguments {
    /// Hash of the older version; its first six digits suffice if they are unique.
    from: String,
    /// Hash of the newer version.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    to: Option<String>,
    /// Compare with this file instead.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct MigrateArguments {
    /// Name of the saga.
    saga: String,
    /// Hash of the version to migrate to, or with --undo from; default: the active version.
    #[arg(long, value_name = "HASH")]
    to: Option<String>,
    /// Migrate instances that were migrated to the version back to where each came from.
    #[arg(long)]
    undo: bool,
    /// Print what would happen to every live instance, without changes.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn definition(command: &DefinitionCommand) -> Result<(), Failure> {
    match command {
        DefinitionCommand::List(arguments) => list(arguments),
        DefinitionCommand::Show(arguments) => show(arguments),
        DefinitionCommand::Diff(arguments) => diff(arguments),
        DefinitionCommand::Reload(arguments) => node::reload(arguments),
        DefinitionCommand::Migrate(arguments) => migrate(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let query = arguments.saga.as_ref();
    let query = query.map(|saga| format!("?saga={}", escaped(saga)));
    let path = format!("/v1/definitions{}", query.unwrap_or_default());
    let answer = Client::new(&arguments.server)?.get(&path)?;
    warn_of_absent_shards(&answer);
    arguments.output.list(COLUMNS, &answer)
}

const COLUMNS: &[Column] = &[
    Column::value("SAGA", "/saga"),
    Column::value("HASH", "/hash"),
    Column::told("STATE", |item| {
        let state = match (item["active"].as_bool(), item["loaded"].as_bool()) {
            (Some(true), _) => "active",
            (_, Some(true)) => "archived",
            _ => "unreadable",
        };
        state.to_owned()
    })
    .judged(|state| match state {
        "active" => Mood::Good,
        "unreadable" => Mood::Bad,
        _ => Mood::Plain,
    }),
    Column::number("LIVE", "/live"),
    Column::number("ENDED", "/ended"),
];

fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let path = format!("/v1/definitions/{}", escaped(&arguments.hash));
    let answer = Client::new(&arguments.server)?.get(&path)?;
    out::note(format_args!(
        "{} {}, {} live and {} ended instance(s)",
        text(&answer["saga"]),
        text(&answer["hash"]),
        answer["live"],
        answer["ended"]
    ));
    let version = Version::of(text(&answer["source"]));
    arguments.output.shown(&answer, || {
        out::text(&version.source)?;
        if arguments.schemas {
            return out::text(version.comments());
        }
        if !version.besides.is_empty() {
            let names: Vec<&str> = version.besides.keys().map(String::as_str).collect();
            out::note(format_args!(
                "besides, it has {}: --schemas prints them",
                names.join(", ")
            ));
        }
        Ok(())
    })
}

fn diff(arguments: &DiffArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let version = |hash: &str| client.get(&format!("/v1/definitions/{}", escaped(hash)));
    let from = version(&arguments.from)?;
    let (name, to) = match (&arguments.to, &arguments.file) {
        (Some(to), _) => {
            let to = version(to)?;
            (text(&to["hash"]).to_owned(), Version::of(text(&to["source"])))
        }
        (None, Some(path)) => {
            let source = given::read(path)?;
            let besides = Version::of(text(&from["source"])).besides;
            (path.display().to_string(), Version { source, besides })
        }
        (None, None) => return Err(Failure::new(exit::USAGE, "a second version or --file is needed")),
    };
    let (older, from) = (text(&from["hash"]), Version::of(text(&from["source"])));
    let besides = differences(&from, &to);
    let differs = from.source != to.source || !besides.is_empty();
    let changes = TextDiff::from_lines(&from.source, &to.source);
    let unified = changes.unified_diff().header(older, &name).to_string();
    let answer = json!({"from": older, "to": name, "differs": differs, "diff": unified, "besides": besides});
    arguments.output.shown(&answer, || {
        out::text(&unified)?;
        besides.iter().try_for_each(out::line)
    })?;
    if differs {
        return Err(Failure::new(exit::FINDINGS, format!("{older} and {name} differ")));
    }
    out::note(format_args!("{older} and {name} are the same"));
    Ok(())
}

fn migrate(arguments: &MigrateArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let hash = match &arguments.to {
        Some(hash) => escaped(hash),
        None => active(&client, &arguments.saga)?,
    };
    let path = format!(
        "/v1/definitions/{hash}/migrate?dry_run={}&undo={}",
        arguments.dry_run, arguments.undo
    );
    let mut report = client.post_json(&path, &arguments.account.body())?;
    let poll = format!("/v1/migrations/{}", text(&report["id"]));
    let mut progress = out::Progress::new();
    while report["finished"] == false {
        progress.tell(format_args!(
            "{} of {} instance(s) checked, {} rejected",
            report["seen"], report["total"], report["refused"]
        ));
        // The answer comes at the end or after a moment.
        report = client.get(&poll)?;
    }
    drop(progress);
    arguments
        .output
        .shown(&report, || show_report(arguments, &report))?;
    if let Some(problem) = report["problem"].as_str() {
        let message = format!("the migration has stopped: {problem}; repeat it for the rest");
        return Err(Failure::new(exit::UNAVAILABLE, message));
    }
    match report["refused"].as_u64() {
        Some(0) | None => Ok(()),
        Some(refused) => Err(Failure::new(
            exit::FINDINGS,
            format!("{refused} instance(s) cannot be migrated"),
        )),
    }
}

fn show_report(arguments: &MigrateArguments, report: &Value) -> Result<(), Failure> {
    let verb = match (arguments.dry_run, arguments.undo) {
        (true, false) => "would be migrated",
        (true, true) => "would be migrated back",
        (false, false) => "migrated",
        (false, true) => "migrated back",
    };
    out::line(format_args!(
        "{} instance(s) {verb}, {} unchanged",
        report["moved"], report["refused"]
    ))?;
    let starts = report["starts"].as_object();
    for (work, count) in starts.into_iter().flatten() {
        let verb = if arguments.dry_run {
            "would start"
        } else {
            "started"
        };
        out::line(format_args!("{work} {verb} at once in {count} of them"))?;
    }
    let refusals = report["refusals"].as_array().map_or(&[][..], Vec::as_slice);
    for refusal in refusals {
        out::line(format_args!(
            "{} stays on {}",
            text(&refusal["instance"]),
            text(&refusal["from"])
        ))?;
        for problem in refusal["problems"].as_array().into_iter().flatten() {
            let (at, message) = (text(&problem["at"]), text(&problem["message"]));
            if at.is_empty() {
                out::line(format_args!("  {message}"))?;
            } else {
                out::line(format_args!("  {at}: {message}"))?;
            }
        }
    }
    let told = u64::try_from(refusals.len()).unwrap_or(u64::MAX);
    let untold = report["refused"].as_u64().unwrap_or(0).saturating_sub(told);
    if untold > 0 {
        out::line(format_args!("and {untold} more"))?;
    }
    Ok(())
}

/// Hash of the active version of a saga.
fn active(client: &Client, saga: &str) -> Result<String, Failure> {
    let answer = client.get(&format!("/v1/definitions?saga={}", escaped(saga)))?;
    let mut items = answer["items"].as_array().into_iter().flatten();
    items
        .find(|item| item["active"] == true)
        .and_then(|item| item["hash"].as_str())
        .map(str::to_owned)
        .ok_or_else(|| Failure::new(exit::NOT_FOUND, format!("saga {saga} has no active version")))
}
