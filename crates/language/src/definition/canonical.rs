//! The canonical form of a saga, and its hash.
//!
//! What does not change what the saga does (comments, layout, quoting, the order of keys that have none) is
//! not in it; everything else is. Instances are pinned to the hash, so this form is stored format: the tests
//! freeze it. What a definition does not use leaves no trace ([`object`]), so that a key which a later runner
//! understands does not make every saga look changed.

mod steps;
mod values;

use std::borrow::Cow;
use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use self::values::{expression, list, members, object, template, text};
use super::model::{
    Actions, Cancel, CommandTemplate, Complete, Definition, Delay, Emission, Emit, Fail, Handler, Interrupt,
    Lifecycle, Machine, NoInstance, OnRunning, ProgramDefinition, Telling, TimerDefinition, UndoOrder,
};
use crate::duration::Millis;
use crate::expr::write_sorted;
use crate::ids::DefinitionHash;
use crate::json::Json;
use crate::schedule::{CatchUp, Schedule};
use crate::status::CancelMode;

/// Semantics of the evaluator. A change that gives other results is another dialect.
const DIALECT: i64 = 1;

/// SHA-256 of the canonical form.
#[must_use]
pub fn hash(definition: &Definition) -> DefinitionHash {
    DefinitionHash(Sha256::digest(bytes(definition)).into())
}

/// The canonical form: compact JSON with sorted keys.
#[must_use]
pub fn bytes(definition: &Definition) -> Vec<u8> {
    let rules = definition
        .keys
        .iter()
        .map(|rule| object([("pattern", text(&rule.pattern)), ("key", expression(&rule.key))]));
    let mut form = object([
        ("dialect", Json::Int(DIALECT)),
        ("name", text(definition.name.as_str())),
        ("start", list(definition.start.iter().map(|start| text(start)))),
        ("keys", list(rules)),
        ("init", template(&definition.init)),
        ("handlers", handlers(&definition.handlers)),
        ("machine", definition.machine.as_ref().map_or(Json::Null, machine)),
        (
            "steps",
            list(definition.steps.iter().map(|step| steps::step(step, definition))),
        ),
        (
            "timers",
            list(
                definition
                    .timers
                    .iter()
                    .map(|timer| self::timer(timer, definition)),
            ),
        ),
        (
            "cancel_when",
            definition.cancel_when.as_ref().map_or(Json::Null, expression),
        ),
        (
            "buffer",
            Json::Int(i64::try_from(definition.buffer).unwrap_or(i64::MAX)),
        ),
        (
            "compensation",
            match definition.undo_order {
                UndoOrder::Sequential => Json::Null,
                UndoOrder::Parallel => text("parallel"),
            },
        ),
        (
            "finally",
            object([
                (
                    "completed",
                    list(definition.finally.completed.iter().map(emission)),
                ),
                ("failed", list(definition.finally.failed.iter().map(emission))),
                (
                    "cancelled",
                    list(definition.finally.cancelled.iter().map(emission)),
                ),
            ]),
        ),
    ]);
    if let Json::Map(members) = &mut form {
        members.extend(schemas(definition).map(|(name, form)| (Cow::Borrowed(name), form)));
    }
    if let Json::Map(members) = &mut form {
        let of_effects = [
            ("results", &definition.result_handlers),
            ("errors", &definition.error_handlers),
        ];
        let of_effects = of_effects
            .into_iter()
            .filter(|(_, handlers)| !handlers.is_empty());
        members.extend(of_effects.map(|(name, handlers)| (Cow::Borrowed(name), by_step(handlers))));
    }
    if let Json::Map(members) = &mut form
        && !definition.by.is_empty()
    {
        let rules = definition.by.iter().map(|(event_type, rule)| {
            let rule = object([("alias", text(&rule.alias)), ("value", expression(&rule.value))]);
            (Cow::Borrowed(event_type.as_str()), rule)
        });
        members.push((Cow::Borrowed("by"), Json::Map(rules.collect())));
    }
    if let Json::Map(members) = &mut form
        && !definition.lifecycle.is_default()
    {
        members.push((Cow::Borrowed("lifecycle"), lifecycle(&definition.lifecycle)));
    }
    if let (Json::Map(members), Some(program)) = (&mut form, &definition.program) {
        members.push((Cow::Borrowed("program"), self::program(program)));
    }
    if let (Json::Map(members), Some(schedule)) = (&mut form, &definition.schedule) {
        members.push((Cow::Borrowed("schedule"), self::schedule(schedule)));
    }
    // The source may hold a program, of which the hash alone is in the form.
    let mut out = Vec::with_capacity(4096);
    write_sorted(&form, &mut out);
    out
}

