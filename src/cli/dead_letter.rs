//! `dead-letter`: inputs that could not be applied, and decisions about them.

mod edit;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::account::{AccountArguments, History, Letter, Required};
use super::client::{Client, CommonArguments, TenantArguments, escaped};
use super::confirm::ConfirmArguments;
use super::given;
use super::job::{Order, rate};
use super::output::Column;
use super::pages::{PageArguments, joined, warn_of_absent_shards};
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum DeadLetterCommand {
    /// List inputs that could not be applied, oldest first.
    #[command(after_help = "Examples:\n  \
        saga-runner dead-letter list --saga order --newer-than 2h\n  \
        saga-runner dead-letter list --code event.schema --subject-prefix 'event Order.Placed'\n\n\
        docs/dead-letters.md explains each code.")]
    List(ListArguments),
    /// Count dead letters by reason, saga, kind or subject.
    #[command(after_help = "Examples:\n  \
        saga-runner dead-letter count\n  \
        saga-runner dead-letter count --by subject --code event.schema --newer-than 2h")]
    Count(CountArguments),
    /// Show a dead letter: its input, what its definition expects, and what a retry would come to now.
    Show(LetterArguments),
    /// Apply a dead letter again, as it came or with other data, or many as a job; first fix the cause.
    #[command(
        after_help = "Example: apply an event with a correct amount, in the place of the one that came:\n  \
        saga-runner dead-letter retry 0-17 --data '{\"order\": \"o-1\", \"amount\": 1200}' --reason 'ticket 7: a comma too many'\n\n\
        Example: apply all again that a corrected definition takes, as a job:\n  \
        saga-runner dead-letter retry --saga order --code expression --reason 'amounts may have decimals' --rate 20/s --dry-run"
    )]
    Retry(RetryArguments),
    /// Edit the data of a dead letter in $VISUAL or $EDITOR, and apply it again with the edited data.
    #[command(
        after_help = "The data are checked before they are accepted: a retry that would fail again changes nothing. The history of the\n\
        instance keeps both, with your name and the reason."
    )]
    Edit(EditArguments),
    /// Delete a dead letter, or many as a job; inputs that wait behind it are applied without it.
    #[command(
        after_help = "Example: discard what a faulty producer has sent, as a job:\n  \
        saga-runner dead-letter discard --code event.schema --newer-than 2h --reason 'ticket 9: sent by a test' --yes"
    )]
    Discard(DiscardArguments),
}

/// Which dead letters are meant.
#[derive(Debug, Args)]
struct FilterArguments {
    /// Only those with this reason, e.g. expression or event.schema.
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
    /// Only those of instances of this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    /// Only those of instances with this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only those of instances whose keys begin with this.
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only these: event, result, timer, control; or message, which could not be read.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only those from this stream: events, results or commands.
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,
    /// Only those whose subject begins with this, e.g. 'event Order.Placed'.
    #[arg(long, value_name = "TEXT")]
    subject_prefix: Option<String>,
    /// Only inputs that came this long ago or longer, e.g. 15m, 7d.
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,
    /// Only inputs that came no longer ago than this.
    #[arg(long, value_name = "DURATION")]
    newer_than: Option<String>,
}

