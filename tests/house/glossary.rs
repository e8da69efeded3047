//! Every domain word of the code is in the glossary of ARCHITECTURE.md: the words of public types of the kernel, the
//! partition and the runtime, and those of the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::architecture::{is_test, production, root, rust_files};

/// Plain English and the common words of programming, which need no explanation. A word of this domain goes into the
/// glossary instead.
const PLAIN: &str = "
after build bytes dropped events exported full present running
account action actions answers finding operation awaited cause evidence for requested sender why
accept acceptance accepted access ack active addressee admitted adopted aggregate ahead answer archived
arrival as asked attribute attributes audit auth backlog batch body bound bounds broken broker brought
buffered bulk by call called calls capture captured change changes channel channels check checked class clock
commit completion context control count counters counts date decided decision decoded decoder defect deleted denied detached
detail done dropping due durables earlier edited end ended ending endpoint entries entry error event evicted exhausted expect
expected failed failure failures fate fault fed fields filter filters figures finally fingerprint fire fired firing first
force forced forgotten forwarded found granted ground group grouping groups handle health history http id
identity ids ignore in index info keep kept kind known label labels lag last late lateness left limit limited
list listed listing live local log mail manner mask meaning meets memory message messages messenger metadata metrics minute
migration mismatches name names next node not note number numbers oldest options order origin outdated outgoing
outstanding over overdue ownership pace page pages panics parent parts path pause paused payload permission
permit plan planned principal problem progress publish published publisher put queries query question queue
randomness rates rate reason rebuilt receipt ref refusal refusals refused registered rejection released reload
reloaded reloads reply report reposition request reset rest restart result results resume retention retry returned
revision role roles room routed router row rows run runs said scope search searched seconds secrets seen sent
sequences series settings share side skipped snapshots sort spec staged standing stands started state statistics
status storage store stored subject submitted submitter sum summary suspend suspended swept table tag tags
take target task tasks template tenancy terminate terms text thread time timer timers tls token told took
total trace trait transactions tries troubles turn type unacknowledged undone unfit unknown unreadable unsendable
update updated use uses value values verb verdict version versions view violation watch way workflow written
answered applied became brief happened on patience reached replacement start
format redelivered sync
";

/// Four words for what does not go on, each for one thing; others for the same are not written in these texts.
const STANDSTILL: [&str; 4] = ["pending", "waiting", "blocked", "stuck"];

fn page() -> String {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, rest) = page.split_once("\n## Glossary\n").expect("the glossary");
    rest.split("\n## ").next().unwrap_or(rest).to_owned()
}

/// The words and their meanings, in the order of the page.
fn glossary() -> Vec<(String, String)> {
    let page = page();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")).skip(1);
    let row = |row: &str| {
        let (word, meaning) = row.split_once(" | ").expect("two cells");
        (word.to_owned(), meaning.trim_end_matches(" |").to_owned())
    };
    rows.map(row).collect()
}

/// The small words of a text.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !c.is_alphabetic());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// A word and what is left of it without an ending.
fn stems(word: &str) -> BTreeSet<String> {
    const ENDINGS: [&str; 12] = [
        "s", "es", "ed", "d", "ing", "er", "ers", "ion", "ions", "ations", "ation", "al",
    ];
    let stripped = ENDINGS.iter().filter_map(|ending| word.strip_suffix(ending));
    let mut stems: BTreeSet<String> = stripped
        .filter(|stem| stem.len() >= 3)
        .map(str::to_owned)
        .collect();
    stems.extend(word.strip_suffix("ies").map(|stem| format!("{stem}y")));
    stems.insert(word.to_owned());
    stems
}

/// What the glossary explains: its first column, and what its second one sets in italics.
fn explained() -> BTreeSet<String> {
    let mut explained = BTreeSet::new();
    for (word, meaning) in glossary() {
        let italics = meaning.split('*').skip(1).step_by(2);
        for text in italics.chain([word.as_str()]) {
            explained.extend(words(text).flat_map(|word| stems(&word)));
        }
    }
    explained
}

