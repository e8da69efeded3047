//! The table of docs/effects.md and the rows that are walked, held against each other.

use std::collections::BTreeSet;
use std::path::Path;

use saga_runner::effects::certainty::{Ending, Said};

use super::PROVIDERS;
use super::row::{Known, Row};

pub const DONE: &str = "the peer did it";
pub const MISFIT: &str = "it did it, and the result does not match the effect's `output`";
pub const UNRENDERED: &str = "it did it, and `result` cannot be rendered";
pub const ROLLED_BACK: &str = "`result` cannot be rendered, so everything is rolled back";
pub const REFUSED: &str = "it refused";
pub const TURNED_AWAY: &str = "it rejected the call without looking for the key";
pub const UNREACHED: &str = "it cannot be reached";
pub const UNTRUSTED: &str = "one side does not trust the other's certificate";
pub const LOST_UNSENT: &str = "the connection ended before the request was sent";
pub const NOT_BEGUN: &str = "the peer says that it has not started";
pub const NOT_NOW: &str = "it accepts no calls now";
pub const THROTTLED: &str = "it has too many calls";
pub const LATE_UNSENT: &str = "the time ran out before anything was sent";
pub const UNSENDABLE: &str = "nothing could or may be sent";
pub const CONFLICT: &str = "another command has the key in the database";
pub const MOVED: &str = "it answers with a redirect";
pub const ELSEWHERE: &str = "it may have done it, and redirects";
pub const BROKE: &str = "it failed";
pub const GAVE_UP: &str = "it timed out waiting for another system";
pub const CANCELLED: &str = "the call was cancelled";
pub const LOST: &str = "the connection ended when the request may have arrived";
pub const LATE: &str = "no answer in time to a request that was sent";
pub const MALFORMED: &str = "it reports success, and the answer cannot be read";
pub const TOO_LONG: &str = "it reports success, and the answer is too long";
pub const INTERRUPTED: &str = "the call was aborted because its command was cancelled";
pub const DIED: &str = "the worker died during the call";
pub const UNRECORDED: &str = "the result cannot be stored or read";

/// In a cell: it shows in one way only, which needs no name.
pub const YES: &str = "yes";
/// In a cell: it cannot happen.
const NEVER: &str = "—";

/// What is shown on a lower level, by a file and a test in it, because no peer can bring it about at will: whether the first
/// byte has gone when a connection ends is up to the operating system.
const BELOW: [(&str, &str, &str, &str); 2] = [
    (
        "HTTP",
        LOST_UNSENT,
        "src/effects/http/pool/tests.rs",
        "a_connection_that_ends_before_the_first_byte_has_gone_was_not_asked",
    ),
    (
        "gRPC",
        LOST_UNSENT,
        "src/effects/grpc/tests.rs",
        "a_connection_that_ends_before_the_message_has_gone_was_not_asked",
    ),
];

/// A line of the table in the page.
struct Line {
    happened: String,
    /// By the names of the columns.
    cells: Vec<(String, BTreeSet<String>)>,
    class: String,
    known: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The first table under "What an outcome means".
fn lines() -> Vec<Line> {
    let page = std::fs::read_to_string(root().join("docs/effects.md")).expect("the page");
    let (_, section) = page
        .split_once("\n## What an outcome means\n")
        .expect("the section");
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    let mut rows = table.take_while(|line| line.starts_with('|')).map(|line| {
        let cells = line.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    });
    let head = rows.next().expect("a head");
    let line = |cells: Vec<String>| {
        assert_eq!(cells.len(), head.len(), "{cells:?}");
        let [happened, peers @ .., class, known] = &cells[..] else {
            panic!("no row of the table: {cells:?}");
        };
        let items = |cell: &String| cell.split(", ").map(str::to_owned).collect();
        Line {
            happened: happened.clone(),
            cells: head[1..].iter().cloned().zip(peers.iter().map(items)).collect(),
            class: class.clone(),
            known: known.clone(),
        }
    };
    rows.skip(1).map(line).collect()
}

fn rows_of(column: &str) -> impl Iterator<Item = (&'static str, &'static Row)> {
    let providers = PROVIDERS
        .into_iter()
        .filter(move |provider| provider.column == column);
    providers.flat_map(|provider| provider.rows().map(move |row| (provider.name, row)))
}

const fn word(known: Known) -> &'static str {
    match known {
        Known::Done => "done",
        Known::Refused => "refused",
        Known::NotDone => "not done",
        Known::Unknown => "unknown",
    }
}

