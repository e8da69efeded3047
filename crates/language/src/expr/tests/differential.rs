//! Agreement with the interpreter of the crate `cel`: the same value, or an error on both sides.
//!
//! Expressions come from a generator that is steered by bytes, so that a failing one shrinks; most are well
//! typed, some are not. Where the two differ on purpose, [`Excuse`] has a name for it.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::*;

/// The interpreter and its parser need more stack than a test has.
const STACK_BYTES: usize = 512 * 1024 * 1024;

/// Why a disagreement is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excuse {
    /// Here an integer against a double is an error; in CEL their values are compared.
    MixedNumbers,
    /// Here a double that JSON cannot hold is an overflow; in CEL it is infinite or no number.
    InfiniteDouble,
    /// Here an index is an integer; the interpreter takes doubles and more.
    IndexType,
    /// The interpreter adds the keys of a map to a list, which is not in CEL.
    ListAndMap,
    /// The interpreter makes no integer of the double that is the smallest of all integers.
    SmallestInteger,
}

/// The smallest integer, which is a double, too.
const SMALLEST: &str = "-9223372036854775808";

fn excuse(
    text: &str,
    ours: &Result<Json<'static>, EvalError>,
    theirs: &Result<cel::Value, String>,
) -> Option<Excuse> {
    match (ours, theirs) {
        (Err(EvalError::Type { found, .. }), Ok(_))
            if found == "an integer and a double" || found == "a double and an integer" =>
        {
            Some(Excuse::MixedNumbers)
        }
        (Err(EvalError::Type { operation, .. }), Ok(_)) if operation.starts_with("an index of") => {
            Some(Excuse::IndexType)
        }
        (Err(EvalError::Type { found, .. }), Ok(_)) if found == "a list and a map" => {
            Some(Excuse::ListAndMap)
        }
        (Err(EvalError::Overflow { .. }), Ok(_)) => Some(Excuse::InfiniteDouble),
        (Ok(_), Err(message)) if text.contains(SMALLEST) && message.contains("'int': integer overflow") => {
            Some(Excuse::SmallestInteger)
        }
        _ => None,
    }
}

/// The interpreter's value for JSON, with integers as integers: its own conversion makes them unsigned.
fn bound(json: &Json<'_>) -> cel::Value {
    match json {
        Json::Null => cel::Value::Null,
        Json::Bool(answer) => cel::Value::Bool(*answer),
        Json::Int(number) => cel::Value::Int(*number),
        Json::Double(number) => cel::Value::Float(*number),
        Json::Str(text) => cel::Value::String(text.to_string().into()),
        Json::List(items) => cel::Value::List(Arc::new(items.iter().map(bound).collect())),
        Json::Map(members) => cel::Value::Map(
            members
                .iter()
                .map(|(key, value)| (key.to_string(), bound(value)))
                .collect::<std::collections::HashMap<String, cel::Value>>()
                .into(),
        ),
    }
}

/// The interpreter's value as it would leave an expression of ours, maps sorted.
fn leaving(value: &cel::Value) -> Json<'static> {
    let text = |text: String| Json::Str(text.into());
    match value {
        cel::Value::Null => Json::Null,
        cel::Value::Bool(answer) => Json::Bool(*answer),
        cel::Value::Int(number) => Json::Int(*number),
        cel::Value::Float(number) => Json::Double(*number),
        cel::Value::String(string) => text(string.to_string()),
        cel::Value::List(items) => Json::List(items.iter().map(leaving).collect()),
        cel::Value::Map(map) => {
            let sorted: std::collections::BTreeMap<_, _> = map
                .map
                .iter()
                .map(|(key, value)| (key.to_string(), leaving(value)))
                .collect();
            Json::Map(
                sorted
                    .into_iter()
                    .map(|(key, value)| (key.into(), value))
                    .collect(),
            )
        }
        cel::Value::Timestamp(timestamp) => {
            let timestamp: jiff::Timestamp = timestamp.to_rfc3339().parse().expect("RFC 3339");
            text(timestamp.to_string())
        }
        cel::Value::Duration(duration) => {
            let duration = jiff::SignedDuration::new(duration.num_seconds(), duration.subsec_nanos());
            text(super::super::time::duration_text(duration))
        }
        other => panic!("no expression gives {other:?}"),
    }
}

