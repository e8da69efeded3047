//! `audit`: who has changed what, or tried to, and why.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, TenantArguments, escaped};
use super::output::{Column, Format, Mood, OutputArguments};
use super::pages::{PageArguments, joined};
use crate::app::exit::Failure;
use crate::app::out;

/// Items of one page where all are asked for.
const PAGE: usize = 500;

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List the requests for changes, newest first: who, what, why, and with which outcome; rejected ones too.
    #[command(after_help = "Examples:\n  \
        saga-runner audit list --tenant acme --since 1h\n  \
        saga-runner audit list --tenant acme --saga order --key o-17\n  \
        saga-runner audit list --all-tenants --outcome refused --status 403\n  \
        saga-runner audit list --all-tenants --action shards --since 2026-11-01T00:00:00Z --all -o jsonl\n\n\
        An action is what stands last in the path of an endpoint: instances.cancel, jobs.start, dead-letters.retry, shards.open, drain.\n\
        --action instances selects all actions on instances; those on their timers are timers.fire and timers.cancel.\n\
        The role admin is needed: of the tenant, or of all.")]
    List(Box<ListArguments>),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// The requests about all tenants, and those about none: drains, reloads, shards, breakers, migrations.
    #[arg(long)]
    all_tenants: bool,
    /// Only requests of this principal.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only this action, or all that begin with it, e.g. instances.cancel, jobs.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only requests about this saga.
    #[arg(long, value_name = "NAME")]
    saga: Option<String>,
    /// Only requests about the instance with this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only this outcome: done, accepted, refused, failed or unanswered.
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<String>,
    /// Only answers with this status of HTTP.
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// Only requests from this time on: RFC 3339, or how long ago, e.g. 2h.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only requests up to this time: RFC 3339, or how long ago.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// All pages, to the end; use it with -o jsonl, which prints each page as it comes.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    page: PageArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    tenant: TenantArguments,
    #[command(flatten)]
    server: ServerArguments,
}

pub fn audit(command: &AuditCommand) -> Result<(), Failure> {
    let AuditCommand::List(arguments) = command;
    let client = Client::new(&arguments.server)?;
    let path = if arguments.all_tenants {
        "/admin/audit".to_owned()
    } else {
        format!("{}/audit", client.tenant_path(&arguments.tenant)?)
    };
    let query = arguments.query();
    if arguments.all {
        return all(arguments, &client, &path, &query);
    }
    let answer = arguments.page.ask(&client, &path, &query)?;
    arguments.output.list(COLUMNS, &answer)
}

impl ListArguments {
    fn query(&self) -> Vec<(&'static str, String)> {
        let status = self.status.map(|status| status.to_string());
        let given = [
            ("principal", &self.principal),
            ("action", &self.action),
            ("saga", &self.saga),
            ("key", &self.key),
            ("outcome", &self.outcome),
            ("status", &status),
            ("since", &self.since),
            ("until", &self.until),
        ];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.clone()?)));
        given.collect()
    }
}

/// Prints everything; lines as they come, and what is one document when it is whole.
fn all(
    arguments: &ListArguments,
    client: &Client,
    path: &str,
    query: &[(&str, String)],
) -> Result<(), Failure> {
    let filters = joined(query);
    let (mut items, mut after) = (Vec::new(), arguments.page.after().map(str::to_owned));
    loop {
        let cursor = after.as_deref().map(|after| format!("&after={}", escaped(after)));
        let cursor = cursor.unwrap_or_default();
        let mut page = client.get(&format!("{path}?limit={PAGE}{filters}{cursor}"))?;
        let found = page["items"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default();
        if arguments.output.format() == Format::Jsonl {
            found.iter().try_for_each(out::line)?;
            if out::is_unread() {
                return Ok(());
            }
        } else {
            items.extend(found);
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    if arguments.output.format() == Format::Jsonl {
        return Ok(());
    }
    arguments.output.list(COLUMNS, &json!({"items": items}))
}

const COLUMNS: &[Column] = &[
    Column::time("TIME", "/time"),
    Column::told("WHO", who),
    Column::told("ACTION", action),
    Column::value("TENANT", "/tenant"),
    Column::told("TARGET", target),
    Column::value("OUTCOME", "/outcome").judged(judged),
    Column::number("STATUS", "/status"),
    Column::value("REASON", "/reason"),
    Column::value("CODE", "/code").wide(),
    Column::value("ROLE", "/role").wide(),
    Column::value("PEER", "/peer").wide(),
    Column::value("DRY RUN", "/dry_run").wide(),
    Column::value("REQUEST", "/request_id").wide(),
    Column::value("TRACE", "/trace_id").wide(),
    Column::value("PROCESS", "/process").wide(),
    Column::value("ENDPOINT", "/endpoint").wide(),
    Column::value("ID", "/id").wide(),
];

fn who(item: &Value) -> String {
    let named = item["principal"].as_str().or_else(|| item["by"].as_str());
    named.unwrap_or_default().to_owned()
}

/// `jobs.start`, or `jobs.start (dry run)`
fn action(item: &Value) -> String {
    let action = item["action"].as_str().unwrap_or_default();
    let note = if item["dry_run"] == true { " (dry run)" } else { "" };
    format!("{action}{note}")
}

/// `key=o-1 saga=order`
fn target(item: &Value) -> String {
    let things = item["target"].as_object().into_iter().flatten();
    let things: Vec<String> = things
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    things.join(" ")
}

fn judged(outcome: &str) -> Mood {
    match outcome {
        "done" | "accepted" => Mood::Good,
        "refused" => Mood::Waiting,
        "failed" | "unanswered" => Mood::Bad,
        _ => Mood::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_who_did_what_to_which_instance() {
        let item = json!({
            "time": "2026-11-26T03:00:00Z", "by": "bob", "action": "instances.kill", "tenant": "acme",
            "target": {"saga": "order", "key": "o-1"}, "outcome": "accepted", "status": 202, "reason": "enough",
        });
        let table = OutputArguments::default().table(COLUMNS, &[item]);
        for cell in [
            "bob",
            "instances.kill",
            "acme",
            "key=o-1 saga=order",
            "accepted",
            "202",
            "enough",
        ] {
            assert!(table.contains(cell), "{cell}: {table}");
        }
        assert!(!table.contains("dry run"), "{table}");
    }

    #[test]
    fn the_table_marks_dry_runs() {
        let item = json!({
            "time": "2026-11-26T03:00:00Z", "by": "bob", "action": "jobs.start", "dry_run": true,
            "target": {"filter": "{\"phase\":\"failed\"}", "verb": "delete"}, "outcome": "done", "status": 200,
        });
        let table = OutputArguments::default().table(COLUMNS, &[item]);
        for cell in [
            "jobs.start (dry run)",
            "filter={\"phase\":\"failed\"} verb=delete",
        ] {
            assert!(table.contains(cell), "{cell}: {table}");
        }
    }
}
