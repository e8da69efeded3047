//! Definitions by hand, so that these tests depend on no file format.

use saga_runner_language::definition::model::{
    Action, Actions, COMMAND_TIMEOUT_MS, CommandTemplate, Compensation, Delay, EFFECT_TIMEOUT_MS, Emission,
    Emit, Fail, Finally, Handler, Join, Lifecycle, Machine, Migration, OnExhausted, OnLate, OnUnknown,
    PublishTemplate, State, Step, Telling, TimerDefinition, TimerSet, UndoOrder, UndoRetry,
};
use saga_runner_language::definition::{Definition, compile_archived};
use saga_runner_language::expr::{Expr, Root, Template};
use saga_runner_language::ids::{DefinitionHash, EffectName, SagaName};
use saga_runner_language::retry::RetryPolicy;
use serde_json::{Value, json};

pub(super) fn expr(text: &str) -> Expr {
    Expr::compile(text, &Root::ALL).expect("the test's expression compiles")
}

/// Strings hold `${expr}` as in a definition file.
pub(super) fn template(value: Value) -> Template {
    match value {
        Value::String(text) => Template::compile_text(&text, &Root::ALL).expect("the test's text compiles"),
        Value::Array(items) => Template::List(items.into_iter().map(template).collect()),
        Value::Object(members) => Template::Map(
            members
                .into_iter()
                .map(|(name, value)| (name, template(value)))
                .collect(),
        ),
        constant => Template::Constant(constant.to_string().into_bytes()),
    }
}

pub(super) fn sets(value: Value) -> Vec<(String, Template)> {
    let Value::Object(members) = value else {
        panic!("set is a map");
    };
    members
        .into_iter()
        .map(|(name, value)| (name, template(value)))
        .collect()
}

/// A definition from its text below the head; effects are not looked up.
pub(super) fn loaded(body: &str) -> Definition {
    let head =
        "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"*\": event.data.id}\n";
    compile_archived(&format!("{head}{body}")).unwrap_or_else(|findings| {
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        panic!("{}", findings.join("\n"))
    })
}

/// The same where the body says how instances begin, too.
pub(super) fn loaded_as(body: &str) -> Definition {
    compile_archived(&format!("apiVersion: sagas/v1\nkind: Saga\nname: probe\n{body}")).unwrap_or_else(
        |findings| {
            let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
            panic!("{}", findings.join("\n"))
        },
    )
}

pub(super) fn saga(name: &str, start: &str) -> Definition {
    Definition {
        name: SagaName::parse(name).expect("legal"),
        hash: DefinitionHash([7; 32]),
        source: "".into(),
        input: None,
        schedule: None,
        start: vec![start.to_owned()],
        lifecycle: Lifecycle::default(),
        keys: Vec::new(),
        by: std::collections::BTreeMap::new(),
        events: std::collections::BTreeMap::new(),
        state_schema: None,
        effects: std::collections::BTreeMap::new(),
        init: template(json!({})),
        handlers: std::collections::BTreeMap::new(),
        result_handlers: std::collections::BTreeMap::new(),
        error_handlers: std::collections::BTreeMap::new(),
        machine: None,
        program: None,
        steps: Vec::new(),
        timers: Vec::new(),
        cancel_when: None,
        finally: Finally::default(),
        undo_order: UndoOrder::Sequential,
        buffer: 32,
        migration: Migration::default(),
    }
}

pub(super) fn effect(name: &str, with: Value) -> Action {
    Action::Effect {
        effect: EffectName::parse(name).expect("legal"),
        with: template(with),
    }
}

pub(super) fn command(command_type: &str, id: &str, payload: Value) -> CommandTemplate {
    let (aggregate_type, _) = command_type.split_once('.').expect("Aggregate.Command");
    CommandTemplate {
        aggregate_type: aggregate_type.to_owned(),
        aggregate_id: template(json!(id)),
        command_type: command_type.to_owned(),
        payload: template(payload),
    }
}

