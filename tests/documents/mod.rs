//! Every command that the documents show is run, in the order of its page, on a scene that is as the page says.

#![allow(clippy::disallowed_methods, reason = "waits for processes in real time")]

mod adopted;
mod local;
mod requests;
mod shop;
mod stage;
mod streams;

use serde_json::{Value, json};

use crate::support::shell_blocks::{Shown, all};

/// Where a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// A folder with files, and processes that the page starts itself.
    Local,
    /// A runner that asks for tokens.
    Tokens,
    /// A cluster at work, with orders that have ended, have failed, are stuck, or are blocked by dead letters.
    Shop,
    /// One whose stream of events loses messages.
    Streams,
    /// One that loses the folders of shards.
    Adopted,
}

const RELEASE: &str = "a release takes minutes to build; tests/house/packaging.rs makes one";

/// Commands that no test runs, by their first words, each with the reason.
const NOT_RUN: [(&str, &str); 11] = [
    (
        "make",
        "builds for minutes, or runs the tests; tests/house/command_lines.rs compares the goals with the Makefile",
    ),
    (
        "docker",
        "needs a container engine; scripts/try-image.sh runs what the image holds",
    ),
    ("kubectl", "needs a Kubernetes cluster"),
    (
        "helm",
        "needs a Kubernetes cluster; tests/house/deploy.rs reads the chart",
    ),
    (
        "systemctl",
        "changes the machine; tests/house/deploy.rs checks the unit",
    ),
    ("journalctl", "needs the unit to be installed"),
    ("cd target/dist", RELEASE),
    ("sha256sum --check SHA256SUMS", RELEASE),
    (
        "openssl",
        "looks at the reader's certificate, and not every machine has it",
    ),
    ("npm", "fetches packages"),
    (
        "saga-runner effect conformance",
        "checks the reader's worker; tests/workers/mod.rs runs it with those of the packages",
    ),
];

/// Commands that need a scene of their own, by words in them, on any page.
const BY_COMMAND: [(&str, Scene); 11] = [
    ("shard accept-gap", Scene::Streams),
    ("shard rebind", Scene::Streams),
    ("shard close", Scene::Streams),
    ("shard open", Scene::Streams),
    ("shard backup", Scene::Adopted),
    ("shard restore", Scene::Adopted),
    ("shard pending", Scene::Adopted),
    ("shard discard", Scene::Adopted),
    ("shard release", Scene::Adopted),
    ("--adopt-loss", Scene::Adopted),
    ("run --config saga-runner.yaml", Scene::Adopted),
];

/// Pages that do not speak of the cluster at work, as all others do.
const BY_PAGE: [(&str, Scene); 6] = [
    ("README.md", Scene::Local),
    ("docs/first-order.md", Scene::Local),
    ("docs/guide.md", Scene::Local),
    ("examples/programs/README.md", Scene::Local),
    ("docs/errors/SR0413.md", Scene::Tokens),
    ("docs/errors/SR0512.md", Scene::Tokens),
];

/// Exit codes other than 0, as the pages say: page, command, code.
const EXITS: [(&str, &str, i32); 2] = [
    // The owner that is given up has to be named first.
    (
        "docs/operations.md",
        "saga-runner run --config saga-runner.yaml",
        78,
    ),
    // An instance is refused.
    (
        "docs/operations.md",
        "saga-runner definition migrate order --dry-run",
        1,
    ),
];

fn is_not_run(shown: &Shown) -> bool {
    NOT_RUN.iter().any(|(words, _)| shown.begins(words))
}

/// The scene that runs a command; none where no test knows it, or none can run it.
fn scene(shown: &Shown) -> Option<Scene> {
    if is_not_run(shown) {
        return None;
    }
    let text = shown.text();
    let by_command = BY_COMMAND.iter().find(|(words, _)| text.contains(words));
    let by_page = BY_PAGE.iter().find(|(page, _)| *page == shown.page);
    match shown.program() {
        "install" | "cp" | "sed" => Some(Scene::Local),
        "saga-runner" | "curl" | "cd" => {
            let own = by_command.or(by_page);
            Some(own.map_or(Scene::Shop, |(_, scene)| *scene))
        }
        "nats" if shown.begins("nats kv get") => Some(Scene::Shop),
        _ => None,
    }
}

/// What a command exits with.
fn exit(shown: &Shown) -> i32 {
    let is_it = |(page, command, _): &&(&str, &str, i32)| *page == shown.page && *command == shown.text();
    EXITS.iter().find(is_it).map_or(0, |(.., code)| *code)
}

/// The commands of a scene, page by page: of these pages first, of those last, and of all others between them.
fn pages_of(wanted: Scene, first: &[&str], last: &[&str]) -> Vec<(String, Vec<Shown>)> {
    let mut pages: Vec<(String, Vec<Shown>)> = Vec::new();
    for shown in all().into_iter().filter(|shown| scene(shown) == Some(wanted)) {
        if pages.last().is_none_or(|(page, _)| *page != shown.page) {
            pages.push((shown.page.clone(), Vec::new()));
        }
        if let Some((_, commands)) = pages.last_mut() {
            commands.push(shown);
        }
    }
    let place = |page: &str, list: &[&str]| list.iter().position(|other| *other == page);
    pages.sort_by_key(|(page, _)| {
        let at_the_end = place(page, last).map(|at| first.len() + 1 + at);
        place(page, first).or(at_the_end).unwrap_or(first.len())
    });
    assert!(!pages.is_empty(), "no page has a command for {wanted:?}");
    pages
}

/// What the event that places an order carries.
fn placed(key: &str) -> Value {
    json!({
        "order_id": key,
        "customer": {"id": "c-1"},
        "items": [{"sku": "tea-01", "qty": 2}],
        "total_cents": 1999,
        "currency": "EUR",
    })
}

#[test]
fn each_command_of_the_documents_is_run_or_listed_with_the_reason_against_it() {
    let all = all();
    assert!(all.len() > 100, "{} commands", all.len());
    let unknown = all
        .iter()
        .filter(|shown| !is_not_run(shown) && scene(shown).is_none());
    let unknown: Vec<String> = unknown
        .map(|shown| format!("{}: {}", shown.place(), shown.text()))
        .collect();
    assert!(
        unknown.is_empty(),
        "no test runs these commands; docs/testing.md, \"Commands in these pages\", tells how one does:\n{}",
        unknown.join("\n")
    );
    for (words, reason) in NOT_RUN {
        assert!(
            all.iter().any(|shown| shown.begins(words)),
            "no page shows {words:?} any more ({reason}): delete the row"
        );
    }
    for (page, command, _) in EXITS {
        assert!(
            all.iter()
                .any(|shown| shown.page == page && shown.text() == command),
            "{page} does not show {command:?} any more: delete the row"
        );
    }
    for (page, _) in BY_PAGE {
        assert!(
            all.iter().any(|shown| shown.page == page),
            "{page} shows no command any more: delete the row"
        );
    }
}

#[test]
fn commands_about_files_and_single_processes_do_as_their_pages_say() {
    local::play();
}

#[test]
fn commands_with_a_token_do_as_their_pages_say() {
    local::play_with_tokens();
}

#[test]
fn commands_to_a_cluster_at_work_do_as_their_pages_say() {
    shop::play();
}

#[test]
fn commands_about_lost_messages_do_as_their_pages_say() {
    streams::play();
}

#[test]
fn commands_about_lost_and_adopted_shards_do_as_their_pages_say() {
    adopted::play();
}
