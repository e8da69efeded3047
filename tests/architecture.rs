//! The house rules that a compiler does not check: which layer may name which, where each external dependency
//! lives, how large a module may grow, and that ARCHITECTURE.md describes what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What each layer may import of the others.
const LAYERS: &[(&str, &[&str])] = &[
    ("kernel", &[]),
    ("ports", &["kernel"]),
    ("telemetry", &["config"]),
    ("storage", &["kernel"]),
    ("shard", &["kernel", "ports", "storage", "telemetry"]),
    ("intake", &["kernel", "ports", "shard", "telemetry"]),
    ("clients", &["kernel", "ports", "telemetry"]),
    ("outbox", &["kernel", "ports", "shard", "clients", "telemetry"]),
    ("effects", &["kernel", "ports", "clients", "telemetry"]),
    ("gateway", &["kernel", "ports", "clients", "telemetry"]),
    ("inproc", &["kernel", "ports", "storage"]),
    ("nats", &["kernel", "ports"]),
    (
        "config",
        &[
            "kernel", "clients", "gateway", "shard", "storage", "intake", "outbox", "effects", "nats",
            "inproc",
        ],
    ),
    ("api", &["kernel", "ports"]),
    ("offline", &["kernel"]),
    (
        "app",
        &[
            "kernel",
            "ports",
            "storage",
            "shard",
            "intake",
            "outbox",
            "clients",
            "effects",
            "gateway",
            "inproc",
            "nats",
            "config",
            "telemetry",
            "api",
        ],
    ),
    (
        "cli",
        &[
            "kernel",
            "ports",
            "clients",
            "config",
            "telemetry",
            "app",
            "demo",
            "gateway",
            "offline",
        ],
    ),
    ("demo", &["kernel", "ports", "app", "cli", "config"]),
];

/// The only layers that may name an external crate.
const HOMES: &[(&str, &[&str])] = &[
    ("async_nats", &["nats"]),
    ("libmdbx", &["storage", "inproc"]),
    ("mdbx_sys", &["storage", "inproc"]),
    ("axum", &["api", "app", "demo"]),
    ("hyper", &["effects"]),
    ("ipnet", &["effects"]),
    ("flate2", &["effects"]),
    ("reqwest", &["effects", "gateway", "cli", "demo"]),
    ("rustls", &["clients", "app"]),
    ("sqlx", &["effects"]),
    ("prometheus", &["telemetry"]),
    ("clap", &["cli", "config", "demo"]),
    ("cel", &["kernel"]),
    ("wasmi", &["kernel"]),
    ("lettre", &["effects"]),
    ("idna", &["effects"]),
    ("prost", &["effects", "gateway"]),
    ("prost_reflect", &["kernel", "effects"]),
    ("tonic", &["clients", "effects", "gateway"]),
    ("tonic_prost", &["gateway"]),
    (
        "tokio",
        &[
            "shard", "intake", "outbox", "effects", "gateway", "inproc", "nats", "app", "cli", "demo",
        ],
    ),
];

/// No module swallows the centre, in lines.
const MODULE_LINES_MAX: usize = 700;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
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

/// Files below `src/<layer>/` with their text, by layer.
fn layers() -> BTreeMap<String, Vec<(String, String)>> {
    let src = root().join("src");
    let mut layers: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for path in rust_files(&src) {
        let relative = path.strip_prefix(&src).expect("below src");
        if relative.components().count() < 2 {
            continue;
        }
        let layer = relative.components().next().expect("counted").as_os_str();
        let text = fs::read_to_string(&path).expect("readable");
        layers
            .entry(layer.to_string_lossy().into_owned())
            .or_default()
            .push((relative.display().to_string(), text));
    }
    layers
}

/// Whether a file holds tests only.
fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("/tests/")
}

/// The text without its unit tests and comments.
fn production(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn imports_point_inward() {
    let mut faults = Vec::new();
    for (layer, files) in layers() {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            faults.push(format!("layer {layer} has no rule"));
            continue;
        };
        for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
            for line in production(text) {
                for (at, _) in line.match_indices("crate::") {
                    let name: String = line[at + 7..]
                        .chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect();
                    let known = LAYERS.iter().any(|(other, _)| *other == name);
                    if known && name != layer && !allowed.contains(&name.as_str()) {
                        faults.push(format!("{file}: {}", line.trim()));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "upward imports:\n{}", faults.join("\n"));
}

#[test]
fn each_external_dependency_has_its_home() {
    let mut faults = Vec::new();
    for (layer, files) in layers() {
        for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
            for (name, homes) in HOMES {
                let needle = format!("{name}::");
                let strays = |line: &&str| {
                    line.match_indices(&needle).any(|(at, _)| {
                        !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
                    })
                };
                if !homes.contains(&layer.as_str())
                    && let Some(line) = production(text).find(strays)
                {
                    faults.push(format!("{file}: {}", line.trim()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "strays:\n{}", faults.join("\n"));
}

#[test]
fn the_interpreter_of_programs_is_named_in_one_module() {
    let kernel = &layers()["kernel"];
    let named = kernel
        .iter()
        .filter(|(_, text)| production(text).any(|line| line.contains("wasmi::")));
    let files: Vec<&str> = named.map(|(file, _)| file.as_str()).collect();
    assert_eq!(files, ["kernel/program/engine.rs"]);
}

#[test]
fn the_kernel_has_no_clock_no_chance_and_no_unordered_iteration() {
    const BANNED: [&str; 11] = [
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
    let mut faults = Vec::new();
    for (file, text) in layers()["kernel"].iter().filter(|(file, _)| !is_test(file)) {
        for line in production(text) {
            if BANNED.iter().any(|banned| line.contains(banned)) {
                faults.push(format!("{file}: {}", line.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "impure:\n{}", faults.join("\n"));
}

#[test]
fn unsafe_code_has_one_home() {
    let homes: Vec<String> = rust_files(&root())
        .into_iter()
        .filter(|path| !path.starts_with(root().join("target")) && !path.ends_with("tests/architecture.rs"))
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.contains("allow(unsafe_code)")))
        .map(|path| {
            path.strip_prefix(root())
                .expect("below the root")
                .display()
                .to_string()
        })
        .collect();
    assert_eq!(homes, ["src/storage/raw.rs"]);
}

#[test]
fn no_module_swallows_the_centre() {
    let large: Vec<String> = rust_files(&root().join("src"))
        .into_iter()
        .filter(|path| !is_test(&path.display().to_string()))
        .filter_map(|path| {
            let lines = fs::read_to_string(&path).expect("readable").lines().count();
            (lines > MODULE_LINES_MAX).then(|| format!("{}: {lines} lines", path.display()))
        })
        .collect();
    assert!(large.is_empty(), "{}", large.join("\n"));
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
        .filter(|name| name.starts_with("src/") || name.starts_with("tests/"))
        .collect();
    assert!(!named.is_empty(), "the code map names no path");
    for name in &named {
        assert!(
            root().join(name).exists(),
            "the code map names {name}, which does not exist"
        );
    }
    for layer in layers().keys() {
        let path = format!("src/{layer}/");
        assert!(
            named.contains(&path.as_str()),
            "the code map does not name {path}"
        );
    }
}

#[test]
fn every_error_code_has_its_page_and_every_page_its_code() {
    let mut used = BTreeSet::new();
    for path in rust_files(&root().join("src")) {
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
