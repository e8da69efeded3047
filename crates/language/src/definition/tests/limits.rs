//! Files made to hurt: refused with a finding, fast.

use std::fmt::Write as _;

use super::super::{Diagnostic, load};
use super::{examples, file, load_saga};

/// The findings of a saga file.
fn findings(text: &str) -> Vec<Diagnostic> {
    load(&[file("bad.yaml", text)], &[]).diagnostics
}

fn codes(text: &str) -> Vec<&'static str> {
    findings(text).iter().map(|finding| finding.code).collect()
}

#[test]
fn an_alias_bomb_is_refused_at_the_line_that_overflows() {
    let mut text = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for level in 1..=20 {
        let inside = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{inside}]").expect("writes");
    }
    let found = findings(&text);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].code, found[0].line), ("SR0103", 5));
}

#[test]
fn a_long_text_cannot_be_repeated_without_bound() {
    let long = "x".repeat(100_000);
    let aliases = vec!["*x"; 1_000].join(", ");
    let found = findings(&format!("a: &x \"{long}\"\nb: [{aliases}]\n"));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].code, found[0].line), ("SR0103", 2));
}

#[test]
fn a_file_is_at_most_a_mebibyte_long() {
    let mut text = String::from("a: ");
    text.push_str(&"x".repeat(1024 * 1024));
    assert_eq!(codes(&text), ["SR0103"]);
    let head =
        "apiVersion: sagas/v1\nkind: Saga\nname: a\nstart: A.B\nkey: {\"A.*\": event.id}\nsteps: {}\n#";
    let full = format!("{head}{}", "x".repeat(1024 * 1024 - head.len()));
    assert_eq!(full.len(), 1024 * 1024);
    assert!(codes(&full).is_empty());
}

#[test]
fn nesting_ends_at_sixty_four_levels() {
    for (open, close) in [("[", "]"), ("{a: ", "}")] {
        let nested = |levels: usize| format!("x: {}1{}\n", open.repeat(levels), close.repeat(levels));
        assert!(!codes(&nested(63)).contains(&"SR0103"));
        assert_eq!(codes(&nested(64)), ["SR0103"]);
        assert!(!codes(&nested(100_000)).is_empty());
    }
    let mut block = String::new();
    for level in 0..400 {
        writeln!(block, "{}a:", " ".repeat(level)).expect("writes");
    }
    assert_eq!(codes(&block), ["SR0103"]);
}

#[test]
fn an_alias_cannot_hide_depth() {
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let text = format!(
        "a: &a {}\nb: {}*a{}\n",
        nested(40),
        "[".repeat(40),
        "]".repeat(40)
    );
    assert_eq!(codes(&text), ["SR0103"]);
}

#[test]
fn a_file_full_of_mistakes_has_a_hundred_findings_and_a_last_word() {
    let mut text = String::from("{");
    for key in 0..60_000 {
        write!(text, "k{key}: 1, ").expect("writes");
    }
    text.push('}');
    let found = findings(&text);
    assert_eq!(found.len(), 101);
    assert_eq!(
        found[100].message,
        "more than 100 findings; the rest is not shown"
    );
    assert_eq!(found[100].help, None);
}

#[test]
fn a_saga_has_at_most_256_steps_and_256_states() {
    let steps = |count: usize| {
        let mut body = String::from("steps:\n");
        for step in 0..count {
            let needs = if step == 0 {
                String::new()
            } else {
                format!(", needs: [s{}]", step - 1)
            };
            writeln!(
                body,
                "  s{step}: {{effect: fraud-score{needs}, set: {{same: 1}}}}"
            )
            .expect("writes");
        }
        body
    };
    assert_eq!(load_saga(&steps(256)).map(|saga| saga.steps.len()), Ok(256));
    let codes_of = |body: &str| -> Vec<&'static str> {
        let findings = load_saga(body).expect_err("too many");
        findings.iter().map(|finding| finding.code).collect()
    };
    assert_eq!(codes_of(&steps(257)), ["SR0128"]);
    let states = |count: usize| {
        let mut body = String::from("machine:\n  initial: s0\n  states:\n");
        for state in 0..count {
            writeln!(
                body,
                "    s{state}: {{handlers: {{Order.Next: {{to: s{}}}}}}}",
                (state + 1) % count
            )
            .expect("writes");
        }
        body
    };
    assert!(load_saga(&states(256)).is_ok());
    assert_eq!(codes_of(&states(257)), ["SR0128"]);
}

#[test]
fn no_prefix_and_no_damage_of_a_good_file_makes_the_reader_panic() {
    for saga in examples().sagas {
        let text = &saga.source;
        for end in (0..text.len())
            .step_by(17)
            .filter(|end| text.is_char_boundary(*end))
        {
            let _ = codes(&text[..end]);
        }
        for (at, _) in text.char_indices().step_by(211) {
            for odd in [
                "\u{feff}", "\"", "'", "${", "&a ", "*a", "\t", "|", ">", "{", "]", "\u{85}", "\0", "é",
            ] {
                let mut damaged = text.to_string();
                damaged.insert_str(at, odd);
                let _ = codes(&damaged);
            }
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z:{}\\[\\]&*$\"'|>\\-#\n !\\\\é.,0-9?%]{0,200}") {
        let found = findings(&text);
        for finding in found {
            proptest::prop_assert!(finding.span.end <= text.len() && finding.line >= 1 && finding.column >= 1);
        }
    }
}
