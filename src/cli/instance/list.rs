//! `instance list` and `instance count`: across sagas, from the indexes of the shards.

use clap::Args;
use serde_json::{Value, json};

use super::{count, judged};
use crate::app::exit::Failure;
use crate::app::out;
use crate::cli::client::{Client, CommonArguments};
use crate::cli::output::Column;
use crate::cli::pages::{PageArguments, note_an_unknown_saga, warn_of_absent_shards};

/// What both are asked for.
#[derive(Debug, Args)]
struct FilterArguments {
    /// Only in these phases: running, compensating, completed, failed, cancelled, compensation_failed, finishing.
    #[arg(long, value_name = "PHASE", value_delimiter = ',')]
    phase: Vec<String>,
    /// Only instances that something blocks: a pause, a dead letter, a missing definition, a stuck step or compensation.
    #[arg(long, conflicts_with = "blocked_by")]
    blocked: bool,
    /// Only instances that these block: paused, dead_letter, definition, operator; or nothing.
    #[arg(long, value_name = "CAUSE", value_delimiter = ',')]
    blocked_by: Vec<String>,
    /// Only instances that wait for these: effect, command, child, retry, message, delay, operator, handlers, timer; or nothing.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    waits_for: Vec<String>,
    /// Only with this error class, or this code of a failure.
    #[arg(long, value_name = "CLASS")]
    error: Option<String>,
}

/// What a list, a count and a job narrow down further.
#[derive(Debug, Args)]
struct RecordArguments {
    /// Only keys that begin with this.
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only instances that started this long ago or longer, e.g. 15m, 7d.
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,
    /// Only instances that applied no input for this long or longer, e.g. 15m, 7d.
    #[arg(long, value_name = "DURATION")]
    idle_for: Option<String>,
    /// Only instances for which this expression over `state` and `key` is true, e.g. 'state.amount > 100'.
    #[arg(long = "where", value_name = "CEL")]
    condition: Option<String>,
    /// Only instances in this step, and ended ones that it has failed.
    #[arg(long, value_name = "STEP")]
    in_step: Option<String>,
    /// Only instances whose effects in progress call this upstream, by its name in `upstreams` of the manifest: NAMES of `breaker list`.
    #[arg(long, value_name = "UPSTREAM")]
    upstream: Option<String>,
    /// Only instances that wait for events of this type.
    #[arg(long, value_name = "TYPE")]
    event: Option<String>,
    /// Only instances that wait for this signal.
    #[arg(long, value_name = "NAME")]
    signal: Option<String>,
    /// Only the last generation of each key: none that was retried or started again since. A job is always about these.
    #[arg(long)]
    last_generation: bool,
}

/// The instances of a job.
#[derive(Debug, Args)]
pub struct SelectionArguments {
    /// Only instances of this saga.
    #[arg(long, value_name = "SAGA")]
    saga: Option<String>,
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    record: RecordArguments,
}

impl SelectionArguments {
    /// The filter, by the names of the parameters of a list.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = self.filter.query(self.saga.as_ref());
        query.extend(self.record.query());
        query
    }
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Only instances of this saga.
    saga: Option<String>,
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    record: RecordArguments,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub struct CountArguments {
    /// Only instances of this saga.
    saga: Option<String>,
    /// Count by this alone: phase, saga, error, waiting, blocked_by, step, upstream, event or signal.
    #[arg(long, value_name = "WHAT")]
    by: Option<String>,
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    record: RecordArguments,
    #[command(flatten)]
    common: CommonArguments,
}

pub fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let path = format!("{}/instances", client.tenant_path(&arguments.common.tenant)?);
    let mut query = arguments.filter.query(arguments.saga.as_ref());
    query.extend(arguments.record.query());
    let answer = arguments.page.ask(&client, &path, &query)?;
    arguments.common.output.list(COLUMNS, &answer)
}

pub fn count(arguments: &CountArguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.common.server)?;
    let tenant = client.tenant_path(&arguments.common.tenant)?;
    let mut query = arguments.filter.query(arguments.saga.as_ref());
    query.extend(arguments.record.query());
    query.extend(arguments.by.iter().map(|by| ("by", by.clone())));
    let counted = count::ask(&client, &format!("{tenant}/instances/count"), &query)?;
    warn_of_absent_shards(&counted);
    if let Some(saga) = arguments.saga.as_ref().filter(|_| counted["instances"] == 0) {
        note_an_unknown_saga(&client, saga);
    }
    let (columns, rows) = if arguments.by.is_some() {
        (GROUPS, &counted["groups"])
    } else {
        (STATUSES, &counted["statuses"])
    };
    let list = json!({"items": rows});
    let output = arguments.common.output;
    output.shown(&counted, || {
        output.list(columns, &list)?;
        if counted["incomplete"] == true {
            out::note("there are more than were looked at");
        }
        out::line(format_args!("{} instance(s)", counted["instances"]))
    })
}

impl FilterArguments {
    fn query(&self, saga: Option<&String>) -> Vec<(&'static str, String)> {
        let blocked_by = if self.blocked {
            vec!["anything".to_owned()]
        } else {
            self.blocked_by.clone()
        };
        let lists = [
            ("phase", &self.phase),
            ("blocked_by", &blocked_by),
            ("waits_for", &self.waits_for),
        ];
        let lists = lists.into_iter().filter(|(_, values)| !values.is_empty());
        let lists = lists.map(|(name, values)| (name, values.join(",")));
        let single = [("saga", saga), ("error", self.error.as_ref())];
        let single = single
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.clone())));
        lists.chain(single).collect()
    }
}

impl RecordArguments {
    fn query(&self) -> impl Iterator<Item = (&'static str, String)> {
        let named = [
            ("key_prefix", &self.key_prefix),
            ("older_than", &self.older_than),
            ("idle_for", &self.idle_for),
            ("where", &self.condition),
            ("step", &self.in_step),
            ("upstream", &self.upstream),
            ("event", &self.event),
            ("signal", &self.signal),
        ];
        let named = named
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.clone()?)));
        let last = self
            .last_generation
            .then(|| ("last_generation", "true".to_owned()));
        named.chain(last)
    }
}

const COLUMNS: &[Column] = &[
    Column::value("SAGA", "/saga"),
    Column::value("KEY", "/key"),
    Column::value("PHASE", "/phase").judged(judged),
    Column::told("BLOCKED BY", blocked_by),
    Column::told("WAITS FOR", waits_for),
    Column::value("ERROR", "/error"),
    Column::value("STEP", "/failed_step").wide(),
    Column::number("GENERATION", "/generation").wide(),
    Column::value("LAST", "/last_generation").wide(),
    Column::time("STARTED", "/started"),
    Column::time("UPDATED", "/updated"),
    Column::time("ENDED", "/ended"),
    Column::value("DEFINITION", "/definition").wide(),
];

const GROUPS: &[Column] = &[
    Column::number("INSTANCES", "/instances"),
    Column::value("VALUE", "/value"),
];

const STATUSES: &[Column] = &[
    Column::number("INSTANCES", "/instances"),
    Column::value("SAGA", "/saga"),
    Column::value("PHASE", "/phase").judged(judged),
    Column::told("BLOCKED BY", blocked_by),
    Column::told("WAITS FOR", waits_for),
    Column::value("ERROR", "/error"),
];

fn blocked_by(item: &Value) -> String {
    named(&item["blocked_by"])
}

fn waits_for(item: &Value) -> String {
    named(&item["waits_for"])
}

/// Empty for what is nothing.
fn named(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    if text == "nothing" {
        String::new()
    } else {
        text.to_owned()
    }
}
