//! Semantics, bounds, and agreement with the interpreter of the crate `cel`.

use proptest::prelude::*;

use super::*;

const ROOTS: [Root; 2] = [Root::Event, Root::State];

const EVENT: &str = r#"{"data":{"id":"o-1","total":12999,"price":1.5,"ok":true,"none":null,"items":[{"sku":"a","qty":2},{"sku":"b","qty":3}],"tags":["x","y"]},"type":"Order.Placed"}"#;
const STATE: &str = r#"{"grams":19000,"lines":["l1","l2"],"status":"new","attempts":1}"#;

fn run(text: &str) -> Result<String, String> {
    let (event, state) = (parse(EVENT), parse(STATE));
    let scope = Scope::default()
        .bind(Root::Event, &event)
        .bind(Root::State, &state);
    let mut budget = Budget { steps: 20_000 };
    let expr = Expr::compile(text, &ROOTS).map_err(|error| format!("{error} at {}", error.offset))?;
    let value = expr
        .eval(&scope, &mut budget)
        .map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    write_sorted(&value, &mut out);
    Ok(String::from_utf8(out).expect("JSON is UTF-8"))
}

fn parse(text: &str) -> Json<'_> {
    Json::parse(text.as_bytes(), 16).expect("JSON")
}

#[test]
fn values_are_as_cel_has_them() {
    for (text, expected) in [
        ("1 + 2 * 3", "7"),
        ("7 / 2", "3"),
        ("-7 % 3", "-1"),
        ("1.5 * 2.0", "3.0"),
        ("'a' + 'b'", "\"ab\""),
        ("[1] + [2, 3]", "[1,2,3]"),
        ("event.data.total >= 20000 ? 'big' : 'small'", "\"small\""),
        ("state.grams + 1000 >= 20000", "true"),
        ("state.status == 'new' && event.data.ok", "true"),
        (
            "event.data.items.map(i, {'sku': i.sku, 'n': i.qty})",
            r#"[{"n":2,"sku":"a"},{"n":3,"sku":"b"}]"#,
        ),
        ("event.data.items.filter(i, i.qty > 2)[0].sku", "\"b\""),
        ("event.data.items.exists(i, i.sku == 'b')", "true"),
        ("event.data.items.all(i, i.qty > 2)", "false"),
        ("event.data.items.exists_one(i, i.qty == 2)", "true"),
        ("'l2' in state.lines", "true"),
        ("'status' in state", "true"),
        ("has(state.nothing)", "false"),
        ("size('äöü') + size(state.lines)", "5"),
        ("'order-17'.matches('^order-[0-9]+$')", "true"),
        ("event.data['id'].startsWith('o-')", "true"),
        ("event.data.none == null", "true"),
        ("int('12') + int(3.9)", "15"),
        ("string(12) + string(true)", "\"12true\""),
        ("merge({'a': 1, 'b': 2}, {'b': 3})", r#"{"a":1,"b":3}"#),
        ("put(state, 'status', 'done').status", "\"done\""),
        ("sum(event.data.items.map(i, i.qty))", "5"),
        ("chunk(range(5), 2)", "[[0,1],[2,3],[4]]"),
        ("slice(range(5), 1, 3)", "[1,2]"),
        ("url('a/b ?ü')", "\"a%2Fb%20%3F%C3%BC\""),
        ("size(hash('x'))", "32"),
        ("false && event.nothing == 1", "false"),
        ("event.nothing == 1 && false", "false"),
        ("event.nothing == 1 || true", "true"),
        ("[0, 2].exists(x, 4 / x == 2)", "true"),
        ("-9223372036854775808", "-9223372036854775808"),
    ] {
        assert_eq!(run(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn failures_name_what_is_wrong() {
    for (text, expected) in [
        ("state.nothing", "no such field \"nothing\" in state"),
        (
            "event.data.customer.id",
            "no such field \"customer\" in event.data",
        ),
        ("9223372036854775807 + 1", "integer overflow in `+`"),
        ("1 / 0", "division by zero"),
        ("1 + 1.0", "`+` does not take an integer and a double"),
        ("1 == 1.0", "`==` does not take an integer and a double"),
        ("state.status && true", "`&&` does not take a string"),
        ("state.lines[7]", "index 7 is outside state.lines"),
        ("{'a': 1, 'a': 2}", "the key \"a\" twice"),
        (
            "range(200).map(a, range(200).map(b, a + b))",
            "more than the 20000 steps",
        ),
        ("sate.x", "unknown name `sate`"),
        ("result.id", "`result` cannot be read here"),
        ("event.data.id.startWith('o')", "unknown function `startWith`"),
        ("size()", "`size` takes 1 argument"),
        ("1u", "unsigned integers do not exist here"),
        ("'a'.matches(state.status)", "must be a literal string"),
        ("'a'.matches('(')", "not a regular expression"),
        ("state.", ""),
        ("", "expression is empty"),
    ] {
        let message = run(text).expect_err(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn hostile_texts_are_refused_and_not_fatal() {
    for text in [
        "(".repeat(3_000),
        "[".repeat(4_000),
        "!".repeat(4_000) + "true",
        "a".repeat(5_000),
        "1+".repeat(2_000) + "1",
        "x.".repeat(2_000) + "x",
        "1+".repeat(100) + "1",
        "state.a".to_owned() + &".b".repeat(98),
        "true?".repeat(700) + "1" + &":1".repeat(700),
        format!("'a'.matches('{}')", "(a{1,100}){1,100}".repeat(10)),
    ] {
        let _refused_or_not = run(&text);
    }
}

#[test]
fn help_names_what_was_meant() {
    let error = Expr::compile("state.a + evnt.b", &ROOTS).expect_err("unknown");
    assert_eq!(error.help.as_deref(), Some("did you mean `event`?"));
    assert_eq!(&"state.a + evnt.b"[error.offset..][..error.length], "evnt");
}

#[test]
fn templates_keep_types_and_sort_keys() {
    let event = parse(EVENT);
    let scope = Scope::default().bind(Root::Event, &event);
    let render = |text: &str| {
        let template = Template::compile_text(text, &ROOTS).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        let mut budget = Budget { steps: 1_000 };
        template
            .render(&scope, &mut budget, &mut out)
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(String::from_utf8(out).expect("UTF-8"))
    };
    for (text, expected) in [
        ("plain", "\"plain\""),
        ("${event.data.total}", "12999"),
        ("shp-${event.data.id}-${event.data.total}", "\"shp-o-1-12999\""),
        ("$${x}", "\"${x}\""),
        ("${'}' + \"{\"}", "\"}{\""),
        (
            "${{'b': 1, 'a': {'d': 1, 'c': 2}}}",
            r#"{"a":{"c":2,"d":1},"b":1}"#,
        ),
    ] {
        assert_eq!(render(text).as_deref(), Ok(expected), "{text}");
    }
    assert!(
        render("${event.data.total")
            .expect_err("open")
            .contains("without its")
    );
    assert!(render("x${event.data.none}").expect_err("null").contains("text"));
    let error = Template::compile_text("ab ${evnt.x}", &ROOTS).expect_err("unknown");
    assert_eq!(&"ab ${evnt.x}"[error.offset..][..error.length], "evnt");
}

/// What the interpreter of the crate `cel` says, where it says anything that can be compared.
fn oracle(text: &str) -> Option<serde_json::Value> {
    let program = cel::Program::compile(text).ok()?;
    let mut context = cel::Context::default();
    // Its maps turn non-negative JSON integers into unsigned ones; as literals they are signed.
    for (name, json) in [("event", EVENT), ("state", STATE)] {
        let literal = cel::Program::compile(&json.replace('\'', "")).ok()?;
        let value = literal.execute(&cel::Context::default()).ok()?;
        context.add_variable_from_value(name, value);
    }
    program.execute(&context).ok()?.json().ok()
}

/// Expressions over the two documents, without the differences that are on purpose: integers and doubles do not
/// mix, and keys of maps are strings.
fn expressions() -> impl Strategy<Value = String> {
    let integers = prop_oneof![
        (-20_i64..20).prop_map(|number| format!("({number})")),
        Just("event.data.total".to_owned()),
        Just("state.grams".to_owned()),
        Just("size(state.lines)".to_owned()),
    ];
    let texts = prop_oneof![
        Just("'a'".to_owned()),
        Just("state.status".to_owned()),
        Just("event.data.id".to_owned()),
        Just("'ne' + 'w'".to_owned()),
    ];
    let integer = integers.prop_recursive(3, 12, 3, |inner| {
        (inner.clone(), prop_oneof!["\\+", "-", "\\*", "/", "%"], inner)
            .prop_map(|(a, operator, b)| format!("({a} {operator} {b})"))
    });
    let boolean = prop_oneof![
        (
            integer.clone(),
            prop_oneof!["<", "<=", ">", ">=", "==", "!="],
            integer.clone()
        )
            .prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
        (texts.clone(), prop_oneof!["<", "==", "!="], texts.clone())
            .prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
        texts.clone().prop_map(|text| format!("({text} in state.lines)")),
        integer
            .clone()
            .prop_map(|number| format!("event.data.items.exists(i, i.qty > {number})")),
        integer
            .clone()
            .prop_map(|number| format!("event.data.items.all(i, i.qty < {number})")),
    ];
    let boolean = boolean.prop_recursive(2, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), prop_oneof!["&&", "\\|\\|"], inner.clone())
                .prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
            inner.prop_map(|a| format!("!{a}")),
        ]
    });
    prop_oneof![
        integer.clone(),
        texts,
        boolean.clone(),
        (boolean, integer.clone(), integer.clone()).prop_map(|(test, a, b)| format!("({test} ? {a} : {b})")),
        integer.prop_map(|number| format!("event.data.items.map(i, i.qty + {number})")),
    ]
}

proptest! {
    #[test]
    fn what_both_can_evaluate_is_the_same(text in expressions()) {
        if let (Ok(ours), Some(theirs)) = (run(&text), oracle(&text)) {
            let ours: serde_json::Value = serde_json::from_str(&ours).expect("we write JSON");
            prop_assert_eq!(ours, theirs, "{}", text);
        }
    }

    #[test]
    fn the_same_expression_gives_the_same_bytes(text in expressions()) {
        prop_assert_eq!(run(&text), run(&text));
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,60}") {
        let _ = Expr::compile(&text, &ROOTS);
        let _ = Template::compile_text(&text, &ROOTS);
    }

    #[test]
    fn almost_expressions_never_panic(text in r#"[a-z.(){}\[\]?:!&|+*/%<>=0-9"' ,-]{0,60}"#) {
        let _ = run(&text);
    }
}
