//! What a schema lets through and what it says about the rest.

use crate::definition::schemas::{compile_text, json_of_text};

fn said(schema: &str, value: &str) -> String {
    let schema = compile_text("schema", &schema.into()).unwrap_or_else(|findings| panic!("{findings:?}"));
    let value = json_of_text("value", value).expect("JSON");
    match schema.check(&value) {
        Ok(()) => "fine".to_owned(),
        Err(violation) => violation.to_string(),
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn each_keyword_refuses_what_breaks_it_and_nothing_else() {
    for (schema, good, bad, message) in [
        ("{type: integer}", "3", "3.0", "expected integer, found 3.0"),
        ("{type: number}", "3.5", "'3'", "expected number, found \"3\""),
        (
            "{type: [string, 'null']}",
            "~",
            "3",
            "expected null or string, found 3",
        ),
        ("{enum: [a, 1]}", "a", "b", "expected \"a\" or 1, found \"b\""),
        (
            "{const: {a: 1, b: 2}}",
            "{b: 2, a: 1}",
            "{a: 1}",
            "expected an object, found an object",
        ),
        ("{minimum: 1}", "1", "0", "expected at least 1, found 0"),
        ("{maximum: 1}", "1", "1.5", "expected at most 1, found 1.5"),
        ("{exclusiveMinimum: 1}", "2", "1", "expected more than 1, found 1"),
        ("{exclusiveMaximum: 1}", "0", "1", "expected less than 1, found 1"),
        ("{multipleOf: 5}", "-10", "7", "expected a multiple of 5, found 7"),
        (
            "{minLength: 2}",
            "éé",
            "é",
            "has 1 character(s), expected at least 2",
        ),
        (
            "{maxLength: 1}",
            "é",
            "éé",
            "has 2 characters, expected at most 1",
        ),
        (
            "{pattern: '^a+$'}",
            "aa",
            "ab",
            "expected text that matches ^a+$, found \"ab\"",
        ),
        (
            "{items: {type: string}}",
            "[a]",
            "[a, 1]",
            "[1]: expected string, found 1",
        ),
        (
            "{items: [{type: string}]}",
            "[a, 1]",
            "[1]",
            "[0]: expected string, found 1",
        ),
        (
            "{contains: {const: 1}}",
            "[2, 1]",
            "[2]",
            "has no item of the kind that it must contain",
        ),
        ("{minItems: 1}", "[1]", "[]", "has 0 item(s), expected at least 1"),
        (
            "{maxItems: 1}",
            "[1]",
            "[1, 2]",
            "has 2 items, expected at most 1",
        ),
        (
            "{uniqueItems: true}",
            "[1, 2]",
            "[1, 2, 1]",
            "[2]: is there twice",
        ),
        (
            "{properties: {a: {type: string}}}",
            "{b: 1}",
            "{a: 1}",
            "a: expected string, found 1",
        ),
        (
            "{patternProperties: {'^x': {type: string}}}",
            "{y: 1}",
            "{xy: 1}",
            "xy: expected string, found 1",
        ),
        (
            "{properties: {a: true}, additionalProperties: false}",
            "{a: 1}",
            "{b: 1}",
            "b: is not a member that is allowed",
        ),
        (
            "{additionalProperties: {type: integer}}",
            "{a: 1}",
            "{a: {}}",
            "a: expected integer, found an object",
        ),
        ("{required: [a]}", "{a: ~}", "{}", "lacks the member \"a\""),
        (
            "{propertyNames: {maxLength: 1}}",
            "{a: 1}",
            "{ab: 1}",
            "ab: has 2 characters, expected at most 1",
        ),
        (
            "{minProperties: 1}",
            "{a: 1}",
            "{}",
            "has 0 member(s), expected at least 1",
        ),
        (
            "{maxProperties: 1}",
            "{a: 1}",
            "{a: 1, b: 1}",
            "has 2 members, expected at most 1",
        ),
        (
            "{allOf: [{minimum: 1}, {maximum: 2}]}",
            "2",
            "3",
            "expected at most 2, found 3",
        ),
        (
            "{anyOf: [{type: string}, {properties: {a: {type: string}}}]}",
            "x",
            "{a: 1}",
            "a: expected string, found 1",
        ),
        (
            "{oneOf: [{minimum: 1}, {maximum: 5}]}",
            "0",
            "3",
            "is what more than one of the alternatives describe",
        ),
        ("{not: {type: string}}", "1", "a", "is what is not allowed"),
        (
            "{if: {required: [a]}, then: {required: [b]}, else: {required: [c]}}",
            "{a: 1, b: 1}",
            "{}",
            "lacks the member \"c\"",
        ),
        ("false", "", "1", "nothing is allowed here"),
    ] {
        if !good.is_empty() {
            assert_eq!(said(schema, good), "fine", "{schema} with {good}");
        }
        assert_eq!(said(schema, bad), message, "{schema} with {bad}");
    }
}

#[test]
fn a_violation_names_its_place_from_the_outside_in() {
    let schema = "{properties: {items: {items: {required: [sku]}}}}";
    assert_eq!(
        said(schema, "{items: [{sku: a}, {}]}"),
        "items.[1]: lacks the member \"sku\"".replace(".[", "[")
    );
}

#[test]
fn references_may_go_round_through_values_and_no_other_way() {
    let tree = "{$ref: '#/definitions/tree', definitions: {tree: {required: [value], properties: {left: {$ref: '#/definitions/tree'}}}}}";
    assert_eq!(said(tree, "{value: 1, left: {value: 2}}"), "fine");
    assert_eq!(
        said(tree, "{value: 1, left: {}}"),
        "left: lacks the member \"value\""
    );
    for circle in [
        "{$ref: '#'}",
        "{anyOf: [{$ref: '#/definitions/a'}], definitions: {a: {not: {$ref: '#'}}}}",
    ] {
        let findings = compile_text("schema", &circle.into()).expect_err("a circle");
        assert!(findings[0].message.contains("refers to itself"), "{findings:?}");
    }
}

#[test]
fn layout_order_and_annotations_are_not_in_the_canonical_form() {
    let canonical = |schema: &str| {
        let mut bytes = Vec::new();
        let schema = compile_text("schema", &schema.into()).expect("a schema");
        crate::expr::write_sorted(&schema.canonical(), &mut bytes);
        String::from_utf8(bytes).expect("text")
    };
    let one = canonical(
        "{type: object, title: x, properties: {a: {type: string}, b: {minimum: 1}}, anyOf: [true]}",
    );
    let other = canonical(
        "{anyOf: [true], properties: {b: {minimum: 1.0, description: y}, a: {type: [string]}}, type: object}",
    );
    assert_eq!(one, other);
    assert_ne!(one, canonical("{type: object}"));
}

#[test]
fn a_check_that_would_not_end_is_given_up() {
    // Every level doubles the alternatives that are tried.
    let schema = "{anyOf: [{items: {$ref: '#'}, minItems: 9}, {items: {$ref: '#'}, minItems: 8}]}";
    let value = format!("{}1{}", "[".repeat(40), "]".repeat(40));
    let schema = compile_text("schema", &schema.into()).expect("a schema");
    let value = crate::json::Json::parse(value.as_bytes(), 64).map(crate::json::Json::into_static);
    assert!(schema.check(&value.expect("JSON")).is_err());
}

#[test]
fn every_mistake_of_a_schema_is_told_at_its_place() {
    let text = "type: strng\nminLength: -1\nrequired: a\nproprties: {}\npattern: '(?=a)'\n$ref: other.json#/a\nenum: 3\n$schema: https://json-schema.org/draft/2020-12/schema\n";
    let findings = compile_text("bad.yaml", &text.into()).expect_err("mistakes");
    let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 6, 7, 8], "{findings:#?}");
    assert_eq!(findings[3].help.as_deref(), Some("did you mean \"properties\"?"));
}

#[test]
fn all_violations_are_told_member_by_member_up_to_a_bound() {
    let text = "type: object\nrequired: [a, b]\nproperties:\n  a: {type: string}\n  c: {type: array, items: {type: integer}}\n";
    let schema = compile_text("s.yaml", &text.into()).expect("a schema");
    let json = |text: &'static str| crate::json::Json::parse(text.as_bytes(), 64).expect("JSON");
    let told = |value: &str, max: usize| -> Vec<String> {
        let value = crate::json::Json::parse(value.as_bytes(), 64).expect("JSON");
        let found = schema.violations(&value, max).into_iter();
        found.map(|violation| violation.to_string()).collect()
    };
    assert_eq!(schema.violations(&json(r#"{"a": "x", "b": 1}"#), 9), []);
    let wrong = r#"{"a": 1, "c": [1, "x", 2, "y"]}"#;
    assert_eq!(
        told(wrong, 9),
        [
            "lacks the member \"b\"",
            "a: expected string, found 1",
            "c[1]: expected integer, found \"x\"",
            "c[3]: expected integer, found \"y\"",
        ]
    );
    assert_eq!(told(wrong, 2).len(), 2);
    assert_eq!(told("7", 9), ["expected object, found 7"]);
}
