//! A program is part of the version of its saga, and of its archive.

use std::sync::Arc;

use super::super::{BinaryFiles, Loaded, SchemaFiles, compile_archived, load_with, named_binary};
use super::file;
use crate::program::tests::{ECHO, module};

const EFFECT: &str = "\
apiVersion: sagas/v1
kind: Effect
name: pay
transform: {}
result: {}
";

fn saga(program: &str) -> String {
    format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {{\"Order.*\": event.data.id}}\nprogram: {program}\n"
    )
}

fn loaded(text: &str, wat: &str) -> Loaded {
    let mut programs = BinaryFiles::default();
    let found = if wat.is_empty() {
        Err("permission denied".to_owned())
    } else {
        Ok(module(wat))
    };
    programs.0.insert("sagas/bin/probe.wasm".to_owned(), found);
    load_with(
        &[file("sagas/probe.yaml", text)],
        &[file("effects/pay.yaml", EFFECT)],
        &SchemaFiles::default(),
        &programs,
    )
}

fn hash(text: &str, wat: &str) -> String {
    let loaded = loaded(text, wat);
    assert!(loaded.diagnostics.is_empty(), "{:#?}", loaded.diagnostics);
    loaded.sagas[0].hash.to_string()
}

#[test]
fn the_module_and_what_it_may_touch_are_in_the_hash_and_where_it_lies_is_not() {
    let short = saga("bin/probe.wasm");
    let same = hash(&short, ECHO);
    for text in [
        saga("{file: bin/probe.wasm}"),
        saga("./bin/../bin/probe.wasm  # ours"),
        saga("{events: [], file: bin/probe.wasm, effects: []}"),
    ] {
        assert_eq!(hash(&text, ECHO), same, "{text}");
    }
    let comment = ECHO.replace("(i32.const 1024)", "(i32.const 2048)");
    assert_ne!(hash(&short, &comment), same, "another module");
    for list in ["events: Order.Paid", "effects: [pay]", "commands: [Order.Cancel]"] {
        let text = saga(&format!("{{file: bin/probe.wasm, {list}}}"));
        assert_ne!(hash(&text, ECHO), same, "{text}");
    }
    let order = |events: &str| {
        hash(
            &saga(&format!("{{file: bin/probe.wasm, events: {events}}}")),
            ECHO,
        )
    };
    assert_eq!(
        order("[Order.Paid, Order.Held]"),
        order("[Order.Held, Order.Paid, Order.Held]")
    );
}

#[test]
fn an_archive_holds_the_program() {
    let text =
        saga("{file: ../sagas/bin/probe.wasm, events: Order.Paid, effects: pay, commands: Order.Cancel}");
    let loaded = loaded(&text, ECHO);
    assert!(loaded.diagnostics.is_empty(), "{:#?}", loaded.diagnostics);
    let saga = &loaded.sagas[0];
    assert_eq!(saga.event_types(), ["Order.Paid", "Order.Placed"]);
    assert!(saga.sends_commands());
    let archived = compile_archived(&saga.source).expect("compiles without any file");
    assert_eq!((archived.hash, &archived.source), (saga.hash, &saga.source));
    let module = |definition: &super::super::Definition| {
        let program = definition.program.as_ref().expect("a program");
        Arc::clone(&program.module)
    };
    assert!(Arc::ptr_eq(&module(&archived), &module(saga)), "compiled once");
    assert_eq!(module(saga).bytes().as_ref(), self::module(ECHO).as_ref());

    let damaged = saga.source.replace("AGFzbQ", "AGFzbR");
    let findings = compile_archived(&damaged).expect_err("no module");
    assert!(findings[0].message.contains("is not a program"), "{findings:#?}");
    let damaged = saga.source.replace("AGFzbQ", "*");
    let findings = compile_archived(&damaged).expect_err("no base64");
    assert!(findings[0].message.contains("the program"), "{findings:#?}");
}

#[test]
fn a_faulty_program_is_reported_at_its_place() {
    let imports = "(module (import \"env\" \"now\" (func (result i64))))";
    for (program, wat, expected) in [
        (
            "other.wasm",
            ECHO,
            "6:10: there is no program sagas/other.wasm [SR0140]",
        ),
        (
            "bin/probe.wasm",
            "",
            "6:10: the program sagas/bin/probe.wasm cannot be read: permission denied [SR0140]",
        ),
        (
            "bin/probe.wat",
            ECHO,
            "6:10: \"bin/probe.wat\" is not the path of a program [SR0140]",
        ),
        ("/bin/probe.wasm", ECHO, "is not the path of a program [SR0140]"),
        (
            "bin/probe.wasm",
            imports,
            "6:10: sagas/bin/probe.wasm is not a program: it imports env.now",
        ),
        (
            "bin/probe.wasm",
            "(module)",
            "it exports no function saga_alloc(i32) -> i32 [SR0141]",
        ),
        ("[bin/probe.wasm]", ECHO, "[SR0107]"),
        ("{files: bin/probe.wasm}", ECHO, "[SR0105]"),
        ("{effects: []}", ECHO, "a program needs the key \"file\" [SR0106]"),
        (
            "{file: bin/probe.wasm, effects: [pai]}",
            ECHO,
            "unknown effect \"pai\" [SR0102]",
        ),
        ("{file: bin/probe.wasm, events: [Paid]}", ECHO, "[SR0110]"),
        (
            "{file: bin/probe.wasm, events: [Other.Paid]}",
            ECHO,
            "6:42: no key rule for the event type \"Other.Paid\" [SR0114]",
        ),
        (
            "bin/probe.wasm\nhandlers: {Order.Placed: {set: {a: 1}}}",
            ECHO,
            "7:1: a saga with a program has no \"handlers\": the program decides everything [SR0125]",
        ),
    ] {
        let loaded = loaded(&saga(program), wat);
        let told: Vec<String> = loaded
            .diagnostics
            .iter()
            .map(|finding| {
                format!(
                    "{}:{}: {} [{}]",
                    finding.line, finding.column, finding.message, finding.code
                )
            })
            .collect();
        assert!(
            told.iter().any(|line| line.contains(expected)),
            "{program}: {told:?}"
        );
        assert!(loaded.sagas.is_empty(), "{program}");
    }
}

#[test]
fn the_path_of_a_program_is_found_in_either_form() {
    for program in ["bin/a.wasm", "{file: ./bin/a.wasm, events: A.B}"] {
        let named = named_binary("x/probe.yaml", &saga(program));
        assert_eq!(named.as_deref(), Some("x/bin/a.wasm"));
    }
    assert_eq!(
        named_binary("x/probe.yaml", "state: {init: {file: a.wasm}}"),
        None
    );
}
