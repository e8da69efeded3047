//! Schemas of definitions: where they are read from, what they pin, and that an archive needs nothing else.

use std::sync::Arc;

use super::super::schema_files::SchemaFiles;
use super::super::{BinaryFiles, Loaded, compile_archived, load_with};
use super::file;

const SAGA: &str = r#"apiVersion: sagas/v1
kind: Saga
name: probe
start: Order.Placed
key: {"Order.*": event.data.order_id}
events:
  Order.Placed: {schema: ../schemas/placed.json, versions: [2, 3], upcast: {"1": {order_id: "${event.data.id}"}}}
state: {init: {total: 0}, schema: {type: object, properties: {total: {type: integer}}}}
steps:
  pay: {effect: pay, with: {total: "${state.total}"}}
"#;
const EFFECT: &str = r"apiVersion: sagas/v1
kind: Effect
name: pay
input: {type: object, properties: {total: {type: integer}}}
transform: {}
result: {}
";
const PLACED: &str = r#"{"type": "object", "properties": {"order_id": {"type": "string"}}}"#;

fn loaded(saga: &str, effect: &str, placed: &str) -> Loaded {
    let mut schemas = SchemaFiles::default();
    schemas
        .0
        .insert("schemas/placed.json".to_owned(), Ok(Arc::from(placed)));
    load_with(
        &[file("sagas/probe.yaml", saga)],
        &[file("effects/pay.yaml", effect)],
        &schemas,
        &BinaryFiles::default(),
    )
}

fn hash(saga: &str, effect: &str, placed: &str) -> String {
    let loaded = loaded(saga, effect, placed);
    let saga = loaded
        .sagas
        .first()
        .unwrap_or_else(|| panic!("{:#?}", loaded.diagnostics));
    saga.hash.to_string()
}

#[test]
fn the_meaning_of_every_schema_is_in_the_hash_and_its_text_is_not() {
    let same = hash(SAGA, EFFECT, PLACED);
    for placed in [
        r#"{"properties": {"order_id": {"type": ["string"], "title": "x"}}, "type": "object"}"#,
        "type: object\nproperties:\n  order_id: {type: string}\n",
    ] {
        assert_eq!(hash(SAGA, EFFECT, placed), same, "{placed}");
    }
    let call = "http: {method: POST, url: \"${upstreams.pay}/charges\"}\n";
    let other_call = EFFECT.replace("transform: {}\n", call);
    assert_eq!(hash(SAGA, &other_call, PLACED), same, "calls may change freely");
    let changes = [
        (
            SAGA.to_owned(),
            EFFECT.to_owned(),
            PLACED.replace("string", "integer"),
        ),
        (
            SAGA.replace("[2, 3]", "[2]"),
            EFFECT.to_owned(),
            PLACED.to_owned(),
        ),
        (
            SAGA.replace("event.data.id", "event.data.ref"),
            EFFECT.to_owned(),
            PLACED.to_owned(),
        ),
        (
            SAGA.replace("schema: {type: object,", "schema: {"),
            EFFECT.to_owned(),
            PLACED.to_owned(),
        ),
        (
            SAGA.to_owned(),
            EFFECT.replace("integer", "number"),
            PLACED.to_owned(),
        ),
        (
            SAGA.to_owned(),
            EFFECT.replace("transform", "output: {type: object}\ntransform"),
            PLACED.to_owned(),
        ),
    ];
    for (saga, effect, placed) in changes {
        assert_ne!(hash(&saga, &effect, &placed), same, "{saga}{effect}{placed}");
    }
}

#[test]
fn an_archive_compiles_to_the_same_version_without_any_file() {
    let loaded = loaded(SAGA, EFFECT, PLACED);
    let saga = &loaded.sagas[0];
    assert_eq!(saga.effects.len(), 1);
    let archived = compile_archived(&saga.source).expect("compiles");
    assert_eq!(archived.hash, saga.hash);
    assert_eq!(archived.source, saga.source);
    assert!(archived.events["Order.Placed"].schema.is_some());

    let damaged = saga.source.replace("\"source\"", "\"sauce\"");
    assert!(compile_archived(&damaged).is_err());
}