#[test]
fn every_row_of_the_page_is_walked_with_every_provider_that_it_names_and_no_other() {
    let lines = lines();
    let columns: BTreeSet<&str> = PROVIDERS.iter().map(|provider| provider.column).collect();
    let named: BTreeSet<&str> = lines[0].cells.iter().map(|(column, _)| &**column).collect();
    assert_eq!(named, columns, "the columns of the table");
    for line in &lines {
        for (column, told) in &line.cells {
            let mut walked: BTreeSet<String> = rows_of(column)
                .filter(|(_, row)| row.happened == line.happened)
                .map(|(_, row)| row.shows.to_owned())
                .collect();
            for (known, happened, file, test) in BELOW {
                if known == column && happened == line.happened {
                    let text = std::fs::read_to_string(root().join(file)).expect("the file");
                    assert!(text.contains(&format!("fn {test}(")), "{file} has no {test}");
                    walked.insert(YES.to_owned());
                }
            }
            if walked.is_empty() {
                walked.insert(NEVER.to_owned());
            }
            assert_eq!(*told, walked, "{column}: {}", line.happened);
        }
    }
    let happened: BTreeSet<&str> = lines.iter().map(|line| &*line.happened).collect();
    for provider in PROVIDERS {
        for row in provider.rows() {
            assert!(
                happened.contains(row.happened),
                "{}: {} is not in the page",
                provider.name,
                row.happened
            );
        }
    }
}

#[test]
fn every_row_has_the_class_and_the_certainty_that_the_page_says() {
    for line in lines() {
        for (column, _) in &line.cells {
            for (name, row) in rows_of(column).filter(|(_, row)| row.happened == line.happened) {
                let is_open = line.class.ends_with("or its own") || line.class.ends_with('…');
                let is_named = line.class.contains(&format!("`{}`", row.class));
                assert!(is_named || is_open, "{name}: {}: {}", row.happened, row.class);
                assert_eq!(word(row.known), line.known, "{name}: {}", row.happened);
            }
        }
    }
}

#[test]
fn no_two_rows_of_a_provider_tell_its_peer_the_same() {
    for provider in PROVIDERS {
        let mut told = BTreeSet::new();
        for row in provider.rows() {
            assert!(told.insert(row.conduct), "{}: {}", provider.name, row.conduct);
        }
    }
}

/// The place of an ending in [`ENDINGS`]. Another variant does not compile until it is there.
const fn place(ending: Ending) -> usize {
    match ending {
        Ending::Unsendable(_) => 0,
        Ending::Unconnected => 1,
        Ending::Untrusted => 2,
        Ending::LateUnsent => 3,
        Ending::LostUnsent => 4,
        Ending::NotBegun => 5,
        Ending::Lost => 6,
        Ending::Late => 7,
        Ending::Interrupted => 8,
        Ending::Malformed => 9,
        Ending::TooLong => 10,
        Ending::Said(said) => match said {
            Said::Refused => 11,
            Said::TurnedAway => 12,
            Said::Moved => 13,
            Said::Elsewhere => 14,
            Said::Throttled => 15,
            Said::NotNow => 16,
            Said::Conflict => 17,
            Said::Broke => 18,
            Said::GaveUp => 19,
            Said::Cancelled => 20,
        },
    }
}

const ENDINGS: usize = 21;

#[test]
fn every_ending_is_walked() {
    let walked: BTreeSet<usize> = PROVIDERS
        .iter()
        .flat_map(|provider| provider.rows())
        .filter_map(|row| row.ending.map(place))
        .collect();
    let missing: Vec<usize> = (0..ENDINGS).filter(|place| !walked.contains(place)).collect();
    assert!(missing.is_empty(), "no row walks the endings at {missing:?}");
}