/// The words of a name like `DeadLetter`.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for c in name.chars() {
        if c.is_uppercase() || parts.is_empty() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| c.is_alphabetic()) {
            last.extend(c.to_lowercase());
        }
    }
    parts.retain(|part| part.len() > 1);
    parts
}

/// The public types of the crates that have the domain, each with its words.
fn types() -> BTreeMap<String, Vec<String>> {
    let mut types = BTreeMap::new();
    for folder in ["kernel", "partition", "runtime"] {
        for path in rust_files(&root().join("crates").join(folder).join("src")) {
            if is_test(&path.display().to_string()) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("readable");
            for line in production(&text) {
                let Some(rest) = line.trim_start().strip_prefix("pub ") else {
                    continue;
                };
                let kinds = ["struct ", "enum ", "trait ", "type "];
                if let Some(rest) = kinds.iter().find_map(|kind| rest.strip_prefix(kind)) {
                    let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                    types.insert(name.clone(), parts(&name));
                }
            }
        }
    }
    types
}

/// The metrics that the manual lists; another test compares them with the code.
fn metrics() -> BTreeMap<String, Vec<String>> {
    let page = fs::read_to_string(root().join("docs/operations.md")).expect("readable");
    let cells = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `saga_runner_"));
    let names = cells.filter_map(|row| row.split(['`', '{']).next());
    names
        .map(|name| {
            (
                format!("saga_runner_{name}"),
                words(&name.replace('_', " ")).collect(),
            )
        })
        .collect()
}

#[test]
fn every_domain_word_of_types_and_metrics_is_in_the_glossary() {
    let plain: BTreeSet<String> = words(PLAIN).collect();
    let explained = explained();
    let (types, metrics) = (types(), metrics());
    assert!(
        types.len() > 300 && metrics.len() > 40,
        "{} {}",
        types.len(),
        metrics.len()
    );
    let mut unknown = BTreeMap::new();
    for (name, words) in types.into_iter().chain(metrics) {
        for word in words {
            let is_known = plain.contains(&word) || !stems(&word).is_disjoint(&explained);
            if !is_known {
                unknown.entry(word).or_insert_with(|| name.clone());
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "write a row of the glossary in ARCHITECTURE.md (a plain English word goes into PLAIN): {unknown:#?}"
    );
}

#[test]
fn a_word_of_the_glossary_is_explained_once() {
    let mut words: Vec<String> = glossary().into_iter().map(|(word, _)| word).collect();
    assert!(words.len() > 60, "{} words", words.len());
    words.sort();
    let twice: Vec<_> = words.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[test]
fn each_word_for_what_does_not_go_on_says_of_what_it_is_said() {
    let glossary = glossary();
    for word in STANDSTILL
        .into_iter()
        .chain(["halted", "held", "deferred", "early"])
    {
        let meaning = glossary
            .iter()
            .find(|(known, _)| known == word)
            .map(|(_, meaning)| meaning);
        assert!(
            meaning.is_some_and(|meaning| meaning.starts_with("of ")),
            "{word}: {meaning:?}"
        );
    }
}

/// `blocked` is said of instances, `stuck` of steps and compensations, `halted` of shards, readers and streams.
#[test]
fn the_manual_says_blocked_stuck_and_halted_of_what_they_are_said_of() {
    let wrong = [
        "stuck instance",
        "instance is stuck",
        "instances are stuck",
        "stuck shard",
        "shard is stuck",
        "blocked shard",
        "shard is blocked",
        "blocked step",
        "step is blocked",
        "steps are blocked",
        "halted instance",
        "instance is halted",
        "halted step",
        "step is halted",
        "waiting input",
        "input is waiting",
        "parked",
    ];
    let mut faults = Vec::new();
    let pages = crate::docs::files(&root().join("docs"), "md").into_iter();
    for path in pages.chain(["README.md", "ARCHITECTURE.md"].map(|page| root().join(page))) {
        let text = fs::read_to_string(&path).expect("readable");
        let text = format!(" {} ", words(&text).collect::<Vec<_>>().join(" "));
        let found = wrong
            .iter()
            .filter(|phrase| text.contains(&format!(" {phrase} ")));
        faults.extend(found.map(|phrase| format!("{}: {phrase:?}", path.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
