//! Cases that somebody has written down, in sizes that no seed has: each is one simulation, with whatever it promises beside
//! what the judges hold against every one.

use std::collections::BTreeSet;
use std::time::Duration;

use saga_runner::kernel::ids::TenantId;
use serde_json::{Value, json};

use super::faults::records::RecordLoss;
use super::faults::{Fault, On};
use super::judges::{ended, judge};
use super::plan::{Action, Plan};
use super::run::{Simulation, play};
use super::store::POISON;
use super::workload::{Event, TENANTS, mark};

const TENANT: &str = TENANTS[0];

/// What is done, and when.
#[derive(Default)]
struct Script(Vec<(Duration, Action)>);

impl Script {
    fn act(&mut self, at_ms: u64, action: Action) {
        self.0.push((Duration::from_millis(at_ms), action));
    }

    /// An event of this aggregate; the payload has its key under the saga's name for it.
    fn event(&mut self, at_ms: u64, name: &'static str, key: &str, number: u64, data: &Value) {
        let (kind, _) = name.split_once('.').expect("an aggregate's type and a dot");
        let mut payload = json!({kind.to_lowercase(): key, "mark": mark(TENANT)});
        for (name, value) in data.as_object().into_iter().flatten() {
            payload[name] = value.clone();
        }
        let event = Event {
            tenant: TENANT,
            id: format!("{name}-{key}-{number}"),
            kind,
            name,
            key: key.to_owned(),
            sequence: number + 1,
            data: payload,
            repeats: false,
        };
        self.act(at_ms, Action::Event(event));
    }

    fn opened(&mut self, at_ms: u64, name: &'static str, keys: &[String]) {
        for key in keys {
            self.event(at_ms, name, key, 0, &json!({}));
        }
    }

    /// So many numbers for each of these lists, in turn, spread over a time.
    fn added(&mut self, from_ms: u64, to_ms: u64, lists: &[String], each: u64) {
        let all = each * lists.len() as u64;
        for at in 0..all {
            let list = &lists[usize::try_from(at).expect("an index") % lists.len()];
            let (n, time) = (
                1 + at / lists.len() as u64,
                from_ms + (to_ms - from_ms) * at / all,
            );
            self.event(time, "List.Added", list, n, &json!({"n": n}));
        }
    }

    fn closed(&mut self, at_ms: u64, lists: &[String]) {
        for list in lists {
            self.event(at_ms, "List.Closed", list, 1_000_000, &json!({}));
        }
    }

    fn plan(self, shards: u16, settings: Value) -> Plan {
        Plan::scripted(shards, settings, self.0)
    }
}

fn keys(letter: char, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{letter}{number}")).collect()
}

/// Plays it, and holds what all simulations promise.
fn holds(plan: Plan) -> Simulation {
    let (simulation, faults) = play(plan, false);
    assert_eq!(faults, [] as [String; 0]);
    assert_eq!(judge(&simulation), [] as [String; 0]);
    simulation
}

fn items(simulation: &Simulation, saga: &str, key: &str) -> Vec<u64> {
    let record = ended(simulation, TENANT, saga, key).unwrap_or_else(|| panic!("{saga}/{key} has not ended"));
    let state: Value = serde_json::from_slice(&record.data).expect("state is JSON");
    let items = state["items"].as_array().expect("a list");
    items.iter().map(|n| n.as_u64().expect("a number")).collect()
}

/// Whether a bill was paid; it has ended.
fn is_paid(simulation: &Simulation, key: &str) -> bool {
    let record = ended(simulation, TENANT, "bill", key);
    record.expect("it has ended").failure.is_none()
}

/// How often the work of an effect was done for an instance. A call that is repeated under the same key does nothing.
fn done(simulation: &Simulation, effect: &str, key: &str) -> usize {
    let calls = simulation.upstream.calls().into_iter();
    calls
        .filter(|call| call.is_done && call.effect == effect && call.of == format!("{TENANT}/{key}"))
        .map(|call| call.key)
        .collect::<BTreeSet<_>>()
        .len()
}

/// The process is not there for an hour. Meanwhile 10,000 events come, among them payments that were stored before the timers
/// that are long due when it is started again.
#[test]
fn after_an_hour_the_payments_in_a_backlog_of_ten_thousand_come_before_the_timers_of_a_hundred_bills() {
    let (bills, lists) = (keys('b', 100), keys('l', 100));
    let mut script = Script::default();
    script.opened(2_000, "Bill.Opened", &bills);
    script.opened(2_000, "List.Opened", &lists);
    script.act(10_000, Action::Down { for_ms: 3_600_000 });
    script.added(11_000, 16_000, &lists, 98);
    for bill in bills.iter().step_by(2) {
        script.event(18_000, "Bill.Paid", bill, 1, &json!({}));
    }
    // Behind the time at which the timers are due.
    for bill in bills.iter().skip(1).step_by(2) {
        script.event(60_000, "Bill.Paid", bill, 1, &json!({}));
    }
    script.closed(70_000, &lists);
    let simulation = holds(script.plan(2, json!({"broker": {"kind": "nats"}})));
    for (at, bill) in bills.iter().enumerate() {
        assert_eq!(is_paid(&simulation, bill), at % 2 == 0, "{bill}");
    }
    for list in &lists {
        assert_eq!(items(&simulation, "list", list), (1..=98).collect::<Vec<u64>>());
    }
}