impl FilterArguments {
    /// The filter, by the names of the parameters of the list.
    fn query(&self) -> Vec<(&'static str, String)> {
        let named = [
            ("saga", self.saga.as_ref()),
            ("key", self.key.as_ref()),
            ("key_prefix", self.key_prefix.as_ref()),
            ("reason", self.code.as_ref()),
            ("kind", self.kind.as_ref()),
            ("stream", self.stream.as_ref()),
            ("subject_prefix", self.subject_prefix.as_ref()),
            ("older_than", self.older_than.as_ref()),
            ("newer_than", self.newer_than.as_ref()),
        ];
        let named = named.into_iter();
        named
            .filter_map(|(name, value)| Some((name, value?.clone())))
            .collect()
    }
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct CountArguments {
    /// By what they are counted: reason, saga, kind or subject.
    #[arg(long, value_name = "WHAT", default_value = "reason")]
    by: String,
    #[command(flatten)]
    filter: FilterArguments,
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

/// Many dead letters at once, as a job.
#[derive(Debug, Args)]
struct BulkArguments {
    /// All dead letters of the tenant, as a job.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: FilterArguments,
    /// Print what the job would select, without starting it.
    #[arg(long)]
    dry_run: bool,
    /// Dead letters per second, 1 to 1000; default: `jobs.rate` of the manifest of the runner.
    #[arg(long, value_name = "COUNT/s", value_parser = rate)]
    rate: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RetryArguments {
    /// Id of the dead letter, as the list prints it; without one, a job retries all that the filter selects.
    id: Option<String>,
    /// JSON that is applied in the place of the data that came, or @FILE to read it from a file; of results only by an admin.
    #[arg(long, value_name = "JSON|@FILE", conflicts_with = "file", requires = "id")]
    data: Option<String>,
    /// The same, from a file; '-' reads standard input.
    #[arg(long, value_name = "FILE", requires = "id")]
    file: Option<PathBuf>,
    #[command(flatten)]
    many: ManyArguments,
}

#[derive(Debug, Args)]
pub struct DiscardArguments {
    /// Id of the dead letter, as the list prints it; without one, a job discards all that the filter selects.
    id: Option<String>,
    #[command(flatten)]
    many: ManyArguments,
}

/// What a decision about one letter and one about many have in common.
#[derive(Debug, Args)]
struct ManyArguments {
    #[command(flatten)]
    bulk: BulkArguments,
    #[command(flatten)]
    account: AccountArguments<Letter>,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct EditArguments {
    #[command(flatten)]
    account: AccountArguments<History, Required>,
    #[command(flatten)]
    letter: LetterArguments,
}

pub fn dead_letter(command: &DeadLetterCommand) -> Result<(), Failure> {
    match command {
        DeadLetterCommand::List(arguments) => list(arguments),
        DeadLetterCommand::Count(arguments) => count(arguments),
        DeadLetterCommand::Show(letter) => show(letter),
        DeadLetterCommand::Retry(arguments) => retry(arguments),
        DeadLetterCommand::Edit(arguments) => edit::edit(arguments),
        DeadLetterCommand::Discard(arguments) => discard(arguments),
    }
}

impl LetterArguments {
    fn path(&self, client: &Client) -> Result<String, Failure> {
        path(client, &self.common.tenant, &self.id)
    }
}

fn path(client: &Client, tenant: &TenantArguments, id: &str) -> Result<String, Failure> {
    let tenant = client.tenant_path(tenant)?;
    Ok(format!("{tenant}/dead-letters/{}", escaped(id)))
}

fn retry(arguments: &RetryArguments) -> Result<(), Failure> {
    let RetryArguments { id, many, .. } = arguments;
    let Some(id) = many.named(id.as_ref())? else {
        return many.start("retry", "retry_letters");
    };
    let data = match (&arguments.data, &arguments.file) {
        (Some(data), _) => Some(given::json("--data", data)?),
        (None, Some(file)) => Some(given::parsed(&file.display().to_string(), &given::read(file)?)?),
        (None, None) => None,
    };
    if data.is_some() && many.account.reason.trim().is_empty() {
        let message = "say with --reason why the data are edited";
        return Err(Failure::new(exit::USAGE, message));
    }
    let how = if data.is_some() { " with other data" } else { "" };
    many.decide(id, "retry", data)?;
    out::note(format_args!("dead letter {id} is applied again{how}"));
    Ok(())
}

fn discard(arguments: &DiscardArguments) -> Result<(), Failure> {
    let DiscardArguments { id, many } = arguments;
    let Some(id) = many.named(id.as_ref())? else {
        return many.start("discard", "discard_letters");
    };
    let consequence = format!("dead letter {id} is deleted, and its input never applied");
    many.confirm.agreed(&consequence, id)?;
    many.decide(id, "discard", None)?;
    out::note(format_args!("dead letter {id} is discarded"));
    Ok(())
}

impl ManyArguments {
    /// The one dead letter that is meant; `None`: a job is.
    fn named<'i>(&self, id: Option<&'i String>) -> Result<Option<&'i String>, Failure> {
        let BulkArguments {
            all,
            filter,
            dry_run,
            rate,
        } = &self.bulk;
        let chooses = *all || !filter.query().is_empty();
        let message = match (id, chooses) {
            (Some(_), false) if !*dry_run && rate.is_none() => return Ok(id),
            (Some(_), _) => "name one dead letter, or choose with --all or a filter, not both",
            (None, true) => return Ok(None),
            (None, false) => "name a dead letter, or choose with --all or a filter",
        };
        Err(Failure::new(exit::USAGE, message))
    }

    fn decide(&self, id: &str, verb: &str, data: Option<Value>) -> Result<(), Failure> {
        let client = Client::new(&self.common.server)?;
        let path = path(&client, &self.common.tenant, id)?;
        let mut body = self.account.body();
        if let Some(data) = data {
            body["data"] = data;
        }
        client.post_json(&format!("{path}/{verb}"), &body)?;
        Ok(())
    }

    /// Starts a job about all that is chosen.
    fn start(&self, verb: &str, of_job: &str) -> Result<(), Failure> {
        let BulkArguments {
            all,
            filter,
            dry_run,
            rate,
        } = &self.bulk;
        let filter = filter.query().into_iter();
        let filter: Map<String, Value> = filter
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        let mut body = self.account.body();
        body["verb"] = json!(of_job);
        body["filter"] = json!(filter);
        body["all"] = json!(all);
        if let Some(rate) = rate {
            body["rate"] = json!(rate);
        }
        let client = Client::new(&self.common.server)?;
        let path = format!("{}/jobs", client.tenant_path(&self.common.tenant)?);
        let order = Order {
            body,
            verb: verb.to_owned(),
            things: "dead letter(s)",
            dry_run: *dry_run,
            confirm: self.confirm,
            output: self.common.output,
        };
        order.give(&client, &path)
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/dead-letters", client.tenant_path(&arguments.common.tenant)?);
    let answer = arguments.page.ask(&client, &path, &arguments.filter.query())?;
    arguments.common.output.list(COLUMNS, &answer)
}

fn count(arguments: &CountArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let tenant = client.tenant_path(&arguments.common.tenant)?;
    let filter = joined(&arguments.filter.query());
    let by = escaped(&arguments.by);
    let counted = client.get(&format!("{tenant}/dead-letters/count?by={by}{filter}"))?;
    warn_of_absent_shards(&counted);
    let groups = json!({"items": counted["groups"]});
    arguments.common.output.shown(&counted, || {
        arguments.common.output.list(GROUPS, &groups)?;
        out::line(format_args!("{} dead letter(s)", counted["letters"]))
    })
}

fn show(letter: &LetterArguments) -> Result<(), Failure> {
    let client = Client::new(&letter.common.server)?;
    let shown = client.get(&letter.path(&client)?)?;
    letter.common.output.object(FIELDS, &shown)?;
    if !letter.common.output.is_for_people() {
        return Ok(());
    }
    for (title, part) in [("Input", &shown["input"]), ("Expected", &shown["expected"])] {
        if !part.is_null() {
            out::line(format_args!("{title}\n{part:#}"))?;
        }
    }
    let violations = json!({"items": shown["violations"].as_array().cloned().unwrap_or_default()});
    if violations["items"]
        .as_array()
        .is_some_and(|items| !items.is_empty())
    {
        letter.common.output.list(VIOLATIONS, &violations)?;
    }
    Ok(())
}

fn told_retry(shown: &Value) -> String {
    let retry: Map<String, Value> = shown["retry"].as_object().cloned().unwrap_or_default();
    let parts = ["outcome", "reason", "message"].into_iter();
    let parts = parts.filter_map(|part| retry.get(part)?.as_str().map(str::to_owned));
    parts.collect::<Vec<_>>().join(": ")
}

const COLUMNS: &[Column] = &[
    Column::value("ID", "/id"),
    Column::time("TIME", "/time"),
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("KIND", "/kind").wide(),
    Column::value("REASON", "/reason"),
    Column::value("MESSAGE", "/message"),
    Column::value("SUBJECT", "/subject").wide(),
];

const GROUPS: &[Column] = &[
    Column::number("LETTERS", "/letters"),
    Column::value("VALUE", "/value"),
];

const VIOLATIONS: &[Column] = &[Column::value("AT", "/at"), Column::value("VIOLATION", "/message")];

const FIELDS: &[Column] = &[
    Column::value("Id", "/id"),
    Column::time("Time", "/time"),
    Column::value("Saga", "/saga"),
    Column::value("Key", "/key"),
    Column::value("Reason", "/reason"),
    Column::value("Message", "/message"),
    Column::value("Subject", "/subject"),
    Column::value("Excerpt", "/excerpt"),
    Column::value("Waiting behind", "/blocks"),
    Column::value("Version met", "/definition/met"),
    Column::value("Version of the instance", "/definition/instance"),
    Column::value("Version in force", "/definition/active"),
    Column::told("A retry now", told_retry),
];