/// CEL with the extensions that the interpreter has.
fn environment() -> Arc<cel::Env> {
    static ENVIRONMENT: std::sync::LazyLock<Arc<cel::Env>> = std::sync::LazyLock::new(|| {
        let mut env = cel::Env::stdlib();
        env.add_extension(cel::extensions::strings).expect("strings");
        env.add_extension(cel::extensions::lists).expect("lists");
        env.add_extension(cel::extensions::math).expect("math");
        Arc::new(env)
    });
    Arc::clone(&ENVIRONMENT)
}

fn theirs(text: &str, document: &Json<'_>) -> Result<cel::Value, String> {
    let environment = environment();
    let program = environment.compile(text).map_err(|error| error.to_string())?;
    let mut context = cel::Context::with_env(environment);
    context.add_variable_from_value("event", bound(document));
    program.execute(&context).map_err(|error| error.to_string())
}

fn ours(text: &str, document: &str) -> Result<Json<'static>, EvalError> {
    let event = Json::parse(document.as_bytes(), 16).expect("documents are JSON");
    let expr = Expr::compile(text, &[Root::Event]).unwrap_or_else(|error| panic!("{text}: {error}"));
    let scope = Scope::default().bind(Root::Event, &event);
    let value = expr.eval(&scope, &mut Budget { steps: 1_000_000 })?;
    let mut sorted = Vec::new();
    write_sorted(&value, &mut sorted);
    assert_eq!(
        render(&expr, &scope),
        sorted,
        "rendering and evaluating give the same"
    );
    assert_eq!(render(&expr, &scope), sorted, "and give it each time");
    Ok(Json::parse(&sorted, 64).expect("JSON is written").into_static())
}

fn render(expr: &Expr, scope: &Scope<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Template::Value(expr.clone())
        .render(scope, &mut Budget { steps: 1_000_000 }, &mut out)
        .expect("what evaluates renders");
    out
}

/// Whether the two sides agree, and if not, what they say.
fn disagreement(text: &str, document: &str) -> Option<String> {
    let parsed = Json::parse(document.as_bytes(), 16).expect("documents are JSON");
    let (ours, theirs) = (ours(text, document), theirs(text, &parsed));
    if excuse(text, &ours, &theirs).is_some() {
        return None;
    }
    match (&ours, &theirs) {
        (Err(_), Err(_)) => None,
        (Ok(ours), Ok(theirs)) if leaving(theirs) == *ours => None,
        _ => Some(format!(
            "{text}\n over {document}\n ours   {ours:?}\n theirs {theirs:?}"
        )),
    }
}

/// Makes an expression out of bytes: each choice takes one, and there is nothing but leaves once they are used up.
struct Generator<'b> {
    bytes: std::slice::Iter<'b, u8>,
    loops: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Int,
    Double,
    Text,
    Bool,
    Ints,
    Texts,
    Maps,
    Map,
    Time,
    Span,
}