#[test]
fn a_schema_that_is_missing_or_bad_is_told_where_it_is_named_and_where_it_is_wrong() {
    let lines = |loaded: Loaded| -> Vec<String> {
        assert!(loaded.sagas.is_empty(), "a saga without its schema is none");
        loaded.diagnostics.iter().map(ToString::to_string).collect()
    };
    let missing = lines(loaded(
        &SAGA.replace("placed.json", "plaecd.json"),
        EFFECT,
        PLACED,
    ));
    assert_eq!(
        missing,
        ["sagas/probe.yaml:7:26: there is no schema schemas/plaecd.json [SR0171]"]
    );
    let bad = lines(loaded(
        SAGA,
        EFFECT,
        &PLACED.replace("\"type\": \"string\"", "\"tpye\": \"string\""),
    ));
    assert_eq!(
        bad,
        [
            "sagas/probe.yaml:7:26: the schema schemas/placed.json has mistakes [SR0170]",
            "schemas/placed.json:1:48: unknown keyword \"tpye\" in a schema; did you mean \"type\"? [SR0170]",
        ]
    );
    for reference in ["/etc/passwd", "https://example.com/a.json", "schema.txt"] {
        let told = lines(loaded(
            &SAGA.replace("../schemas/placed.json", &format!("'{reference}'")),
            EFFECT,
            PLACED,
        ));
        assert!(told[0].contains("is not the path of a schema"), "{told:?}");
    }
}

#[test]
fn the_result_type_of_a_state_effect_is_known_to_its_handlers_and_compensation() {
    let effect = EFFECT.replace(
        "transform",
        "output: {type: object, properties: {id: {type: string}}}\ntransform",
    );
    let machine = r#"machine:
  initial: paying
  states:
    paying:
      entry:
        emit:
          - {effect: pay, name: pay, with: {total: 1}}
          - {effect: pay, name: again, with: {total: "${key}"}, compensate: {effect: pay, on_unknown: ignore, with: {total: "${result.idd}"}}}
      handlers: {result.pay: {set: {total: "${result.ids}"}, to: done}}
    done: {final: true}
"#;
    let steps = SAGA.find("steps:").expect("it has steps");
    let loaded = loaded(&format!("{}{machine}", &SAGA[..steps]), &effect, PLACED);
    let said: Vec<String> = loaded.diagnostics.iter().map(|f| f.message.clone()).collect();
    assert_eq!(
        said,
        [
            "expected an integer, found a string",
            "unknown field `idd`",
            "unknown field `ids`"
        ]
    );
}

#[test]
fn an_effect_that_asks_an_operator_is_pinned_as_one() {
    const CALL: &str = "apiVersion: sagas/v1\nkind: Effect\nname: pay\nhttp: {method: POST, url: \"https://pay.internal/v1\"}\n";
    const SAGA: &str = "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"*\": event.data.id}\nsteps: {pay: {effect: pay}}\n";
    let of = |effect: &str| {
        let mut loaded = loaded(SAGA, effect, PLACED);
        loaded
            .sagas
            .pop()
            .unwrap_or_else(|| panic!("{:#?}", loaded.diagnostics))
    };
    let silent = of(CALL);
    for answer in ["fail", "retry"] {
        assert_eq!(
            of(&format!("{CALL}on_ambiguous: {answer}\n")).hash,
            silent.hash,
            "what only workers heed is no matter of the saga"
        );
    }
    assert!(silent.effects.is_empty());
    let asking = of(&format!("{CALL}on_ambiguous: ask\n"));
    assert_ne!(asking.hash, silent.hash);
    assert!(asking.effects.values().all(|contract| contract.asks) && asking.effects.len() == 1);
    let archived = compile_archived(&asking.source).expect("compiles");
    assert_eq!((archived.hash, &archived.effects), (asking.hash, &asking.effects));
    let external = of("apiVersion: sagas/v1\nkind: Effect\nname: pay\nexternal: {}\non_ambiguous: ask\n");
    assert_eq!(external.hash, asking.hash, "whoever carries it out");
    let damaged = asking.source.replace("\"ask\"", "\"shrug\"");
    assert!(compile_archived(&damaged).is_err());
}

