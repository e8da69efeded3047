//! `instance`: shows instances of a running cluster, and sends an operator's decisions about one.

mod actions;
mod count;
mod graph;
mod inputs;
mod list;
mod show;
mod start;
mod verbs;
mod wait;
mod watch;

pub use list::SelectionArguments;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use self::wait::WaitArguments;
use super::account::{AccountArguments, Cancellation, History, Need, Optional, Required};
use super::client::{Client, CommonArguments, escaped};
use super::confirm::ConfirmArguments;
use super::given;
use super::output::{Column, Mood};
use super::pages::note_an_unknown_saga;
use super::queries::{self, HistoryArguments, WhyArguments};
use crate::app::exit::{self, Failure};
use crate::app::out;

#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// List instances, of one saga or of all, by phase, cause and error.
    #[command(after_help = "Examples:\n  \
        saga-runner instance list --blocked\n  \
        saga-runner instance list order --phase failed --error declined\n  \
        saga-runner instance list order --idle-for 15m --where 'state.amount > 100'")]
    List(list::ListArguments),
    /// Count instances by saga, phase, cause and error.
    #[command(after_help = "Examples:\n  \
        saga-runner instance count --by step\n  \
        saga-runner instance count order --phase running --where 'state.amount > 100'")]
    Count(list::CountArguments),
    /// Show an instance: state, what it waits for, steps, ledger, timers and history.
    Show(NameArguments),
    /// Say in one sentence why an instance does not proceed.
    Why(WhyArguments),
    /// List what can be done to an instance now, each as a command, and why the rest cannot be done.
    #[command(after_help = "Example:\n  saga-runner instance actions order o-1")]
    Actions(actions::ActionsArguments),
    /// Show the graph of an instance: what its saga consists of, and where each part stands.
    #[command(after_help = "Examples:\n  \
        saga-runner instance graph order o-1\n  \
        saga-runner instance graph order o-1 --format mermaid\n  \
        saga-runner instance graph order o-1 --format dot | dot -Tpng > o-1.png\n\n\
        It is the graph of the version that the instance runs under, as `saga-runner graph` draws it from a file. Steps and\n\
        compensations have the words of `instance show`; the machine state that it is in is `current`, a timer that runs `set`.")]
    Graph(graph::GraphArguments),
    /// List what happened to an instance, newest first.
    #[command(after_help = "Example:\n  saga-runner instance history order o-1 --limit 200 -o wide")]
    History(HistoryArguments),
    /// Print what an instance has received and what it has sent, with payloads and idempotency keys, oldest first.
    #[command(
        after_help = "Example: which amount was the bank asked for, and under which idempotency key?\n  \
        saga-runner instance inputs order o-1\n\n\
        Paths that an effect redacts are hidden. Payloads are kept as long as the history, up to storage.keep_input_bytes and\n\
        storage.keep_work_bytes. The answer with -o json can be replayed: see `saga-runner replay --help`."
    )]
    Inputs(inputs::InputsArguments),
    /// Start an instance without an event; prints its key.
    #[command(after_help = "Examples:\n  \
        saga-runner instance start refund --key r-1 --input '{\"order\": \"o-1\"}' --request-id 7f3a\n  \
        saga-runner instance start refund --key r-1 --input @refund.json --on-conflict use-existing --wait 30s --until-end")]
    Start(start::StartArguments),
    /// Wait until an instance has ended, is in a phase, or a step has a status.
    #[command(
        after_help = "Exit codes: 0 reached, 6 not reached in time, 7 the instance has ended otherwise.\n\nExamples:\n  \
        saga-runner instance wait order o-1 --timeout 5m\n  \
        saga-runner instance wait order o-1 --for phase=completed\n  \
        saga-runner instance wait order o-1 --for step=approve:waiting"
    )]
    Wait(wait::InstanceWaitArguments),
    /// Print what happens to an instance, a line for each entry of its history, until it has ended.
    #[command(after_help = "Example:\n  saga-runner instance watch order o-1 --newest 100 -o jsonl")]
    Watch(watch::WatchArguments),
    /// Cancel an instance: it compensates what it has done, unless --mode says otherwise.
    #[command(
        after_help = "Example: stop a saga once its running steps have ended, then compensate:\n  \
        saga-runner instance cancel order o-1 --mode drain --reason 'customer called'"
    )]
    Cancel(CancelArguments),
    /// Retry stuck compensations and steps; with --ended, begin an ended instance again from where it failed.
    #[command(after_help = "Examples:\n  \
        saga-runner instance retry order o-1 --step charge --reason 'the bank is back'\n  \
        saga-runner instance retry order o-1 --ended --yes --not-done charge --reason 'the bank is back'\n\n\
        With --ended the next generation of the key begins: steps that are done and were not undone keep their\n\
        results, all others run again under new idempotency keys, and `finally` runs again.")]
    Retry(verbs::RetryArguments),
    /// Skip a step in progress, or a stuck compensation, and continue.
    #[command(after_help = "Examples:\n  \
        saga-runner instance skip order o-1 --step notify --reason 'told by phone'\n  \
        saga-runner instance skip order o-1 --step charge --as done --result '{\"charge_id\": \"c-7\"}' --reason 'booked by hand'\n\n\
        A compensation that is stuck is left out: what it should have undone stays. A step whose outcome is unknown needs\n\
        --as, which says whether there is something to undo. A step whose command is with a worker is skipped only with\n\
        --as not_done: if the call succeeds late, it is undone as the step's `on_late` says.")]
    Skip(ResolveArguments<Required>),
    /// Mark a stuck compensation as done by other means, or with --as record the outcome of a stuck step.
    #[command(after_help = "Examples:\n  \
        saga-runner instance resolve order o-1 --step charge --reason 'refunded by hand'\n  \
        saga-runner instance resolve order o-1 --step charge --as done --result '{\"charge_id\": \"c-7\"}'\n  \
        saga-runner instance resolve order o-1 --step charge --as not_done")]
    Resolve(ResolveArguments),
    #[command(flatten)]
    Verb(verbs::Verb),
}

