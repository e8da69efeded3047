//! The manual says what the code does: every key, series and table is in it, and every link leads somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::metrics::registering;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Where each section of the manifest is declared.
const SETTINGS: [(&str, &str, &str); 28] = [
    ("Top level", "src/config/manifest.rs", "Manifest"),
    ("`broker`", "src/config/manifest.rs", "BrokerSettings"),
    ("`broker.nats`", "src/nats/settings.rs", "Settings"),
    ("`broker.embedded`", "src/inproc/settings.rs", "Settings"),
    ("`streams`", "src/config/manifest/streams.rs", "StreamsSettings"),
    ("`streams`", "src/config/manifest/streams.rs", "EventsSettings"),
    ("`streams`", "src/config/manifest/streams.rs", "StreamSettings"),
    ("`streams`", "src/config/manifest/streams.rs", "AuditSettings"),
    ("`gateway`", "src/gateway/settings.rs", "Settings"),
    ("`gateway`", "src/clients/tls.rs", "UpstreamTlsFiles"),
    ("`callbacks`", "src/config/manifest.rs", "CallbackSettings"),
    ("`http`", "src/api/settings.rs", "Settings"),
    ("`http`", "src/api/tls.rs", "TlsSettings"),
    ("`http`", "src/api/auth/jwt/settings.rs", "JwtSettings"),
    ("`log`", "src/config/manifest.rs", "LogSettings"),
    ("`limits`", "crates/language/src/limits.rs", "Limits"),
    ("`shard`", "crates/runtime/src/shard/settings.rs", "Settings"),
    ("`storage`", "crates/runtime/src/storage/mod.rs", "Settings"),
    (
        "`storage`",
        "crates/runtime/src/storage/mod.rs",
        "ArchiveSettings",
    ),
    ("`intake`", "crates/runtime/src/intake/settings.rs", "Settings"),
    ("`relay`", "crates/runtime/src/outbox/settings.rs", "Settings"),
    (
        "`relay.breaker`",
        "crates/language/src/breaker.rs",
        "BreakerPolicy",
    ),
    ("`ownership`", "src/config/ownership.rs", "OwnershipSettings"),
    ("`jobs`", "src/config/jobs.rs", "JobSettings"),
    ("`telemetry`", "src/config/telemetry.rs", "TelemetrySettings"),
    ("`telemetry.otlp`", "src/config/telemetry.rs", "OtlpSettings"),
    ("`worker`", "crates/runtime/src/worker/settings.rs", "Settings"),
    ("`worker.egress`", "crates/runtime/src/worker/egress.rs", "Egress"),
];

/// Public fields of a struct, by the names that the manifest uses.
fn fields(file: &str, name: &str) -> Vec<String> {
    let text = read(file);
    let start = format!("pub struct {name} {{\n");
    let (_, rest) = text
        .split_once(&start)
        .unwrap_or_else(|| panic!("{file} declares no {name}"));
    let (body, _) = rest.split_once("\n}").expect("the struct ends");
    let names = body
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub "))
        .filter_map(|line| line.split_once(": "))
        .map(|(field, _)| match field {
            "api_version" => "apiVersion".to_owned(),
            field => field.to_owned(),
        });
    names.collect()
}

/// The text under a heading, up to the next one.
fn section<'t>(page: &'t str, title: &str) -> &'t str {
    let heading = format!("\n## {title}\n");
    let (_, rest) = page
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no section {title}"));
    rest.split("\n## ").next().unwrap_or(rest)
}