/// What there is of schemas; a saga without any has none of these members.
fn schemas(definition: &Definition) -> impl Iterator<Item = (&'static str, Json<'_>)> {
    let events = definition.events.iter().map(|(name, event)| {
        let upcast = event.upcast.iter().map(|(version, data)| {
            let version = Cow::Owned(version.to_string());
            (version, template(data))
        });
        let versions = event
            .versions
            .iter()
            .map(|version| Json::Int(i64::from(*version)));
        let mut form = object([
            // In a list, since the schema `false`, which nothing fits, is not the same as none.
            (
                "schema",
                list(event.schema.iter().map(|schema| schema.canonical())),
            ),
            ("versions", list(versions)),
            ("upcast", Json::Map(upcast.collect())),
        ]);
        if let Json::Map(members) = &mut form
            && !event.from.is_empty()
        {
            let from = list(event.from.iter().map(|saga| text(saga.as_str())));
            members.push((Cow::Borrowed("from"), from));
        }
        (Cow::Borrowed(name.as_str()), form)
    });
    let events = (!definition.events.is_empty()).then(|| Json::Map(events.collect()));
    let effects = definition
        .effects
        .iter()
        .map(|(name, contract)| (Cow::Borrowed(name.as_str()), contract.form()));
    let effects = (!definition.effects.is_empty()).then(|| Json::Map(effects.collect()));
    let state = definition.state_schema.as_ref().map(|schema| schema.canonical());
    let input = definition.input.as_ref().map(|schema| schema.canonical());
    [
        ("events", events),
        ("effects", effects),
        ("input", input),
        ("state", state),
    ]
    .into_iter()
    .filter_map(|(name, form)| Some((name, form?)))
}

/// What is said about the life of instances; a saga that says nothing has none of it.
fn lifecycle(lifecycle: &Lifecycle) -> Json<'_> {
    let rules = lifecycle.rules.iter().map(|rule| {
        object([
            ("event", text(&rule.event)),
            ("when", rule.when.as_ref().map_or(Json::Null, expression)),
            ("set", members(&rule.set)),
        ])
    });
    let on_running = match lifecycle.on_running {
        OnRunning::Handle => Json::Null,
        OnRunning::Ignore => text("ignore"),
        OnRunning::Fail => text("fail"),
    };
    let reuse = lifecycle.reuse;
    let no_instance = match lifecycle.no_instance {
        NoInstance::Ignore => Json::Null,
        NoInstance::DeadLetter => text("dead_letter"),
        NoInstance::Park(ms) => Json::Int(ms),
    };
    object([
        ("no_instance", no_instance),
        ("after_end", handlers(&lifecycle.after_end)),
        ("rules", list(rules)),
        ("on_running", on_running),
        (
            "reuse",
            object([
                ("completed", Json::Bool(reuse.completed)),
                ("failed", Json::Bool(reuse.failed)),
                ("cancelled", Json::Bool(reuse.cancelled)),
            ]),
        ),
    ])
}

/// What a program does is in its module, wherever that lies.
fn program(program: &ProgramDefinition) -> Json<'_> {
    let hash = DefinitionHash(*program.module.hash()).to_string();
    object([
        ("module", Json::Str(Cow::Owned(hash))),
        ("events", list(program.events.iter().map(|name| text(name)))),
        (
            "effects",
            list(program.effects.iter().map(|name| text(name.as_str()))),
        ),
        ("commands", list(program.commands.iter().map(|name| text(name)))),
    ])
}

fn schedule(schedule: &Schedule) -> Json<'_> {
    object([
        ("cron", text(schedule.cron.text())),
        ("zone", text(schedule.zone.name())),
        ("catch_up", catch_up(schedule.catch_up)),
        ("overlap", text(schedule.overlap.as_str())),
    ])
}

fn catch_up(catch_up: CatchUp) -> Json<'static> {
    match catch_up {
        CatchUp::None => text("none"),
        CatchUp::Last => text("last"),
        CatchUp::All => text("all"),
        CatchUp::UpTo(made_up) => {
            let number = |number: Option<i64>| Json::Int(number.unwrap_or(i64::MAX));
            let within = made_up.within.map(Millis::as_i64);
            object([
                ("within", within.map_or(Json::Null, |within| number(Some(within)))),
                ("max", number(i64::try_from(made_up.max).ok())),
            ])
        }
    }
}

fn handlers(by_name: &BTreeMap<String, Vec<Handler>>) -> Json<'_> {
    let members = by_name
        .iter()
        .map(|(name, handlers)| (Cow::Borrowed(name.as_str()), alternatives(handlers)));
    Json::Map(members.collect())
}

fn by_step(by_step: &BTreeMap<u16, Vec<Handler>>) -> Json<'_> {
    let members = by_step
        .iter()
        .map(|(step, handlers)| (Cow::Owned(step.to_string()), alternatives(handlers)));
    Json::Map(members.collect())
}

fn alternatives(handlers: &[Handler]) -> Json<'_> {
    list(handlers.iter().map(|handler| {
        object([
            ("when", handler.when.as_ref().map_or(Json::Null, expression)),
            ("do", actions(&handler.actions)),
        ])
    }))
}