#[derive(Debug, Args)]
pub struct NameArguments {
    /// Name of the saga.
    pub(super) saga: String,
    /// Key of the instance.
    pub(super) key: String,
    #[command(flatten)]
    pub(super) common: CommonArguments,
}

/// A request to an instance.
#[derive(Debug, Args)]
pub struct RequestArguments {
    #[command(flatten)]
    wait: WaitArguments,
    #[command(flatten)]
    pub(super) name: NameArguments,
}

#[derive(Debug, Args)]
pub struct CancelArguments {
    #[command(flatten)]
    account: AccountArguments<Cancellation>,
    /// How to treat steps already started.
    #[arg(long, value_enum, default_value_t = Mode::Compensate)]
    mode: Mode,
    #[command(flatten)]
    confirm: ConfirmArguments,
    #[command(flatten)]
    request: RequestArguments,
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
pub struct StuckArguments<N: Need = Optional> {
    /// Only this step; without it, everything that is stuck.
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only this item of a loop over a list; the first is 0.
    #[arg(long, value_name = "INDEX", requires = "step")]
    item: Option<u32>,
    #[command(flatten)]
    account: AccountArguments<History, N>,
    #[command(flatten)]
    request: RequestArguments,
}

#[derive(Debug, Args)]
pub struct ResolveArguments<N: Need = Optional> {
    /// Whether the action of the step was done.
    #[arg(long = "as", value_enum, requires = "step", value_name = "FOUND")]
    found: Option<Found>,
    /// Result of the step as JSON, or @FILE to read it from a file.
    #[arg(long, value_name = "JSON|@FILE", requires = "step")]
    result: Option<String>,
    #[command(flatten)]
    stuck: StuckArguments<N>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Found {
    /// The call was executed: on resolve, the step succeeds with the result; on skip, it can be undone.
    Done,
    /// The call was not executed: on resolve, the step fails with class timeout and its retry and on_error apply.
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

pub fn instance(command: &InstanceCommand) -> Result<(), Failure> {
    match command {
        InstanceCommand::List(arguments) => list::list(arguments),
        InstanceCommand::Count(arguments) => list::count(arguments),
        InstanceCommand::Show(name) => show::show(name),
        InstanceCommand::Why(arguments) => queries::why(arguments),
        InstanceCommand::Actions(arguments) => actions::actions(arguments),
        InstanceCommand::Graph(arguments) => graph::graph(arguments),
        InstanceCommand::History(arguments) => queries::history(arguments),
        InstanceCommand::Inputs(arguments) => inputs::inputs(arguments),
        InstanceCommand::Start(arguments) => start::start(arguments),
        InstanceCommand::Wait(arguments) => wait::wait(arguments),
        InstanceCommand::Watch(arguments) => watch::watch(arguments),
        InstanceCommand::Cancel(arguments) => {
            if matches!(arguments.mode, Mode::Abandon) {
                let key = &arguments.request.name.key;
                let consequence = format!("nothing that {key} has done is compensated");
                arguments.confirm.agreed(&consequence, key)?;
            }
            let mut body = arguments.account.body();
            body["mode"] = json!(arguments.mode.as_str());
            ask(&arguments.request, "cancel", body)
        }
        InstanceCommand::Retry(arguments) => verbs::retry(arguments),
        InstanceCommand::Skip(arguments) => resolve(arguments, "skip"),
        InstanceCommand::Resolve(arguments) => resolve(arguments, "resolve"),
        InstanceCommand::Verb(verb) => verbs::run(verb),
    }
}

/// What a phase says.
fn judged(phase: &str) -> Mood {
    match phase {
        "completed" => Mood::Good,
        "compensating" | "finishing" => Mood::Waiting,
        "failed" | "compensation_failed" => Mood::Bad,
        _ => Mood::Plain,
    }
}

fn resolve<N: Need>(arguments: &ResolveArguments<N>, verdict: &str) -> Result<(), Failure> {
    let mut body = body(&arguments.stuck);
    body["as"] = json!(arguments.found.map(Found::as_str));
    body["result"] = match &arguments.result {
        Some(result) => given::json("--result", result)?,
        None => Value::Null,
    };
    ask(&arguments.stuck.request, verdict, body)
}

fn decide(arguments: &StuckArguments, verdict: &str) -> Result<(), Failure> {
    ask(&arguments.request, verdict, body(arguments))
}

fn body<N: Need>(arguments: &StuckArguments<N>) -> Value {
    let mut body = arguments.account.body();
    body["step"] = json!(arguments.step);
    body["item"] = json!(arguments.item);
    body
}

/// What is told of a stored request.
const STORED: &[Column] = &[
    Column::value("Stream", "/stream"),
    Column::number("Sequence", "/sequence"),
    Column::value("Duplicate", "/duplicate"),
    Column::value("Checked", "/checked"),
];

/// The same with its outcome.
const OUTCOME: &[Column] = &[
    Column::value("Outcome", "/outcome/state"),
    Column::value("Reason", "/outcome/reason"),
    Column::value("Message", "/outcome/message"),
    Column::number("Generation", "/outcome/generation"),
    Column::value("Phase", "/outcome/instance/phase").judged(judged),
];

/// A request that cannot have an effect is rejected at once by the process that works on the instance. Otherwise the answer says that
/// it is stored, and with --wait tells the outcome.
fn ask(arguments: &RequestArguments, verb: &str, body: Value) -> Result<(), Failure> {
    request(arguments, Asks::Verb(verb), body)
}

/// What is asked of an instance.
#[derive(Clone, Copy)]
enum Asks<'v> {
    /// What this verb says.
    Verb(&'v str),
    /// That it is deleted.
    Delete,
}

fn request(request: &RequestArguments, asks: Asks<'_>, body: Value) -> Result<(), Failure> {
    let name = &request.name;
    let client = Client::new(&name.common.server)?;
    let path = name.path(&client)?;
    let (path, is_deletion) = match asks {
        Asks::Verb(verb) => (format!("{path}/{verb}"), false),
        Asks::Delete => (path, true),
    };
    let Value::Object(body) = body else {
        return Err(Failure::software("a request is an object"));
    };
    let stored = if is_deletion {
        request.wait.delete(&client, &path, body)
    } else {
        request.wait.post(&client, &path, body, None)
    };
    let stored = stored.inspect_err(|failure| name.explain(&client, failure))?;
    let outcome = &stored["outcome"];
    if outcome.is_object() {
        name.common.output.object(OUTCOME, &stored)?;
        return wait::judged(outcome);
    }
    let unchecked = if stored["checked"] == false {
        ", but not compared with the instance, on which another process works"
    } else {
        ""
    };
    let where_told = if is_deletion {
        "repeat it with the same --request-id and --wait for its outcome"
    } else {
        "`saga-runner instance show` shows the outcome in the history"
    };
    out::note(format_args!("request stored{unchecked}; {where_told}"));
    name.common.output.object(STORED, &stored)
}

impl NameArguments {
    pub(super) fn path(&self, client: &Client) -> Result<String, Failure> {
        let tenant = client.tenant_path(&self.common.tenant)?;
        let (saga, key) = (escaped(&self.saga), escaped(&self.key));
        Ok(format!("{tenant}/sagas/{saga}/instances/{key}"))
    }

    /// Asks for what is below the path of the instance.
    pub(super) fn get(&self, client: &Client, below: &str) -> Result<Value, Failure> {
        let path = self.path(client)?;
        let got = client.get(&format!("{path}{below}"));
        got.inspect_err(|failure| self.explain(client, failure))
    }

    /// Says of an instance that was not found because no saga has this name, that it is for that.
    pub(super) fn explain(&self, client: &Client, failure: &Failure) {
        if failure.code == exit::NOT_FOUND {
            note_an_unknown_saga(client, &self.saga);
        }
    }
}
