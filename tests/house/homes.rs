//! What only some places of production code do, each with its reason: unsafe code, time and chance, tasks, changes of rows.

use std::collections::BTreeSet;
use std::fs;

use crate::architecture::{production_lines, root, rust_files};

#[test]
fn the_interpreter_of_programs_is_named_in_one_module() {
    let named: BTreeSet<String> = production_lines()
        .into_iter()
        .filter(|(_, _, line)| line.contains("wasmi::"))
        .map(|(_, file, _)| file)
        .collect();
    assert_eq!(named, BTreeSet::from(["language/program/engine.rs".to_owned()]));
}

/// What makes a queue that never says that it is full.
#[test]
fn every_queue_of_production_code_is_bounded() {
    let makes = [
        "unbounded_channel",
        "mpsc::channel()",
        "unbounded()",
        "async_channel::unbounded",
    ];
    let has = |line: &str| makes.iter().any(|call| line.contains(call));
    only_in(&[], has, "bound the queue");
}

#[test]
fn unsafe_code_has_its_homes() {
    let homes: Vec<String> = rust_files(&root())
        .into_iter()
        .filter(|path| !path.starts_with(root().join("target")) && !path.ends_with("tests/house/homes.rs"))
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.contains("unsafe_code")))
        .map(|path| {
            path.strip_prefix(root())
                .expect("below the root")
                .display()
                .to_string()
        })
        .collect();
    // Transactions, and an option of the allocator (ADR 218).
    assert_eq!(homes, ["src/main.rs", "src/mdbx/raw.rs"]);
}

/// Adapters that wait on sockets measure by tokio's clock: the timers that end their waits go by it, and nothing that is
/// stored or sent depends on it.
const SOCKETS: &str = "waits on a socket";
const BENCH: &str = "a measurement";

/// What asks for the time beside the clock's port, and why.
const WATCHES: &[(&str, &str)] = &[
    ("app/bench/drive.rs", BENCH),
    ("app/bench/raw.rs", BENCH),
    ("app/bench/usage.rs", BENCH),
    ("app/clock.rs", "the port"),
    ("demo/orders.rs", "the demo"),
    ("effects/grpc/mod.rs", SOCKETS),
    ("effects/http/mod.rs", SOCKETS),
    ("effects/http/oauth2.rs", SOCKETS),
    ("effects/http/pool.rs", SOCKETS),
    ("effects/smtp/conversation.rs", SOCKETS),
    ("effects/smtp/mod.rs", SOCKETS),
    ("effects/sql/connect.rs", SOCKETS),
    ("effects/sql/database.rs", SOCKETS),
    ("effects/sql/mod.rs", SOCKETS),
    ("effects/sql/transaction.rs", SOCKETS),
    ("nats/buckets.rs", SOCKETS),
    ("nats/mod.rs", SOCKETS),
    ("nats/pull.rs", SOCKETS),
    ("nats/push.rs", SOCKETS),
    ("nats/reader.rs", SOCKETS),
];

/// What draws lots beside the port of randomness, and why.
const DICE: &[(&str, &str)] = &[
    (
        "api/auth/tokens.rs",
        "a token, drawn by the command line for whoever is to use it",
    ),
    ("api/requests.rs", "the id of a request that its client gave none"),
    (
        "api/trace.rs",
        "the id of a trace that the request did not name; nothing is decided by it",
    ),
    ("app/conformance/stage.rs", "names of a stage that is thrown away"),
    ("app/randomness.rs", "the port"),
    (
        "effects/sql/relay.rs",
        "the name of a folder that ends with its connection",
    ),
    ("language/planted.rs", "which bug is planted, in tests"),
    ("nats/link.rs", "spreads reconnects"),
];