fn actions(actions: &Actions) -> Json<'_> {
    let timers = actions.timers.iter().map(|timer| {
        object([
            ("name", text(&timer.name)),
            ("after", delay(&timer.after)),
            ("if_absent", Json::Bool(timer.if_absent)),
            ("extend", Json::Bool(timer.extend)),
        ])
    });
    object([
        ("set", members(&actions.set)),
        (
            "clear_timers",
            list(actions.clear_timers.iter().map(|name| text(name))),
        ),
        ("timers", list(timers)),
        ("alias", members(&actions.aliases)),
        ("emit", list(actions.emit.iter().map(emission))),
        (
            "interrupt",
            actions.interrupt.as_ref().map_or(Json::Null, interrupt),
        ),
        ("complete", actions.complete.as_ref().map_or(Json::Null, complete)),
        ("cancel", actions.cancel.as_ref().map_or(Json::Null, cancel)),
        ("fail", actions.fail.as_ref().map_or(Json::Null, fail)),
        ("to", actions.to.map_or(Json::Null, |to| Json::Int(i64::from(to)))),
        ("defer", Json::Bool(actions.defer)),
    ])
}

fn fail(fail: &Fail) -> Json<'_> {
    object([
        ("code", text(&fail.code)),
        ("message", fail.message.as_ref().map_or(Json::Null, template)),
        ("keep", list(fail.keep.iter().map(|name| text(name)))),
        ("drain", if fail.drain { Json::Bool(true) } else { Json::Null }),
    ])
}

fn complete(complete: &Complete) -> Json<'_> {
    object([
        ("outcome", text(&complete.outcome)),
        ("when", complete.when.as_ref().map_or(Json::Null, expression)),
    ])
}

fn cancel(cancel: &Cancel) -> Json<'_> {
    let mode = match cancel.mode {
        CancelMode::Compensate => "compensate",
        CancelMode::Drain => "drain",
        CancelMode::Abandon => "abandon",
    };
    object([
        ("mode", text(mode)),
        ("reason", cancel.reason.as_ref().map_or(Json::Null, template)),
    ])
}

fn interrupt(interrupt: &Interrupt) -> Json<'_> {
    object([
        ("step", Json::Int(i64::from(interrupt.step))),
        ("class", text(&interrupt.class)),
    ])
}

fn emission(emission: &Emission) -> Json<'_> {
    let mut form = emit(&emission.emit);
    if let (Json::Map(members), Some(when)) = (&mut form, &emission.when) {
        members.push((Cow::Borrowed("when"), expression(when)));
    }
    form
}

fn emit(emit: &Emit) -> Json<'_> {
    match emit {
        Emit::Command(template) => command(template),
        Emit::Publish(template) => publish(template),
        Emit::Effect(step) => object([("effect_step", Json::Int(i64::from(*step)))]),
    }
}

fn publish(telling: &Telling) -> Json<'_> {
    match telling {
        Telling::Fact(publish) => object([
            ("publish", text(&publish.fact_type)),
            ("payload", template(&publish.payload)),
        ]),
        Telling::Signal(signal) => object([
            ("signal", text(&signal.name)),
            ("saga", text(signal.saga.as_str())),
            ("key", template(&signal.key)),
            ("data", template(&signal.data)),
        ]),
    }
}

fn delay(delay: &Delay) -> Json<'_> {
    match delay {
        Delay::Fixed(ms) => Json::Int(*ms),
        Delay::Rendered(rendered) => template(rendered),
    }
}

fn command(command: &CommandTemplate) -> Json<'_> {
    object([
        ("command", text(&command.command_type)),
        ("aggregate", text(&command.aggregate_type)),
        ("id", template(&command.aggregate_id)),
        ("payload", template(&command.payload)),
    ])
}

fn machine(machine: &Machine) -> Json<'_> {
    let states = machine.states.iter().map(|state| {
        object([
            ("name", text(&state.name)),
            ("entry", actions(&state.entry)),
            ("handlers", handlers(&state.handlers)),
            ("timers", handlers(&state.timer_handlers)),
            ("final", Json::Bool(state.is_final)),
            ("results", by_step(&state.result_handlers)),
            ("errors", by_step(&state.error_handlers)),
        ])
    });
    object([
        ("initial", Json::Int(i64::from(machine.initial))),
        ("states", list(states)),
    ])
}

fn step_name(definition: &Definition, index: u16) -> Json<'_> {
    let step = definition.steps.get(usize::from(index));
    step.map_or(Json::Null, |step| text(&step.name))
}

fn timer<'d>(timer: &'d TimerDefinition, definition: &'d Definition) -> Json<'d> {
    object([
        ("name", text(&timer.name)),
        ("after", delay(&timer.after)),
        ("every", timer.every.as_ref().map_or(Json::Null, delay)),
        (
            "max",
            timer.max.map_or(Json::Null, |max| Json::Int(i64::from(max))),
        ),
        (
            "during",
            timer
                .during
                .map_or(Json::Null, |step| step_name(definition, step)),
        ),
        (
            "cancel_when",
            timer.cancel_when.as_ref().map_or(Json::Null, expression),
        ),
        ("do", actions(&timer.actions)),
    ])
}
