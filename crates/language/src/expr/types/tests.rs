//! What is told about expressions before they run, and that it is true when they do.

use super::{Env, FaultKind, Type};
use crate::definition::schemas::{compile_text, json_of_text};
use crate::expr::{Budget, Expr, Root, Scope};

const EVENT: &str = "
type: object
required: [data]
properties:
  data:
    type: object
    required: [id, cents, items, kind, ratio, big, free]
    properties:
      id: {type: string}
      cents: {type: integer}
      ratio: {type: number}
      note: {type: string}
      kind: {enum: [card, invoice]}
      big: {type: ['null', string]}
      items: {type: array, items: {type: object, required: [sku], properties: {sku: {type: string}, qty: {type: integer}}}}
      free: {type: object}
      customer: {type: object, required: [name], properties: {name: {type: string}}}
";

fn schema(text: &str) -> Type {
    let schema = compile_text("schema", &text.into()).unwrap_or_else(|findings| panic!("{findings:?}"));
    Type::of_schema(&schema)
}

fn env() -> Env {
    let mut env = Env::default();
    env.bind(Root::Event, schema(EVENT));
    env.bind(
        Root::State,
        schema("{type: object, required: [n], properties: {n: {type: integer}, late: {type: string}}}"),
    );
    env.bind(Root::Key, Type::string());
    env
}

