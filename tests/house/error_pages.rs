//! The pages of codes: their titles, the index, and examples that are true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use saga_runner::kernel::definition::{BinaryFiles, Diagnostic, SchemaFiles, SourceFile, load_with};

use crate::architecture::rust_files;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("readable text")
}

fn pages() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    walk(&root().join("docs/errors"), &mut paths);
    paths.sort();
    let page = |path: &PathBuf| {
        let name = path
            .file_stem()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        (name, read(path))
    };
    paths
        .iter()
        .map(page)
        .filter(|(name, _)| name != "README")
        .collect()
}

fn pages_about_definitions() -> Vec<(String, String)> {
    pages()
        .into_iter()
        .filter(|(code, _)| code.starts_with("SR01"))
        .collect()
}

/// The code of files without schemas.
const UNTYPED: &str = "SR0179";

/// Codes whose messages name files, by paths that differ here.
const WITH_PATHS: [&str; 5] = ["SR0111", "SR0140", "SR0141", "SR0171", "SR0190"];

/// The findings about a definition on a page; what all definitions have is added where it is left out.
fn findings(block: &str, told: bool) -> Vec<Diagnostic> {
    let is_effect = ["http:", "grpc:", "smtp:", "sql:", "nats:", "transform:"]
        .iter()
        .any(|key| block.contains(key));
    let head = match (block.contains("apiVersion:"), is_effect) {
        (true, _) => "",
        (false, true) => "apiVersion: sagas/v1\nkind: Effect\nname: probe\n",
        (false, false) => {
            "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"Order.*\": event.data.order_id}\n"
        }
    };
    let file = |path: &Path, text: String| SourceFile {
        path: path.display().to_string(),
        text: Arc::from(text),
    };
    let mut paths = Vec::new();
    walk(&root().join("effects"), &mut paths);
    let mut effects: Vec<SourceFile> = paths
        .iter()
        .map(|path| file(path, untyped(&read(path))))
        .collect();
    let probe = file(Path::new("probe.yaml"), format!("{head}{block}"));
    let order = root().join("sagas/order.yaml");
    let sagas = if is_effect {
        effects.push(probe);
        Vec::new()
    } else if ["another file whose name is order", "from: order"]
        .iter()
        .any(|mark| block.contains(mark))
        || block.contains("name: order-express")
    {
        vec![file(&order, read(&order)), probe]
    } else {
        vec![probe]
    };
    let loaded = load_with(&sagas, &effects, &SchemaFiles::default(), &binaries());
    // Most examples have no schemas; only the page about that is about that.
    let about = |finding: &Diagnostic| finding.file == "probe.yaml";
    let untyped = loaded.untyped.into_iter().filter(about).filter(|_| told);
    loaded.diagnostics.into_iter().chain(untyped).collect()
}

/// An effect of the same name that takes and gives anything: pages are about one mistake at a time.
fn untyped(effect: &str) -> String {
    let name = effect
        .lines()
        .find(|line| line.starts_with("name: "))
        .expect("a name");
    format!("apiVersion: sagas/v1\nkind: Effect\n{name}\ntransform: {{}}\nresult: {{}}\n")
}

/// The modules and descriptors that pages name.
fn binaries() -> BinaryFiles {
    let mut binaries = BinaryFiles::default();
    let descriptors = protox::compile(["stock.proto"], [root().join("tests/proto")]);
    let bytes = prost::Message::encode_to_vec(&descriptors.expect("the committed file compiles"));
    binaries
        .0
        .insert("protos/stock.binpb".to_owned(), Ok(Arc::from(bytes)));
    let good = std::fs::read(root().join("examples/programs/sagas/bin/parcels.wasm")).expect("readable");
    let bad = wat::parse_str("(module (import \"env\" \"now\" (func (result i64))))").expect("a module");
    for (name, module) in [("parcels", good), ("wants_the_time", bad)] {
        binaries
            .0
            .insert(format!("bin/{name}.wasm"), Ok(Arc::from(module)));
    }
    binaries
}

/// The examples of a page: first the mistake, then its fix.
fn examples(page: &str) -> Vec<&str> {
    page.split("```yaml\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap_or_default())
        .collect()
}

#[test]
fn every_page_begins_with_its_code_and_a_title() {
    for (code, page) in pages() {
        let title = page
            .lines()
            .next()
            .and_then(|line| line.strip_prefix(&format!("# {code}: ")));
        assert!(title.is_some_and(|title| !title.is_empty()), "{code}");
    }
}

#[test]
fn every_page_says_symptom_cause_and_fix() {
    for (code, page) in pages() {
        let parts = ["**Symptom.**", "**Cause.**", "**Fix.**"].map(|part| page.find(part));
        assert!(
            parts.iter().all(Option::is_some) && parts.is_sorted(),
            "{code}: {parts:?}"
        );
    }
}

#[test]
fn every_page_is_in_the_index() {
    let index = read(&root().join("docs/errors/README.md"));
    for (code, page) in pages() {
        let title = page
            .lines()
            .next()
            .and_then(|line| line.split_once(": "))
            .expect("a title")
            .1;
        assert!(
            index.contains(&format!("| [{code}]({code}.md) | {title} |")),
            "{code}"
        );
    }
}

#[test]
fn the_example_of_a_page_gets_its_code_and_message_and_the_fix_gets_nothing() {
    for (code, page) in pages_about_definitions() {
        let examples = examples(&page);
        if ["SR0128", "SR0142", "SR0143"].contains(&&*code) {
            assert!(
                examples.is_empty(),
                "257 steps fill no page, and this binary has programs and providers"
            );
            continue;
        }
        let [bad, good] = examples[..] else {
            panic!("{code} needs an example and its fix");
        };
        let found = findings(bad, code == UNTYPED);
        let codes: BTreeSet<&str> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, BTreeSet::from([&*code]), "{code}: example");
        let shown = found.iter().any(|finding| page.contains(&finding.message));
        assert!(
            shown || WITH_PATHS.contains(&&*code),
            "{code}: the symptom is another one: {found:?}"
        );
        let left: Vec<String> = findings(good, code == UNTYPED)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(left.is_empty(), "{code}: fix: {left:?}");
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