/// What stands between backticks in the first cells of a section's tables.
fn first_cells(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .flat_map(|key| key.split('.').map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn every_key_of_the_manifest_is_in_the_manual_and_no_other() {
    let page = read("docs/configuration.md");
    let sections: BTreeSet<&str> = SETTINGS.iter().map(|(title, ..)| *title).collect();
    for title in sections {
        let declared: BTreeSet<String> = SETTINGS
            .iter()
            .filter(|(section, ..)| *section == title)
            .flat_map(|(_, file, name)| fields(file, name))
            .collect();
        let mut told = first_cells(section(&page, title));
        if title == "Top level" {
            // Each of these has a section of its own.
            told.extend(
                SETTINGS
                    .iter()
                    .map(|(section, ..)| section.trim_matches('`').to_owned())
                    .filter(|section| declared.contains(section)),
            );
        }
        assert_eq!(told, declared, "docs/configuration.md, {title}");
    }
}

#[test]
fn every_settings_struct_is_held_against_the_manual() {
    let known: BTreeSet<&str> = SETTINGS.iter().map(|(_, file, _)| *file).collect();
    let folders = ["src", "crates/runtime/src"].map(|folder| files(&root().join(folder), "rs"));
    for file in folders.into_iter().flatten() {
        let text = std::fs::read_to_string(&file).expect("readable");
        let path = file.strip_prefix(root()).expect("below the root");
        let path = path.to_str().expect("a UTF-8 path");
        // The demo's upstream is no part of the manifest.
        let declares = text.contains("pub struct Settings {") && text.contains("Deserialize");
        if declares && !path.starts_with("src/demo/") {
            assert!(
                known.contains(path),
                "{path} declares settings that no test knows"
            );
        }
    }
}

#[test]
fn every_series_is_in_the_manual_and_no_other() {
    let code = registering();
    let words: Vec<&str> = code.split_whitespace().collect();
    let mut registered = BTreeSet::new();
    for pair in words.windows(2) {
        let call = pair[0].rsplit_once('(').map(|(call, _)| call);
        let name = pair[1]
            .strip_prefix('"')
            .and_then(|name| name.strip_suffix("\","));
        let makes = |call: &str| {
            [
                "counters",
                "counter",
                "gauges",
                "gauge",
                "histogram",
                "histograms",
            ]
            .contains(&call)
        };
        match (call, name, pair[0]) {
            (Some(call), Some(name), _) if makes(call) => {
                registered.insert(format!("saga_runner_{name}"));
            }
            (None, Some(name), "r,") => {
                registered.insert(format!("saga_runner_{name}"));
            }
            _ => {}
        }
    }
    let page = read("docs/operations.md");
    let (_, table) = page.split_once("| Series | Type |").expect("the table of series");
    let table = table.split("\n\n").next().expect("a table");
    let told: BTreeSet<String> = first_cells(table)
        .into_iter()
        .filter(|cell| cell.starts_with("saga_runner_"))
        .collect();
    assert!(registered.len() > 20, "{registered:?}");
    assert_eq!(told, registered);
    // What a text names elsewhere exists too.
    for page in ["docs/operations.md", "README.md", "docs/envelopes.md"] {
        for word in read(page).split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let named = word.starts_with("saga_runner_") && word != "saga_runner_";
            assert!(
                !named || registered.contains(word),
                "{page} names {word}, which does not exist"
            );
        }
    }
}

#[test]
fn every_table_is_in_the_manual_and_no_other() {
    let told = first_cells(section(&read("docs/formats.md"), "Tables"));
    let names = saga_runner::storage::tables::NAMES;
    assert_eq!(told, names.iter().map(|&name| name.to_owned()).collect());
    // A write set names a table by its place among them.
    let page = read("docs/formats.md");
    let place = |name: &&str| page.find(&format!("\n| `{name}` |"));
    assert!(names.is_sorted_by_key(place), "in the order of write sets");
}

#[test]
fn the_gateway_of_the_manual_is_the_published_one() {
    let page = read("docs/gateway.md");
    let shown = page
        .split("```proto\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let published = read("proto/saga_runner/gateway/v1/gateway.proto");
    let bare = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(bare(shown.expect("a block")), bare(&published));
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut links = 0;
    for file in pages() {
        let text = std::fs::read_to_string(&file).expect("readable");
        for target in prose(&text).split("](").skip(1) {
            let target = target.split(')').next().expect("a target");
            let target = target.split('#').next().expect("a path");
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let path = file.parent().expect("a folder").join(target);
            assert!(path.exists(), "{}: {target} is not there", file.display());
        }
    }
    assert!(links > 0, "no links found: the pages are not where they were");
}

#[test]
fn every_link_to_a_heading_leads_to_one() {
    let mut links = 0;
    for file in pages() {
        let text = std::fs::read_to_string(&file).expect("readable");
        for target in prose(&text).split("](").skip(1) {
            let target = target.split(')').next().expect("a target");
            let Some((path, anchor)) = target.split_once('#') else {
                continue;
            };
            if target.contains("://") {
                continue;
            }
            let path = match path {
                "" => file.clone(),
                path => file.parent().expect("a folder").join(path),
            };
            let page = std::fs::read_to_string(&path).expect("a page");
            assert!(
                anchors(&page).contains(anchor),
                "{}: {target} is not a heading",
                file.display()
            );
            links += 1;
        }
    }
    assert!(links > 0, "no links found: the pages are not where they were");
}

/// The anchors of a page's headings, as they are shown on the web.
pub(crate) fn anchors(page: &str) -> BTreeSet<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut found = BTreeSet::new();
    for heading in headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let anchor: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        // A heading that comes again has a number.
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let name = std::iter::once(anchor.clone())
            .chain(again)
            .find(|name| !found.contains(name));
        found.extend(name);
    }
    found
}

#[test]
fn no_page_is_unfinished() {
    for file in pages()
        .into_iter()
        .filter(|file| file.starts_with(root().join("docs")))
    {
        let text = std::fs::read_to_string(&file).expect("readable");
        assert!(!text.contains("@@"), "{} has a placeholder", file.display());
    }
}

/// The text without code blocks, where `](` means something else.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    for entry in std::fs::read_dir(root()).expect("the root") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages
}

pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
