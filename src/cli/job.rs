//! `job`: one verb for many instances, carried on by the cluster.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::account::{AccountArguments, Histories, Required};
use super::client::{Client, CommonArguments, escaped};
use super::confirm::ConfirmArguments;
use super::instance::SelectionArguments;
use super::output::{Column, Mood, OutputArguments};
use super::pages::warn_of_absent_shards;
use crate::app::exit::Failure;
use crate::app::out;
use crate::config::{JOB_RATE_MAX, JOB_RATE_MIN};

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Start a job: cancel, kill, pause, resume, retry, skip, migrate or delete all instances that the filter selects.
    #[command(after_help = "Examples:\n  \
        saga-runner job start retry --saga order --phase failed --error declined --ended --reason 'the bank is back' --dry-run\n  \
        saga-runner job start cancel --saga order --idle-for 7d --reason 'abandoned carts' --rate 20/s --yes\n  \
        saga-runner job start skip --saga order --waits-for retry --step notify --reason 'no mail today' --yes\n\n\
        The selection is taken when the job starts; nothing is sent before it is complete. The job runs in the cluster: it needs\n\
        neither this command nor the process that was asked to continue.")]
    Start(Box<StartArguments>),
    /// List jobs, newest first.
    List(ListArguments),
    /// Show a job and its progress.
    Show(NameArguments),
    /// Pause a job: nothing is sent until it is resumed.
    Pause(CommandArguments),
    /// Resume a paused job where it was.
    Resume(CommandArguments),
    /// Stop a job for good; what was sent stands.
    Stop(CommandArguments),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Verb {
    /// Cancel, as --mode says.
    Cancel,
    /// End at once, without compensation.
    Kill,
    /// Pause.
    Pause,
    /// Resume what is paused.
    Resume,
    /// Retry what is stuck; with --ended, begin ended instances again.
    Retry,
    /// Skip the step of --step; without it, stuck compensations.
    Skip,
    /// Migrate to the version of --to.
    Migrate,
    /// Delete those that have ended, with their history.
    Delete,
}

