//! From text to the syntax tree of the crate `cel`, without trust in the text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::common::ast::{IdedExpr, SourceInfo};
use cel::parser::Parser;

use super::CompileError;
use super::scan::too_deep;

/// Longest expression, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 4_096;
/// Deepest nesting of brackets.
pub(super) const BRACKETS_MAX: usize = 64;
/// Most levels of the parser's own recursion; conditions in a row are such levels, too.
const PARSER_DEPTH_MAX: u16 = 96;
/// The parser needs up to 180 KiB of stack for a bracket in a build without optimisation, and 10 KiB for each of
/// the operators in a row. Only what is touched of it becomes memory.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// What any thread's stack holds: brackets inside each other, and bytes of text.
const SMALL_BRACKETS: usize = 2;
const SMALL_BYTES: usize = 200;

/// Runs `work`, which may parse and may go through the whole tree, on a stack that holds the tree of any text.
/// What panics in there is an error about the text.
pub(super) fn with_stack<T: Send>(
    text: &str,
    work: impl FnOnce() -> Result<T, CompileError> + Send,
) -> Result<T, CompileError> {
    let failed = |message: String| CompileError::whole(text, message);
    let unreadable = |_| Err(failed("the expression cannot be read".to_owned()));
    if text.len() <= SMALL_BYTES && too_deep(text, SMALL_BRACKETS).is_none() {
        return catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(unreadable);
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("expression".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("no thread to read the expression: {error}")))?
            .join()
            .unwrap_or_else(unreadable)
    })
}

/// Parses `text`. To be called by [`with_stack`], in which the tree has to be dropped as well.
pub(super) fn parse(text: &str) -> Result<(IdedExpr, SourceInfo), CompileError> {
    if text.trim().is_empty() {
        return Err(CompileError::whole(text, "expression is empty".to_owned()));
    }
    if text.len() > TEXT_BYTES_MAX {
        let message = format!(
            "expression is {} bytes long, at most {TEXT_BYTES_MAX} are allowed",
            text.len()
        );
        return Err(CompileError::whole(text, message));
    }
    if let Some(offset) = too_deep(text, BRACKETS_MAX) {
        return Err(CompileError {
            message: format!("brackets are nested deeper than {BRACKETS_MAX} levels"),
            offset,
            length: 1,
            help: None,
            is_elsewhere: false,
        });
    }
    Parser::new()
        .max_recursion_depth(PARSER_DEPTH_MAX)
        .enable_optional_syntax(true)
        .parse_with_source_info(text)
        .map_err(|errors| parse_error(text, &errors))
}

fn parse_error(text: &str, errors: &cel::ParseErrors) -> CompileError {
    let Some(first) = errors.errors.first() else {
        return CompileError::whole(text, "not an expression".to_owned());
    };
    let (line, column) = first.pos;
    let from_one = |number: isize| usize::try_from(number - 1).unwrap_or(0);
    let lines = text.split_inclusive('\n').take(from_one(line));
    let start: usize = lines.map(str::len).sum();
    let within = text[start..].chars().take(from_one(column));
    let offset = start + within.map(char::len_utf8).sum::<usize>();
    let length = text[offset..].chars().next().map_or(0, char::len_utf8);
    CompileError {
        message: plain(&first.msg),
        offset,
        length,
        help: None,
        is_elsewhere: false,
    }
}

/// The parser's message without the names of its grammar.
fn plain(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
    if message.contains("Recursion limit") {
        return "expression is nested too deeply".to_owned();
    }
    let said = message.split(" expecting ").next().unwrap_or(message);
    let quoted = |start: &str| {
        said.strip_prefix(start)
            .and_then(|rest| rest.strip_prefix('\''))
            .and_then(|rest| rest.strip_suffix('\''))
    };
    if said.starts_with("Incomplete `ExprContext`") {
        return "`?` without its `:`".to_owned();
    }
    match quoted("mismatched input ").or_else(|| quoted("extraneous input ")) {
        Some("<EOF>") => "expression ends too early".to_owned(),
        Some(token) => format!("unexpected `{token}`"),
        None => match quoted("token recognition error at: ") {
            Some(characters) => format!("unexpected `{}`", characters.trim_end()),
            None => said.to_owned(),
        },
    }
}
