//! Bills and payments: a timer gives way to what was stored before it, and what was taken is paid for or given back.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::StoredMessage;
use serde_json::Value;

use super::timers::COARSE_MS;
use super::{ended, history_of, instance, is_whole, keys as keys_of};
use crate::faults::is_of_stranger;
use crate::plan::Action;
use crate::run::{COMMANDS, EVENTS, RESULTS, Simulation};
use crate::upstream::Call;

/// When a bill is due.
const DUE_MS: i64 = 20_000;
/// How late it may fire where nothing holds it up, and be told.
const LATE_MS: i64 = 1_000;

/// Effects that undo what others did.
const UNDOES: [&str; 3] = ["stock-release", "card-refund", "slot-cancel"];

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = bills(simulation);
    let calls = simulation.upstream.calls();
    faults.extend(payments(simulation, &calls));
    faults.extend(keys(simulation, &calls));
    faults
}

fn bills(simulation: &Simulation) -> Vec<String> {
    let ever = first_times(simulation.server.archive(EVENTS));
    let mut kept = ever.clone();
    // What was stored again may have been read only then.
    kept.extend(first_times(simulation.server.kept(EVENTS)));
    let first = |times: &BTreeMap<(String, String), TimeMs>, tenant: &str, name: &str, key: &str| {
        let mut stored = simulation.stored.iter();
        let found =
            stored.find(|(_, event)| event.tenant == tenant && event.name == name && event.key == key);
        found.and_then(|(_, event)| times.get(&(tenant.to_owned(), event.id.clone())).copied())
    };
    let unpaid = unpaid(simulation);
    let mut faults = Vec::new();
    for (tenant, key) in keys_of(simulation, "Bill") {
        let name = format!("bill/{key} of {tenant}");
        let Some(record) = ended(simulation, tenant, "bill", &key) else {
            faults.push(format!("{name} has not ended"));
            continue;
        };
        let is_paid = record.failure.is_none();
        let paid = first(&kept, tenant, "Bill.Paid", &key);
        let Some(opened) = first(&ever, tenant, "Bill.Opened", &key) else {
            continue;
        };
        match paid {
            Some(_)
                if is_late(simulation, tenant, &key)
                    && has_waited(simulation, opened, unpaid.get(&(tenant.to_owned(), key.clone()))) => {}
            Some(paid) if paid.0 < opened.0 + DUE_MS - COARSE_MS && !is_paid => {
                let left = opened.0 + DUE_MS - paid.0;
                faults.push(format!(
                    "{name} was paid {left} ms before its timer, and the timer has won"
                ));
            }
            None if is_paid => faults.push(format!("{name} was never paid and counts as paid")),
            _ => {}
        }
        if !is_whole(simulation) {
            continue;
        }
        let told = unpaid.get(&(tenant.to_owned(), key.clone()));
        if told.is_some() == is_paid {
            faults.push(format!("{name} is paid {is_paid}, and was told {told:?}"));
        }
        let late = told.map(|told| told.0 - opened.0 - DUE_MS);
        // A fact of a timer is told when it has fired.
        if late.is_some_and(|late| late < -COARSE_MS || is_punctual(simulation) && late > LATE_MS) {
            faults.push(format!("{name}: its timer has fired {late:?} ms late"));
        }
    }
    faults
}

/// Whether the last that a bill has taken is a timer that did not wait for its streams.
fn is_late(simulation: &Simulation, tenant: &str, key: &str) -> bool {
    let id = instance(tenant, "bill", key);
    let record = ended(simulation, tenant, "bill", key);
    let rows = record.map(|record| history_of(simulation, &id, &record));
    rows.is_some_and(|rows| rows.last().is_some_and(|last| last.late_source))
}

/// Whether a bill was told to be unpaid only after its timer had waited for as long as it may for a stream that cannot be
/// read. Nothing is told where the outbox had no room or another process owned the shard.
fn has_waited(simulation: &Simulation, opened: TimeMs, told: Option<&TimeMs>) -> bool {
    let hold = simulation.plan.settings["shard"]["timer_hold_max"].as_str();
    let hold = Millis::parse(hold.expect("each plan says it")).expect("a duration");
    told.is_none_or(|told| told.0 + COARSE_MS >= opened.0 + DUE_MS + hold.as_i64())
}

