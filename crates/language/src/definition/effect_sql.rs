//! Reading the `sql` section of an effect file.

use std::collections::BTreeSet;

use super::codes;
use super::effect::{Returned, SqlCall, SqlExpectation, SqlJournal, SqlStatement};
use super::fields::{self, Fields, NameRule};
use super::findings::Findings;
use super::grammar;
use super::sql_database::DatabaseUrl;
use super::sql_text::{BINDS_MAX, SqlText};
use super::texts::{self, Readable};
use super::url;
use super::yaml::{Entry, Node, Value};
use crate::expr::types::{Env, Type};
use crate::expr::{Root, Template, TextPart};

/// Roots of the values of statements. Secrets are not among them: a database repeats values in its errors.
const BIND_ROOTS: &[Root] = &[Root::Input, Root::Command];
const DATABASE_ROOTS: &[Root] = &[Root::Upstreams];
const PASSWORD_ROOTS: &[Root] = &[Root::Secrets];

/// Most statements of one effect.
const STATEMENTS_MAX: usize = 16;
/// Most rows that a statement can be expected to touch.
pub const ROWS_MAX: u32 = 1_000_000_000;
/// Class of a statement that touched another number of rows than it should.
const UNEXPECTED_ROWS: &str = "unexpected_rows";
/// Where commands that were carried out are kept, and for how long by default, in milliseconds.
const TABLE: &str = "saga_runner_effects";
const KEEP_MS: u64 = 30 * 86_400_000;
/// Longer than any command is tried again, up to ten years.
const KEEP_MS_RANGE: std::ops::RangeInclusive<u64> = 86_400_000..=3_650 * 86_400_000;
/// Longest name of a table or schema, in bytes.
const TABLE_BYTES_MAX: usize = 48;

/// What `response` is in expressions.
pub fn response() -> Type {
    let optional = |known: Type| known.or(&Type::null());
    Type::object([
        ("rows", Type::list(Type::dynamic())),
        ("rows_affected", Type::integer()),
        ("statements", Type::list(Type::dynamic())),
        ("sqlstate", optional(Type::string())),
        ("code", optional(Type::integer())),
        ("constraint", optional(Type::string())),
    ])
}

pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<SqlCall> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::SQL, findings)?;
    let database = fields
        .require("database", findings)
        .and_then(|entry| database(entry, env, findings));
    let password = fields
        .get("password")
        .and_then(|entry| password(entry, env, findings));
    let read_only = fields
        .get("read_only")
        .and_then(|entry| fields::boolean(entry, findings))
        .unwrap_or(false);
    let journal = journal(&fields, read_only, findings);
    let statements = fields
        .require("statements", findings)
        .and_then(|entry| statements(entry, read_only, env, findings));
    Some(SqlCall {
        database: database?,
        password,
        read_only,
        journal,
        statements: statements?,
    })
}