fn compiled(text: &str) -> Expr {
    Expr::compile(text, &Root::ALL).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The type of an expression without faults.
fn typed(text: &str) -> String {
    let mut faults = Vec::new();
    let found = compiled(text).type_in(&env(), &mut faults);
    assert!(faults.is_empty(), "{text}: {faults:#?}");
    found.to_string()
}

/// Kind, text and message of each fault.
fn faults(text: &str) -> Vec<(FaultKind, String, String)> {
    let mut faults = Vec::new();
    compiled(text).type_in(&env(), &mut faults);
    faults
        .into_iter()
        .map(|fault| {
            let place = text[fault.offset..fault.offset + fault.length].to_owned();
            (fault.kind, place, fault.message)
        })
        .collect()
}

#[test]
fn expressions_have_the_types_of_what_they_give() {
    for (text, expected) in [
        ("event.data.id", "a string"),
        ("event.data.cents + 1", "an integer"),
        ("event.data.ratio", "a number"),
        ("event.data.kind", "\"card\" or \"invoice\""),
        ("event.data.items", "a list"),
        ("event.data.items[0].sku", "a string"),
        ("event.data.items.map(i, i.sku)[0]", "a string"),
        ("event.data.items.filter(i, has(i.qty)).map(i, i.qty)", "a list"),
        (
            "event.data.items.filter(i, has(i.qty)).map(i, i.qty)[0]",
            "an integer",
        ),
        ("event.data.items.exists(i, i.sku == key)", "a boolean"),
        ("event.data.cents > 3 ? \"a\" : null", "null or \"a\""),
        ("event.data.free.anything.at.all", "anything"),
        ("size(event.data.items)", "an integer"),
        ("timestamp(event.data.id) + duration(\"1h\")", "a timestamp"),
        ("{\"a\": 1, \"b\": key}.b", "a string"),
        ("merge({\"a\": 1}, {\"b\": key}).b", "a string"),
        ("put({\"a\": 1}, \"b\", key).b", "a string"),
        ("double(event.data.cents) / 2.0", "a double"),
        ("sum(event.data.items.map(i, 1))", "an integer"),
        ("range(3)[0]", "an integer"),
        ("slice(event.data.items, 0, 1)[0].sku", "a string"),
        ("[1] + [2]", "a list"),
        ("event[\"data\"][\"id\"]", "a string"),
        ("failure.code", "anything"),
    ] {
        assert_eq!(typed(text), expected, "{text}");
    }
}

#[test]
fn a_guard_lets_what_may_be_missing_be_read() {
    for text in [
        "has(event.data.note) && event.data.note == \"x\"",
        "has(event.data.note) ? event.data.note : \"\"",
        "!has(event.data.note) || event.data.note == \"x\"",
        "!has(event.data.note) ? \"\" : event.data.note",
        "event.data.big != null && event.data.big.startsWith(\"x\")",
        "event.data.big == null || event.data.big.startsWith(\"x\")",
        "event.data.big == null ? \"\" : event.data.big + \"x\"",
        "null != event.data.big ? event.data.big + \"x\" : \"\"",
        "has(event.data.customer) && event.data.customer.name == \"x\"",
        "event.data.items.all(i, !has(i.qty) || i.qty > 0)",
        "event.data.items.filter(i, has(i.qty) && i.qty > 1).size() > 0",
        "has(state.late) && state.late == key",
        "(has(event.data.note) && has(event.data.customer)) ? event.data.note + event.data.customer.name : \"\"",
    ] {
        assert!(faults(text).is_empty(), "{text}: {:?}", faults(text));
    }
}

#[test]
fn an_operation_that_would_fail_is_reported_at_its_place() {
    use FaultKind::{Certain, CertainGuard, Overload, Unguarded, UnguardedState, UnknownField};
    for (text, kind, place) in [
        ("event.data.totl", UnknownField, "totl"),
        ("event.dat.id", UnknownField, "dat"),
        ("event.data.items.map(i, i.skuu)", UnknownField, "skuu"),
        ("event[\"data\"].idd", UnknownField, "idd"),
        ("has(event.data.notee)", UnknownField, "notee"),
        ("{\"a\": 1}.b", UnknownField, "b"),
        ("event.data.note", Unguarded, "note"),
        ("event.data.customer.name", Unguarded, "customer"),
        ("event.data.items[0].qty + 1", Unguarded, "qty"),
        ("state.late", UnguardedState, "late"),
        (
            "event.data.big.startsWith(\"x\")",
            Unguarded,
            "event.data.big.startsWith(\"x\")",
        ),
        ("event.data.big + \"x\"", Unguarded, "event.data.big + \"x\""),
        (
            "has(event.data.note) || event.data.note == \"x\"",
            Unguarded,
            "note",
        ),
        ("event.data.id + 1", Overload, "event.data.id + 1"),
        ("event.data.cents * 1.5", Overload, "event.data.cents * 1.5"),
        ("event.data.ratio + 1", Overload, "event.data.ratio + 1"),
        ("event.data.cents == 1.0", Overload, "event.data.cents == 1.0"),
        ("event.data.id < 3", Overload, "event.data.id < 3"),
        ("!event.data.cents", Overload, "event.data.cents"),
        ("event.data.cents && true", Overload, "event.data.cents"),
        ("event.data.cents ? 1 : 2", Overload, "event.data.cents"),
        ("size(event.data.cents)", Overload, "size(event.data.cents)"),
        ("event.data.id.id", Overload, "id"),
        (
            "event.data.cents.matches(\"a\")",
            Overload,
            "event.data.cents.matches",
        ),
        ("event.data.id.map(i, i)", Overload, "event.data.id"),
        ("event.data.items[\"a\"]", Overload, "a"),
        ("-event.data.id", Overload, "-event.data.id"),
        ("key in event.data.cents", Overload, "key in event.data.cents"),
        (
            "event.data.kind == \"crad\"",
            Certain,
            "event.data.kind == \"crad\"",
        ),
        (
            "event.data.kind != \"crad\"",
            Certain,
            "event.data.kind != \"crad\"",
        ),
        ("event.data.id == 3", Certain, "event.data.id == 3"),
        (
            "event.data.kind in [\"a\", \"b\"]",
            Certain,
            "event.data.kind in [",
        ),
        ("3 in [\"a\"]", Certain, ""),
        ("event.data.id == null", CertainGuard, "event.data.id == null"),
        (
            "event.data.kind == \"card\" && event.data.kind == \"invoice\"",
            Certain,
            "event.data.kind == \"invoice\"",
        ),
    ] {
        if place.is_empty() {
            // Computed when it is compiled; there is nothing left to be wrong.
            continue;
        }
        let found = faults(text);
        let told: Vec<(FaultKind, &str)> = found
            .iter()
            .map(|(kind, place, _)| (*kind, place.as_str()))
            .collect();
        assert_eq!(told.len(), 1, "{text}: {found:?}");
        assert_eq!(told[0].0, kind, "{text}: {found:?}");
        assert!(told[0].1.starts_with(place), "{text}: {found:?}");
    }
}

#[test]
fn a_value_that_may_be_missing_is_reported_once() {
    let found = faults("event.data.note + event.data.note");
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_value_is_held_against_what_is_expected_of_it() {
    let expected = schema(
        "{type: object, required: [id], properties: {id: {type: string}, n: {type: integer}, kind: {enum: [a, b]}}}",
    );
    for (text, told) in [
        ("{\"id\": key}", vec![]),
        ("{\"id\": key, \"n\": 1, \"kind\": \"a\"}", vec![]),
        ("{\"n\": 1}", vec![": the member \"id\" is missing"]),
        ("{\"id\": 3}", vec!["id: expected a string, found an integer"]),
        (
            "{\"id\": key, \"nn\": 1}",
            vec!["nn: \"nn\" is not a member of what is expected"],
        ),
        (
            "{\"id\": key, \"kind\": \"c\"}",
            vec!["kind: expected \"a\" or \"b\", found \"c\""],
        ),
        (
            "{\"id\": event.data.big}",
            vec!["id: expected a string, and this may be null"],
        ),
        (
            "{\"id\": key, \"n\": event.data.ratio}",
            vec!["n: expected an integer, found a number"],
        ),
        ("event.data.free", vec![]),
        ("[1]", vec![": expected a map, found a list"]),
    ] {
        let found = compiled(text).type_in(&env(), &mut Vec::new());
        let misfits: Vec<String> = found
            .fits(&expected)
            .err()
            .unwrap_or_default()
            .into_iter()
            .map(|misfit| format!("{}: {}", misfit.path.join("."), misfit.message))
            .collect();
        let told: Vec<String> = told.into_iter().map(str::to_owned).collect();
        assert_eq!(misfits, told, "{text}");
    }
}

/// The promise of it all: an expression without faults does not fail on a value that fits the schema, and gives
/// what its type says. What no type tells is left out: numbers out of range, places outside a list, texts that
/// are no instants.
#[test]
fn an_expression_without_faults_does_not_fail_on_what_fits() {
    let event = json_of_text(
        "event",
        "data: {id: a, cents: 3, ratio: 1.5, kind: card, big: ~, items: [{sku: s}, {sku: t, qty: 2}], free: {x: 1}}",
    )
    .expect("JSON");
    let shapes = [
        "event.data.id",
        "event.data.cents",
        "event.data.note",
        "event.data.big",
        "event.data.kind",
        "event.data.ratio",
        "event.data.items",
        "event.data.customer.name",
        "1",
        "2.5",
        "\"card\"",
        "null",
        "true",
        "[1]",
        "{\"a\": 1}",
    ];
    let mut texts: Vec<String> = Vec::new();
    for left in shapes {
        for right in shapes {
            for operator in ["+", "-", "*", "==", "!=", "<", ">=", "in", "&&", "||"] {
                texts.push(format!("{left} {operator} {right}"));
            }
            texts.push(format!("has(event.data.note) ? {left} : {right}"));
            texts.push(format!("event.data.big != null && {left} == {right}"));
            texts.push(format!("event.data.items.map(i, {left} == {right})"));
        }
        for function in ["size", "string", "int", "double", "url", "sum"] {
            texts.push(format!("{function}({left})"));
        }
        texts.push(format!("-{left}"));
        texts.push(format!("!{left}"));
        texts.push(format!("{left}.sku"));
        texts.push(format!("{left}.startsWith(\"c\")"));
    }
    let (mut sound, mut wrong) = (0, 0);
    for text in texts {
        let Ok(expr) = Expr::compile(&text, &Root::ALL) else {
            continue;
        };
        let mut faults = Vec::new();
        let told = expr.type_in(&env(), &mut faults);
        let scope = Scope::default().bind(Root::Event, &event);
        let given = expr.eval(&scope, &mut Budget { steps: 10_000 });
        // Texts may be numbers, and it is not told which are.
        let reads_text = text.starts_with("int(") || text.starts_with("double(");
        if faults.is_empty() && !reads_text {
            sound += 1;
            let given = given.unwrap_or_else(|error| panic!("{text}: {error}, told {told}"));
            let fits = Type::of_json(&given).fits(&told);
            assert!(fits.is_ok(), "{text}: {given:?} is no {told}");
        } else {
            wrong += 1;
        }
    }
    assert!(sound > 200 && wrong > 200, "{sound} {wrong}");
}
