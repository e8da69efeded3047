//! `instance`: shows instances of a running cluster, and sends an operator's decisions about one.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, TenantArguments, escaped};
use crate::app::exit::Failure;
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// List the instances of a saga, one per line.
    List(ListArguments),
    /// Print an instance as JSON: state, steps, ledger, timers and history.
    Show(NameArguments),
    /// Cancel an instance.
    #[command(
        after_help = "Example: stop a saga once its running steps have ended, then compensate:\n  \
        saga-runner instance cancel order o-1 --mode drain --reason 'customer called'"
    )]
    Cancel(CancelArguments),
    /// Retry stuck compensations with fresh attempts, and resend the work of stuck steps.
    Retry(StuckArguments),
    /// Skip stuck compensations and continue; what they should have undone stays.
    Skip(StuckArguments),
    /// Mark a stuck compensation as done by other means, or with --as record the outcome of a stuck step.
    #[command(after_help = "Examples:\n  \
        saga-runner instance resolve order o-1 --step charge --reason 'refunded by hand'\n  \
        saga-runner instance resolve order o-1 --step charge --as done --result '{\"charge_id\": \"c-7\"}'\n  \
        saga-runner instance resolve order o-1 --step charge --as not_done")]
    Resolve(ResolveArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Name of the saga.
    saga: String,
    /// Only instances that cannot proceed: dead letter, missing definition, overdue timer, or stuck step.
    #[arg(long)]
    blocked: bool,
    /// Maximum number of instances to print.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Cursor printed by the previous call, to print the next page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tenant: TenantArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct NameArguments {
    /// Name of the saga.
    saga: String,
    /// Key of the instance.
    key: String,
    #[command(flatten)]
    tenant: TenantArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub struct CancelArguments {
    /// Reason, kept with the instance.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// How to treat steps already started.
    #[arg(long, value_enum, default_value_t = Mode::Compensate)]
    mode: Mode,
    #[command(flatten)]
    name: NameArguments,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// Compensate completed steps at once, and running steps as soon as they succeed.
    Compensate,
    /// Let running steps end first, then compensate everything.
    Drain,
    /// Compensate nothing.
    Abandon,
}

impl Mode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Compensate => "compensate",
            Self::Drain => "drain",
            Self::Abandon => "abandon",
        }
    }
}

#[derive(Debug, Args)]
pub struct StuckArguments {
    /// Only this step; without it, everything that is stuck.
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only this item of a loop over a list; the first is 0.
    #[arg(long, value_name = "INDEX", requires = "step")]
    item: Option<u32>,
    /// Name of the operator, kept in the history.
    #[arg(long, env = "USER", value_name = "NAME", default_value = "")]
    by: String,
    /// Reason, kept in the history.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    name: NameArguments,
}

#[derive(Debug, Args)]
pub struct ResolveArguments {
    /// Outcome of the stuck step.
    #[arg(long = "as", value_enum, requires = "step", value_name = "FOUND")]
    found: Option<Found>,
    /// Result of the step, as JSON.
    #[arg(long, value_name = "JSON", requires = "found", value_parser = json)]
    result: Option<Value>,
    #[command(flatten)]
    stuck: StuckArguments,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Found {
    /// The call was executed: the step succeeds with the result.
    Done,
    /// The call was not executed: the step fails with class timeout; its retry and on_error apply.
    #[value(name = "not_done", alias = "not-done")]
    NotDone,
}

impl Found {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotDone => "not_done",
        }
    }
}

fn json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