/// Upstreams are away until the outbox is full, and the shard holds 5,000 events back. What pays a bill is among them, and its
/// timer falls due meanwhile.
#[test]
fn five_thousand_events_that_a_full_outbox_holds_back_come_before_the_timers_that_fall_due_meanwhile() {
    let (bills, lists, pays) = (keys('b', 20), keys('l', 10), keys('p', 40));
    let mut script = Script::default();
    script.opened(2_000, "Bill.Opened", &bills);
    script.opened(2_000, "List.Opened", &lists);
    script.act(2_500, Action::UpstreamsAway { for_ms: 90_000 });
    script.opened(3_000, "Pay.Opened", &pays);
    script.added(4_000, 14_000, &lists, 498);
    for bill in &bills {
        script.event(15_000, "Bill.Paid", bill, 1, &json!({}));
    }
    script.closed(16_000, &lists);
    let settings = json!({"shard": {"outbox_soft": 20, "held_deliveries": 64, "timer_hold_max": "20s"}});
    let simulation = holds(script.plan(1, settings));
    for bill in &bills {
        assert!(is_paid(&simulation, bill), "{bill}");
    }
    for list in &lists {
        assert_eq!(items(&simulation, "list", list), (1..=498).collect::<Vec<u64>>());
    }
}

/// More events come before their lists are opened than a shard keeps for that. Each is applied in its order or is a dead letter.
#[test]
fn of_twelve_thousand_early_events_a_shard_keeps_ten_thousand_and_tells_of_the_others() {
    let lists = keys('l', 15);
    let mut script = Script::default();
    script.added(2_000, 12_000, &lists, 800);
    script.opened(20_000, "List.Opened", &lists);
    script.closed(25_000, &lists);
    let (simulation, faults) = play(script.plan(1, json!({})), false);
    assert_eq!(faults, [] as [String; 0]);
    let mut kept = 0;
    for list in &lists {
        let items = items(&simulation, "watch", list);
        assert!(items.is_sorted(), "watch/{list}: {items:?}");
        kept += items.len();
    }
    let tenant = TenantId::parse(TENANT).expect("a tenant");
    let reader = simulation.disks[0].rows.reader();
    let (letters, _) = reader
        .dead_letters(&tenant, None, 10_000)
        .expect("a store in memory can be read");
    assert!(
        letters
            .iter()
            .all(|(_, letter)| letter.reason == "inbox.overflow")
    );
    // The operator had no reason to look at all of them.
    assert_eq!((kept, letters.len() + simulation.discarded), (10_000, 2_000));
}

/// A payment is done behind the last backup, and the folder is lost: on the backup the shard meets the results of commands that it
/// has still to ask for.
#[test]
fn work_done_after_the_last_backup_is_recognised_and_not_repeated() {
    let mut script = Script::default();
    script.opened(2_000, "List.Opened", &keys('l', 1));
    script.act(5_000, Action::Fault(Fault::Backup));
    script.opened(8_000, "Pay.Opened", &keys('p', 1));
    let (on, is_stopped) = (On::Backup, false);
    script.act(25_000, Action::Fault(Fault::Lost { on, is_stopped }));
    script.closed(30_000, &keys('l', 1));
    let simulation = holds(script.plan(1, json!({"broker": {"kind": "nats"}})));
    for effect in ["stock-reserve", "card-charge"] {
        assert_eq!(done(&simulation, effect, "p0"), 1, "{effect}");
    }
    let paid = ended(&simulation, TENANT, "pay", "p0").expect("it has ended");
    assert!(paid.failure.is_none(), "{:?}", paid.failure);
}

/// The shard is open again when everything else has ended, and the runs that were planned meanwhile are still to be begun.
#[test]
fn a_simulation_ends_when_the_runs_have_begun_that_were_planned_while_their_shard_was_closed() {
    let mut script = Script::default();
    script.act(
        5_000,
        Action::Close {
            shard: 0,
            for_ms: 200_000,
        },
    );
    let simulation = holds(script.plan(1, json!({})));
    let minute = |minute: u64| format!("2026-01-01T00:0{minute}:00Z");
    for passed in 1..=3 {
        let key = minute(passed);
        assert!(ended(&simulation, TENANT, "minutes", &key).is_some(), "{key}");
    }
}

/// Two processes wait on copies of the folder whether its owner is at work. The second one is first, and dies of what it takes; the
/// other one is refused, and the operator goes on from the folder of the second.
#[test]
fn where_a_second_process_dies_that_has_taken_over_the_next_one_goes_on_from_its_folder() {
    let mut script = Script::default();
    script.event(1_000, "Cup.Opened", "c0", 0, &json!({}));
    let (on, is_stopped) = (On::Copy, false);
    script.act(3_000, Action::Fault(Fault::Lost { on, is_stopped }));
    script.event(3_200, "Cup.Filled", "c0", 1, &json!({"what": POISON}));
    script.act(3_900, Action::Fault(Fault::Second { on, still_ms: 0 }));
    // Both wait anew, and the second one finds out first.
    script.act(4_600, Action::Fault(Fault::Records(RecordLoss::Bucket)));
    script.event(5_300, "Cup.Emptied", "c0", 0, &json!({}));
    let simulation = holds(script.plan(1, json!({"broker": {"kind": "nats"}})));
    assert_eq!(simulation.folder.number, 2, "that of the second one");
    assert_eq!(simulation.discarded, 1);
}

#[test]
fn a_message_about_a_folder_is_the_same_in_each_run() {
    let messages = [(), ()].map(|()| {
        let simulation = Simulation::new(Script::default().plan(1, json!({})), false);
        let dir = simulation.folder.dir.join("shard-0000");
        simulation.told(&format!("shard 0: {} is an older copy", dir.display()))
    });
    assert_eq!(messages, ["shard 0: folder-0/shard-0000 is an older copy"; 2]);
}
