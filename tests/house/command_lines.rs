//! Command lines that the documents show are ones that the program takes, and those that need no server do what they say.

use std::process::Command;

use saga_runner::cli::description;

use crate::docs::{files, read, root};

/// Commands that read files and print, so that they can be tried here.
const HARMLESS: [&str; 6] = ["validate", "test", "graph", "schema", "completions", "man"];

/// The pages: what operators and authors read.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned()];
    for folder in ["docs", "workers", "examples"] {
        for path in files(&root().join(folder), "md") {
            let path = path.strip_prefix(root()).expect("below the root");
            pages.push(path.display().to_string());
        }
    }
    // Decisions speak of what was, the reference is printed by the program, packages of others lie below workers/, and the page
    // of stored formats has names of hashes that begin like a command.
    pages.retain(|page| {
        !page.starts_with("docs/adr/")
            && !["docs/cli.md", "docs/formats.md"].contains(&page.as_str())
            && !page.contains("/node_modules/")
    });
    pages
}

/// The words of the first command of a line, as a shell takes them; what is behind an operator is another one.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '>' | ';' | '&' | '#') if word.is_none() => return words,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The command lines of a page's shell blocks that call the runner, without what stands before its name.
fn of_blocks(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    let text: String = blocks.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let mut found = Vec::new();
    for line in text.lines().map(|line| line.trim_start_matches("$ ")) {
        let words = words(line);
        let is_runner = |word: &String| word.rsplit('/').next() == Some("saga-runner");
        // `sudo saga-runner`, `docker compose exec runner /saga-runner`, `NAME=value saga-runner`; not `docker run … saga-runner`.
        if let Some(at) = words.iter().position(is_runner)
            && words.len() > at + 1
            && !words[..at]
                .iter()
                .any(|word| ["run", "install", "build", "-t", "-u"].contains(&word.as_str()))
        {
            found.push(words[at..].to_vec());
        }
    }
    found
}

/// What is wrong with a command line in the middle of a sentence, which may leave out what must be there.
fn mistake_of_a_mention(line: &str) -> Option<String> {
    let mut command = description();
    command.build();
    let mut rest = line.split_whitespace().skip(1).peekable();
    while let Some(word) = rest.peek() {
        let Some(inner) = command.find_subcommand(word).cloned() else {
            break;
        };
        command = inner;
        rest.next();
    }
    let is_verb =
        |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
    if let (Some(word), true) = (rest.peek(), command.has_subcommands()) {
        // Alternatives: `instance pause|resume`.
        let mut all = word.split('|');
        if is_verb(&word.replace('|', "")) && !all.all(|one| command.find_subcommand(one).is_some()) {
            return Some(format!("{word} is no command"));
        }
        return None;
    }
    for word in rest.filter_map(|word| word.strip_prefix("--")) {
        let name = word.split(['=', '|', ')', ',', ']']).next().unwrap_or(word);
        let mut known = command.get_arguments().filter_map(clap::Arg::get_long);
        if !name.is_empty() && !known.any(|long| long == name) && name != "help" {
            return Some(format!("--{name} is no flag"));
        }
    }
    None
}

#[test]
fn every_command_line_of_the_documents_is_one_that_the_program_takes() {
    let (mut lines, mut mentions, mut wrong) = (0, 0, Vec::new());
    for page in pages() {
        let text = read(&page);
        for line in of_blocks(&text) {
            lines += 1;
            if let Err(error) = description().try_get_matches_from(&line)
                && error.exit_code() != 0
            {
                wrong.push(format!("{page}: {}\n  {error}", line.join(" ")));
            }
        }
        let prose: String = text.split("```").step_by(2).collect();
        let spans = prose.split('`').skip(1).step_by(2);
        for span in spans.filter(|span| span.starts_with("saga-runner ")) {
            mentions += 1;
            let mistake = mistake_of_a_mention(span);
            wrong.extend(mistake.map(|mistake| format!("{page}: `{span}`: {mistake}")));
        }
    }
    assert!(lines > 40 && mentions > 100, "{lines} lines, {mentions} mentions");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn command_lines_that_need_no_server_do_what_the_documents_say() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for page in pages() {
        for line in of_blocks(&read(&page)) {
            // Of a whole project `make test` plays the cases, with faults.
            let takes_long = ["--watch", "--chaos", "--coverage", "--dir"];
            let is_harmless = HARMLESS.contains(&line[1].as_str())
                && !line.iter().any(|word| takes_long.contains(&word.as_str()));
            // Files of the reader's own are not here.
            let is_file =
                |word: &String| word.contains('/') || word.contains(".yaml") || word.contains(".json");
            let are_there = line[2..]
                .iter()
                .filter(|word| is_file(word))
                .all(|path| root().join(path).exists());
            // Without a folder it plays what is below this one, where examples with folders of their own are.
            let plays_everything = line[1] == "test" && line.len() == 2;
            if !is_harmless || !are_there || plays_everything {
                continue;
            }
            tried += 1;
            let output = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
                .args(&line[1..])
                .current_dir(root())
                .output()
                .expect("the runner starts");
            if !output.status.success() {
                let told = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!("{page}: {}\n  {told}", line.join(" ")));
            }
        }
    }
    assert!(tried > 2, "{tried} were tried");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_line_is_read_as_a_shell_reads_it() {
    let read = |line: &str| words(line).join("|");
    assert_eq!(read("a 'b c' --d=\"e f\" > g # h"), "a|b c|--d=e f");
    assert_eq!(read("a # b"), "a");
    let block = "```sh\n$ saga-runner shard list\ndocker run x saga-runner\nfoo\n```";
    assert_eq!(of_blocks(block), [["saga-runner", "shard", "list"]]);
    assert_eq!(mistake_of_a_mention("saga-runner shard list"), None);
    assert_eq!(mistake_of_a_mention("saga-runner instance show SAGA KEY"), None);
    for wrong in [
        "saga-runner shard mend 3",
        "saga-runner shard list --no-such-flag",
        "saga-runner instance show a b --no-such-flag",
    ] {
        assert!(mistake_of_a_mention(wrong).is_some(), "{wrong}");
    }
}