impl Generator<'_> {
    const KINDS: [Kind; 10] = [
        Kind::Int,
        Kind::Double,
        Kind::Text,
        Kind::Bool,
        Kind::Ints,
        Kind::Texts,
        Kind::Maps,
        Kind::Map,
        Kind::Time,
        Kind::Span,
    ];

    fn choose(&mut self, below: usize) -> usize {
        self.bytes.next().map_or(0, |byte| usize::from(*byte) % below)
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.choose(from.len())]
    }

    fn any(&mut self) -> String {
        let kind = Self::KINDS[self.choose(Self::KINDS.len())];
        self.of(kind)
    }

    fn of(&mut self, kind: Kind) -> String {
        if self.bytes.len() == 0 {
            return self.leaf(kind).to_owned();
        }
        match self.choose(20) {
            0..=3 => self.leaf(kind).to_owned(),
            // Something that may be of the wrong type.
            4 => self.any(),
            5 => format!(
                "({} ? {} : {})",
                self.of(Kind::Bool),
                self.of(kind),
                self.of(kind)
            ),
            6 => format!(
                "[{}, {}][{}]",
                self.of(kind),
                self.of(kind),
                self.pick(&["0", "1", "2", "-1"])
            ),
            7 => format!("{{'k': {}}}{}", self.of(kind), self.pick(&[".k", "['k']", ".j"])),
            8 => {
                let element = self.element();
                let inner = self.of(kind);
                format!("[0, 1].map({element}, {inner})[0]")
            }
            _ => self.made(kind),
        }
    }

    /// A name for the element of a loop. Names come again, so that inner ones hide outer ones.
    fn element(&mut self) -> String {
        self.loops += 1;
        format!("x{}", self.loops % 3)
    }

    fn leaf(&mut self, kind: Kind) -> &'static str {
        match kind {
            Kind::Int => self.pick(&[
                "1",
                "0",
                "-7",
                "3",
                "event.i",
                "event.j",
                "event.big",
                "9223372036854775807",
                "event.none.i",
                "-9223372036854775808",
                "event.m.one",
                "0x1F",
            ]),
            Kind::Double => self.pick(&["1.5", "0.0", "-2.25", "event.d", "event.e", "1e308", "1e-3"]),
            Kind::Text => self.pick(
                &[
                    "'a'",
                    "''",
                    "\"é\"",
                    "event.s",
                    "event.t",
                    "'a\\nb'",
                    "r'\\d'",
                    "'''it's'''",
                    "event.missing",
                    "'ab' 'c'.trim()",
                ][..9],
            ),
            Kind::Bool => self.pick(&["true", "false", "event.b", "event.n", "event.none.b"]),
            Kind::Ints => self.pick(&["[1, 2, 3]", "event.ints", "[]", "event.m"]),
            Kind::Texts => self.pick(&["['a', 'b']", "event.texts", "[event.s]"]),
            Kind::Maps => self.pick(&["event.maps", "[{'q': 1}]", "[{'q': 2, 's': 'a'}, {'s': 'b'}]"]),
            Kind::Map => self.pick(&["event.m", "{'one': 1}", "{}", "{'a': {'b': [1]}}"]),
            // The interpreter reads parts of an instant in the offset it was written with, not in UTC.
            Kind::Time => self.pick(&[
                "timestamp('2026-01-31T15:00:00Z')",
                "timestamp('2026-02-28T23:59:59.5Z')",
                "timestamp(event.at)",
                "timestamp(event.s)",
            ]),
            Kind::Span => self.pick(&[
                "duration('90s')",
                "duration('1h30m')",
                "duration('-1.5s')",
                "duration('0s')",
            ]),
        }
    }

    fn made(&mut self, kind: Kind) -> String {
        match kind {
            Kind::Int if self.choose(5) == 0 => self.calculated(),
            Kind::Int => match self.choose(12) {
                0..=4 => {
                    let operator = self.pick(&["+", "-", "*", "/", "%"]);
                    format!("({} {operator} {})", self.of(kind), self.of(kind))
                }
                5 => format!("-({})", self.of(kind)),
                6 => {
                    let sized = self.pick(&["event.s", "event.ints", "event.m", "'äöü'", "event.maps"]);
                    format!("size({sized})")
                }
                7 => format!("int({})", self.of(Kind::Double)),
                8 => format!(
                    "int('{}')",
                    self.pick(&["12", "-3", "x", "", "1.5", "99999999999999999999"])
                ),
                9 => {
                    let part = self.pick(&[
                        "getFullYear",
                        "getMonth",
                        "getDate",
                        "getDayOfMonth",
                        "getDayOfWeek",
                        "getDayOfYear",
                        "getHours",
                        "getMinutes",
                        "getSeconds",
                        "getMilliseconds",
                    ]);
                    format!("({}).{part}()", self.of(Kind::Time))
                }
                10 => {
                    let part = self.pick(&["getHours", "getMinutes", "getSeconds", "getMilliseconds"]);
                    format!("({}).{part}()", self.of(Kind::Span))
                }
                _ => format!("{}.size()", self.of(Kind::Ints)),
            },
            Kind::Double => match self.choose(5) {
                4 => {
                    let function = self.pick(&["ceil", "floor", "round", "trunc", "abs", "sign"]);
                    format!("math.{function}({})", self.of(kind))
                }
                0 => format!("-({})", self.of(kind)),
                1 => format!("double({})", self.of(Kind::Int)),
                _ => {
                    let operator = self.pick(&["+", "-", "*", "/"]);
                    format!("({} {operator} {})", self.of(kind), self.of(kind))
                }
            },
            Kind::Text => match self.choose(8) {
                3..=7 => self.rewritten(),
                // Doubles and instants have another text than with the interpreter: that of JSON, and `Z`.
                0 => format!("string(int({}))", self.of(Kind::Int)),
                1 => format!("string({} && true)", self.of(Kind::Bool)),
                _ => format!("({} + {})", self.of(kind), self.of(kind)),
            },
            Kind::Bool => self.condition(),
            Kind::Texts if self.choose(4) == 0 => {
                format!("({}).split({})", self.of(Kind::Text), self.of(Kind::Text))
            }
            Kind::Ints | Kind::Texts | Kind::Maps => match self.choose(6) {
                4 => {
                    let function = self.pick(&["reverse", "distinct", "sort", "flatten"]);
                    format!("({}).{function}()", self.of(kind))
                }
                5 => {
                    let element = self.element();
                    let key = self.pick(&["", ".q", ".size()"]);
                    let list = self.pick(&["event.ints", "event.texts", "event.maps", "[2, 1]", "event.m"]);
                    format!("{list}.sortBy({element}, {element}{key})")
                }
                0 => format!("({} + {})", self.of(kind), self.of(kind)),
                1 => format!(
                    "[{}]",
                    self.of(match kind {
                        Kind::Ints => Kind::Int,
                        Kind::Texts => Kind::Text,
                        _ => Kind::Map,
                    })
                ),
                2 => self.looped("filter", kind),
                _ => self.looped("map", kind),
            },
            // One key, for the interpreter goes through keys in an order that changes from run to run.
            Kind::Map => format!("{{'one': {}}}", self.any()),
            Kind::Time => match self.choose(3) {
                0 => format!("({} - {})", self.of(kind), self.of(Kind::Span)),
                1 => format!("({} + {})", self.of(Kind::Span), self.of(kind)),
                _ => format!("({} + {})", self.of(kind), self.of(Kind::Span)),
            },
            Kind::Span => match self.choose(3) {
                0 => format!("({} - {})", self.of(Kind::Time), self.of(Kind::Time)),
                1 => format!("({} - {})", self.of(kind), self.of(kind)),
                _ => format!("({} + {})", self.of(kind), self.of(kind)),
            },
        }
    }

    /// An integer from functions of extensions.
    fn calculated(&mut self) -> String {
        let kind = Kind::Int;
        match self.choose(5) {
            0 => {
                let function = self.pick(&["abs", "sign", "bitNot"]);
                format!("math.{function}({})", self.of(kind))
            }
            1 => {
                let function = self.pick(&["greatest", "least", "bitAnd", "bitOr", "bitXor"]);
                format!("math.{function}({}, {})", self.of(kind), self.of(kind))
            }
            2 => {
                let function = self.pick(&["bitShiftLeft", "bitShiftRight"]);
                format!("math.{function}({}, {})", self.of(kind), self.of(kind))
            }
            3 => format!("math.greatest({})", self.of(Kind::Ints)),
            _ => {
                let function = self.pick(&["indexOf", "lastIndexOf"]);
                format!("({}).{function}({})", self.of(Kind::Text), self.of(Kind::Text))
            }
        }
    }

    /// A text from functions of extensions.
    fn rewritten(&mut self) -> String {
        let kind = Kind::Text;
        match self.choose(5) {
            0 => {
                let function = self.pick(&["lowerAscii", "upperAscii", "trim", "reverse"]);
                format!("({}).{function}()", self.of(kind))
            }
            1 => {
                let (text, part, by) = (self.of(kind), self.of(kind), self.of(kind));
                format!("({text}).replace({part}, {by})")
            }
            2 => format!("({}).join({})", self.of(Kind::Texts), self.of(kind)),
            3 => {
                let (from, to) = (self.of(Kind::Int), self.of(Kind::Int));
                format!("({}).substring({from}, {to})", self.of(kind))
            }
            _ => {
                let (width, value) = (self.pick(&["s", "d", "x", "b", ".3f", "e"]), self.any());
                format!("'<%{width}>'.format([{value}])")
            }
        }
    }

    fn condition(&mut self) -> String {
        match self.choose(14) {
            0..=1 => format!("({} && {})", self.of(Kind::Bool), self.of(Kind::Bool)),
            2..=3 => format!("({} || {})", self.of(Kind::Bool), self.of(Kind::Bool)),
            4 => format!("!({})", self.of(Kind::Bool)),
            5..=7 => {
                let kind = [
                    Kind::Int,
                    Kind::Double,
                    Kind::Text,
                    Kind::Time,
                    Kind::Span,
                    Kind::Bool,
                ][self.choose(6)];
                let operator = self.pick(&["<", "<=", ">", ">=", "==", "!="]);
                format!("({} {operator} {})", self.of(kind), self.of(kind))
            }
            8 => {
                let operator = self.pick(&["==", "!="]);
                let kind = Self::KINDS[self.choose(Self::KINDS.len())];
                let (left, right) = (self.of(kind), self.of(kind));
                match self.choose(3) {
                    0 => format!("({left} {operator} {right})"),
                    1 => format!("({{'a': {left}, 'b': {right}}} {operator} event.pair)"),
                    _ => format!("({{'a': {left}, 'b': 1}} {operator} {{'b': 1, 'a': {right}}})"),
                }
            }
            9 => format!("({} in {})", self.of(Kind::Int), self.of(Kind::Ints)),
            10 => format!("({} in {})", self.of(Kind::Text), self.of(Kind::Map)),
            11 => {
                let field = self.pick(&[
                    "event.s",
                    "event.missing",
                    "event.m.one",
                    "event.s.x",
                    "event.none.x",
                ]);
                format!("has({field})")
            }
            12 => match self.choose(4) {
                0 => format!("({}).contains({})", self.of(Kind::Text), self.of(Kind::Text)),
                1 => format!("({}).startsWith({})", self.of(Kind::Text), self.of(Kind::Text)),
                2 => format!("({}).endsWith({})", self.of(Kind::Text), self.of(Kind::Text)),
                _ => {
                    let pattern = self.pick(&["'^a'", "'[0-9]+'", "'.*é$'", "''"]);
                    format!("({}).matches({pattern})", self.of(Kind::Text))
                }
            },
            _ => {
                let name = self.pick(&["all", "exists", "exists_one"]);
                self.looped(name, Kind::Ints)
            }
        }
    }

    /// A macro over a list, whose body may speak of the element.
    fn looped(&mut self, name: &str, kind: Kind) -> String {
        let range = self.of(kind);
        let element = self.element();
        let about = match self.choose(5) {
            0 => format!("({element} == {})", self.any()),
            1 => format!("({element} > {})", self.of(Kind::Int)),
            2 => format!("({element}.q > {})", self.of(Kind::Int)),
            3 => format!("has({element}.s)"),
            _ => self.of(Kind::Bool),
        };
        match (name, self.choose(3)) {
            ("map", 0) => format!("({range}).map({element}, {about}, {element})"),
            ("map", 1) => format!("({range}).map({element}, [{element}, {}])", self.any()),
            ("map", _) => format!("({range}).map({element}, {about} ? {element} : {element})"),
            _ => format!("({range}).{name}({element}, {about})"),
        }
    }
}