/// Whether nothing holds a timer up.
pub fn is_punctual(simulation: &Simulation) -> bool {
    let stops = |action: &Action| matches!(action, Action::Restart | Action::Reload | Action::Change);
    let plan = &simulation.plan;
    // While the outbox is full, events wait, and timers wait behind them.
    let has_room = plan.settings["shard"]["outbox_soft"].as_u64() > Some(20);
    plan.is_calm && has_room && !plan.actions.iter().any(|(_, action)| stops(action))
}

/// When bills were told to be unpaid.
fn unpaid(simulation: &Simulation) -> BTreeMap<(String, String), TimeMs> {
    let mut told = BTreeMap::new();
    for fact in simulation.server.archive(RESULTS) {
        let tokens: Vec<&str> = fact.subject.split('.').collect();
        if let ["tenant", tenant, "workflow_event", "bill", key] = tokens[..] {
            let name = (tenant.to_owned(), key.to_owned());
            told.entry(name).or_insert(fact.time);
        }
    }
    told
}

/// An upstream has said something else than it has done of one of these effects for this key: there is no better source.
pub fn is_lied_to(calls: &[Call], effects: &[&str], of: &str) -> bool {
    let mut lies = calls.iter().filter(|call| call.is_lie && call.of == of);
    lies.any(|call| effects.contains(&call.effect.as_str()))
}

/// A stranger has published another result of this work: where the first one cannot be applied, that one may be heard. Or the stream has
/// lost the first one, and the worker has called once more and was answered otherwise: the operator is told of that.
pub fn is_contradicted(simulation: &Simulation, calls: &[Call], effect: &str, of: &str) -> bool {
    let mut calls = calls.iter().filter(|call| call.effect == effect && call.of == of);
    let results = simulation.server.archive(RESULTS);
    calls.any(|call| {
        let of_it = || {
            results
                .iter()
                .filter(|message| message.subject.ends_with(&call.command))
        };
        let is_told_again = simulation.losses.has_lost(RESULTS) && of_it().count() > 1;
        is_told_again || of_it().any(is_of_stranger)
    })
}

/// When each event was stored first, of these messages.
fn first_times(messages: Vec<StoredMessage>) -> BTreeMap<(String, String), TimeMs> {
    let mut times = BTreeMap::new();
    for message in messages {
        let body: Option<Value> = serde_json::from_slice(&message.payload).ok();
        let text = |name: &str| body.as_ref()?[name].as_str().map(str::to_owned);
        if let (Some(tenant), Some(id)) = (text("tenant_id"), text("event_id")) {
            times.entry((tenant, id)).or_insert(message.time);
        }
    }
    times
}

fn payments(simulation: &Simulation, calls: &[Call]) -> Vec<String> {
    let submissions = simulation.upstream.submissions();
    let mut faults = Vec::new();
    for (tenant, key) in simulation.plan.keys("Pay") {
        let name = format!("pay/{key} of {tenant}");
        let of = format!("{tenant}/{key}");
        // What was decided behind the state that was adopted is known only as far as the streams tell.
        if simulation.is_adopted("Pay", &key) {
            continue;
        }
        let Some(record) = ended(simulation, tenant, "pay", &key) else {
            if !simulation.is_excused("Pay", &key) {
                faults.push(format!("{name} has not ended"));
            }
            continue;
        };
        let done = |effect: &str| {
            let mut all = calls.iter();
            all.position(|call| call.effect == effect && call.of == of && call.is_done)
        };
        let last_done = |effect: &str| {
            let mut all = calls.iter();
            all.rposition(|call| call.effect == effect && call.of == of && call.is_done)
        };
        let aggregate = format!("{tenant}/shp-{key}");
        let accepted = |kind: &str| {
            let mut all = submissions.iter();
            all.position(|one| one.aggregate == aggregate && one.kind == kind && one.is_accepted)
        };
        let (shipped, called_back) = (accepted("Shipment.Create"), accepted("Shipment.Cancel"));
        let mut pairs = vec![("stock-reserve", "stock-release"), ("card-charge", "card-refund")];
        pairs.retain(|(does, undoes)| !is_lied_to(calls, &[*does, *undoes], &of));
        pairs.retain(|(does, _)| !is_contradicted(simulation, calls, does, &of));
        if record.failure.is_none() && record.phase.as_str() == "completed" {
            for (does, undoes) in pairs {
                if done(does).is_none() || done(undoes).is_some() {
                    faults.push(format!(
                        "{name} is completed, and {does} was not done or was undone"
                    ));
                }
            }
            if shipped.is_none() || called_back.is_some() {
                faults.push(format!("{name} is completed, and nothing was shipped"));
            }
            let state: Value = serde_json::from_slice(&record.data).expect("state is JSON");
            if state["stock"] == "" || state["card"] == "" {
                faults.push(format!("{name} is completed without receipts: {state}"));
            }
            continue;
        }
        for (does, undoes) in pairs {
            if let Some(at) = done(does)
                && last_done(undoes).is_none_or(|undone| undone < at)
            {
                let phase = record.phase.as_str();
                faults.push(format!("{name} is {phase}, and {does} was done and not undone"));
            }
        }
        if shipped.is_some() && called_back < shipped {
            faults.push(format!(
                "{name} is {}, and its parcel is on its way",
                record.phase.as_str()
            ));
        }
    }
    faults
}

