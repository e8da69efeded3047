//! Calls from outside: what is let in, what stops, and that the same call always ends the same.

use std::sync::Arc;

use super::{ANSWER_BYTES_MAX, Failure, MODULE_BYTES_MAX, ModuleError, Program};

/// A program that answers with the object behind the first `"answer":` in its input, or else in its state.
pub const ECHO: &str = include_str!("echo.wat");

pub fn module(wat: &str) -> Arc<[u8]> {
    Arc::from(wat::parse_str(wat).expect("a module in text form"))
}

fn program(wat: &str) -> Arc<Program> {
    Program::compile(&module(wat)).expect("a program")
}

/// A program that keeps to the contract but for what `body` does; it answers `{"state":{}}` unless that returns.
fn with(body: &str) -> Arc<Program> {
    program(&skeleton("", body))
}

fn skeleton(head: &str, body: &str) -> String {
    format!(
        r#"(module {head} (memory (export "memory") 1) (data (i32.const 8) "{{\22state\22:{{}}}}")
            (global $n (mut i32) (i32.const 0))
            (func (export "saga_alloc") (param i32) (result i32) (i32.const 1024))
            (func $t (export "saga_transition") (param i32 i32 i32 i32) (result i64)
                {body} (i64.const 0x80000000c)))"#
    )
}

fn refusal(wat: &str) -> String {
    let refused = Program::compile(&module(wat)).expect_err("no program");
    refused.to_string()
}

