//! Files from which mutants are made, and how.

use std::path::Path;

use proptest::prelude::Rng as _;
use proptest::test_runner::TestRng;
use saga_runner::kernel::definition::SourceFile;

/// Most changes of one mutant.
const CHANGES_MAX: usize = 4;
/// Texts that hurt parsers elsewhere.
const NASTY: &[&str] = &[
    "",
    "~",
    "null",
    "{}",
    "[]",
    "0",
    "-1",
    "9223372036854775808",
    "1e999",
    "${",
    "${}",
    "${a",
    "}",
    "\"",
    "'",
    "&a *a",
    "*a",
    "!!binary x",
    "|",
    ">",
    "---",
    "\t",
    "\u{0}",
    "\u{feff}",
    "${state}",
    "${event.data}",
    "${[1,2].map(x, [1,2].map(y, x/0))}",
    "${1/0}",
    "${state.a.b.c}",
    "9999999999d",
    "0s",
    "-5m",
    "true",
    "1m",
    "${\"a\".matches(\"(a+)+$\")}",
    "${!!!!!!true}",
    "${((((((((((1))))))))))}",
    "${[[[[[[[[[[]]]]]]]]]]}",
    "name",
    "steps",
    "handlers",
    "${result}",
    "${input}",
    "any",
    "all",
    "<<: {a: 1}",
];

#[derive(Clone)]
pub struct Corpus {
    pub effects: Vec<SourceFile>,
    /// Files that are right, and files of all kinds.
    right: Vec<String>,
    sagas: Vec<String>,
    /// Lines of all files.
    lines: Vec<String>,
}

impl Corpus {
    pub fn read() -> Self {
        let right = texts("sagas", "yaml");
        let right: Vec<String> = right
            .into_iter()
            .filter(|text| text.contains("kind: Saga"))
            .collect();
        let mut sagas = texts("tests/definitions/bad", "yaml");
        for document in texts("docs", "md") {
            sagas.extend(examples(&document));
        }
        let effects: Vec<SourceFile> = texts("effects", "yaml")
            .into_iter()
            .enumerate()
            .map(|(number, text)| SourceFile {
                path: format!("effects/{number}.yaml"),
                text: text.into(),
            })
            .collect();
        let of_effects = effects.iter().map(|file| &*file.text);
        let lines = right.iter().chain(&sagas).map(String::as_str).chain(of_effects);
        let lines = lines.flat_map(str::lines).map(str::to_owned).collect();
        assert!(right.len() > 1 && sagas.len() > 10, "the corpus is gone");
        Self {
            effects,
            right,
            sagas,
            lines,
        }
    }

    /// A file with a few changes: lines taken out, doubled, moved, put in from other files, words replaced.
    pub fn mutant(&self, rng: &mut TestRng) -> String {
        let gentle = below(rng, 2) == 0;
        let base = pick(rng, if gentle { &self.right } else { &self.sagas });
        let mut lines: Vec<String> = base.lines().map(str::to_owned).collect();
        for _ in 0..=below(rng, CHANGES_MAX) {
            if gentle {
                self.exchange(rng, &mut lines);
            } else {
                self.change(rng, &mut lines);
            }
        }
        if gentle {
            return lines.join("\n") + "\n";
        }
        let mut text = lines.join("\n");
        if below(rng, 10) == 0 {
            let end = floor(&text, below(rng, text.len() + 1));
            text.truncate(end);
        }
        text.push('\n');
        text
    }

    /// Gives a key the value that it has elsewhere.
    fn exchange(&self, rng: &mut TestRng, lines: &mut [String]) {
        let at = below(rng, lines.len());
        let line = &mut lines[at];
        let Some(colon) = line.find(": ") else { return };
        let key = line[..colon].trim().to_owned() + ": ";
        let of_key = |line: &&String| line.trim_start().starts_with(&key);
        let donors: Vec<&String> = self.lines.iter().filter(of_key).collect();
        if donors.is_empty() {
            return;
        }
        let donor = pick(rng, &donors).trim_start();
        line.replace_range(colon + 2.., &donor[key.len()..]);
    }

    fn change(&self, rng: &mut TestRng, lines: &mut Vec<String>) {
        if lines.is_empty() {
            lines.push(pick(rng, &self.lines).clone());
            return;
        }
        let at = below(rng, lines.len());
        match below(rng, 8) {
            0 => {
                lines.remove(at);
            }
            1 => {
                let line = lines[at].clone();
                lines.insert(at, line);
            }
            2 => {
                let other = below(rng, lines.len());
                lines.swap(at, other);
            }
            3 => {
                // With the indentation of its new neighbour, so that it often means something there.
                let new = pick(rng, &self.lines).trim_start();
                let indent = lines[at].len() - lines[at].trim_start().len();
                lines.insert(at, format!("{:indent$}{new}", ""));
            }
            4 => {
                let nasty = pick(rng, NASTY);
                let line = &mut lines[at];
                match line.find(": ") {
                    Some(colon) => line.replace_range(colon + 2.., nasty),
                    None => line.push_str(nasty),
                }
            }
            5 => {
                let donor = pick(rng, &self.lines);
                let value = donor
                    .split_once(": ")
                    .map_or(donor.as_str(), |(_, value)| value)
                    .to_owned();
                if let Some(colon) = lines[at].find(": ") {
                    lines[at].replace_range(colon + 2.., &value);
                }
            }
            6 => {
                let line = &mut lines[at];
                let place = floor(line, below(rng, line.len() + 1));
                let junk = [
                    ' ', '{', '}', '[', ']', ':', ',', '$', '"', '\'', '.', '!', '-', 'ä', '0',
                ];
                line.insert(place, *pick(rng, &junk));
            }
            _ => {
                let end = (at + 1 + below(rng, 6)).min(lines.len());
                let block: Vec<String> = lines[at..end].to_vec();
                let to = below(rng, lines.len());
                lines.splice(to..to, block);
            }
        }
    }
}

/// Texts of the files below a directory of the repository with that ending.
fn texts(directory: &str, ending: &str) -> Vec<String> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the repository has this directory") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let read = |path| std::fs::read(path).expect("readable");
    paths
        .into_iter()
        .map(|path| String::from_utf8_lossy(&read(path)).into_owned())
        .collect()
}

/// The YAML examples of a document that are definitions.
fn examples(document: &str) -> Vec<String> {
    let blocks = document.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    blocks
        .filter(|block| block.contains("kind: Saga"))
        .map(str::to_owned)
        .collect()
}

/// A number below `end`, which is above 0.
pub fn below(rng: &mut TestRng, end: usize) -> usize {
    usize::try_from(rng.next_u32()).expect("64 bits") % end
}

pub fn pick<'a, T>(rng: &mut TestRng, from: &'a [T]) -> &'a T {
    &from[below(rng, from.len())]
}

/// The boundary of a character at or before `at`.
fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