fn documents() -> impl Strategy<Value = String> {
    let integer = prop_oneof![-3_i64..4, any::<i64>()];
    let fields = (
        (
            integer.clone(),
            integer.clone(),
            proptest::collection::vec(integer.clone(), 0..4),
        ),
        (-4_i32..5, any::<bool>(), "[abé]{0,3}", "[a-c]{0,2}"),
        proptest::collection::vec(
            (proptest::option::of(-3_i64..4), proptest::option::of("[ab]")),
            0..3,
        ),
        proptest::collection::vec("[a-c]{1,2}", 0..3),
    );
    fields.prop_map(|((i, j, ints), (quarters, b, s, t), maps, texts)| {
        let maps: Vec<_> = maps
            .into_iter()
            .map(|(q, s)| {
                let mut map = serde_json::Map::new();
                map.extend(q.map(|q| ("q".to_owned(), q.into())));
                map.extend(s.map(|s| ("s".to_owned(), s.into())));
                map
            })
            .collect();
        serde_json::json!({
            "i": i, "j": j, "big": i64::MAX, "ints": ints, "d": f64::from(quarters) / 4.0 + 0.125, "e": 2.5,
            "b": b, "s": s, "t": t, "n": null, "maps": maps, "texts": texts,
            "m": {"one": 1}, "pair": {"a": i, "b": j}, "at": "2026-03-01T00:00:00.25Z",
        })
        .to_string()
    })
}

