//! How commands print what they show: tables for people, JSON or YAML for programs.
//!
//! A column is a way to a part of the value that `-o json` prints, so that no table shows more than programs get.

use clap::{Args, ValueEnum};
use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use serde_json::{Value, json};

use crate::app::exit::Failure;
use crate::app::{SystemClock, diagnostics, out};
use crate::kernel::ids::TimeMs;
use crate::ports::clock::Clock as _;

/// Widest cell of a table, in characters, so that the hash of a definition is whole; `-o wide` cuts none.
const CELL_CHARS_MAX: usize = 72;

/// In the place of a value that is absent.
const NO_VALUE: &str = "-";

/// How a command prints data.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct OutputArguments {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
    /// The same as `-o json`.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    #[default]
    /// A table with the most important columns, and times relative to now.
    Table,
    /// A table with all columns, uncut, and absolute times.
    Wide,
    /// One JSON document.
    Json,
    /// One line of JSON for each item.
    Jsonl,
    /// One YAML document.
    Yaml,
}

/// What a word in a table says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Good,
    Waiting,
    Bad,
    Plain,
}

/// A column of a table, or a line of an object that is shown alone.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    title: &'static str,
    part: Part,
    is_wide: bool,
    is_whole: bool,
    judge: Option<fn(&str) -> Mood>,
}