pub fn instance(command: &InstanceCommand) -> Result<(), Failure> {
    match command {
        InstanceCommand::List(arguments) => list(arguments),
        InstanceCommand::Show(name) => {
            let client = Client::new(&name.server)?;
            let shown = client.get(&name.path(&client)?)?;
            out::line(format_args!("{shown:#}"))
        }
        InstanceCommand::Cancel(arguments) => {
            let body = json!({"reason": arguments.reason, "mode": arguments.mode.as_str()});
            ask(&arguments.name, "cancel", &body)
        }
        InstanceCommand::Retry(arguments) => decide(arguments, "retry"),
        InstanceCommand::Skip(arguments) => decide(arguments, "skip"),
        InstanceCommand::Resolve(arguments) => {
            let mut body = body(&arguments.stuck);
            body["as"] = json!(arguments.found.map(Found::as_str));
            body["result"] = json!(arguments.result);
            ask(&arguments.stuck.name, "resolve", &body)
        }
    }
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.server)?;
    let tenant = client.tenant_path(&arguments.tenant)?;
    let mut after = arguments.after.clone();
    let (mut left, mut items) = (usize::from(arguments.limit), Vec::new());
    loop {
        let mut path = format!(
            "{tenant}/sagas/{}/instances?limit={left}",
            escaped(&arguments.saga)
        );
        if arguments.blocked {
            path.push_str("&blocked=true");
        }
        if let Some(after) = &after {
            path.push_str("&after=");
            path.push_str(&escaped(after));
        }
        let mut page = client.get(&path)?;
        let found = page["items"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default();
        left = left.saturating_sub(found.len());
        items.extend(found);
        after = page["next"].as_str().map(str::to_owned);
        // A page also ends after a number of bytes, or of instances that were read.
        if left == 0 || after.is_none() {
            break;
        }
    }
    if arguments.json {
        return out::line(format_args!("{:#}", json!({"items": items, "next": after})));
    }
    for item in &items {
        out::line(one(item))?;
    }
    if let Some(after) = after {
        out::note(format_args!("more instances: --after {after}"));
    }
    Ok(())
}

/// An instance in one line.
fn one(item: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut parts = vec![text(&item["key"]), text(&item["phase"])];
    if let Some(machine) = item["machine"].as_str() {
        parts.push(format!("in {machine}"));
    }
    let blocked = &item["blocked_by"];
    if !blocked.is_null() {
        let last = parts.pop().unwrap_or_default();
        parts.push(last + ",");
        parts.push(format!("blocked since {}:", text(&blocked["since"])));
    }
    if let Some(letter) = blocked["dead_letter"].as_object() {
        let told = |name: &str| letter.get(name).map(text).unwrap_or_default();
        let (id, reason, message) = (told("id"), told("reason"), told("message"));
        parts.push(format!("dead letter {id} {reason}: {message}"));
    }
    if let Some(definition) = blocked["definition"].as_str() {
        parts.push(format!("definition {definition} is not loaded"));
    }
    for timer in blocked["overdue"].as_array().into_iter().flatten() {
        parts.push(format!("timer {} is overdue", text(&timer["name"])));
    }
    if let Some(questions) = blocked["questions"].as_u64() {
        parts.push(format!("{questions} stuck step(s)"));
    }
    parts.join(" ")
}

fn decide(arguments: &StuckArguments, verdict: &str) -> Result<(), Failure> {
    ask(&arguments.name, verdict, &body(arguments))
}

fn body(arguments: &StuckArguments) -> Value {
    json!({
        "step": arguments.step,
        "item": arguments.item,
        "by": arguments.by,
        "reason": arguments.reason,
    })
}

/// A request that cannot have an effect is rejected at once. Otherwise the answer says that it is stored; the outcome is in
/// the history.
fn ask(name: &NameArguments, verb: &str, body: &Value) -> Result<(), Failure> {
    let client = Client::new(&name.server)?;
    let path = format!("{}/{verb}", name.path(&client)?);
    let stored = client.post_json(&path, body)?;
    out::note(format_args!(
        "request stored; `saga-runner instance show` shows the outcome in the history"
    ));
    out::line(format_args!("{stored:#}"))
}

impl NameArguments {
    fn path(&self, client: &Client) -> Result<String, Failure> {
        let tenant = client.tenant_path(&self.tenant)?;
        let (saga, key) = (escaped(&self.saga), escaped(&self.key));
        Ok(format!("{tenant}/sagas/{saga}/instances/{key}"))
    }
}
