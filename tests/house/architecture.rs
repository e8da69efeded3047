//! The house rules that a compiler does not check: which layer may name which, what only one place does, and that
//! the code map of ARCHITECTURE.md names what is there. Homes of dependencies: `dependencies.rs`; sizes: `sizes.rs`;
//! the tables of ARCHITECTURE.md: `map.rs` and `glossary.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::dependencies::{HOMES, is_stray};

/// What each layer may import of the others, lower layers first: each imports only what stands before it here.
///
/// A layer is a crate, a module of the crate `runtime`, or a module of the runner.
pub const LAYERS: &[(&str, &[&str])] = &[
    ("language", &[]),
    ("kernel", &["language"]),
    ("partition", &["kernel"]),
    ("ports", &["kernel"]),
    ("telemetry", &[]),
    ("broker_clock", &["kernel", "ports"]),
    ("storage", &["kernel"]),
    ("tasks", &["ports", "telemetry"]),
    ("breakers", &["kernel", "ports", "telemetry"]),
    ("shard", &["kernel", "ports", "storage", "tasks", "telemetry"]),
    (
        "intake",
        &["kernel", "ports", "broker_clock", "shard", "tasks", "telemetry"],
    ),
    (
        "outbox",
        &["kernel", "ports", "shard", "breakers", "tasks", "telemetry"],
    ),
    ("worker", &["kernel", "ports", "breakers", "tasks", "telemetry"]),
    ("mdbx", &["kernel", "storage"]),
    ("files", &[]),
    ("clients", &["kernel", "files"]),
    ("effects", &["kernel", "ports", "breakers", "clients", "worker"]),
    ("gateway", &["kernel", "ports", "clients"]),
    ("inproc", &["kernel", "ports", "mdbx"]),
    ("nats", &["kernel", "ports", "files", "clients"]),
    ("api", &["kernel", "ports", "files", "clients", "telemetry"]),
    ("logging", &[]),
    ("otlp", &["clients", "telemetry"]),
    (
        "config",
        &[
            "kernel", "logging", "files", "clients", "gateway", "shard", "storage", "intake", "outbox",
            "effects", "nats", "inproc", "api",
        ],
    ),
    // What instances tell each other goes as the outbox writes it and the intake reads it (ADR 97).
    ("offline", &["kernel", "partition", "ports", "intake", "outbox"]),
    (
        "app",
        &[
            "kernel",
            "ports",
            "broker_clock",
            "storage",
            "mdbx",
            "shard",
            "intake",
            "outbox",
            "clients",
            "effects",
            "gateway",
            "inproc",
            "nats",
            "otlp",
            "config",
            "tasks",
            "telemetry",
            "api",
        ],
    ),
    ("demo", &["kernel", "ports", "app", "config"]),
    (
        "cli",
        &[
            "kernel", "ports", "clients", "config", "logging", "app", "demo", "gateway", "offline",
        ],
    ),
];

/// What runs a partition, module by module; a crate of its own (`crates/runtime/`).
pub const RUNTIME: &str = "runtime";

/// The layers whose crates that one may name.
pub const BELOW_RUNTIME: &[&str] = &["kernel", "partition"];

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the source") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Files of each layer with their text, by layer; each named `<layer>/<path>`, or `<layer>.rs`.
pub fn layers() -> BTreeMap<String, Vec<(String, String)>> {
    let mut layers: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let runtime = Path::new("crates").join(RUNTIME).join("src");
    for folder in [Path::new("src"), Path::new("crates"), &runtime] {
        let folder = root().join(folder);
        for path in rust_files(&folder) {
            let relative = path.strip_prefix(&folder).expect("below the folder");
            let is_module = folder.ends_with(&runtime) && !relative.ends_with("lib.rs");
            let is_below = relative.components().count() > 1 && !relative.starts_with(RUNTIME);
            if !is_below && !is_module {
                continue;
            }
            let layer = relative.components().next().expect("counted").as_os_str();
            let layer = Path::new(layer).with_extension("");
            let text = fs::read_to_string(&path).expect("readable");
            layers
                .entry(layer.display().to_string())
                .or_default()
                .push((relative.display().to_string().replacen("/src/", "/", 1), text));
        }
    }
    layers
}

/// Whether a layer is a crate of its own, so that its imports are those of its manifest.
fn is_crate(layer: &str) -> bool {
    root().join("crates").join(layer).exists()
}

/// Where a layer is, from the root.
pub fn home(layer: &str) -> String {
    let runtime = format!("crates/{RUNTIME}/src/{layer}");
    if is_crate(layer) {
        format!("crates/{layer}/")
    } else if root().join(&runtime).exists() {
        format!("{runtime}/")
    } else if root().join(&runtime).with_extension("rs").exists() {
        format!("{runtime}.rs")
    } else {
        format!("src/{layer}/")
    }
}

/// Whether a file holds tests only.
pub fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("/tests/")
}