/// Commands beside which some word about their calls is gone.
fn lost_intents(simulation: &Simulation) -> BTreeSet<String> {
    let gone = simulation.server.gone(COMMANDS).into_iter();
    let intents = gone.filter(|message| message.subject.contains(".effect_progress."));
    let command = |message: StoredMessage| message.subject.rsplit('.').next().map(str::to_owned);
    intents.filter_map(command).collect()
}

/// One piece of work keeps its key, and its key never gets other work.
fn keys(simulation: &Simulation, calls: &[Call]) -> Vec<String> {
    let mut faults = Vec::new();
    let lost_intents = lost_intents(simulation);
    let mut by_key: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    let mut by_command: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for call in calls {
        by_key.entry(&call.key).or_default().push(call);
        by_command.entry(&call.command).or_default().insert(&call.key);
    }
    for (key, calls) in &by_key {
        let first = calls[0];
        let name = format!("{} of {} under {key}", first.effect, first.of);
        if calls
            .iter()
            .any(|call| (&call.effect, &call.of) != (&first.effect, &first.of))
        {
            faults.push(format!("{name}: other work has the same key"));
        }
        if simulation.plan.is_calm && calls.len() > 1 {
            faults.push(format!(
                "{name} was called {} times without any fault",
                calls.len()
            ));
        }
        // It makes no call twice, whatever happens, unless the first one has surely done nothing, or the broker has lost the word
        // that it was begun: what is stored nowhere else is lost.
        let is_open = |call: &&&Call| {
            (call.is_done || !call.is_answered) && !lost_intents.contains(call.command.as_str())
        };
        let before_last = &calls[..calls.len() - 1];
        // What was done behind an adopted state is not always known, and its key is the same: the upstream knows it.
        let (_, key) = first.of.split_once('/').expect("a tenant and a key");
        if ["card-charge", "slot-book"].contains(&first.effect.as_str())
            && !simulation.is_adopted("Pay", key)
            && before_last.iter().any(|call| is_open(&call))
        {
            faults.push(format!("{name} was called {} times", calls.len()));
        }
    }
    if simulation.losses.adopted.is_none() {
        faults.extend(commands(calls));
    }
    for (command, keys) in by_command {
        if keys.len() > 1 {
            faults.push(format!(
                "command {command} has been called under {} keys",
                keys.len()
            ));
        }
    }
    // A piece of work that is done once is never done under a second key.
    let mut done: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    // Only the turns of a loop are work of their own each.
    for call in calls
        .iter()
        .filter(|call| call.is_done && call.effect != "meter-tick")
    {
        done.entry((&call.effect, &call.of))
            .or_default()
            .insert(&call.key);
    }
    for ((effect, of), keys) in done {
        // What was undone while nobody knew whether it had happened is undone once more behind its late success (ADR 73).
        let is_again = UNDOES.contains(&effect) && !simulation.plan.is_calm;
        if keys.len() > 1 + usize::from(is_again) {
            faults.push(format!("{effect} of {of} was done under {} keys", keys.len()));
        }
    }
    faults
}

/// The work of a step has one command, in whatever life it is asked for. The seats of trips are asked for twice.
fn commands(calls: &[Call]) -> Vec<String> {
    let mut commands: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let once = ["stock-reserve", "card-charge", "slot-book"];
    let is_once = |call: &&Call| once.contains(&call.effect.as_str()) && !call.of.contains("-seat");
    for call in calls.iter().filter(is_once) {
        commands
            .entry((&call.effect, &call.of))
            .or_default()
            .insert(&call.command);
    }
    commands.retain(|_, commands| commands.len() > 1);
    let told = commands.into_iter();
    told.map(|((effect, of), commands)| format!("{effect} of {of} was asked for by {commands:?}"))
        .collect()
}