pub(super) fn step(name: &str, needs: &[u16], action: Action) -> Step {
    let timeout_ms = match &action {
        Action::Effect { .. } => EFFECT_TIMEOUT_MS,
        Action::Command(_) | Action::Publish(_) | Action::Nothing | Action::Decide(_) => COMMAND_TIMEOUT_MS,
        Action::Saga(_) | Action::UndoSaga(_) | Action::Group(_) => {
            panic!("groups and sagas are loaded from text in these tests")
        }
    };
    Step {
        name: name.to_owned(),
        within: None,
        state: None,
        emitted: false,
        at_end: false,
        needs: needs.to_vec(),
        join: Join::All,
        condition: None,
        delay: None,
        action,
        wait: None,
        retry: Vec::new(),
        on_error: std::collections::BTreeMap::new(),
        set: Vec::new(),
        keeps_result: false,
        fail_if: None,
        aliases: Vec::new(),
        compensate: None,
        stays_done: false,
        timeout_ms,
        deadline: None,
    }
}

pub(super) fn compensation(action: Action) -> Compensation {
    Compensation {
        action,
        when: None,
        on_unknown: OnUnknown::Ignore,
        on_late: OnLate::Compensate,
        on_exhausted: OnExhausted::Stop,
        undoes_failed: false,
        retry: vec![UndoRetry::of_all(RetryPolicy {
            attempts: 3,
            initial_ms: 1_000,
            factor: 2.0,
            max_ms: 60_000,
        })],
        timeout_ms: EFFECT_TIMEOUT_MS,
    }
}

pub(super) fn handler(actions: Actions) -> Handler {
    Handler { when: None, actions }
}

pub(super) fn fail(code: &str) -> Actions {
    Actions {
        fail: Some(Fail {
            code: code.to_owned(),
            message: None,
            keep: Vec::new(),
            drain: false,
        }),
        ..Actions::default()
    }
}

pub(super) fn publish(fact_type: &str, payload: Value) -> Emission {
    Emission::from(Emit::Publish(Telling::Fact(PublishTemplate {
        fact_type: fact_type.to_owned(),
        payload: template(payload),
    })))
}

pub(super) fn state(name: &str) -> State {
    State {
        name: name.to_owned(),
        entry: Actions::default(),
        handlers: std::collections::BTreeMap::new(),
        timer_handlers: std::collections::BTreeMap::new(),
        result_handlers: std::collections::BTreeMap::new(),
        error_handlers: std::collections::BTreeMap::new(),
        is_final: false,
    }
}

