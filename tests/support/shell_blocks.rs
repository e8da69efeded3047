//! The commands that the documents show: their shell blocks, read as a shell reads them.

#![allow(dead_code, reason = "two test programs share it, and each uses its part")]

use std::path::{Path, PathBuf};

/// Languages of blocks whose lines are commands; in a console those with a prompt are, and the others are their output.
pub const LANGUAGES: [&str; 2] = ["sh", "console"];

/// A command of a page.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// Path of the page from the root of the repository.
    pub page: String,
    /// Line of the page in which the command begins, from 1.
    pub line: usize,
    pub words: Vec<String>,
    /// The file to which its output goes (`> FILE`).
    pub file: Option<String>,
    /// It runs beside those that follow (`&`).
    pub is_background: bool,
    /// Another command reads its output (`|`).
    pub is_piped: bool,
    /// What the page shows as its output, line by line.
    pub output: Vec<String>,
}

impl Shown {
    pub fn text(&self) -> String {
        self.words.join(" ")
    }

    /// The page and the line, as an editor opens them.
    pub fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// Whether the command is these words, and perhaps others behind them.
    pub fn begins(&self, words: &str) -> bool {
        let text = self.text();
        text.strip_prefix(words)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    }

    /// The name of its program, without a folder.
    pub fn program(&self) -> &str {
        name(&self.words[0])
    }

    /// Where it calls the runner: the call without what stands before it. `sudo saga-runner`,
    /// `docker compose exec runner /saga-runner` and `NAME=value saga-runner` do; `docker run ... saga-runner` does not.
    pub fn runner_call(&self) -> Option<&[String]> {
        let at = self.words.iter().position(|word| name(word) == "saga-runner")?;
        let means_other = |word: &String| ["run", "install", "build", "-t", "-u"].contains(&word.as_str());
        let is_call = self.words.len() > at + 1 && !self.words[..at].iter().any(means_other);
        is_call.then(|| &self.words[at..])
    }
}

fn name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// The commands of a line, while it is read.
#[derive(Default)]
struct Reading {
    found: Vec<Shown>,
    command: Shown,
    word: Option<String>,
    /// The next word is the file for the output.
    is_file: bool,
}

impl Reading {
    fn end_word(&mut self) {
        let Some(word) = self.word.take() else {
            return;
        };
        if std::mem::take(&mut self.is_file) {
            self.command.file = Some(word);
        } else {
            self.command.words.push(word);
        }
    }

    fn end_command(&mut self, operator: &str) {
        self.end_word();
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.found.push(Shown {
                is_background: operator == "&",
                is_piped: operator == "|",
                ..command
            });
        }
    }
}

/// The commands of a line, without their place; nothing where a quote is open at its end.
pub fn commands(line: &str) -> Option<Vec<Shown>> {
    let (mut reading, mut quote) = (Reading::default(), None);
    let mut symbols = line.chars().peekable();
    while let Some(symbol) = symbols.next() {
        match (quote, symbol) {
            (Some(open), symbol) if symbol == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(symbol);
                reading.word.get_or_insert_default();
            }
            (None, ' ' | '\t' | '\n') => reading.end_word(),
            (None, '#') if reading.word.is_none() => break,
            (None, '|' | '&' | ';') => {
                let is_double = symbols.next_if_eq(&symbol).is_some();
                let operator = symbol.to_string().repeat(if is_double { 2 } else { 1 });
                reading.end_command(&operator);
            }
            (None, '>') => {
                reading.end_word();
                reading.is_file = true;
            }
            (_, symbol) => reading.word.get_or_insert_default().push(symbol),
        }
    }
    reading.end_command("");
    quote.is_none().then_some(reading.found)
}

/// The commands of a page's blocks, in their order.
///
/// # Panics
/// Where a quote is open at the end of a block.
pub fn shown(page: &str, text: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut block: Option<&str> = None;
    // What is read of a command that goes on in the next line.
    let (mut open, mut begin) = (String::new(), 0);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() {
                None
            } else {
                Some(language.trim())
            };
            assert!(
                open.is_empty(),
                "{page}:{begin}: a command has no end in its block"
            );
            continue;
        }
        let Some(language) = block.filter(|language| LANGUAGES.contains(language)) else {
            continue;
        };
        let prompted = line.trim_start().strip_prefix("$ ");
        if open.is_empty() {
            if language == "console" && prompted.is_none() {
                if let Some(command) = found.last_mut() {
                    command.output.push(line.to_owned());
                }
                continue;
            }
            begin = number;
            open.push_str(prompted.unwrap_or(line));
        } else {
            open.push_str(line);
        }
        if open.ends_with('\\') {
            open.pop();
            continue;
        }
        let Some(list) = commands(&open) else {
            open.push('\n');
            continue;
        };
        found.extend(list.into_iter().map(|command| Shown {
            page: page.to_owned(),
            line: begin,
            ..command
        }));
        open.clear();
    }
    found
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(page: &str) -> String {
    let path = root().join(page);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages that operators, authors and service teams read, by their paths from the root.
pub fn pages() -> Vec<String> {
    let mut paths = Vec::new();
    for folder in ["docs", "workers", "examples"] {
        collect(&root().join(folder), &mut paths);
    }
    paths.sort();
    let names = paths.iter().map(|path| {
        let path = path.strip_prefix(root()).expect("below the root");
        path.display().to_string()
    });
    // Decisions speak of what was, the reference is printed by the program, and the page of stored formats has names of
    // hashes that begin like a command.
    let is_read = |page: &String| {
        !page.starts_with("docs/adr/") && !["docs/cli.md", "docs/formats.md"].contains(&page.as_str())
    };
    ["README.md", "ARCHITECTURE.md"]
        .map(str::to_owned)
        .into_iter()
        .chain(names.filter(is_read))
        .collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        // Packages of others have pages of their own.
        if path.is_dir() && !path.ends_with("node_modules") {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The commands of all pages, page by page.
pub fn all() -> Vec<Shown> {
    let pages = pages();
    pages.iter().flat_map(|page| shown(page, &read(page))).collect()
}