#[test]
fn the_compensation_of_a_command_reads_what_the_command_sends() {
    let body = |read: &str| {
        format!(
            "steps:\n  pay:\n    command: {{aggregate: Order, id: '${{key}}', type: Order.Pay, payload: {{cents: 1}}}}\n    compensate: {{command: {{aggregate: Order, id: '${{key}}', type: Order.Repay, payload: {{x: '${{{read}}}'}}}}}}\n"
        )
    };
    super::saga(&body("input.cents"));
    let findings = super::load_saga(&body("input.cent")).expect_err("a command sends no such thing");
    let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(
        told[0].starts_with("probe.yaml:9:") && told[0].contains("cent"),
        "{told:#?}"
    );
}

#[test]
fn a_retry_of_misfitting_results_is_refused() {
    for class in ["result.schema", "result.expression"] {
        let body = format!("steps:\n  pay: {{effect: payments-charge, retry: {{errors: [{class}]}}}}\n");
        let findings = super::load_saga(&body).expect_err("it is refused");
        assert!(findings[0].to_string().contains(class), "{findings:#?}");
    }
    let body = "steps:\n  pay: {effect: payments-charge, retry: {errors: [response.malformed, response.size, result.refused]}}\n";
    super::saga(body);
}

/// Findings of a saga with these steps, whose effect gives an `id` for certain.
fn steps_told(steps: &str) -> Vec<String> {
    const PAY: &str = "apiVersion: sagas/v1\nkind: Effect\nname: pay\ninput: {type: object}\noutput: {type: object, properties: {id: {type: string}}, required: [id]}\ntransform: {}\nresult: {id: \"1\"}\n";
    let saga = format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {{\"*\": event.data.order_id}}\nevents: {{Order.Placed: {{schema: {{}}}}}}\nstate: {{init: {{}}, schema: {{type: object}}}}\nsteps:\n  {steps}\n"
    );
    let loaded = loaded(&saga, PAY, PLACED);
    loaded.diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn the_result_of_a_step_has_the_type_of_its_output_for_later_steps() {
    for read in [
        "a: {effect: pay}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
        "a: {effect: pay}\n  b: {needs: a, delay: 1s}\n  c: {needs: b, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
        "a: {effect: pay, if: state.x == 1}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result == null ? '' : steps.a.result.id}\"}}",
        "a: {effect: pay, repeat: {until: result.id != '', max: 3}}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
        "a: {foreach: {over: '[1, 2]'}, effect: pay}\n  b: {needs: a, effect: pay, with: {refs: \"${steps.a.result.size()}\"}}",
        "g:\n    foreach: {over: '[1, 2]'}\n    steps: {a: {effect: pay}, b: {needs: a, effect: pay, with: {ref: \"${steps.a.result.id}\"}}}",
    ] {
        assert_eq!(steps_told(read), [""; 0], "{read}");
    }
    for (unsure, told) in [
        (
            "a: {effect: pay, if: state.x == 1}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
            "SR0175",
        ),
        (
            "a: {effect: pay, on_error: {x: {continue: true}}}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
            "SR0175",
        ),
        (
            "a: {effect: pay}\n  b: {effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
            "SR0175",
        ),
        (
            "a: {effect: pay}\n  c: {effect: pay}\n  b: {needs: [a, c], join: any, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
            "SR0175",
        ),
        (
            "g:\n    foreach: {over: '[1, 2]'}\n    steps: {a: {effect: pay}}\n  b: {needs: g, effect: pay, with: {ref: \"${steps.a.result.id}\"}}",
            "SR0175",
        ),
        (
            "a: {effect: pay}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result.name}\"}}",
            "SR0173",
        ),
        (
            "a: {delay: 1s}\n  b: {needs: a, effect: pay, with: {ref: \"${steps.a.result}\"}}",
            "SR0173",
        ),
    ] {
        let lines = steps_told(unsure);
        assert!(
            lines.iter().any(|line| line.contains(told)),
            "{unsure}: {lines:?}"
        );
    }
}
