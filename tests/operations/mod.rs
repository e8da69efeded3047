//! Every operation of the HTTP API and every command of the command line, each in a case of its own, against processes that run.
//!
//! There is one scene ([`scene`]): a real nats-server, a runner of mode `combined` that has the shards, and one of mode `effect` that has
//! none. Each request below `/v1`, and each command about the cluster, goes to the one that has none, where it can answer. The cases are rows
//! of tables, in the order in which they are tried. A case sends its request, with the path that docs/openapi.json has, or runs its command, and
//! looks at what that has done. Each answer is compared with the document, too. A row that is missing, or is of nothing, fails.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod api;
mod case;
mod cli;
mod definitions;
mod scene;
mod shards;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

use self::case::{Case, Turn};
use self::scene::Scene;
use crate::api::generated::document::Operation;

/// In the order in which they are tried: at the end the processes drain.
const TABLES: [&[Case]; 10] = [
    api::process::CASES,
    api::questions::CASES,
    api::instances::CASES,
    api::decisions::CASES,
    api::jobs::CASES,
    api::versions::CASES,
    cli::instances::CASES,
    cli::many::CASES,
    cli::process::CASES,
    shards::CASES,
];
/// Cases that have failed, after which no more are tried: a scene that is broken fails them all, each after a minute.
const FAILED_MAX: usize = 5;

/// The names of operations, `GET /live`, or else those of commands, `instance pause`.
fn names(of_operations: bool) -> Vec<&'static str> {
    let cases = TABLES.iter().copied().flatten();
    let names = cases.map(|case| case.name);
    names
        .filter(|name| name.contains(" /") == of_operations)
        .collect()
}

/// Asserts that a list of names is this set, and has none twice.
fn assert_covers(mut tested: Vec<&str>, known: &BTreeSet<String>) {
    tested.sort_unstable();
    let found: BTreeSet<String> = tested.iter().map(|name| (*name).to_owned()).collect();
    let missing: Vec<_> = known.difference(&found).collect();
    let unknown: Vec<_> = found.difference(known).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "no case: {missing:?}; a case of nothing: {unknown:?}"
    );
    let twice: Vec<_> = tested.windows(2).filter(|two| two[0] == two[1]).collect();
    assert!(twice.is_empty(), "two cases: {twice:?}");
}

#[test]
fn every_operation_of_the_document_has_a_case_and_every_case_an_operation() {
    let document = scene::document();
    let known: BTreeSet<String> = document.operations.iter().map(Operation::name).collect();
    assert!(known.len() > 70, "{known:?}");
    assert_covers(names(true), &known);
}

/// The commands that have no commands below them.
fn leaves(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    for inner in command.get_subcommands() {
        let path = format!("{path} {}", inner.get_name()).trim().to_owned();
        if inner.has_subcommands() {
            leaves(inner, &path, found);
        } else {
            found.insert(path);
        }
    }
}

#[test]
fn every_command_has_a_case_and_every_case_a_command() {
    let mut known = BTreeSet::new();
    leaves(&saga_runner::cli::description(), "", &mut known);
    assert!(known.len() > 80, "{known:?}");
    let alone = crate::cli::alone::CASES.iter().map(|(name, _)| *name);
    assert_covers(names(false).into_iter().chain(alone).collect(), &known);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_and_every_command_does_what_its_description_says_on_nats() {
    let scene = Scene::start().await;
    let mut failed = Vec::new();
    for case in TABLES.iter().copied().flatten() {
        // The last one that is printed is the one that a failure is of.
        println!("{}", case.name);
        let turn = Turn {
            scene: &scene,
            name: case.name,
        };
        let outcome = AssertUnwindSafe((case.test)(turn)).catch_unwind().await;
        // One that neither asks nor runs anything shows nothing.
        if outcome.is_err() || !scene.is_done(case.name) {
            failed.push(case.name);
        }
        if failed.len() == FAILED_MAX {
            break;
        }
    }
    assert!(failed.is_empty(), "{failed:?} failed:\n{}", scene.logs().await);
}