#[test]
fn time_and_chance_come_through_their_ports() {
    let any_of = |calls: [&'static str; 2]| move |line: &str| calls.iter().any(|call| line.contains(call));
    let asks = any_of(["Instant::now(", "SystemTime::now("]);
    only_in(WATCHES, asks, "use ports::clock, or say why not");
    let draws = any_of(["Uuid::new_v4(", "RandomState::new("]);
    only_in(DICE, draws, "use ports::randomness, or say why not");
}

/// These files and no others have such a production line.
fn only_in(files: &[(&str, &str)], has: impl Fn(&str) -> bool, otherwise: &str) {
    let lines = production_lines().into_iter().filter(|(_, _, line)| has(line));
    let found: BTreeSet<String> = lines.map(|(_, file, _)| file).collect();
    let known: BTreeSet<String> = files.iter().map(|(file, _)| (*file).to_owned()).collect();
    let strays: Vec<_> = found.difference(&known).collect();
    let stale: Vec<_> = known.difference(&found).collect();
    assert!(strays.is_empty(), "{otherwise}: {strays:?}");
    assert!(stale.is_empty(), "they do no such thing: {stale:?}");
}

/// What begins tasks and threads by itself, and why nobody has to notice their end.
const SPAWNERS: &[(&str, &str)] = &[
    (
        "api/connections.rs",
        "ends with its connection, whose client sees it",
    ),
    (
        "api/forwarding/answer.rs",
        "ends with its answer, which the process that asked waits for",
    ),
    ("app/bench/raw.rs", "a measurement that waits for it"),
    (
        "app/running.rs",
        "the drain of a worker that was replaced, whose end is looked at",
    ),
    ("demo/upstream.rs", "the demo"),
    (
        "effects/http/pool.rs",
        "a call that wants an idle connection looks at it itself",
    ),
    (
        "effects/sql/database.rs",
        "deletes old rows once, and the next one does it again",
    ),
    (
        "effects/sql/relay.rs",
        "ends with its connection, whose call sees it",
    ),
    (
        "inproc/mod.rs",
        "the writer's end breaks all readers and publications, that of a read its question",
    ),
    ("inproc/queue.rs", "reads a page, and its end breaks the queue"),
    ("inproc/reader.rs", "reads a page, and its end breaks the reader"),
    ("language/expr/parse.rs", "a scope that waits for it"),
    (
        "nats/batch.rs",
        "its end breaks its publications, and the next one begins another",
    ),
    (
        "nats/link.rs",
        "after its end no other connection is used, and readiness tells",
    ),
    (
        "outbox/relay.rs",
        "a call of the worker at home, whose end the relay looks at",
    ),
    ("tasks/mod.rs", "the one way"),
    ("worker/running.rs", "what is begun again after a panic anyway"),
    ("worker/source.rs", "a command in hand, whose end is looked at"),
];

#[test]
fn tasks_and_threads_are_begun_where_a_panic_is_noticed() {
    let begins = [".spawn(", "::spawn(", "spawn_blocking(", "thread::Builder"];
    let is_begun_by_tasks = |line: &str| line.contains(".spawn(Task::") || line.contains(".spawn()");
    let has = |line: &str| begins.iter().any(|call| line.contains(call)) && !is_begun_by_tasks(line);
    only_in(SPAWNERS, has, "use crate::tasks, or say why not");
}

/// Gives a partition in memory what it cannot know from the history of one instance.
const REPLAYED: &str = "offline/world/recorded.rs";

/// Nobody but the machine of a partition changes its rows: others tell it what is to be done within their transaction.
#[test]
fn rows_of_a_partition_are_changed_by_its_machine_alone() {
    let begins = [
        "put_", "delete_", "begin_", "forget_", "change_", "prune_", "end(", "reopen(",
    ];
    let changes = |line: &str| {
        let mut calls = line.split("batch.").skip(1);
        calls.any(|call| begins.iter().any(|begin| call.starts_with(begin)))
    };
    let strays: Vec<String> = production_lines()
        .into_iter()
        .filter(|(layer, file, line)| !layer.starts_with("partition") && file != REPLAYED && changes(line))
        .map(|(_, file, line)| format!("{file}: {line}"))
        .collect();
    assert!(strays.is_empty(), "{}", strays.join("\n"));
    assert!(changes("            batch.put_halt(stream, None)?;"));
}
