//! The cost of a transition, from the bytes of an event to the bytes of the record.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group};

use saga_runner::kernel::definition::{self, Definition, SourceFile};
use saga_runner::kernel::ids::{ClusterId, EventId, InstanceId, Key, TenantId, TimeMs};
use saga_runner::kernel::input::{
    DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult,
};
use saga_runner::kernel::limits::Limits;
use saga_runner::kernel::record::Record;
use saga_runner::kernel::transition::{Context, apply};

fn files(directory: &str) -> Vec<SourceFile> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut files: Vec<SourceFile> = std::fs::read_dir(&directory)
        .expect("the repository has this directory")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| !path.to_string_lossy().ends_with(".test.yaml"))
        .map(|path| SourceFile {
            text: std::fs::read_to_string(&path).expect("readable").into(),
            path: path.display().to_string(),
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn order() -> std::sync::Arc<Definition> {
    let loaded = definition::load(&files("sagas"), &files("effects"));
    loaded
        .sagas
        .into_iter()
        .find(|saga| saga.name.as_str() == "order")
        .expect("sagas/order.yaml compiles")
}

fn event(instance: &InstanceId, event_type: &str, id: &str) -> Input {
    let payload = serde_json::json!({
        "order_id": "o-4711",
        "customer": {"id": "c-1234", "name": "Ada Example", "country": "DE"},
        "total_cents": 12_999,
        "currency": "EUR",
        "items": [
            {"sku": "sku-1", "qty": 2, "title": "a thing that is sold", "cents": 4_999},
            {"sku": "sku-2", "qty": 1, "title": "another thing that is sold", "cents": 3_001},
        ],
        "address": {"street": "Example Street 1", "zip": "10115", "city": "Berlin"},
    });
    Input {
        instance: instance.clone(),
        id: id.to_owned(),
        time: TimeMs(1_767_261_600_000),
        origin: Origin::Stream {
            stream: SourceStream::AggregateEvents,
            sequence: 1,
        },
        body: InputBody::Event(DomainEvent {
            event_id: EventId::parse(id).expect("legal"),
            event_type: event_type.to_owned(),
            aggregate_type: "Order".to_owned(),
            aggregate_id: "o-4711".to_owned(),
            sequence: 1,
            schema_version: 1,
            correlation_id: Some("o-4711".to_owned()),
            causation_id: None,
            traceparent: None,
            hops: 0,
            fact: false,
            payload: Bytes::from(payload.to_string()),
            via: None,
        }),
    }
}

/// One thing that is measured.
struct Case {
    /// For the counted mode.
    name: &'static str,
    title: &'static str,
    work: Box<dyn FnMut()>,
}

/// Transitions of `sagas/order.yaml`.
fn orders() -> Vec<Case> {
    let definition = order();
    let instance = InstanceId {
        tenant: TenantId::parse("acme").expect("legal"),
        saga: definition.name.clone(),
        key: Key::parse("o-4711").expect("legal"),
    };
    let applied = {
        let (definition, instance) = (definition.clone(), instance.clone());
        move |record: Option<&Record>, input: &Input| {
            let limits = Limits::default();
            let context = Context {
                limits: &limits,
                cluster: ClusterId::OFFLINE,
                log_sequence: 1,
                generation: 1,
                again: false,
            };
            apply(&definition, &instance, record, input, &context).expect("applies")
        }
    };
    let placed = event(&instance, "Order.Placed", "e-1");
    let begun = applied.clone()(None, &placed).record.expect("has a record");
    let encoded = begun.encode();
    let repeated = placed.clone();
    let other = event(&instance, "Order.Renamed", "e-2");
    let (first, second, third, fourth) = (applied.clone(), applied.clone(), applied.clone(), applied);
    let (record, again) = (begun.clone(), other.clone());
    vec![
        Case {
            name: "start",
            title: "order: start handler, event to encoded record",
            work: Box::new(move || {
                let patch = first(None, black_box(&placed));
                black_box(patch.record.expect("has a record").encode());
            }),
        },
        Case {
            name: "no-handler",
            title: "order: event without a handler",
            work: Box::new(move || {
                black_box(second(Some(black_box(&record)), &other));
            }),
        },
        Case {
            name: "decoded",
            title: "order: event without a handler, record decoded",
            work: Box::new(move || {
                let record = Record::decode(black_box(&encoded)).expect("decodes");
                black_box(third(Some(&record), &again));
            }),
        },
        Case {
            name: "repeated",
            title: "order: event received before",
            work: Box::new(move || {
                black_box(fourth(Some(black_box(&begun)), &repeated));
            }),
        },
    ]
}

fn kernel(criterion: &mut Criterion) {
    for mut case in orders() {
        criterion.bench_function(case.title, |bencher| bencher.iter(&mut case.work));
    }
}

/// A loop over `items` items whose results are read and whose work can be undone, and a step after it.
fn over_items(items: usize) -> (std::sync::Arc<Definition>, Input, InstanceId) {
    let text = "apiVersion: sagas/v1\nkind: Saga\nname: items\nstart: Order.Placed\nkey: {\"*\": event.id}\n\
        state: {init: {items: []}}\n\
        handlers: {Order.Placed: {set: {items: \"${event.data.items}\"}}}\n\
        steps:\n  all:\n    foreach: {over: state.items, parallel: 32}\n    effect: inventory-reserve\n\
        \x20   with: {order: \"${key}\", items: [\"${item}\"]}\n    set: {ids: \"${result}\"}\n\
        \x20   compensate: {effect: inventory-release, on_unknown: ignore, with: {id: \"${result.id}\"}}\n\
        \x20 last: {needs: all, effect: inventory-reserve, with: {order: \"${key}\", items: []}}\n";
    let file = SourceFile {
        path: "items.yaml".to_owned(),
        text: text.into(),
    };
    // Without schemas: what the items are is not what is measured.
    let effects = ["inventory-reserve", "inventory-release"].map(|name| SourceFile {
        path: format!("{name}.yaml"),
        text: format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\ntransform: {{}}\n").into(),
    });
    let definition = definition::load(&[file], &effects).sagas.pop().expect("compiles");
    let instance = InstanceId {
        tenant: TenantId::parse("acme").expect("legal"),
        saga: definition.name.clone(),
        key: Key::parse("o-4711").expect("legal"),
    };
    let mut placed = event(&instance, "Order.Placed", "e-1");
    if let InputBody::Event(event) = &mut placed.body {
        let items: Vec<String> = (0..items).map(|item| format!("sku-{item}")).collect();
        event.payload = Bytes::from(serde_json::json!({"items": items}).to_string());
    }
    (definition, placed, instance)
}

/// Applies the start and all results, each to a decoded record and encoded again; that of input `failing` says that it
/// failed. Returns the number of inputs.
fn run_items(
    definition: &Definition,
    placed: &Input,
    instance: &InstanceId,
    failing: Option<usize>,
) -> usize {
    let limits = Limits::default();
    let mut open = std::collections::VecDeque::new();
    let mut record: Option<Vec<u8>> = None;
    let mut input = placed.clone();
    let mut inputs = 0;
    loop {
        let context = Context {
            limits: &limits,
            cluster: ClusterId::OFFLINE,
            log_sequence: inputs as u64 + 1,
            generation: 1,
            again: false,
        };
        let before = record
            .as_ref()
            .map(|bytes| Record::decode(bytes).expect("decodes"));
        let patch = apply(definition, instance, before.as_ref(), &input, &context).expect("applies");
        inputs += 1;
        open.extend(patch.work.iter().map(|item| item.command_id));
        record = patch.record.map(|record| record.encode());
        let Some(command_id) = open.pop_front() else {
            return inputs;
        };
        let outcome = if failing == Some(inputs) {
            WorkOutcome::failed("refused".to_owned(), String::new())
        } else {
            WorkOutcome::Succeeded {
                payload: Bytes::from_static(b"{\"id\":\"r-0123456789\"}"),
            }
        };
        input = Input {
            instance: instance.clone(),
            id: command_id.to_string(),
            time: placed.time,
            origin: Origin::Local,
            body: InputBody::Result(WorkResult {
                command_id,
                effect: None,
                outcome,
            }),
        };
    }
}

fn items(criterion: &mut Criterion) {
    for (title, undone) in [("done", false), ("done and undone one after the other", true)] {
        let mut group = criterion.benchmark_group(format!("foreach, {title}, record decoded and encoded"));
        group.sample_size(10);
        for count in [125, 250, 500, 1_000] {
            let (definition, placed, instance) = over_items(count);
            // The start, the items, and the step after them.
            let last = count + 1;
            let expected = if undone { last + 1 + count } else { last + 1 };
            group.throughput(criterion::Throughput::Elements(count as u64));
            group.bench_function(format!("{count} items"), |bencher| {
                bencher.iter(|| {
                    let inputs =
                        run_items(&definition, black_box(&placed), &instance, undone.then_some(last));
                    assert_eq!(inputs, expected);
                });
            });
        }
        group.finish();
    }
}

/// The same for counting instructions: 125 items, done, or done and undone.
fn loops() -> Vec<Case> {
    let of = |undone: bool| {
        let (definition, placed, instance) = over_items(125);
        move || {
            run_items(&definition, black_box(&placed), &instance, undone.then_some(126));
        }
    };
    let (done, undone) = (of(false), of(true));
    vec![
        Case {
            name: "items",
            title: "foreach, 125 items, done",
            work: Box::new(done),
        },
        Case {
            name: "undone",
            title: "foreach, 125 items, done and undone",
            work: Box::new(undone),
        },
    ]
}

/// What scripts/instructions.sh counts the instructions of.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

/// Does the case of this name so many times, once before that.
fn counted(name: &str, times: &str) {
    let times: u32 = times.parse().expect("a number of times");
    let mut cases = orders().into_iter().chain(loops());
    let mut case = cases.find(|case| case.name == name).expect("a case of this name");
    (case.work)();
    for _ in 0..times {
        measured(&mut case.work);
    }
    println!("{}", case.title);
}

criterion_group!(benches, kernel, items);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, name, times, ..] = arguments.as_slice()
        && mode == "instructions"
    {
        return counted(name, times);
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