/// An ordinary document, for expressions that are written out.
const DOCUMENT: &str = r#"{"i":1,"j":2,"big":9223372036854775807,"ints":[1,2,3],"d":1.5,"e":2.5,"b":true,"s":"abc",
    "t":"c","n":null,"maps":[{"q":1,"s":"a"},{"q":2}],"texts":["a","b"],"m":{"one":1},"pair":{"b":5,"a":1},
    "at":"2026-03-01T00:00:00.25Z"}"#;

#[test]
fn a_corpus_gives_what_the_interpreter_gives() {
    for text in [
        "1 + 2 * 3 - 4 / 2 % 3",
        "-7 / 2",
        "-7 % 3",
        "event.big + 1",
        "-event.big - 2",
        "(-event.big - 1) / -1",
        "1 / 0",
        "1.0 / 4.0",
        "5.0 % 2.0",
        "'a' + 'é' < 'b'",
        "'Z' < 'a' && 'z' < 'é'",
        "event.none == 1 || true",
        "true || event.none == 1",
        "event.none == 1 && false",
        "event.none == 1 && true",
        "1 || true",
        "true && 'a'",
        "event.b ? 'yes' : event.none",
        "null == event.n",
        "event.n == 1",
        "'1' == 1",
        "[1, 'a', null] == [1, 'a', null]",
        "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}",
        "{'a': 1} == {'a': 1, 'b': 2}",
        "event.maps[1].q",
        "event.maps[2].q",
        "event.maps[-1]",
        "event['m']['one']",
        "event.m['nothing']",
        "has(event.m.one) && !has(event.m.two)",
        "has(event.s.x)",
        "has(event.none.x)",
        "'one' in event.m",
        "1 in event.m",
        "'b' in event.texts",
        "2 in [1, 'a', 2]",
        "event.ints.map(x, x * 2)",
        "event.ints.map(x, x > 1, x * 2)",
        "event.ints.filter(x, x > 1)",
        "event.ints.exists_one(x, x > 2)",
        "event.maps.all(x, has(x.q))",
        "[0, 2].exists(x, 4 / x == 2)",
        "[0, 2].all(x, 4 / x == 3)",
        "[0, 2].exists_one(x, 4 / x == 2)",
        "[].all(x, false)",
        "[[1, 2], [3]].map(x, x.map(x, x + 1))",
        "[1, 2].map(x, [3, 4].filter(y, y > x + 1).map(z, x * z))",
        "event.m.exists(k, k == 'one')",
        "event.i.exists(k, true)",
        "size('äöü') + 'abc'.size() + size([1]) + size(event.m)",
        "event.s.matches('^a.c$') && event.s.startsWith('ab') && event.s.endsWith('bc') && event.s.contains('b')",
        "string(12) + string(true) + string(event.s)",
        "int('12') + int(3.9) + int(-3.9)",
        "int(1e19)",
        "double('2.5') + double(2)",
        "timestamp('2026-01-31T15:00:00Z') + duration('24h') > timestamp(event.at)",
        "timestamp('2026-01-31T15:00:00Z') - timestamp('2026-01-31T14:00:00Z') == duration('1h')",
        "timestamp('2024-02-29T12:34:56.789Z').getDayOfYear()",
        "timestamp(event.s)",
        "int(timestamp('2026-01-31T15:00:00Z'))",
        "r'\\d' + '\\u00e9\\x41\\101' + \"\\\"\" + '''a'b'''",
        "0x1F - 0xf",
        "// a comment\n1 + // another\n 2",
    ] {
        let text = text.to_owned();
        let found = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || disagreement(&text, DOCUMENT))
            .expect("a thread")
            .join()
            .expect("no panic");
        assert_eq!(found, None);
    }
}

#[test]
fn generated_expressions_give_what_the_interpreter_gives() {
    let cases = || {
        let mut runner = TestRunner::new(Config {
            failure_persistence: None,
            ..Config::default()
        });
        let inputs = (proptest::collection::vec(any::<u8>(), 1..40), documents());
        runner.run(&inputs, |(bytes, document)| {
            let mut generator = Generator {
                bytes: bytes.iter(),
                loops: 0,
            };
            let text = generator.any();
            prop_assume!(text.len() <= 1_500);
            if let Err(error) = Expr::compile(&text, &[Root::Event]) {
                prop_assert!(error.message.contains("cannot read"), "{text}: {error}");
                return Ok(());
            }
            let found = disagreement(&text, &document);
            prop_assert!(found.is_none(), "{}", found.unwrap_or_default());
            Ok(())
        })
    };
    std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(cases)
        .expect("a thread")
        .join()
        .expect("no panic")
        .unwrap_or_else(|failure| panic!("{failure}"));
}