/// reserve and fraud in parallel, approve above a risk, charge, ship; a timer while it is unpaid.
pub(super) fn order() -> Definition {
    let mut saga = saga("order", "Order.Placed");
    saga.init = template(json!({"status": "new", "paid": false}));
    saga.handlers.insert(
        "Order.Placed".to_owned(),
        vec![handler(Actions {
            set: sets(json!({
                "status": "reserving",
                "customer": "${event.data.customer.id}",
                "total": "${event.data.total_cents}",
                "items": "${event.data.items}",
            })),
            ..Actions::default()
        })],
    );
    saga.handlers.insert(
        "Payment.Captured".to_owned(),
        vec![handler(Actions {
            set: sets(json!({"paid": true})),
            ..Actions::default()
        })],
    );
    saga.handlers.insert(
        "Order.CancelRequested".to_owned(),
        vec![Handler {
            when: Some(expr(r#"steps.ship.status != "done""#)),
            actions: fail("customer_cancelled"),
        }],
    );
    saga.steps = order_steps();
    saga.timers = vec![TimerDefinition {
        every: None,
        max: None,
        during: None,
        name: "unpaid".to_owned(),
        after: Delay::Fixed(30 * 60_000),
        cancel_when: Some(expr("state.paid")),
        actions: fail("unpaid_timeout"),
    }];
    let cancel = || {
        Emission::from(Emit::Command(command(
            "Order.Cancel",
            "${key}",
            json!({"reason": "${failure.code}"}),
        )))
    };
    saga.finally = Finally {
        completed: vec![publish("order.fulfilled", json!({"order": "${key}"}))],
        failed: vec![cancel()],
        cancelled: vec![cancel()],
    };
    saga
}

fn order_steps() -> Vec<Step> {
    let mut reserve = step(
        "reserve",
        &[],
        effect(
            "inventory-reserve",
            json!({"order": "${key}", "items": "${state.items}"}),
        ),
    );
    reserve.set = sets(json!({"reservation": "${result.id}", "status": "reserved"}));
    reserve.compensate = Some(compensation(effect(
        "inventory-release",
        json!({"id": "${result.id}"}),
    )));
    let mut fraud = step(
        "fraud",
        &[],
        effect("fraud-score", json!({"customer": "${state.customer}"})),
    );
    fraud.set = sets(json!({"risk": "${result.score}"}));
    let mut approve = step(
        "approve",
        &[1],
        Action::Command(command("Review.Request", "rev-${key}", json!({}))),
    );
    approve.condition = Some(expr("state.risk > 80"));
    let mut charge = step(
        "charge",
        &[0, 2],
        effect(
            "payments-charge",
            json!({"order": "${key}", "amount": "${state.total}"}),
        ),
    );
    charge.set = sets(json!({"paid": true, "charge": "${result.charge_id}", "status": "paid"}));
    charge.compensate = Some(Compensation {
        on_unknown: OnUnknown::Compensate,
        ..compensation(effect(
            "payments-refund",
            json!({"order": "${key}", "amount": "${input.amount}"}),
        ))
    });
    let mut ship = step(
        "ship",
        &[3],
        Action::Command(command(
            "Shipment.Create",
            "shp-${key}",
            json!({"order": "${key}"}),
        )),
    );
    ship.set = sets(json!({"status": "shipped"}));
    vec![reserve, fraud, approve, charge, ship]
}

/// Collects lines until they weigh enough or fifteen minutes have passed, then plans a shipment.
pub(super) fn consolidate() -> Definition {
    let mut saga = saga("consolidate", "Line.Ready");
    saga.init = template(json!({"lines": [], "grams": 0, "batch": 1}));
    let collect = || {
        sets(json!({
            "lines": "${state.lines + [event.data.line_id]}",
            "grams": "${state.grams + event.data.grams}",
        }))
    };
    let mut collecting = state("collecting");
    collecting.handlers.insert(
        "Line.Ready".to_owned(),
        vec![
            Handler {
                when: Some(expr("state.grams + event.data.grams >= 20000")),
                actions: Actions {
                    set: collect(),
                    to: Some(1),
                    ..Actions::default()
                },
            },
            handler(Actions {
                set: collect(),
                timers: vec![TimerSet {
                    name: "flush".to_owned(),
                    after: Delay::Fixed(15 * 60_000),
                    if_absent: true,
                    extend: false,
                }],
                ..Actions::default()
            }),
        ],
    );
    collecting.timer_handlers.insert(
        "flush".to_owned(),
        vec![handler(Actions {
            to: Some(1),
            ..Actions::default()
        })],
    );
    let mut flushing = state("flushing");
    flushing.entry = Actions {
        clear_timers: vec!["flush".to_owned()],
        emit: vec![Emission::from(Emit::Command(command(
            "Shipment.Plan",
            "${key}-${state.batch}",
            json!({"lines": "${state.lines}", "grams": "${state.grams}"}),
        )))],
        ..Actions::default()
    };
    flushing.handlers.insert(
        "Line.Ready".to_owned(),
        vec![handler(Actions {
            defer: true,
            ..Actions::default()
        })],
    );
    flushing.handlers.insert(
        "Dock.Accepted".to_owned(),
        vec![handler(Actions {
            set: sets(json!({"lines": [], "grams": 0, "batch": "${state.batch + 1}"})),
            to: Some(0),
            ..Actions::default()
        })],
    );
    flushing.handlers.insert(
        "Dock.Closed".to_owned(),
        vec![handler(Actions {
            to: Some(2),
            ..Actions::default()
        })],
    );
    let mut closed = state("closed");
    closed.is_final = true;
    saga.machine = Some(Machine {
        initial: 0,
        states: vec![collecting, flushing, closed],
    });
    saga
}
