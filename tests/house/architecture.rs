//! The house rules that a compiler does not check: which layer may name which, and that the code map of ARCHITECTURE.md names
//! what is there. What only one place does: `homes.rs`; homes of dependencies: `dependencies.rs`; sizes: `sizes.rs`; the tables of
//! ARCHITECTURE.md: `map.rs` and `glossary.rs`.

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
