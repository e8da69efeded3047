//! Semantics and bounds.

mod cel_go;
mod differential;
mod extensions;

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
        ("9223372036854775807 + 1", "overflow in `+`"),
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
        "{'a':".repeat(800),
        "a.b(".repeat(1_000),
        "a".repeat(5_000),
        "1+".repeat(2_000) + "1",
        "true?".repeat(800),
        "true?1:".repeat(500) + "1",
        "[1].map(x,".repeat(400),
        format!("'\n{}", "(".repeat(4_000)),
        "\\".repeat(4_000),
        format!("'a'.matches('{}')", "(a{1,100}){1,100}".repeat(10)),
        format!("({})", "size(".repeat(65)),
    ] {
        let error = Expr::compile(&text, &Root::ALL).expect_err(&text[..20]);
        assert!(
            text.get(error.offset..error.offset + error.length).is_some(),
            "{error:?}"
        );
    }
}

#[test]
fn the_deepest_legal_expression_is_evaluated_on_an_ordinary_stack() {
    let (brackets, sums) = ("(".repeat(64), ")".repeat(64));
    let nested = "size([".repeat(32) + &"])".repeat(32);
    let texts = [
        format!("{brackets}state.attempts{sums}"),
        format!("state.attempts{}", "+state.attempts".repeat(120)),
        format!("{}state.attempts", "state.attempts>0?1:".repeat(80)),
        nested,
        "event.data.tags".to_owned() + &".map(x,[x])".repeat(60),
        "event".to_owned() + &".data".repeat(100),
    ];
    let evaluated = std::thread::Builder::new()
        .stack_size(1024 * 1024)
        .spawn(move || texts.map(|text| run(&text)))
        .expect("a thread")
        .join()
        .expect("the stack suffices");
    let expected = [
        Ok("1".to_owned()),
        Ok("121".to_owned()),
        Ok("1".to_owned()),
        Ok("1".to_owned()),
        Ok(format!(
            "[{0}\"x\"{1},{0}\"y\"{1}]",
            "[".repeat(60),
            "]".repeat(60)
        )),
        Err("no such field \"data\" in event.data".to_owned()),
    ];
    assert_eq!(evaluated, expected);
}

#[test]
fn large_maps_and_long_conditions_compile() {
    let members: Vec<String> = (0..90)
        .map(|n| format!("'field_{n}': event.data.total"))
        .collect();
    assert!(run(&format!("{{{}}}", members.join(", "))).is_ok());
    let terms: Vec<String> = (0..90).map(|n| format!("state.status == 'status-{n}'")).collect();
    assert_eq!(run(&terms.join(" || ")).as_deref(), Ok("false"));
}

/// Every way to make much out of little ends with the budget, before time and memory do.
#[test]
fn the_budget_ends_runaway_expressions() {
    let members: Vec<String> = (0..5_000).map(|n| format!("\"k{n}\":{n}")).collect();
    let items: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let json = format!(
        r#"{{"text":"{}","map":{{{}}},"list":[{}]}}"#,
        "ab".repeat(200_000),
        members.join(","),
        items.join(",")
    );
    let event = parse(&json);
    let scope = Scope::default().bind(Root::Event, &event);
    let doubled = "[1]".to_owned() + &".map(x, [x, x])".repeat(25);
    for text in [
        "range(10000).map(i, range(10000))",
        "range(10000).map(i, event.text).map(s, s + 'x')",
        "range(10000).map(i, event.text == event.text)",
        "range(10000).map(i, size(event.text))",
        "range(10000).map(i, event.text.contains('c'))",
        "range(10000).map(i, event.text.matches('(a|b)*c'))",
        "range(10000).map(i, hash(event.text))",
        "range(10000).map(i, event.map.k4999)",
        "range(10000).map(i, event.map == event.map)",
        "range(10000).map(i, merge(event.map, event.map))",
        "range(10000).map(i, put(event.map, 'k', 1))",
        "range(10000).map(i, event.list == event.list)",
        "range(10000).map(i, event.list + [i])",
        "range(10000).map(i, 5000 in event.list)",
        "range(10000).map(i, sum(event.list))",
        "range(10000).map(i, event.list.filter(x, false))",
        "range(1000).map(i, event)",
        &doubled,
    ] {
        let mut out = Vec::new();
        let mut budget = Budget { steps: 20_000 };
        let template = Template::compile_text(&format!("${{{text}}}"), &ROOTS).expect(text);
        let error = template.render(&scope, &mut budget, &mut out).expect_err(text);
        assert!(matches!(error, EvalError::Budget { .. }), "{text}: {error}");
        assert_eq!(budget.steps, 0, "{text}");
        assert!(out.len() < 4_000_000, "{text}: {}", out.len());
        let expr = Expr::compile(text, &ROOTS).expect(text);
        let evaluated = expr.eval(&scope, &mut Budget { steps: 20_000 });
        assert!(evaluated.is_err() || text.ends_with("(i, event)"), "{text}");
    }
}