/// The address: a literal one is checked here, one of the manifest when a worker starts.
fn database(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<Template> {
    let what = "the address of a database";
    let readable = Readable::knowing(DATABASE_ROOTS, env);
    let template = texts::text_template(&entry.value, &entry.key_span, what, readable, findings)?;
    let fault = match &template {
        Template::Constant(json) => {
            let text: String = serde_json::from_slice(json).unwrap_or_default();
            DatabaseUrl::parse(&text).err().map(|error| error.to_string())
        }
        Template::Value(expr) if url::upstream(expr).is_some() => None,
        _ => Some("a database is a fixed address, or ${upstreams.<name>} as a whole".to_owned()),
    };
    if let Some(fault) = fault {
        findings.error(codes::DATABASE, entry.value.span.clone(), fault);
    }
    Some(template)
}

/// The password comes from a secret, so that no file holds it.
fn password(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<Template> {
    let readable = Readable::knowing(PASSWORD_ROOTS, env);
    let template = texts::text_template(&entry.value, &entry.key_span, "a password", readable, findings)?;
    let from_secret = match &template {
        Template::Value(_) => true,
        Template::Text(parts) => parts.iter().any(|part| matches!(part, TextPart::Expr(_))),
        Template::Constant(_) | Template::List(_) | Template::Map(_) => false,
    };
    if !from_secret {
        findings
            .error(
                codes::DATABASE,
                entry.value.span.clone(),
                "a password is not written into a file",
            )
            .help(Some("write ${secrets.<name>}".to_owned()));
    }
    Some(template)
}

/// Where commands that were carried out are kept; nowhere if nothing is changed.
fn journal(fields: &Fields<'_, '_>, read_only: bool, findings: &mut Findings<'_>) -> Option<SqlJournal> {
    let default = SqlJournal {
        table: TABLE.to_owned(),
        keep_ms: KEEP_MS,
    };
    let Some(entry) = fields.get("idempotency") else {
        return (!read_only).then_some(default);
    };
    if read_only {
        let message = "what only reads needs no table of commands";
        findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
        return None;
    }
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::JOURNAL, findings)?;
    let table = fields.get("table").and_then(|entry| table(entry, findings));
    let keep = fields
        .get("keep")
        .and_then(|entry| fields::duration(entry, KEEP_MS_RANGE, codes::WRONG_VALUE, findings));
    Some(SqlJournal {
        table: table.unwrap_or(default.table),
        keep_ms: keep.unwrap_or(default.keep_ms),
    })
}

/// `table` or `schema.table`, in letters that need no quoting.
fn table(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<String> {
    let text = fields::text(&entry.value, &entry.key_span, "the name of a table", findings)?;
    let parts: Vec<&str> = text.split('.').collect();
    let is_plain = |part: &&str| {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && part.chars().all(legal)
            && part.len() <= TABLE_BYTES_MAX
    };
    if parts.len() > 2 || !parts.iter().all(is_plain) {
        let message = format!(
            "\"{}\" is not the name of a table: small letters, digits and '_', at most {TABLE_BYTES_MAX} bytes, \
             with one '.' behind a schema",
            text.escape_debug()
        );
        findings.error(codes::NAME, entry.value.span.clone(), message);
        return None;
    }
    Some(text.to_owned())
}

fn statements(
    entry: &Entry<'_>,
    read_only: bool,
    env: &Env,
    findings: &mut Findings<'_>,
) -> Option<Vec<SqlStatement>> {
    let Value::List(items) = &entry.value.value else {
        fields::expected(&entry.value, &entry.key_span, "a list of statements", findings);
        return None;
    };
    if items.is_empty() || items.len() > STATEMENTS_MAX {
        let message = format!("a transaction has 1 to {STATEMENTS_MAX} statements");
        findings.error(codes::SQL_TEXT, entry.key_span.clone(), message);
    }
    let statements: Vec<Option<SqlStatement>> = items
        .iter()
        .map(|item| statement(item, entry, read_only, env, findings))
        .collect();
    statements.into_iter().collect()
}

fn statement(
    item: &Node<'_>,
    list: &Entry<'_>,
    read_only: bool,
    env: &Env,
    findings: &mut Findings<'_>,
) -> Option<SqlStatement> {
    let fields = Fields::item(item, &list.key_span, &grammar::effect::STATEMENT, findings)?;
    let verb = fields.chosen(findings);
    let text = verb.and_then(|verb| text(verb, read_only, findings));
    let bind = match fields.get("bind") {
        None => Some(Vec::new()),
        Some(entry) => bind(entry, env, findings),
    };
    let expect = fields
        .get("expect")
        .and_then(|entry| expectation(entry, findings));
    let given = match fields.get("bind").map(|entry| &entry.value.value) {
        None => Some(0),
        Some(Value::List(items)) => Some(items.len()),
        Some(Value::Scalar(_) | Value::Map(_)) => None,
    };
    let verb = verb?;
    if let (Some(text), Some(given)) = (&text, given) {
        check_binds(text, given, fields.get("bind").unwrap_or(verb), findings);
    }
    Some(SqlStatement {
        text: text?,
        returned: match &*verb.key {
            "query" => Returned::Rows,
            _ => Returned::Count,
        },
        bind: bind?,
        expect,
    })
}

fn text(entry: &Entry<'_>, read_only: bool, findings: &mut Findings<'_>) -> Option<SqlText> {
    let text = fields::text(&entry.value, &entry.key_span, "the text of a statement", findings)?;
    match SqlText::read(text) {
        Ok(text) => {
            if read_only && !(text.only_reads() && entry.key == "query") {
                let message = "with `read_only: true` every statement is a `query` that reads";
                findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
            } else if entry.key == "execute" && text.gives_rows_only() {
                let message = "a statement that changes nothing by itself is a `query`";
                findings.error(codes::SQL_TEXT, entry.key_span.clone(), message);
            }
            Some(text)
        }
        Err(fault) => {
            let length = fault.place.len().max(1);
            let span = texts::within(&entry.value, fault.place.start, length, findings.text());
            findings
                .error(codes::SQL_TEXT, span, fault.message)
                .help(fault.help);
            None
        }
    }
}

fn bind(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<Vec<Template>> {
    let Value::List(items) = &entry.value.value else {
        fields::expected(&entry.value, &entry.key_span, "a list of values", findings);
        return None;
    };
    if items.len() > BINDS_MAX {
        let message = format!("a statement has at most {BINDS_MAX} values");
        findings.error(codes::SQL_BIND, entry.key_span.clone(), message);
    }
    let readable = Readable::knowing(BIND_ROOTS, env);
    let values = items.iter().map(|item| texts::template(item, readable, findings));
    Some(values.collect())
}

/// Each placeholder has its value, and each value its placeholder.
fn check_binds(text: &SqlText, binds: usize, at: &Entry<'_>, findings: &mut Findings<'_>) {
    let placeholders = text.placeholders();
    if let Some(beyond) = placeholders.iter().find(|number| **number > binds) {
        let message = match binds {
            0 => format!("${beyond} has no value: there is no `bind`"),
            1 => format!("${beyond} has no value: `bind` has one"),
            binds => format!("${beyond} has no value: `bind` has {binds}"),
        };
        findings.error(codes::SQL_BIND, at.key_span.clone(), message);
    }
    let values: BTreeSet<usize> = (1..=binds.min(BINDS_MAX)).collect();
    if let Some(unused) = values.difference(&placeholders).next() {
        let message = format!("value {unused} of `bind` is not used: the text has no ${unused}");
        findings.error(codes::SQL_BIND, at.key_span.clone(), message);
    }
}

fn expectation(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<SqlExpectation> {
    let fields = Fields::read(
        &entry.value,
        &entry.key_span,
        &grammar::effect::EXPECTATION,
        findings,
    )?;
    let rows = fields
        .require("rows", findings)
        .and_then(|entry| rows(entry, findings));
    let class = match fields.get("else") {
        None => Some(UNEXPECTED_ROWS),
        Some(entry) => {
            let text = fields::text(&entry.value, &entry.key_span, "an error class", findings)?;
            let span = &entry.value.span;
            let legal = fields::is_name(text, span, "error class", NameRule::Dotted, findings);
            if text == "succeeded" {
                let message = "what is not as expected has not succeeded";
                findings.error(codes::WRONG_VALUE, span.clone(), message);
            }
            legal.then_some(text)
        }
    };
    let (rows_min, rows_max) = rows?;
    Some(SqlExpectation {
        rows_min,
        rows_max,
        class: class?.to_owned(),
    })
}

/// `1`, `0..1`, `1..`.
fn rows(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<(u64, u64)> {
    let Value::Scalar(scalar) = &entry.value.value else {
        let what = "a number of rows such as 1, 0..1 or 1..";
        fields::expected(&entry.value, &entry.key_span, what, findings);
        return None;
    };
    let number = |text: &str| {
        let number = text.parse::<u64>().ok();
        number.filter(|rows| *rows <= u64::from(ROWS_MAX))
    };
    let range = match scalar.text.split_once("..") {
        None => number(&scalar.text).map(|rows| (rows, rows)),
        Some((min, "")) => number(min).map(|min| (min, u64::MAX)),
        Some((min, max)) => number(min).zip(number(max)),
    };
    let range = range.filter(|(min, max)| min <= max);
    if range.is_none() {
        findings
            .error(
                codes::WRONG_VALUE,
                entry.value.span.clone(),
                format!("\"{}\" is not a number of rows", scalar.text.escape_debug()),
            )
            .help(Some(format!("write 1, 0..1 or 1.., up to {ROWS_MAX}")));
    }
    range
}
