//! Command lines that the documents show are ones that the program takes. `tests/documents/` runs them.

use saga_runner::cli::description;

use crate::docs::read;
use crate::shell_blocks::{LANGUAGES, all, commands, pages, shown};

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
    for command in all() {
        let Some(call) = command.runner_call() else {
            continue;
        };
        lines += 1;
        if let Err(error) = description().try_get_matches_from(call)
            && error.exit_code() != 0
        {
            wrong.push(format!("{}: {}\n  {error}", command.place(), call.join(" ")));
        }
    }
    for page in pages() {
        let prose: String = read(&page).split("```").step_by(2).collect();
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
fn every_example_of_the_reference_is_one_that_the_program_takes() {
    let page = read("docs/cli.md").replace("\\\n", " ");
    let (mut examples, mut wrong) = (0, Vec::new());
    for line in page.lines().filter(|line| line.starts_with("  saga-runner ")) {
        examples += 1;
        let found = commands(line).unwrap_or_default();
        let words = found.first().map(|command| command.words.clone());
        if let Err(error) = description().try_get_matches_from(words.unwrap_or_default()) {
            wrong.push(format!("{line}\n  {error}"));
        }
    }
    assert!(examples > 40, "{examples} examples");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Programs whose names begin a block of commands and nothing else.
const PROGRAMS: [&str; 9] = [
    "saga-runner",
    "curl",
    "nats",
    "make",
    "docker",
    "kubectl",
    "helm",
    "systemctl",
    "npm",
];

#[test]
fn a_block_of_commands_says_that_it_is_one() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let Some(language) = line.trim_start().strip_prefix("```") else {
                continue;
            };
            let block: Vec<&str> = lines
                .by_ref()
                .map(|(line, _)| line)
                .take_while(|line| !line.trim_start().starts_with("```"))
                .collect();
            let first = block.first().map_or("", |line| line.trim_start());
            let first = first.trim_start_matches("$ ").split(' ').next().unwrap_or("");
            let is_command = PROGRAMS.contains(&first.rsplit('/').next().unwrap_or(first));
            if is_command && !LANGUAGES.contains(&language.trim()) {
                wrong.push(format!("{page}:{number}: begin the block with ```sh"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_goal_of_make_that_the_documents_name_is_in_the_makefile() {
    let makefile = read("Makefile");
    let is_goal = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let (mut goals, mut wrong) = (0, Vec::new());
    for command in all().iter().filter(|command| command.program() == "make") {
        for word in &command.words[1..] {
            let name = word.split('=').next().unwrap_or(word);
            let is_known = if is_goal(word) {
                makefile.contains(&format!("\n{word}:"))
            } else {
                makefile.contains(&format!("$({name})")) || makefile.contains(&format!("ifdef {name}\n"))
            };
            goals += 1;
            if !is_known {
                wrong.push(format!("{}: make has no {word}", command.place()));
            }
        }
    }
    assert!(goals > 5, "{goals} goals");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_line_is_read_as_a_shell_reads_it() {
    let read = |line: &str| {
        let commands = commands(line).expect("no quote is open");
        let words = commands.iter().map(|command| command.words.join("|"));
        words.collect::<Vec<_>>().join(" then ")
    };
    assert_eq!(read("a 'b c' --d=\"e f\" > g # h"), "a|b c|--d=e f");
    assert_eq!(read("a # it's b"), "a");
    assert_eq!(read("a 'b;c' && d; e"), "a|b;c then d then e");
    assert!(commands("a 'b").is_none(), "the quote is open");

    let page = "```sh\n$ saga-runner shard list\ndocker run x saga-runner\nfoo -d '{\n  \"a\": 1}' \\\n  b &\n\
                curl c > d\n```\n\n```text\nsaga-runner is here\n```\n\n```console\n$ bar\nSEEN\n```\n";
    let found = shown("page.md", page);
    let told: Vec<_> = found
        .iter()
        .map(|command| (command.line, command.text(), command.is_background))
        .collect();
    let expected = [
        (2, "saga-runner shard list", false),
        (3, "docker run x saga-runner", false),
        (4, "foo -d {\n  \"a\": 1} b", true),
        (7, "curl c", false),
        (15, "bar", false),
    ];
    assert_eq!(
        told,
        expected.map(|(line, text, beside)| (line, text.to_owned(), beside))
    );
    assert_eq!(found[0].runner_call().map(<[String]>::len), Some(3));
    assert!(found[1].runner_call().is_none());
    assert_eq!(found[3].file.as_deref(), Some("d"));
    assert_eq!(found[4].output, ["SEEN"]);

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