#[test]
fn an_exhausted_budget_is_not_absorbed() {
    for text in [
        "size(range(10000).map(i, i)) > 0 || true",
        "true && (size(range(10000).map(i, i)) > 0 || true)",
        "[1, 2].exists(x, size(range(10000).map(i, i)) > 0 || true)",
    ] {
        let expr = Expr::compile(text, &ROOTS).expect(text);
        let answer = expr.test(&Scope::default(), &mut Budget { steps: 10_050 });
        assert!(
            matches!(answer, Err(EvalError::Budget { .. })),
            "{text}: {answer:?}"
        );
    }
}

#[test]
fn texts_of_an_event_are_not_copied() {
    let event = parse(EVENT);
    let scope = Scope::default().bind(Root::Event, &event);
    let expr = Expr::compile("event.data.tags + [event.type]", &ROOTS).expect("compiles");
    let value = expr.eval(&scope, &mut Budget { steps: 100 }).expect("evaluates");
    let Json::List(items) = value else {
        panic!("a list");
    };
    assert_eq!(items.len(), 3);
    assert!(
        items
            .iter()
            .all(|item| matches!(item, Json::Str(std::borrow::Cow::Borrowed(_))))
    );
}

#[test]
fn constants_are_computed_at_load() {
    let cost = |text: &str| {
        let mut budget = Budget { steps: 1_000 };
        let expr = Expr::compile(text, &ROOTS).expect(text);
        expr.test(&Scope::default(), &mut budget).expect(text);
        1_000 - budget.steps
    };
    assert_eq!(cost("1 + 2 * 3 == 7 && 'a' in ['a', 'b']"), 1);
    assert_eq!(
        cost("timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2026-01-01T00:00:00Z')"),
        1
    );
    let error = Expr::compile("state.at > timestamp('2026-13-01')", &ROOTS).expect_err("no month");
    assert!(error.message.contains("timestamp() cannot read"), "{error}");
    // Nobody comes by, so nothing fails.
    assert_eq!(run("true || 1 / 0 == 1").as_deref(), Ok("true"));
}