impl Verb {
    /// As it is written on the command line, and in a request.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[derive(Debug, Args)]
pub struct StartArguments {
    /// What is done to each instance.
    #[arg(value_enum)]
    verb: Verb,
    #[command(flatten)]
    selection: SelectionArguments,
    /// Print how many instances would be selected, and the first 20, without starting the job.
    #[arg(long)]
    dry_run: bool,
    /// Instances per second, 1 to 1000; default: `jobs.rate` of the manifest of the runner.
    #[arg(long, value_name = "COUNT/s", value_parser = rate)]
    rate: Option<u32>,
    #[command(flatten)]
    account: AccountArguments<Histories, Required>,
    /// Of cancel: compensate (default), drain or abandon, as `instance cancel --help` explains them.
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Of retry: the instances have ended; begin them again from where they failed.
    #[arg(long)]
    ended: bool,
    /// Of retry and skip: only this step.
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Of skip: whether the action of the step was done: done or not_done.
    #[arg(long = "as", value_name = "FOUND", requires = "step")]
    found: Option<String>,
    /// Of migrate: the hash of the version, as `definition list` prints it; at least its first 6 digits.
    #[arg(long, value_name = "HASH")]
    to: Option<String>,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct NameArguments {
    /// Id of the job, as `job list` prints it.
    id: String,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct CommandArguments {
    #[command(flatten)]
    account: AccountArguments,
    #[command(flatten)]
    name: NameArguments,
}

/// `50/s`, or `50`.
pub fn rate(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let rate = number.parse().ok();
    rate.filter(|rate| (JOB_RATE_MIN..=JOB_RATE_MAX).contains(rate))
        .ok_or_else(|| format!("{JOB_RATE_MIN}/s to {JOB_RATE_MAX}/s"))
}

pub fn job(command: &JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::Start(arguments) => start(arguments),
        JobCommand::List(arguments) => {
            let client = Client::new(&arguments.common.server)?;
            let answer = client.get(&format!("{}/jobs", client.tenant_path(&arguments.common.tenant)?))?;
            arguments.common.output.list(COLUMNS, &answer)
        }
        JobCommand::Show(name) => {
            let client = Client::new(&name.common.server)?;
            let shown = client.get(&name.path(&client)?)?;
            show(name.common.output, &shown)
        }
        JobCommand::Pause(arguments) => tell(arguments, "pause"),
        JobCommand::Resume(arguments) => tell(arguments, "resume"),
        JobCommand::Stop(arguments) => tell(arguments, "stop"),
    }
}

fn start(arguments: &StartArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/jobs", client.tenant_path(&arguments.common.tenant)?);
    let order = Order {
        body: arguments.body(),
        verb: arguments.verb.name(),
        things: "instance(s)",
        dry_run: arguments.dry_run,
        confirm: arguments.confirm,
        output: arguments.common.output,
    };
    order.give(&client, &path)
}

/// A job that is asked for on the command line.
pub struct Order {
    /// Of the request, without `dry_run`.
    pub body: Value,
    /// What is typed to confirm it.
    pub verb: String,
    /// What it is done to.
    pub things: &'static str,
    pub dry_run: bool,
    pub confirm: ConfirmArguments,
    pub output: OutputArguments,
}

impl Order {
    /// Shows what it would be about, or starts it once the user has agreed.
    pub fn give(mut self, client: &Client, path: &str) -> Result<(), Failure> {
        self.body["dry_run"] = json!(true);
        if self.dry_run {
            let plan = client.post_json(path, &self.body)?;
            warn_of_absent_shards(&plan);
            return plan_shown(self.output, &plan, self.things);
        }
        if !self.confirm.is_given() {
            let plan = client.post_json(path, &self.body)?;
            warn_of_absent_shards(&plan);
            let (verb, selected) = (&self.verb, selected(&plan, self.things));
            let consequence = format!("{verb} is sent to {selected}");
            self.confirm.agreed(&consequence, verb)?;
        }
        self.body["dry_run"] = json!(false);
        let started = client.post_json(path, &self.body)?;
        out::note(format_args!(
            "job started; `saga-runner job show {}` shows its progress",
            started["id"].as_str().unwrap_or_default()
        ));
        show(self.output, &started)
    }
}

fn tell(arguments: &CommandArguments, command: &str) -> Result<(), Failure> {
    let client = Client::new(&arguments.name.common.server)?;
    let path = format!("{}/{command}", arguments.name.path(&client)?);
    let shown = client.post_json(&path, &arguments.account.body())?;
    show(arguments.name.common.output, &shown)
}

impl NameArguments {
    fn path(&self, client: &Client) -> Result<String, Failure> {
        let tenant = client.tenant_path(&self.common.tenant)?;
        Ok(format!("{tenant}/jobs/{}", escaped(&self.id)))
    }
}

impl StartArguments {
    fn body(&self) -> Value {
        let filter: Map<String, Value> = self
            .selection
            .query()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        let mut body = self.account.body();
        body["verb"] = json!(self.verb.name());
        body["filter"] = json!(filter);
        body["ended"] = json!(self.ended);
        let options = [
            ("rate", self.rate.map(|rate| json!(rate))),
            ("mode", self.mode.as_ref().map(|mode| json!(mode))),
            ("step", self.step.as_ref().map(|step| json!(step))),
            ("as", self.found.as_ref().map(|found| json!(found))),
            ("to", self.to.as_ref().map(|to| json!(to))),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        body
    }
}

const COLUMNS: &[Column] = &[
    Column::value("JOB", "/id"),
    Column::value("VERB", "/verb"),
    Column::value("STATE", "/state").judged(judged),
    Column::number("SELECTED", "/selected"),
    Column::number("HANDLED", "/handled"),
    Column::number("APPLIED", "/applied"),
    Column::number("FAILED", "/failed"),
    Column::time("CREATED", "/created"),
    Column::time("ENDED", "/ended"),
    Column::value("BY", "/principal/who"),
    Column::value("REASON", "/principal/reason").wide(),
    Column::value("FILTER", "/filter").wide(),
];

const FIELDS: &[Column] = &[
    Column::value("Job", "/id"),
    Column::value("State", "/state").judged(judged),
    Column::value("Message", "/message"),
    Column::value("Verb", "/verb"),
    Column::value("Options", "/options"),
    Column::value("Filter", "/filter"),
    Column::value("By", "/principal/who"),
    Column::value("Reason", "/principal/reason"),
    Column::number("Rate", "/rate"),
    Column::time("Created", "/created"),
    Column::time("Ended", "/ended"),
    Column::number("Selected", "/selected"),
    Column::number("Handled", "/handled"),
    Column::number("Sent", "/sent"),
    Column::number("Applied", "/applied"),
    Column::value("Ignored", "/ignored"),
    Column::number("Failed", "/failed"),
    Column::number("Waits for shard", "/waits_for_shard"),
];

const FAILURES: &[Column] = &[
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("LETTER", "/letter").wide(),
    Column::value("FAILURE", "/message"),
];

const PLANNED_LETTERS: &[Column] = &[
    Column::value("ID", "/id"),
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("REASON", "/reason"),
    Column::value("SUBJECT", "/subject"),
];

const PLANNED: &[Column] = &[
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("PHASE", "/phase"),
];

fn judged(state: &str) -> Mood {
    match state {
        "completed" => Mood::Good,
        "selecting" | "running" | "paused" => Mood::Waiting,
        "failed" => Mood::Bad,
        _ => Mood::Plain,
    }
}

fn show(output: OutputArguments, shown: &Value) -> Result<(), Failure> {
    output.shown(shown, || {
        output.object(FIELDS, shown)?;
        let failures = shown["failures"].as_array().map_or(&[][..], Vec::as_slice);
        if !failures.is_empty() {
            out::line(format_args!("\n{}", output.table(FAILURES, failures)))?;
        }
        Ok(())
    })
}

fn plan_shown(output: OutputArguments, plan: &Value, things: &str) -> Result<(), Failure> {
    output.shown(plan, || {
        let instances = plan["instances"].as_array().map_or(&[][..], Vec::as_slice);
        if !instances.is_empty() {
            out::line(output.table(PLANNED, instances))?;
        }
        let letters = plan["letters"].as_array().map_or(&[][..], Vec::as_slice);
        if !letters.is_empty() {
            out::line(output.table(PLANNED_LETTERS, letters))?;
        }
        out::line(format_args!(
            "{} selected; nothing was changed",
            selected(plan, things)
        ))
    })
}

/// How many a job would be about.
fn selected(plan: &Value, things: &str) -> String {
    let more = if plan["too_many"] == true {
        "more than "
    } else {
        ""
    };
    format!("{more}{} {things}", plan["selected"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_jobs_tells_how_far_each_is() {
        let job = json!({"id": "job-1", "selected": 1200, "handled": 350, "applied": 340, "failed": 7});
        let arguments = OutputArguments::default();
        let table = arguments.table(COLUMNS, &[job]);
        for number in ["1200", "350", "340", "7"] {
            let mut cells = table.split_whitespace();
            assert!(cells.any(|cell| cell == number), "{number}: {table}");
        }
    }

    #[test]
    fn a_rate_is_a_number_of_instances_a_second() {
        for (said, rate_of) in [("50/s", 50), ("1", 1), ("1000/s", 1_000)] {
            assert_eq!(rate(said), Ok(rate_of));
        }
        for said in ["0", "1001/s", "5/m", "-1", "", "/s", "many"] {
            assert!(rate(said).is_err(), "{said}");
        }
    }
}