/// The lines of a file without its unit tests.
///
/// A test item reaches from its `#[cfg(test)]` in column 0 to a line in column 0 that ends with `;` or begins with `}`:
/// braces inside of strings forbid counting them, and rustfmt leaves nothing else there.
pub fn without_tests(text: &str) -> Vec<&str> {
    let mut in_test = false;
    let mut kept = Vec::new();
    for line in text.lines() {
        let at_margin = line.starts_with(|c: char| !c.is_whitespace());
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            in_test = true;
        } else if in_test {
            let is_attribute = line.starts_with("#[") || line.starts_with("//");
            let ends = line.ends_with(';') || line.starts_with('}') || line.ends_with("{}");
            in_test = is_attribute || !(at_margin && ends);
        } else {
            kept.push(line);
        }
    }
    kept
}

/// The lines of a file without its unit tests and comments.
pub fn production(text: &str) -> Vec<&str> {
    let mut lines = without_tests(text);
    lines.retain(|line| !line.trim_start().starts_with("//"));
    lines
}

/// The production lines of all files of all layers, each with its file.
pub fn production_lines() -> Vec<(String, String, String)> {
    let mut lines = Vec::new();
    for (layer, files) in layers() {
        for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
            for line in production(text) {
                lines.push((layer.clone(), file.clone(), line.trim().to_owned()));
            }
        }
    }
    lines
}

/// Whether `line` names the crate or module `name`, as the first part of a path.
pub fn names(line: &str, name: &str) -> bool {
    let needle = format!("{name}::");
    line.match_indices(&needle)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'))
}

#[test]
fn the_tests_of_a_file_are_left_out_and_nothing_else_of_it() {
    let text = "use a;\n#[cfg(test)]\nmod tests;\nuse b;\n#[cfg(test)]\n#[path = \"x.rs\"]\nmod more {\n    use c;\n}\n// d\nuse e;\n#[cfg(test)]\nuse f::{\n    g,\n};\nfn h() {}\n";
    assert_eq!(production(text), ["use a;", "use b;", "use e;", "fn h() {}"]);
}

/// A line that breaks a rule is put into each file in turn: at its head, behind its `mod tests;`, and at its end.
#[test]
fn a_violation_is_found_in_each_file_wherever_it_is_planted() {
    for (layer, files) in layers() {
        let above = LAYERS
            .iter()
            .map(|(name, _)| format!("use crate::{name}::Planted;"));
        let of_ours: Vec<String> = above.filter(|line| is_upward(&layer, line)).collect();
        let stray = HOMES.iter().find(|(_, homes)| !homes.contains(&layer.as_str()));
        let (stray, _) = stray.expect("no layer names everything");
        let mut planted = vec![format!("use {stray}::Planted;")];
        planted.extend(of_ours.into_iter().next());
        if layer == "kernel" {
            planted.push("let now = SystemTime::now();".to_owned());
        }
        for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
            for line in &planted {
                let mut places = vec![format!("{line}\n{text}"), format!("{text}\n{line}\n")];
                if let Some((before, after)) = text.split_once("\nmod tests;\n") {
                    places.push(format!("{before}\nmod tests;\n{line}\n{after}"));
                }
                for text in places {
                    let found = production(&text).into_iter().filter(|found| found == line);
                    let breaks = |line: &&str| {
                        is_upward(&layer, line) || is_stray(&layer, line) || is_impure(&layer, line)
                    };
                    assert_eq!(found.filter(breaks).count(), 1, "{file}: {line} is not found");
                }
            }
        }
    }
}

#[test]
fn the_layers_have_an_order() {
    for (at, (layer, allowed)) in LAYERS.iter().enumerate() {
        let lower: BTreeSet<&str> = LAYERS[..at].iter().map(|(name, _)| *name).collect();
        let upper: Vec<_> = allowed.iter().filter(|name| !lower.contains(*name)).collect();
        assert!(
            upper.is_empty(),
            "{layer} may import {upper:?}, which stand beside or above it"
        );
    }
}

/// The layers that a simulation runs as they are, on one thread.
const SIMULATED: &[&str] = &[
    "breakers", "shard", "intake", "outbox", "worker", "clients", "effects", "tasks", "app",
];