/// What of an item a column shows. Texts are JSON pointers.
#[derive(Debug, Clone, Copy)]
enum Part {
    Value(&'static str),
    Number(&'static str),
    Time(&'static str),
    Length(&'static str),
    Told(fn(&Value) -> String),
}

impl Column {
    const fn new(title: &'static str, part: Part) -> Self {
        Self {
            title,
            part,
            is_wide: false,
            is_whole: false,
            judge: None,
        }
    }

    /// The value at a JSON pointer: text as it is, `-` for what is absent.
    pub const fn value(title: &'static str, pointer: &'static str) -> Self {
        Self::new(title, Part::Value(pointer))
    }

    /// A number, aligned on the right.
    pub const fn number(title: &'static str, pointer: &'static str) -> Self {
        Self::new(title, Part::Number(pointer))
    }

    /// A time in RFC 3339, shown relative to now.
    pub const fn time(title: &'static str, pointer: &'static str) -> Self {
        Self::new(title, Part::Time(pointer))
    }

    /// How many items the list at a JSON pointer has.
    pub const fn length(title: &'static str, pointer: &'static str) -> Self {
        Self::new(title, Part::Length(pointer))
    }

    /// What `tell` makes of the item.
    pub const fn told(title: &'static str, tell: fn(&Value) -> String) -> Self {
        Self::new(title, Part::Told(tell))
    }

    /// Only in `-o wide`.
    #[must_use]
    pub const fn wide(self) -> Self {
        Self {
            is_wide: true,
            ..self
        }
    }

    /// Never cut: what is to be copied.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self {
            is_whole: true,
            ..self
        }
    }

    /// Coloured by what it says.
    #[must_use]
    pub const fn judged(self, judge: fn(&str) -> Mood) -> Self {
        Self {
            judge: Some(judge),
            ..self
        }
    }
}

impl OutputArguments {
    /// The chosen format.
    pub const fn format(self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Whether the output is a table, for people.
    pub const fn is_for_people(self) -> bool {
        matches!(self.format(), Format::Table | Format::Wide)
    }

    /// Prints a list: `answer` has `items` and, where there are more, `next`.
    pub fn list(self, columns: &[Column], answer: &Value) -> Result<(), Failure> {
        let items = answer["items"].as_array().map_or(&[][..], Vec::as_slice);
        match self.format() {
            Format::Jsonl => items.iter().try_for_each(out::line)?,
            Format::Json | Format::Yaml => return self.document(answer),
            Format::Table | Format::Wide if items.is_empty() => out::note("nothing found"),
            Format::Table | Format::Wide => out::line(self.people().table(columns, items))?,
        }
        if let Some(next) = answer["next"].as_str() {
            out::note(format_args!("more: --after {next}"));
        }
        Ok(())
    }

    /// Prints one object: as a list of its parts for people.
    pub fn object(self, columns: &[Column], value: &Value) -> Result<(), Failure> {
        self.shown(value, || out::line(self.people().fields(columns, value)))
    }

    /// Prints one value, for people as `tell` does.
    pub fn shown(self, value: &Value, tell: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if self.is_for_people() {
            tell()
        } else {
            self.document(value)
        }
    }

    /// A table within a larger output for people.
    pub fn table(self, columns: &[Column], items: &[Value]) -> String {
        self.people().table(columns, items)
    }

    /// The same without columns that are empty in every row.
    pub fn filled_table(self, columns: &[Column], items: &[Value]) -> String {
        let people = self.people();
        people.table(&people.filled(columns, items), items)
    }

    /// The parts of an object within a larger output for people, without those that have no value.
    pub fn filled_fields(self, columns: &[Column], value: &Value) -> String {
        let people = self.people();
        people.fields(&people.filled(columns, std::slice::from_ref(value)), value)
    }

    /// Prints one value for programs.
    pub fn document(self, value: &Value) -> Result<(), Failure> {
        match self.format() {
            Format::Yaml => out::text(serde_saphyr::to_string(value).map_err(Failure::software)?),
            Format::Jsonl => out::line(value),
            Format::Table | Format::Wide | Format::Json => out::line(format_args!("{value:#}")),
        }
    }

    fn people(self) -> People {
        People {
            now: SystemClock::new().now(),
            is_wide: self.format() == Format::Wide,
            is_coloured: diagnostics::coloured(&std::io::stdout()),
        }
    }
}

/// A list as the API answers it, of items that come from elsewhere.
pub fn listed(items: impl Into<Vec<Value>>) -> Value {
    json!({"items": items.into()})
}

/// How long ago a time was, or how soon it comes; a text that is no time stays as it is.
pub fn relative(time: &str, TimeMs(now): TimeMs) -> String {
    let Ok(parsed) = time.parse::<jiff::Timestamp>() else {
        return time.to_owned();
    };
    let seconds = (parsed.as_millisecond() - now) / 1000;
    let away = seconds.unsigned_abs();
    let amount = match away {
        0 => return "now".to_owned(),
        1..120 => format!("{away}s"),
        120..7_200 => format!("{}m", away / 60),
        7_200..172_800 => format!("{}h", away / 3_600),
        _ => format!("{}d", away / 86_400),
    };
    if seconds > 0 {
        format!("in {amount}")
    } else {
        format!("{amount} ago")
    }
}

/// A text; empty for what is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A value in a cell or a line.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => NO_VALUE.to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => NO_VALUE.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => NO_VALUE.to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// How people see it.
struct People {
    now: TimeMs,
    is_wide: bool,
    is_coloured: bool,
}

impl People {
    fn table(&self, columns: &[Column], items: &[Value]) -> String {
        let columns: Vec<&Column> = columns
            .iter()
            .filter(|column| self.is_wide || !column.is_wide)
            .collect();
        let mut table = self.empty();
        let header = columns.iter().map(|column| self.bold(column.title));
        table.set_header(header.collect::<Vec<_>>());
        for item in items {
            let cells = columns.iter().map(|column| self.cell(column, item));
            table.add_row(cells.collect::<Vec<_>>());
        }
        for (index, column) in columns.iter().enumerate() {
            let Some(shown) = table.column_mut(index) else {
                continue;
            };
            shown.set_padding((0, 2));
            if matches!(column.part, Part::Number(_) | Part::Length(_)) {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    fn fields(&self, columns: &[Column], item: &Value) -> String {
        let mut table = self.empty();
        for column in columns.iter().filter(|column| self.is_wide || !column.is_wide) {
            table.add_row([self.bold(column.title), self.cell(column, item)]);
        }
        for index in [0, 1] {
            if let Some(shown) = table.column_mut(index) {
                shown.set_padding((0, 2));
            }
        }
        table.trim_fmt()
    }

    fn empty(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.is_coloured {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table
    }

    /// The columns that have a value in one of the rows at least.
    fn filled(&self, columns: &[Column], items: &[Value]) -> Vec<Column> {
        let has_value = |column: &Column| items.iter().any(|item| self.text(column, item) != NO_VALUE);
        columns.iter().copied().filter(has_value).collect()
    }

    fn bold(&self, title: &str) -> Cell {
        let cell = Cell::new(title);
        if self.is_coloured {
            cell.add_attribute(Attribute::Bold)
        } else {
            cell
        }
    }

    fn cell(&self, column: &Column, item: &Value) -> Cell {
        let text = self.text(column, item);
        let mood = column.judge.map_or(Mood::Plain, |judge| judge(&text));
        let cell = Cell::new(self.cut(column, &diagnostics::plain(&text)));
        let color = match mood {
            Mood::Plain => return cell,
            Mood::Good => Color::Green,
            Mood::Waiting => Color::Yellow,
            Mood::Bad => Color::Red,
        };
        if self.is_coloured { cell.fg(color) } else { cell }
    }

    fn text(&self, column: &Column, item: &Value) -> String {
        let at = |pointer: &str| item.pointer(pointer).unwrap_or(&Value::Null);
        match column.part {
            Part::Value(pointer) | Part::Number(pointer) => plain(at(pointer)),
            Part::Length(pointer) => at(pointer).as_array().map_or(0, Vec::len).to_string(),
            Part::Told(tell) => match tell(item) {
                text if text.is_empty() => NO_VALUE.to_owned(),
                text => text,
            },
            Part::Time(pointer) => match at(pointer).as_str() {
                Some(time) if !self.is_wide => relative(time, self.now),
                _ => plain(at(pointer)),
            },
        }
    }

    fn cut(&self, column: &Column, text: &str) -> String {
        if self.is_wide || column.is_whole || text.chars().count() <= CELL_CHARS_MAX {
            return text.to_owned();
        }
        let mut cut: String = text.chars().take(CELL_CHARS_MAX - 1).collect();
        cut.push('…');
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: TimeMs = TimeMs(1_764_000_000_000);

    fn people(is_wide: bool) -> People {
        People {
            now: NOW,
            is_wide,
            is_coloured: false,
        }
    }

    const COLUMNS: &[Column] = &[
        Column::value("NAME", "/name"),
        Column::number("LIVE", "/count/live"),
        Column::time("SINCE", "/since"),
        Column::length("QUEUED", "/queued"),
        Column::value("HASH", "/hash").wide(),
    ];

    #[test]
    fn a_table_has_its_columns_and_the_wide_one_all_of_them_uncut() {
        let long = "x".repeat(CELL_CHARS_MAX + 10);
        let items = [
            json!({"name": long, "count": {"live": 7}, "since": "2025-11-24T15:59:00Z", "queued": [1, 2], "hash": "abc"}),
            json!({"name": "b\u{1b}[31m", "count": {"live": 1234}, "since": null, "hash": "def"}),
        ];
        let table = people(false).table(COLUMNS, &items);
        let lines: Vec<&str> = table.lines().collect();
        let cut = "x".repeat(CELL_CHARS_MAX - 1) + "…";
        assert_eq!(lines.len(), 3, "{table}");
        assert!(
            lines[0].starts_with("NAME ") && lines[0].ends_with("QUEUED"),
            "{table}"
        );
        assert!(
            lines[1].starts_with(&cut) && lines[1].contains("   7  60s ago"),
            "{table}"
        );
        assert!(lines[2].starts_with("b\u{fffd}[31m "), "{table}");
        assert!(lines[2].contains("1234  -"), "{table}");
        let wide = people(true).table(COLUMNS, &items);
        assert!(
            wide.contains(&long) && wide.contains("2025-11-24T15:59:00Z"),
            "{wide}"
        );
        assert!(wide.contains("abc"), "{wide}");
        assert!(!wide.contains("ago"), "{wide}");
    }

    #[test]
    fn times_are_told_from_now() {
        for (time, expected) in [
            ("2025-11-24T16:00:00Z", "now"),
            ("2025-11-24T15:58:30Z", "90s ago"),
            ("2025-11-24T15:30:00Z", "30m ago"),
            ("2025-11-24T19:00:01Z", "in 3h"),
            ("2025-11-21T16:00:00Z", "3d ago"),
            ("soon", "soon"),
        ] {
            assert_eq!(relative(time, NOW), expected, "{time}");
        }
    }

    #[test]
    fn yaml_reads_back_as_the_same_value() {
        let value = json!({
            "items": [{"name": "no", "count": 3, "rate": 0.5, "text": "a: b\n- c", "none": null, "on": true, "digits": "007"}],
            "empty": [], "map": {},
        });
        let text = serde_saphyr::to_string(&value).expect("plain data");
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read, value, "{text}");
    }
}
