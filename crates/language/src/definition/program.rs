//! Reading `program`: a module that decides in place of handlers, machine and steps.
//!
//! What a program may touch stands in the file, where it can be read and checked: the events that it is given,
//! the effects and commands that it may ask for.

use std::sync::Arc;

use super::actions::Reading;
use super::binary_files::{PROGRAM_ENDING, is_reference};
use super::codes;
use super::fields::{self, Fields};
use super::grammar;
use super::schema_files::resolved;
use super::yaml::{Entry, Value};
use crate::definition::findings::Findings;
use crate::ids::EffectName;
use crate::program::{IS_BUILT_IN, Program};

/// What a program does itself.
const EXCLUDED: &[&str] = &[
    "handlers",
    "machine",
    "steps",
    "timers",
    "buffer",
    "compensation",
    "finally",
];

/// The program of a saga, and what it may touch. Lists are in code-point order.
#[derive(Debug)]
pub struct ProgramDefinition {
    /// From the folder of the definition, without `.` and `..` where they mean nothing.
    pub file: String,
    pub module: Arc<Program>,
    /// Types of events that a running instance is given. That of its start it always is.
    pub events: Vec<String>,
    pub effects: Vec<EffectName>,
    /// Types of aggregate commands.
    pub commands: Vec<String>,
}

impl<'r> Reading<'r, '_> {
    /// The program of the saga; what excludes it is told.
    pub fn program(&mut self, saga: &Fields<'r, '_>) -> Option<ProgramDefinition> {
        let entry = saga.get("program")?;
        for key in EXCLUDED {
            if let Some(other) = saga.get(key) {
                let message =
                    format!("a saga with a program has no \"{key}\": the program decides everything");
                self.findings
                    .error(codes::CONTRADICTION, other.key_span.clone(), message);
            }
        }
        if let Value::Scalar(_) = &entry.value.value {
            let (file, module) = self.module(entry)?;
            return Some(ProgramDefinition {
                file,
                module,
                events: Vec::new(),
                effects: Vec::new(),
                commands: Vec::new(),
            });
        }
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::PROGRAM,
            self.findings,
        )?;
        let events = self.words(&fields, "events", |text, span, findings| {
            fields::is_event_type(text, span, findings)
        });
        let commands = self.words(&fields, "commands", |text, span, findings| {
            fields::is_word(text, span, "the type of a command", findings)
        });
        let mut effects = Vec::new();
        if let Some(entry) = fields.get("effects") {
            for item in fields::one_or_many(&entry.value) {
                effects.extend(self.effect_name(item, &entry.key_span));
            }
        }
        effects.sort();
        effects.dedup();
        let file = fields.require("file", self.findings)?;
        let (file, module) = self.module(file)?;
        Some(ProgramDefinition {
            file,
            module,
            events,
            effects,
            commands,
        })
    }

    fn words(
        &mut self,
        fields: &Fields<'r, '_>,
        key: &str,
        legal: impl Fn(&str, &std::ops::Range<usize>, &mut Findings<'_>) -> bool,
    ) -> Vec<String> {
        let Some(entry) = fields.get(key) else {
            return Vec::new();
        };
        let mut words = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            if let Some(text) = fields::text(item, &entry.key_span, "text", self.findings)
                && legal(text, &item.span, self.findings)
            {
                words.push(text.to_owned());
            }
        }
        words.sort();
        words.dedup();
        words
    }

    fn module(&mut self, entry: &Entry<'_>) -> Option<(String, Arc<Program>)> {
        let reference = fields::text(
            &entry.value,
            &entry.key_span,
            "the path of a program",
            self.findings,
        )?;
        let span = entry.value.span.clone();
        if !IS_BUILT_IN {
            let message = "this runner is built without programs";
            self.findings
                .error(codes::NO_PROGRAMS, span, message)
                .help(Some("build it with the feature \"wasm\"".to_owned()));
            return None;
        }
        if !is_reference(reference, PROGRAM_ENDING) {
            let message = format!("\"{}\" is not the path of a program", reference.escape_debug());
            self.findings.error(codes::PROGRAM_FILE, span, message).help(Some(
                "write a path relative to this file that ends with .wasm".to_owned(),
            ));
            return None;
        }
        let path = resolved(self.findings.path(), reference);
        let bytes = match self.schemas.binary(&path) {
            Some(Ok(bytes)) => bytes,
            Some(Err(reason)) => {
                let message = format!("the program {path} cannot be read: {reason}");
                self.findings.error(codes::PROGRAM_FILE, span, message);
                return None;
            }
            None => {
                let message = format!("there is no program {path}");
                self.findings.error(codes::PROGRAM_FILE, span, message);
                return None;
            }
        };
        match Program::compile(bytes) {
            Ok(module) => Some((resolved("", reference), module)),
            Err(reason) => {
                let message = format!("{path} is not a program: {reason}");
                self.findings.error(codes::PROGRAM, span, message);
                None
            }
        }
    }
}