#[test]
fn simulated_code_draws_no_random_numbers_of_its_own() {
    let mut faults = Vec::new();
    for (layer, files) in layers() {
        if !SIMULATED.contains(&layer.as_str()) {
            continue;
        }
        for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
            // Signals and providers are not simulated.
            let is_real = [
                "lifecycle.rs",
                "/sql/",
                "/http/",
                "/grpc/",
                "/smtp/",
                "/bench/",
                "/conformance/",
            ];
            if is_real.iter().any(|real| file.contains(real)) {
                continue;
            }
            let lines = production(text);
            for (at, line) in lines.iter().enumerate() {
                let is_biased = lines.get(at + 1).is_some_and(|next| next.trim() == "biased;");
                if line.contains("select! {") && !line.contains('}') && !is_biased {
                    faults.push(format!("{file}: a `select!` that is not biased"));
                }
                if line.contains("Uuid::new_v4") && !file.ends_with("app/randomness.rs") {
                    faults.push(format!(
                        "{file}: draws a name; it comes through ports::randomness"
                    ));
                }
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

/// A simulator that decided something itself would find its own faults, and miss the runner's.
#[test]
fn the_simulator_decides_nothing() {
    let theirs = [
        "Patch",
        "CommandId(",
        "Attempt {",
        "Piece {",
        "Phase::",
        "StepStatus::",
        "LedgerStatus::",
    ];
    let mut faults = Vec::new();
    for path in rust_files(&root().join("tests/simulator")) {
        let text = fs::read_to_string(&path).expect("readable");
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let named = theirs.iter().filter(|name| line.contains(*name));
            faults.extend(named.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn imports_point_inward() {
    let layers: BTreeSet<String> = layers().into_keys().collect();
    let ruled: BTreeSet<String> = LAYERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(layers, ruled, "each layer has a rule");
    let mut faults = Vec::new();
    for (layer, file, line) in production_lines() {
        if is_upward(&layer, &line) {
            faults.push(format!("{file}: {line}"));
        }
    }
    assert!(faults.is_empty(), "upward imports:\n{}", faults.join("\n"));
}

/// Whether the line of a layer names a layer that it may not import. The imports of a crate are those of its manifest.
fn is_upward(layer: &str, line: &str) -> bool {
    if is_crate(layer) {
        return false;
    }
    let (_, allowed) = LAYERS.iter().find(|(name, _)| *name == layer).expect("a rule");
    line.match_indices("crate::").any(|(at, _)| {
        let rest = line[at + 7..].chars();
        let name: String = rest.take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let is_known = LAYERS.iter().any(|(other, _)| *other == name);
        is_known && name != layer && !allowed.contains(&name.as_str())
    })
}

#[test]
fn the_interpreter_of_programs_is_named_in_one_module() {
    let named: BTreeSet<String> = production_lines()
        .into_iter()
        .filter(|(_, _, line)| line.contains("wasmi::"))
        .map(|(_, file, _)| file)
        .collect();
    assert_eq!(named, BTreeSet::from(["language/program/engine.rs".to_owned()]));
}

/// What the kernel does without.
const IMPURE: [&str; 11] = [
    "HashMap",
    "HashSet",
    "SystemTime",
    "Instant::now",
    "rand::",
    "async fn",
    ".await",
    "std::env",
    "std::fs",
    "std::net",
    "Timestamp::now",
];

fn is_impure(layer: &str, line: &str) -> bool {
    layer == "kernel" && IMPURE.iter().any(|banned| line.contains(banned))
}

#[test]
fn the_kernel_has_no_clock_no_chance_and_no_unordered_iteration() {
    let lines = production_lines().into_iter();
    let faults: Vec<String> = lines
        .filter(|(layer, _, line)| is_impure(layer, line))
        .map(|(_, file, line)| format!("{file}: {line}"))
        .collect();
    assert!(faults.is_empty(), "impure:\n{}", faults.join("\n"));
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
        .filter(|path| {
            !path.starts_with(root().join("target")) && !path.ends_with("tests/house/architecture.rs")
        })
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

#[test]
fn the_code_map_names_what_exists_and_all_of_it() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text
        .split("## Code map")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("a section called Code map");
    let named: Vec<&str> = section
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| {
            ["src/", "crates/", "tests/"]
                .iter()
                .any(|folder| name.starts_with(folder))
        })
        .collect();
    assert!(!named.is_empty(), "the code map names no path");
    for name in &named {
        assert!(
            root().join(name).exists(),
            "the code map names {name}, which does not exist"
        );
    }
    for layer in layers().keys() {
        let path = home(layer);
        assert!(
            named.contains(&path.as_str()),
            "the code map does not name {path}"
        );
    }
}

#[test]
fn every_error_code_has_its_page_and_every_page_its_code() {
    let mut used = BTreeSet::new();
    let files = ["src", "crates"].map(|folder| rust_files(&root().join(folder)));
    for path in files.into_iter().flatten() {
        let text = fs::read_to_string(&path).expect("readable");
        for (at, _) in text.match_indices("SR0") {
            let code: String = text[at..].chars().take(6).collect();
            if code.len() == 6 && code[2..].chars().all(|c| c.is_ascii_digit()) {
                used.insert(code);
            }
        }
    }
    let pages: BTreeSet<String> = fs::read_dir(root().join("docs/errors"))
        .expect("docs/errors")
        .filter_map(|entry| entry.expect("readable").file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
        .filter(|name| name.starts_with("SR"))
        .collect();
    let missing: Vec<_> = used.difference(&pages).collect();
    let stale: Vec<_> = pages.difference(&used).collect();
    assert!(missing.is_empty(), "codes without a page: {missing:?}");
    assert!(stale.is_empty(), "pages without a code: {stale:?}");
}
