//! How often a transition asks for memory: a number that is the same on every machine, unlike a time.

use allocation_counter::measure;
use bytes::Bytes;
use saga_runner::kernel::definition::{Definition, SourceFile, load};
use saga_runner::kernel::ids::{ClusterId, EventId, InstanceId, Key, TenantId, TimeMs};
use saga_runner::kernel::input::{
    DomainEvent, Input, InputBody, Origin, SourceStream, WorkOutcome, WorkResult,
};
use saga_runner::kernel::limits::Limits;
use saga_runner::kernel::record::Record;
use saga_runner::kernel::transition::{Context, apply};

/// Most allocations of a start with a guard of four terms, four fields and two commands.
const START_MAX: u64 = 50;
/// Most allocations of an event whose handler does not hold.
const UNMATCHED_MAX: u64 = 15;

/// A handler of five fields that starts two steps, of about the size of a real one.
const ORDER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: order
start: Order.Placed
key: {"*": event.data.order_id}
state: {init: {status: new, paid: false}}
handlers:
  Order.Placed:
    when: event.data.total_cents > 0 && event.data.currency == "EUR" && event.version == 1 && key != ""
    set:
      status: reserving
      customer: ${event.data.customer.id}
      total: ${event.data.total_cents}
      currency: ${event.data.currency}
  Order.Noted: {when: event.data.never == true, set: {status: noted}}
steps:
  reserve: {effect: reserve, with: {order: "${key}", total: "${state.total}", currency: "${state.currency}"}}
  fraud: {effect: fraud, with: {customer: "${state.customer}", cents: "${state.total}"}}
"#;

const EFFECT: &str = "apiVersion: sagas/v1\nkind: Effect\nname: NAME\ntransform: {}\nresult: {}\n";

fn load_saga(text: &str) -> std::sync::Arc<Definition> {
    let effects = ["reserve", "fraud"].map(|name| SourceFile {
        path: format!("{name}.yaml"),
        text: EFFECT.replace("NAME", name).into(),
    });
    let saga = SourceFile {
        path: "order.yaml".to_owned(),
        text: text.into(),
    };
    let loaded = load(&[saga], &effects);
    assert_eq!(loaded.sagas.len(), 1, "{:?}", loaded.diagnostics);
    std::sync::Arc::clone(&loaded.sagas[0])
}

fn instance(definition: &Definition) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse("acme").expect("legal"),
        saga: definition.name.clone(),
        key: Key::parse("o-1").expect("legal"),
    }
}

fn event(instance: &InstanceId, event_type: &str, sequence: u64) -> Input {
    let payload = serde_json::json!({
        "order_id": "o-1",
        "customer": {"id": "c-1234", "name": "Ada Example", "country": "DE"},
        "total_cents": 12_999,
        "currency": "EUR",
        "items": [{"sku": "sku-1", "qty": 2}, {"sku": "sku-2", "qty": 1}],
        "never": false,
    });
    Input {
        instance: instance.clone(),
        id: format!("e-{sequence}"),
        time: TimeMs(1_767_261_600_000),
        origin: Origin::Stream {
            stream: SourceStream::AggregateEvents,
            sequence,
        },
        body: InputBody::Event(DomainEvent {
            event_id: EventId::parse(&format!("e-{sequence}")).expect("legal"),
            event_type: event_type.to_owned(),
            aggregate_type: "Order".to_owned(),
            aggregate_id: "o-1".to_owned(),
            sequence,
            schema_version: 1,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            hops: 0,
            fact: false,
            payload: Bytes::from(payload.to_string()),
            via: None,
        }),
    }
}

#[test]
fn a_transition_asks_for_memory_seldom_and_an_event_for_nobody_hardly_ever() {
    let definition = load_saga(ORDER);
    let instance = instance(&definition);
    let limits = Limits::default();
    let context = Context {
        limits: &limits,
        cluster: ClusterId::OFFLINE,
        log_sequence: 1,
        generation: 1,
        again: false,
    };
    let mut record: Option<Record> = None;
    let mut given = |event_type: &str, sequence| {
        let input = event(&instance, event_type, sequence);
        let mut patch = None;
        let counted = measure(|| {
            let applied = apply(&definition, &instance, record.as_ref(), &input, &context);
            patch = Some(applied.expect("applies"));
        });
        if let Some(after) = patch.expect("applied").record {
            record = Some(after);
        }
        counted.count_total
    };
    let started = given("Order.Placed", 1);
    let unmatched = given("Order.Noted", 2);
    let unknown = given("Order.Renamed", 3);
    assert!(started <= START_MAX, "{started} allocations");
    assert!(unmatched <= UNMATCHED_MAX, "{unmatched} allocations");
    assert_eq!(unknown, 0);
}

/// A list whose items are worked on one after the other; their work can be undone.
const LOOP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: order
start: Order.Placed
key: {"*": event.data.order_id}
state: {init: {ids: []}}
steps:
  each:
    foreach: {over: "range(1000)", parallel: 1}
    effect: reserve
    with: {number: "${item}"}
    set: {ids: "${result}"}
    compensate: {effect: fraud, on_unknown: ignore, with: {id: "${result.id}"}}
"#;

/// A loop is linear: the thousandth result does not ask for memory more often than the hundredth, although the ledger
/// has nine hundred entries more.
#[test]
fn a_result_costs_the_same_at_the_end_of_a_long_loop_as_at_its_beginning() {
    let definition = load_saga(LOOP);
    let instance = instance(&definition);
    let limits = Limits::default();
    let mut input = event(&instance, "Order.Placed", 1);
    let (mut record, mut counted) = (None::<Vec<u8>>, Vec::new());
    for log_sequence in 1..=999 {
        let context = Context {
            limits: &limits,
            cluster: ClusterId::OFFLINE,
            log_sequence,
            generation: 1,
            again: false,
        };
        let (before, mut sent) = (record.take(), Vec::new());
        let counts = measure(|| {
            let before = before.map(|bytes| Record::decode(&bytes).expect("decodes"));
            let patch = apply(&definition, &instance, before.as_ref(), &input, &context).expect("applies");
            sent = patch.work;
            record = patch.record.map(|record| record.encode());
        });
        counted.push(counts.count_total);
        let command_id = sent.first().expect("the next item").command_id;
        input.id = command_id.to_string();
        input.origin = Origin::Local;
        input.body = InputBody::Result(WorkResult {
            command_id,
            effect: None,
            outcome: WorkOutcome::Succeeded {
                payload: Bytes::from_static(b"{\"id\":\"r-0123456789\"}"),
            },
        });
    }
    // One of the ledger's chunks is opened each time, as full as it is: the worst of twenty results are compared.
    let worst = |from: usize| {
        counted[from..from + 20]
            .iter()
            .max()
            .copied()
            .expect("there are twenty")
    };
    let (early, late) = (worst(100), worst(970));
    assert!(
        late <= early + 10,
        "{early} allocations after 100 items, {late} after 970"
    );
}