#[test]
fn time_is_text_outside() {
    for (text, expected) in [
        (
            "timestamp('2026-01-31T23:30:00+01:00')",
            "\"2026-01-31T22:30:00Z\"",
        ),
        (
            "timestamp('2026-01-31T15:00:00Z') + duration('36h')",
            "\"2026-02-02T03:00:00Z\"",
        ),
        (
            "timestamp('2026-01-31T15:00:00Z') - timestamp('2026-01-31T14:59:30.5Z')",
            "\"29.5s\"",
        ),
        ("[duration('1h 30m'), duration('2d')]", "[\"5400s\",\"172800s\"]"),
        ("string(duration('90s')) + '!'", "\"90s!\""),
        ("timestamp('2026-01-31T15:00:00Z').getDayOfWeek()", "6"),
        ("duration('90m').getHours()", "1"),
    ] {
        assert_eq!(run(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, expected) in [
        (
            "timestamp('9999-12-30T00:00:00Z') + duration('48h')",
            "overflow in `+`",
        ),
        (
            "duration('1h') + 1",
            "`+` does not take a duration and an integer",
        ),
        ("timestamp(state.status)", "timestamp() cannot read \"new\""),
        ("duration('1h').getMonth()", "getMonth does not take a duration"),
    ] {
        let message = run(text).expect_err(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn integers_and_doubles_do_not_mix_at_any_depth() {
    for text in [
        "[1] == [1.0]",
        "{'a': [1]} != {'a': [1.0]}",
        "1 in [2, 1.0]",
        "1 < 1.5",
        "sum([1, 0.5])",
        "sum([0, 0.5])",
    ] {
        let message = run(text).expect_err(text);
        assert!(message.contains("does not take"), "{text}: {message}");
    }
    // Where something else decides, the mixture does not matter.
    assert_eq!(run("[1, 'a'] == [1.0, 'b']").as_deref(), Ok("false"));
    assert_eq!(run("1 in [1.0, 1]").as_deref(), Ok("true"));
    assert_eq!(
        run("{'b': 1, 'a': 2} == {'a': 3, 'b': 1.0}").as_deref(),
        Ok("false")
    );
}

#[test]
fn errors_point_at_bytes_of_the_text() {
    for (text, place) in [
        ("'äöü' + evnt.x", "evnt"),
        ("state.a == 'é' && siez(state.b)", "siez"),
        ("'ü'.contains (1, 2)", "contains"),
        ("'é' + $", "$"),
        ("state.a +\n  'ü' + evnt", "evnt"),
        ("[1, 2].map(é, 1)", "é"),
    ] {
        let error = Expr::compile(text, &ROOTS).expect_err(text);
        assert_eq!(
            text.get(error.offset..error.offset + error.length),
            Some(place),
            "{text}: {error}"
        );
    }
    for (text, message) in [
        ("state.a +", "expression ends too early"),
        ("state.a state.b", "unexpected `state`"),
        ("true ? 1", "`?` without its `:`"),
        ("state.a # b", "unexpected `#`"),
    ] {
        assert_eq!(
            Expr::compile(text, &ROOTS).expect_err(text).message,
            message,
            "{text}"
        );
    }
}

#[test]
fn the_paths_that_an_expression_reads_are_known() {
    let text = "has(state.a) && state.b.c == state['d'] && event.data.exists(x, x == state.e[0])";
    let expr = Expr::compile(text, &ROOTS).expect("compiles");
    assert!(expr.reads(Root::State) && expr.reads(Root::Event) && !expr.reads(Root::Key));
    assert_eq!(expr.fields_of(Root::State), ["a", "b", "d", "e"]);
    assert!(
        Expr::compile("url(state.a)", &ROOTS)
            .expect("compiles")
            .is_call_of("url")
    );
    assert!(
        Expr::compile("'a' + 'b'", &ROOTS)
            .expect("compiles")
            .is_call_of("url")
    );
    assert!(
        !Expr::compile("url(state.a) + state.b", &ROOTS)
            .expect("compiles")
            .is_call_of("url")
    );
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

#[test]
fn values_of_the_event_are_rendered_sorted_at_every_level() {
    let json = r#"{"data":{"z":1,"a":[{"y":1,"x":{"é":1,"z":2,"Z":3}}]}}"#;
    let event = parse(json);
    let scope = Scope::default().bind(Root::Event, &event);
    let template = Template::compile_text("${event}", &ROOTS).expect("compiles");
    let mut out = Vec::new();
    template
        .render(&scope, &mut Budget { steps: 100 }, &mut out)
        .expect("renders");
    assert_eq!(
        String::from_utf8_lossy(&out),
        r#"{"data":{"a":[{"x":{"Z":3,"z":2,"é":1},"y":1}],"z":1}}"#
    );
}

#[test]
fn a_value_nested_too_deep_to_be_read_again_is_not_rendered() {
    let text = "[1]".to_owned() + &".map(x, [x])".repeat(120) + &".map(x, [x])".repeat(20);
    let message = run(&text).expect_err("too deep");
    assert!(
        message.contains("operations inside each other") || message.contains("deeper"),
        "{message}"
    );
    let json = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    let event = Json::parse(json.as_bytes(), 200).expect("JSON");
    let scope = Scope::default().bind(Root::Event, &event);
    let template = Template::compile_text("${[[[[[[[[[event]]]]]]]]]}", &ROOTS).expect("compiles");
    let error = template
        .render(&scope, &mut Budget { steps: 1_000 }, &mut Vec::new())
        .expect_err("too deep");
    assert!(error.to_string().contains("deeper than 128"), "{error}");
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,60}") {
        let _ = Expr::compile(&text, &ROOTS);
        let _ = Template::compile_text(&text, &ROOTS);
    }

    #[test]
    fn almost_expressions_never_panic(text in r#"[a-z.(){}\[\]?:!&|+*/%<>=0-9"' ,-]{0,60}"#) {
        let _ = run(&text);
    }

    #[test]
    fn expressions_cut_anywhere_fail_with_a_place_in_the_text(cut in 0_usize..120, noise in "[é(\\]'\"?. ]{0,3}") {
        let text = "event.data.items.filter(i, i.qty > 2 && 'ä' in state.lines).map(i, {'s': i.sku + \"é\"}) == [] ? 1.5 : -2";
        let cut = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let text = format!("{}{noise}", &text[..cut]);
        if let Err(error) = Expr::compile(&text, &ROOTS) {
            prop_assert!(text.get(error.offset..error.offset + error.length).is_some(), "{text}: {error:?}");
        }
    }
}
