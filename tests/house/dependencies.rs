//! Which layers may name which external crates, and what a simulation is built from.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::architecture::{BELOW_RUNTIME, LAYERS, RUNTIME, names, production_lines, root};

/// Crates that a simulation must not have to build or link.
const NOT_LINKED: &[&str] = &[
    "async-nats",
    "aws-lc-rs",
    "axum",
    "h2",
    "http",
    "hyper",
    "lettre",
    "libmdbx",
    "mdbx-sys",
    "reqwest",
    "rustls",
    "sqlx",
    "tonic",
];

/// The only layers that may name an external crate; none where only `src/main.rs` does.
pub const HOMES: &[(&str, &[&str])] = &[
    ("annotate_snippets", &["app"]),
    ("async_nats", &["nats"]),
    ("axum", &["api", "demo"]),
    ("backon", &["app", "intake", "outbox"]),
    (
        "blake3",
        &[
            "partition",
            "language",
            "kernel",
            "shard",
            "intake",
            "outbox",
            "worker",
            "effects",
            "inproc",
            "app",
        ],
    ),
    ("cel", &["language"]),
    ("clap", &["cli", "config", "demo"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("comfy_table", &["cli", "demo"]),
    ("crc32c", &["kernel", "partition", "mdbx", "intake", "inproc"]),
    ("dashmap", &["app"]),
    ("data_encoding", &["language", "kernel", "effects", "nats", "app"]),
    ("flate2", &["app", "effects"]),
    ("granit_parser", &["language"]),
    ("h2", &["clients", "effects"]),
    ("hdrhistogram", &["app"]),
    ("hmac", &["effects"]),
    ("http_body_util", &["effects"]),
    ("hyper", &["api", "effects"]),
    ("hyper_rustls", &["effects"]),
    ("hyper_util", &["api", "clients", "effects"]),
    ("idna", &["effects"]),
    ("ipnet", &["worker"]),
    (
        "jiff",
        &["cli", "language", "kernel", "effects", "nats", "app", "offline"],
    ),
    ("jsonwebtoken", &["api"]),
    ("lettre", &["effects"]),
    ("libmdbx", &["mdbx"]),
    ("mdbx_sys", &["mdbx"]),
    ("lz4_flex", &["partition"]),
    ("libmimalloc_sys", &[]),
    ("mimalloc", &[]),
    ("moka", &["worker", "effects"]),
    ("nix", &["app"]),
    ("nkeys", &["nats"]),
    ("opentelemetry_proto", &["otlp"]),
    ("postcard", &["kernel", "partition", "inproc", "offline"]),
    ("procfs", &["app"]),
    ("prometheus", &["telemetry"]),
    ("prost", &["effects", "gateway", "otlp"]),
    ("prost_reflect", &["language", "effects"]),
    ("regex", &["language"]),
    (
        "reqwest",
        &["clients", "effects", "gateway", "api", "otlp", "cli", "demo"],
    ),
    ("rustls", &["api", "clients", "app", "effects"]),
    ("rustls_platform_verifier", &["clients"]),
    ("serde_bytes", &["kernel", "partition"]),
    ("serde_saphyr", &["cli", "config", "effects", "offline"]),
    ("sha2", &["language", "effects", "api"]),
    ("similar", &["cli"]),
    ("socket2", &["effects"]),
    ("sqlx", &["effects"]),
    (
        "tokio",
        &[
            "tasks", "shard", "intake", "outbox", "worker", "effects", "gateway", "inproc", "nats", "api",
            "app", "cli", "demo",
        ],
    ),
    ("tokio_rustls", &["api"]),
    (
        "tokio_util",
        &["intake", "outbox", "worker", "effects", "api", "app"],
    ),
    ("tonic", &["clients", "effects", "gateway"]),
    ("tonic_prost", &["gateway"]),
    ("tonic_reflection", &["effects"]),
    ("tonic_types", &["effects"]),
    ("tower", &["clients", "effects"]),
    ("tower_http", &["api"]),
    (
        "tracing",
        &[
            "tasks",
            "partition",
            "shard",
            "intake",
            "outbox",
            "breakers",
            "worker",
            "clients",
            "effects",
            "inproc",
            "nats",
            "api",
            "app",
            "demo",
        ],
    ),
    ("tracing_subscriber", &["logging"]),
    ("ureq_proto", &["effects"]),
    (
        "uuid",
        &["language", "kernel", "worker", "effects", "gateway", "api", "app"],
    ),
    ("wasmi", &["language"]),
    ("webpki", &["api"]),
];

/// Dependencies that any layer may name.
const EVERYWHERE: &[&str] = &[
    "async_trait",
    "bytes",
    "futures",
    "serde",
    "serde_json",
    "thiserror",
];

/// The dependencies of a manifest that production code may use, by the names that code knows.
fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(manifest).expect("a manifest");
    let section = text.split("\n[dependencies]\n").nth(1).expect("a section");
    let section = section.split("\n[").next().expect("its end");
    let name = |line: &str| Some(line.split_once(['.', ' '])?.0.replace('-', "_"));
    section
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(name)
        .collect()
}

/// The manifests of the workspace, by crate; that of the runner without one.
fn manifests() -> Vec<(Option<String>, PathBuf)> {
    let mut manifests = vec![(None, root().join("Cargo.toml"))];
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let folder = entry.expect("readable").path();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        manifests.push((Some(name), folder.join("Cargo.toml")));
    }
    manifests
}

