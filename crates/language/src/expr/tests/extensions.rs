//! What the extensions of CEL cost, and what is told about them before they are evaluated.

use super::super::types::{Env, Fault, FaultKind, Type};
use super::*;

const STATE_SCHEMA: &str = "
type: object
required: [n, list, maps]
additionalProperties: false
properties:
  note: {type: object, additionalProperties: false, required: [by], properties: {by: {type: string}}}
  n: {type: integer}
  list: {type: array, items: {type: integer}}
  maps: {type: array, items: {type: object}}
";

/// The faults of `text` where the state has a note that may be missing, a number and a list of numbers.
fn faults(text: &str) -> Vec<Fault> {
    let schema = crate::definition::schemas::compile_text("schema", &STATE_SCHEMA.into())
        .unwrap_or_else(|findings| panic!("{findings:?}"));
    let mut env = Env::default();
    env.bind(Root::State, Type::of_schema(&schema));
    let mut faults = Vec::new();
    let expr = Expr::compile(text, &ROOTS).expect(text);
    expr.type_in(&env, &mut faults);
    faults
}

#[test]
fn a_text_that_grows_is_paid_for_before_it_is_built() {
    for text in [
        "cel.bind(a, 'aaaaaaaaaaaaaaaa', cel.bind(b, a.replace('a', a), cel.bind(c, b.replace('a', b), c.replace('a', c).size())))",
        "range(9000).map(i, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').join('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb').size()",
        "'%.100f'.format([1.5]).replace('0', '%.100f'.format([1.5])).replace('0', range(3000).map(i, 'x').join()).size()",
        "range(9000).sort().reverse().distinct().size()",
        "range(3000).sortBy(e, -e).distinct().size()",
    ] {
        let message = run(text).expect_err(text);
        assert!(message.contains("steps that are left"), "{text}: {message}");
    }
    // What an order over several hundred lines needs is well within it.
    assert_eq!(
        run("range(500).map(i, 'sku-' + string(i % 7)).distinct().sort().size()").as_deref(),
        Ok("7")
    );
}

#[test]
fn names_of_extensions_are_told_and_may_be_used_for_elements() {
    for (text, message, help) in [
        (
            "abs(state.n)",
            "unknown function `abs`",
            Some("did you mean `math.abs`?"),
        ),
        (
            "math.avs(state.n)",
            "unknown function `math.avs`",
            Some("did you mean `math.abs`?"),
        ),
        ("state.list.sortby(e, e)", "unknown name `e`", None),
        ("'a'.split()", "`split` takes 2 to 3 argument(s), found 1", None),
        ("math.abs(1, 2)", "`math.abs` takes 1 argument(s), found 2", None),
        (
            "[1].transformList(1, v, v)",
            "`transformList` takes a name here",
            None,
        ),
        ("[1].all(i, i, true)", "`all` takes two different names", None),
    ] {
        let error = Expr::compile(text, &ROOTS).expect_err(text);
        assert_eq!(error.message, message, "{text}");
        if help.is_some() {
            assert_eq!(error.help.as_deref(), help, "{text}");
        }
    }
    assert_eq!(run("[[2, 1]].map(math, math.sort()[0])[0]").as_deref(), Ok("1"));
    assert_eq!(run("[1, 2].map(optional, optional + 1)").as_deref(), Ok("[2,3]"));
}

#[test]
fn a_call_of_an_extension_that_would_fail_is_reported_at_load() {
    for (text, kind, message) in [
        ("state.?note", FaultKind::Overload, "this may be absent"),
        ("[state.?note.by]", FaultKind::Overload, "this may be absent"),
        (
            "{'by': state.?note.by}",
            FaultKind::Overload,
            "this may be absent",
        ),
        (
            "state.?nte.orValue(1)",
            FaultKind::UnknownField,
            "unknown field `nte`",
        ),
        (
            "state.?note.bye.orValue('')",
            FaultKind::UnknownField,
            "unknown field `bye`",
        ),
        ("state.n.?x.orValue(1)", FaultKind::Certain, "always absent"),
        (
            "state.n.orValue(1)",
            FaultKind::Overload,
            "does not take an integer",
        ),
        (
            "math.ceil(state.n)",
            FaultKind::Overload,
            "does not take an integer",
        ),
        (
            "math.greatest(state.n, 1.5)",
            FaultKind::Overload,
            "integers and doubles do not mix",
        ),
        (
            "state.list.join(',')",
            FaultKind::Overload,
            "does not take an integer",
        ),
        ("state.maps.sort()", FaultKind::Overload, "does not take a map"),
        ("[1, 'a'].sort()", FaultKind::Overload, "items of one type"),
        (
            "state.maps.sortBy(e, [e])",
            FaultKind::Overload,
            "does not take a list",
        ),
        (
            "state.list.transformMap(i, v, v)",
            FaultKind::Overload,
            "does not take a list",
        ),
        ("state.note.by", FaultKind::UnguardedState, "may be missing"),
    ] {
        let faults = faults(text);
        let told = faults
            .iter()
            .any(|fault| fault.kind == kind && fault.message.contains(message));
        assert!(told, "{text}: {faults:?}");
    }
    for text in [
        "state.?note.by.orValue('nobody')",
        "state.?note.hasValue() ? state.note.by : ''",
        "state.?note.optMap(note, note.by.upperAscii()).orValue('')",
        "{?'by': state.?note.by, 'n': state.n}",
        "[?state.?note.by, 'me'].join(', ')",
        "state.list.sort()[?0].orValue(0) + 1",
        "state.list.transformList(i, v, i * v)",
        "state.list.sortBy(e, -e).first().orValue(0)",
        "math.greatest(state.list) + math.abs(state.n)",
        "cel.bind(n, state.n * 2, n + n)",
    ] {
        assert_eq!(faults(text), [], "{text}");
    }
}

#[test]
fn an_absent_optional_is_stored_nowhere() {
    for text in [
        "optional.of(1)",
        "[optional.none()]",
        "{'a': {'b': optional.of(1)}}",
    ] {
        let message = run(text).expect_err(text);
        assert!(message.contains("end with orValue(...)"), "{text}: {message}");
    }
    assert!(run("'' + string(optional.of(1))").is_err());
}