#[test]
fn a_program_answers_from_its_state_and_its_input() {
    let program = program(ECHO);
    let call = |state: &str, input: &str| {
        let answer = program.call(state.as_bytes(), input.as_bytes());
        String::from_utf8(answer.expect("an answer")).expect("text")
    };
    assert_eq!(
        call("{}", r#"{"a":1,"answer":{"state":{"x":{}}},"b":2}"#),
        r#"{"state":{"x":{}}}"#
    );
    assert_eq!(
        call(r#"{"answer":{"state":{}}}"#, r#"{"kind":"timer"}"#),
        r#"{"state":{}}"#
    );
}

#[test]
fn nothing_is_left_from_one_call_to_the_next() {
    let program = with(
        "(global.set $n (i32.add (global.get $n) (i32.const 1)))
         (i32.store8 (i32.const 19) (i32.add (i32.load8_u (i32.const 19)) (global.get $n)))
         (if (i32.gt_u (i32.load8_u (i32.const 19)) (i32.const 126)) (then unreachable))",
    );
    for _ in 0..200 {
        assert_eq!(program.call(b"{}", b"{}").as_deref(), Ok(&b"{\"state\":{}~"[..]));
    }
}

#[test]
fn modules_that_are_no_programs_are_refused_with_the_reason() {
    let export = |name: &str| skeleton("", "").replace(&format!("(export \"{name}\")"), "");
    for (wat, expected) in [
        (
            skeleton(r#"(import "env" "now" (func (result i64)))"#, ""),
            "it imports env.now; a program has its state and its input, and may import nothing",
        ),
        (
            skeleton(r#"(import "wasi_snapshot_preview1" "fd_write" (func))"#, ""),
            "it imports wasi",
        ),
        (
            export("saga_alloc"),
            "it exports no function saga_alloc(i32) -> i32",
        ),
        (
            export("saga_transition"),
            "it exports no function saga_transition(i32, i32, i32, i32) -> i64",
        ),
        (export("memory"), "it exports no memory \"memory\""),
        (
            skeleton("", "").replace("\"memory\") 1", "\"memory\") 129"),
            "it cannot be started",
        ),
        (
            skeleton("(start $s) (func $s unreachable)", ""),
            "it cannot be started",
        ),
        (
            skeleton("(start $s) (func $s (loop br 0))", ""),
            "used up its 20000000 units of fuel",
        ),
        (skeleton("(table 10001 funcref)", ""), "it cannot be started"),
        (skeleton("", "(drop (i32x4.splat (i32.const 1)))"), ""),
        (skeleton("(memory 1)", ""), ""),
        (skeleton("(func (return_call 0))", ""), ""),
        (skeleton("(memory $m i64 1)", ""), ""),
    ] {
        let said = refusal(&wat);
        assert!(said.contains(expected), "{wat}: {said}");
    }
    let compile = |bytes: &[u8]| Program::compile(&Arc::from(bytes)).expect_err("no program");
    assert_eq!(compile(b"(module)"), ModuleError::NotBinary);
    let cut_off = compile(b"\0asm\x01\0\0\0\x01\xff");
    assert!(matches!(cut_off, ModuleError::Invalid(_)), "{cut_off}");
    let bytes = MODULE_BYTES_MAX + 1;
    assert_eq!(compile(&vec![0; bytes]), ModuleError::TooLong { bytes });
}

#[test]
fn a_faulty_call_of_a_program_stops_the_same_way_each_time() {
    for (body, expected) in [
        ("(loop br 0)", "used up its 20000000 units of fuel"),
        (
            "unreachable",
            "the program was stopped: wasm `unreachable` instruction executed",
        ),
        ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", "divide by zero"),
        (
            "(drop (i32.load (i32.const 70000)))",
            "out of bounds memory access",
        ),
        (
            "(drop (call $t (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))",
            "calls are nested deeper than 1000",
        ),
        // What a language's own allocator does when its memory does not grow.
        (
            "(if (i32.eq (memory.grow (i32.const 128)) (i32.const -1)) (then unreachable))",
            "unreachable",
        ),
        ("(return (i64.const 0xffff000000000010))", "outside of the memory"),
        ("(return (i64.const 0x0000000800300000))", "at most 2097152"),
    ] {
        let program = with(body);
        let first = program.call(b"{}", b"{}").expect_err(body);
        assert!(first.to_string().contains(expected), "{body}: {first}");
        for _ in 0..3 {
            assert_eq!(program.call(b"{}", b"{}"), Err(first.clone()), "{body}");
        }
    }
    const { assert!(ANSWER_BYTES_MAX < 0x0030_0000) };
}

#[test]
fn input_beyond_the_memory_of_a_program_is_a_failure() {
    let program = with("");
    let failure = program
        .call(b"{}", &vec![b' '; 70_000])
        .expect_err("64 KiB of memory");
    assert!(
        matches!(&failure, Failure::Trap(why) if why.contains("saga_alloc(70000) gave 1024")),
        "{failure}"
    );
}

#[test]
fn memory_grows_to_eight_mebibytes_and_no_further() {
    let grow = |pages: u32| {
        with(&format!(
            "(if (i32.eq (memory.grow (i32.const {pages})) (i32.const -1)) (then unreachable))"
        ))
    };
    assert!(grow(127).call(b"{}", b"{}").is_ok());
    assert!(grow(128).call(b"{}", b"{}").is_err());
}

#[test]
fn a_nan_has_the_same_bits_wherever_it_comes_from() {
    // The sign and payload of a NaN are the processor's choice otherwise.
    for body in [
        "(f64.div (f64.const 0) (f64.const 0))",
        "(f64.sqrt (f64.const -1))",
        "(f64.add (f64.const nan:0x8000000000001) (f64.const 1))",
        "(f64.sub (f64.const inf) (f64.const inf))",
        "(f64.mul (f64.const -nan:0x8000000000123) (f64.const 2))",
    ] {
        let program = with(&format!(
            "(if (i64.ne (i64.reinterpret_f64 {body}) (i64.const 0x7ff8000000000000)) (then unreachable))"
        ));
        assert!(program.call(b"{}", b"{}").is_ok(), "{body}");
    }
}

#[test]
fn a_module_in_use_is_compiled_once() {
    let first = with("(nop)");
    assert!(Arc::ptr_eq(&first, &with("(nop)")));
    assert!(!Arc::ptr_eq(&first, &with("(nop) (nop)")));
    assert_ne!(first.hash(), with("(nop) (nop)").hash());
}