/// Whether the line of a layer names a crate that has its home elsewhere.
pub fn is_stray(layer: &str, line: &str) -> bool {
    HOMES
        .iter()
        .any(|(name, homes)| !homes.contains(&layer) && names(line, name))
}

#[test]
fn each_external_dependency_has_its_home() {
    let mut faults = Vec::new();
    for (layer, file, line) in production_lines() {
        if is_stray(&layer, &line) {
            faults.push(format!("{file}: {line}"));
        }
    }
    assert!(faults.is_empty(), "strays:\n{}", faults.join("\n"));
}

#[test]
fn each_dependency_of_a_manifest_is_listed_with_its_home() {
    let listed: BTreeSet<String> = HOMES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let everywhere: BTreeSet<String> = EVERYWHERE.iter().map(|name| (*name).to_owned()).collect();
    let both: Vec<_> = listed.intersection(&everywhere).collect();
    assert!(both.is_empty(), "either a home or everywhere: {both:?}");
    let mut used = BTreeSet::new();
    for (_, manifest) in manifests() {
        used.extend(dependencies(&manifest));
    }
    used.retain(|name| !name.starts_with("saga_runner_"));
    assert_eq!(&listed | &everywhere, used);
}

#[test]
fn a_crate_depends_on_the_layers_below_it_only() {
    for (name, manifest) in manifests() {
        let Some(name) = name else { continue };
        let allowed = LAYERS.iter().find(|(layer, _)| *layer == name);
        let allowed = match (allowed, &*name) {
            (Some((_, allowed)), _) => *allowed,
            (None, RUNTIME) => BELOW_RUNTIME,
            (None, other) => panic!("{other} has no rule"),
        };
        let allowed: BTreeSet<String> = allowed.iter().map(|name| format!("saga_runner_{name}")).collect();
        let mut ours = dependencies(&manifest);
        ours.retain(|name| name.starts_with("saga_runner_"));
        assert_eq!(ours, allowed, "{name}");
    }
}

/// Names of the packages that a package is built from, with those of its features that the workspace turns on.
fn built_from(package: &str) -> BTreeSet<String> {
    let output = std::process::Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
        ])
        .args(["--format", "{p}", "--package", package])
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("names");
    let name = |line: &str| line.split(' ').next().map(str::to_owned);
    text.lines().filter_map(name).collect()
}

#[test]
fn crates_of_the_simulator_have_no_protocol_and_no_storage() {
    let all = built_from("saga-runner");
    let unknown: Vec<_> = NOT_LINKED.iter().filter(|name| !all.contains(**name)).collect();
    assert!(unknown.is_empty(), "nobody depends on {unknown:?}");
    let linked = built_from("saga-runner-runtime");
    assert!(linked.contains("tokio"), "{linked:?}");
    let found: Vec<_> = NOT_LINKED.iter().filter(|name| linked.contains(**name)).collect();
    assert!(found.is_empty(), "crates/runtime links {found:?}");
}
