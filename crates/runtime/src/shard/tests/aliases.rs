//! Events that find instances by values that these have registered.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::kernel::alias::Alias;
use crate::kernel::children::SagaMessage;
use crate::kernel::ids::{InstanceId, Key, SagaName, TenantId};
use crate::kernel::input::{Control, Input, InputBody, Origin, Owner};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{LetterDecision, Mail};
use crate::storage::read::Found;

const PARCEL: &str = r"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {'Parcel.*': event.data.id}
events: {Carrier.Scanned: {by: {tracking: event.data.no}}}
state: {init: {places: []}}
handlers:
  Parcel.Labelled: {alias: {tracking: '${event.data.no}'}}
  Carrier.Scanned: {set: {places: '${state.places + [event.data.at]}'}}
  Parcel.Closed: {complete: {outcome: closed}}
steps:
  never: {wait: {signal: never, timeout: 24h}}
";

pub fn world(more: &str) -> World {
    let mut world = World::new();
    world.definitions = set_of(vec![compile(&format!("{PARCEL}{more}"))]);
    world
}

pub fn parcel(tenant: &str, key: &str) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse(tenant).unwrap(),
        saga: SagaName::parse("parcel").unwrap(),
        key: Key::parse(key).unwrap(),
    }
}

pub fn tracking(tenant: &str, value: &str) -> InstanceId {
    let alias = Alias {
        name: "tracking".to_owned(),
        value: value.to_owned(),
    };
    alias.address(
        &TenantId::parse(tenant).unwrap(),
        &SagaName::parse("parcel").unwrap(),
    )
}

/// A shard, and the sequences of what comes to it.
pub struct Post {
    pub shard: Shard,
    pub events: u64,
    controls: u64,
}

impl Post {
    pub fn of(world: &World) -> Self {
        let shard = world.start();
        Self {
            events: shard.position(EVENTS),
            controls: shard.position(CONTROLS),
            shard,
        }
    }

    pub async fn event(&mut self, id: InstanceId, event_type: &str, data: serde_json::Value) {
        self.events += 1;
        let input = event(id, event_type, self.events, &data);
        self.shard.deliver(EVENTS, self.events, vec![input]).await;
    }

    /// What the intake makes of an event by its alias.
    pub async fn scan(&mut self, tenant: &str, no: &str, at: u64) {
        let data = json!({"no": no, "at": at});
        self.event(tracking(tenant, no), "Carrier.Scanned", data).await;
    }

    pub async fn packed(&mut self, tenant: &str, key: &str, no: &str) {
        self.event(parcel(tenant, key), "Parcel.Packed", json!({"id": key}))
            .await;
        let labelled = json!({"id": key, "no": no});
        self.event(parcel(tenant, key), "Parcel.Labelled", labelled).await;
    }

    /// The messages between sagas that stand in the outbox, oldest first.
    pub async fn messages(&self) -> Vec<(WorkRef, WorkItem)> {
        let mut rows = self.shard.outbox().await;
        rows.retain(|(_, item)| matches!(item.kind, WorkKind::Saga { .. }));
        rows
    }

    /// Brings all messages to where they go, until there are none.
    pub async fn carry(&mut self) {
        loop {
            let rows = self.messages().await;
            if rows.is_empty() {
                return;
            }
            self.bring(rows).await;
            self.shard.until_idle().await;
        }
    }

    /// Brings these messages to where they go.
    pub async fn bring(&mut self, messages: Vec<(WorkRef, WorkItem)>) {
        for (row, item) in messages {
            self.controls += 1;
            let input = arrived(&item, self.controls);
            self.shard.deliver(CONTROLS, self.controls, vec![input]).await;
            self.shard.mail(Mail::Delivered(vec![row])).await;
        }
    }

    pub fn places(&self, tenant: &str, key: &str) -> serde_json::Value {
        self.shard.state(&parcel(tenant, key), "places")
    }

    /// Whether the instance knows that the alias has refused it.
    fn is_refused(&self, key: &str) -> bool {
        let found = self.shard.handle.reader.instance(&parcel("t1", key)).unwrap();
        let record = match found.expect("it is there") {
            Found::Live(record) => record,
            Found::Ended(summary) => summary.record,
        };
        record.aliases[0].refused
    }

    fn owners(&self, tenant: &str, no: &str) -> Vec<String> {
        let row = self.shard.handle.reader.alias(&tracking(tenant, no)).unwrap();
        row.owners
            .iter()
            .map(|owner| format!("{}#{}", owner.key, owner.generation))
            .collect()
    }
}

/// A message as its reader makes an input of it.
fn arrived(item: &WorkItem, sequence: u64) -> Input {
    let WorkKind::Saga {
        saga, key, message, ..
    } = &item.kind
    else {
        panic!("{item:?} goes to no saga")
    };
    let instance = InstanceId {
        tenant: item.instance.tenant.clone(),
        saga: saga.clone(),
        key: key.clone(),
    };
    let owner = |generation: u32| Owner {
        key: item.instance.key.clone(),
        generation,
    };
    let request = item.command_id.to_string();
    let (id, time, body) = match message {
        SagaMessage::RegisterAlias { generation } => {
            let owner = owner(*generation);
            (
                request,
                START,
                InputBody::Control(Control::RegisterAlias { owner }),
            )
        }
        SagaMessage::ReleaseAlias { generation, hears } => {
            let (owner, hears) = (owner(*generation), *hears);
            (
                request,
                START,
                InputBody::Control(Control::ReleaseAlias { owner, hears }),
            )
        }
        SagaMessage::Forward(forwarded) => {
            let event = forwarded.event.clone();
            (
                event.event_id.to_string(),
                forwarded.time,
                InputBody::Event(event),
            )
        }
        SagaMessage::AskAlias(question) => {
            let (key, question) = (item.instance.key.clone(), *question);
            (
                request,
                START,
                InputBody::Control(Control::AskAlias { key, question }),
            )
        }
        SagaMessage::AliasRead { question, late } => {
            let (question, late) = (*question, *late);
            (
                request,
                START,
                InputBody::Control(Control::AliasRead { question, late }),
            )
        }
        SagaMessage::AliasAnswered { via, refused } => {
            let (via, refused) = (via.clone(), *refused);
            (
                request,
                START,
                InputBody::Control(Control::AliasAnswered { via, refused }),
            )
        }
        other => panic!("{other:?}"),
    };
    Input {
        instance,
        id,
        time,
        origin: Origin::Stream {
            stream: CONTROLS,
            sequence,
        },
        body,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_reaches_every_owner_of_its_value_in_order_and_nobody_else() {
    let world = world("");
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.packed("t1", "b", "T-1").await;
    post.packed("t1", "c", "T-2").await;
    post.packed("t2", "a", "T-1").await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["a#1", "b#1"]);
    assert_eq!(post.owners("t2", "T-1"), ["a#1"]);
    for at in 1..=3 {
        post.scan("t1", "T-1", at).await;
    }
    post.scan("t1", "T-3", 9).await;
    post.carry().await;
    for key in ["a", "b"] {
        assert_eq!(post.places("t1", key), json!([1, 2, 3]), "{key}");
    }
    assert_eq!(post.places("t1", "c"), json!([]));
    assert_eq!(post.places("t2", "a"), json!([]));
    let kinds: Vec<String> = post
        .shard
        .history(&parcel("t1", "a"))
        .into_iter()
        .map(|row| row.kind)
        .collect();
    assert_eq!(kinds[0], "event Carrier.Scanned by tracking T-1");
    assert_eq!(post.shard.dead_letters().len(), 0);
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_lost_or_forwarded_twice_over_a_restart_at_any_point() {
    let world = world("");
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.shard.until_idle().await;
    let [(_, told)] = post.messages().await.try_into().expect("one message");
    post.shard.stop().await;
    // The registration stands in the outbox, and comes twice.
    let mut post = Post::of(&world);
    post.controls += 1;
    let first = arrived(&told, post.controls);
    post.shard.deliver(CONTROLS, post.controls, vec![first]).await;
    post.scan("t1", "T-1", 1).await;
    post.shard.until_idle().await;
    post.shard.stop().await;
    let mut post = Post::of(&world);
    // So does the event that was forwarded: its row was handed over, and nobody has noted that.
    let forwards = post.messages().await;
    assert_eq!(forwards.len(), 2);
    let (_, forward) = &forwards[1];
    post.controls += 1;
    let again = arrived(forward, post.controls);
    post.shard.deliver(CONTROLS, post.controls, vec![again]).await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["a#1"]);
    assert_eq!(post.places("t1", "a"), json!([1]));
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_waits_for_its_alias_across_a_restart() {
    let world = world("");
    let mut post = Post::of(&world);
    post.scan("t1", "T-1", 1).await;
    post.scan("t1", "T-1", 2).await;
    post.shard.until_idle().await;
    post.shard.stop().await;
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.packed("t1", "b", "T-1").await;
    post.scan("t1", "T-1", 3).await;
    post.carry().await;
    // Who is first gets what has waited; the third has waited as well, since nothing was registered when it came.
    assert_eq!(post.places("t1", "a"), json!([1, 2, 3]));
    assert_eq!(post.places("t1", "b"), json!([]));
    let timers = post.shard.handle.reader.timers(None, 100).unwrap();
    let early = timers.iter().filter(|timer| timer.2.name.starts_with("early/"));
    assert_eq!(early.count(), 0, "nothing is left to expire");
    post.shard.stop().await;
}

/// The outcome of an event for whose alias nobody has come.
async fn unmatched(more: &str, wait: Duration) -> (u64, Vec<String>) {
    let world = world(more);
    let mut post = Post::of(&world);
    post.scan("t1", "T-1", 1).await;
    post.shard.until_idle().await;
    let address = tracking("t1", "T-1");
    let waits = |post: &Post| post.shard.handle.reader.inbox(&address, 10).unwrap().1.len();
    // A little less than its time, counted from the shard's clock.
    world
        .clock
        .advance(wait.checked_sub(Duration::from_millis(1)).unwrap());
    post.shard.barrier(world.clock.now()).await;
    post.shard.until_idle().await;
    post.shard.until_idle().await;
    assert_eq!(waits(&post), 1);
    world.clock.advance(Duration::from_secs(1));
    post.shard.barrier(world.clock.now()).await;
    for _ in 0..3_000 {
        post.shard.until_idle().await;
        if waits(&post) == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(waits(&post), 0, "its time is over");
    let ignored = world
        .metrics
        .inputs
        .with_label_values(&["event", "no_instance"])
        .get();
    let letters = post.shard.dead_letters();
    let letters = letters.into_iter().map(|(_, letter)| letter.reason).collect();
    // Who comes later does not get it.
    post.packed("t1", "a", "T-1").await;
    post.carry().await;
    assert_eq!(post.places("t1", "a"), json!([]));
    post.shard.stop().await;
    (ignored, letters)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_whose_alias_nobody_registers_ends_as_the_saga_says() {
    let minute = Duration::from_mins(1);
    assert_eq!(unmatched("", minute).await, (1, vec![]));
    let letter = vec!["no_instance".to_owned()];
    assert_eq!(unmatched("no_instance: dead_letter\n", minute).await, (0, letter));
    assert_eq!(
        unmatched("no_instance: {park: 1h}\n", 60 * minute).await,
        (1, vec![])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_ended_instance_owns_no_alias_and_its_next_generation_is_another_owner() {
    let world = world("reuse: always\n");
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.carry().await;
    post.scan("t1", "T-1", 1).await;
    post.shard.until_idle().await;
    // While the event is on its way, the instance ends and its key is used again, with the same alias.
    let [(row, forward)] = post.messages().await.try_into().expect("one message");
    post.shard.mail(Mail::Delivered(vec![row])).await;
    post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
        .await;
    post.packed("t1", "a", "T-1").await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["a#2"]);
    post.controls += 1;
    let late = arrived(&forward, post.controls);
    post.shard.deliver(CONTROLS, post.controls, vec![late]).await;
    post.shard.until_idle().await;
    assert_eq!(post.places("t1", "a"), json!([]));
    post.scan("t1", "T-1", 2).await;
    post.carry().await;
    assert_eq!(post.places("t1", "a"), json!([2]));
    // Once nobody has it, and no late registration may come, nothing is kept of it.
    post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
        .await;
    post.carry().await;
    world.clock.advance(Duration::from_hours(24 * 8));
    post.shard.barrier(world.clock.now()).await;
    post.shard.until_idle().await;
    assert_eq!(post.shard.handle.reader.check().unwrap().aliases, 0);
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_alias_has_a_bounded_number_of_owners() {
    let mut world = world("");
    world.limits.alias_owners = 2;
    let mut post = Post::of(&world);
    for key in ["a", "b", "c"] {
        post.packed("t1", key, "T-1").await;
    }
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["a#1", "b#1"]);
    let letters = post.shard.dead_letters();
    let [(number, letter)] = letters.as_slice() else {
        panic!("one dead letter: {letters:?}")
    };
    assert_eq!(letter.reason, "alias.owners");
    assert!(letter.message.contains("instance c"), "{}", letter.message);
    assert_eq!(letter.about, Some(parcel("t1", "c")));
    // The instance goes on without it, and knows.
    assert_eq!(
        ["a", "b", "c"].map(|key| post.is_refused(key)),
        [false, false, true]
    );
    let kind = post.shard.history(&parcel("t1", "c"))[0].kind.clone();
    assert_eq!(kind, "refusal by tracking T-1");
    post.scan("t1", "T-1", 1).await;
    post.carry().await;
    assert_eq!(post.places("t1", "b"), json!([1]));
    assert_eq!(post.places("t1", "c"), json!([]));
    // There is no room yet.
    post.shard.decide(*number, LetterDecision::Retry).await.unwrap();
    post.carry().await;
    let [(number, letter)] = post.shard.dead_letters().try_into().expect("one dead letter");
    assert_eq!((letter.reason.as_str(), letter.attempts), ("alias.owners", 2));
    assert!(post.is_refused("c"));
    // There is when another one has ended; what nobody had meanwhile is not made up for.
    post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
        .await;
    post.carry().await;
    post.shard.decide(number, LetterDecision::Retry).await.unwrap();
    post.scan("t1", "T-1", 2).await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["b#1", "c#1"]);
    assert!(!post.is_refused("c"));
    assert_eq!(post.places("t1", "c"), json!([2]));
    assert_eq!(post.shard.dead_letters().len(), 0);
    post.shard.stop().await;
}

/// The world has one owner of `T-1`, and `late` is refused; the number of its dead letter.
async fn refused(world: &mut World, late: &str) -> (Post, u64) {
    world.limits.alias_owners = 1;
    let mut post = Post::of(world);
    post.packed("t1", "a", "T-1").await;
    post.packed("t1", late, "T-1").await;
    post.carry().await;
    let [(number, _)] = post.shard.dead_letters().try_into().expect("one dead letter");
    (post, number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_refusal_that_is_on_its_way_survives_a_restart_and_is_heard_once() {
    let mut world = world("");
    world.limits.alias_owners = 1;
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.carry().await;
    post.packed("t1", "b", "T-1").await;
    post.shard.until_idle().await;
    let [(row, registers)] = post.messages().await.try_into().expect("one message");
    post.controls += 1;
    let registers = arrived(&registers, post.controls);
    post.shard.deliver(CONTROLS, post.controls, vec![registers]).await;
    post.shard.mail(Mail::Delivered(vec![row])).await;
    post.shard.until_idle().await;
    post.shard.stop().await;
    let mut post = Post::of(&world);
    let [(_, answer)] = post.messages().await.try_into().expect("one message");
    for _ in 0..2 {
        post.controls += 1;
        let again = arrived(&answer, post.controls);
        post.shard.deliver(CONTROLS, post.controls, vec![again]).await;
    }
    post.carry().await;
    assert!(post.is_refused("b"));
    let history = post.shard.history(&parcel("t1", "b"));
    let heard = history.iter().filter(|row| row.kind == "refusal by tracking T-1");
    assert_eq!(heard.count(), 1);
    post.shard.stop().await;
}

/// A dead letter may be kept for longer than the alias remembers who gave it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_registration_confirmed_after_the_owner_is_gone_is_released() {
    for forgotten in [false, true] {
        let mut world = world("");
        let (mut post, number) = refused(&mut world, "b").await;
        for key in ["b", "a"] {
            post.event(parcel("t1", key), "Parcel.Closed", json!({"id": key}))
                .await;
            post.carry().await;
        }
        if forgotten {
            world.clock.advance(Duration::from_hours(24 * 8));
            post.shard.barrier(world.clock.now()).await;
            post.shard.until_idle().await;
            assert_eq!(post.shard.handle.reader.check().unwrap().aliases, 0);
        }
        post.shard.decide(number, LetterDecision::Retry).await.unwrap();
        post.carry().await;
        assert_eq!(post.owners("t1", "T-1"), [""; 0], "forgotten: {forgotten}");
        assert_eq!(post.shard.dead_letters().len(), 0);
        post.shard.stop().await;
    }
}

/// The next generation has registered the same alias: what the first one is told is not for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_message_to_one_generation_does_not_reach_the_next() {
    let mut world = world("reuse: always\n");
    let (mut post, number) = refused(&mut world, "b").await;
    for key in ["a", "b"] {
        post.event(parcel("t1", key), "Parcel.Closed", json!({"id": key}))
            .await;
        post.carry().await;
    }
    post.packed("t1", "b", "T-1").await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["b#2"]);
    post.shard.decide(number, LetterDecision::Retry).await.unwrap();
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["b#2"]);
    assert!(!post.is_refused("b"));
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_that_does_not_fit_into_a_message_with_its_address_is_a_dead_letter() {
    let mut world = world("");
    world.limits.payload_bytes = 4_096;
    let mut post = Post::of(&world);
    let data = json!({"no": "T-1", "at": "x".repeat(3_000)});
    post.event(tracking("t1", "T-1"), "Carrier.Scanned", data).await;
    post.shard.until_idle().await;
    let letters = post.shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "alias.size");
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_registration_that_comes_behind_its_release_makes_nobody_an_owner() {
    let world = world("");
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.shard.until_idle().await;
    let (_, registration) = post.messages().await.remove(0);
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["a#1"]);
    post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
        .await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), Vec::<String>::new());

    post.controls += 1;
    let late = arrived(&registration, post.controls);
    post.shard.deliver(CONTROLS, post.controls, vec![late]).await;
    post.shard.until_idle().await;
    assert_eq!(post.owners("t1", "T-1"), Vec::<String>::new());
    // So an event waits for whoever has the value next.
    post.packed("t1", "b", "T-2").await;
    post.scan("t1", "T-1", 1).await;
    let labelled = json!({"id": "b", "no": "T-1"});
    post.event(parcel("t1", "b"), "Parcel.Labelled", labelled).await;
    post.carry().await;
    assert_eq!(post.places("t1", "b"), json!([1]));

    // What is remembered of it goes when the key of the instance is free again.
    post.event(parcel("t1", "b"), "Parcel.Closed", json!({"id": "b"}))
        .await;
    post.carry().await;
    world.clock.advance(Duration::from_hours(24 * 8));
    post.shard.barrier(world.clock.now()).await;
    post.shard.until_idle().await;
    let row = post.shard.handle.reader.alias(&tracking("t1", "T-1")).unwrap();
    assert!(row.is_empty(), "{row:?}");
    assert!(post.shard.handle.reader.timers(None, 10).unwrap().is_empty());
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_release_that_comes_before_its_registration_counts() {
    let world = world("");
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
        .await;
    post.shard.until_idle().await;
    for (_, item) in post.messages().await.iter().rev() {
        post.controls += 1;
        let input = arrived(item, post.controls);
        post.shard.deliver(CONTROLS, post.controls, vec![input]).await;
    }
    post.shard.until_idle().await;
    assert_eq!(post.owners("t1", "T-1"), Vec::<String>::new());
    post.shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_ended_instance_hears_of_its_alias_as_long_as_it_is_kept_and_makes_room_for_others() {
    let late = "after_end: {Carrier.Scanned: {set: {places: '${state.places + [event.data.at + 100]}'}}}\n";
    let mut world = world(late);
    world.limits.alias_owners = 2;
    let mut post = Post::of(&world);
    post.packed("t1", "a", "T-1").await;
    post.carry().await;
    post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
        .await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["a#1"]);
    post.scan("t1", "T-1", 1).await;
    post.carry().await;
    assert_eq!(post.places("t1", "a"), json!([101]));
    // Who runs comes first.
    post.packed("t1", "b", "T-1").await;
    post.packed("t1", "c", "T-1").await;
    post.carry().await;
    assert_eq!(post.owners("t1", "T-1"), ["b#1", "c#1"]);
    for key in ["b", "c"] {
        post.event(parcel("t1", key), "Parcel.Closed", json!({"id": key}))
            .await;
    }
    post.carry().await;
    post.scan("t1", "T-1", 2).await;
    post.carry().await;
    assert_eq!(post.places("t1", "a"), json!([101]));
    assert_eq!(post.places("t1", "c"), json!([102]));
    // When it is forgotten the alias forgets it.
    world.clock.advance(Duration::from_hours(24 * 8));
    post.shard.barrier(world.clock.now()).await;
    post.shard.until_idle().await;
    assert_eq!(post.shard.handle.reader.check().unwrap().aliases, 0);
    post.shard.stop().await;
}

/// An end of which the saga says nothing is kept for a week.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_alias_keeps_who_hears_for_the_longest_time_that_its_saga_keeps_one() {
    let owners_after = async |kept: &str, hours: u64| {
        let late = format!(
            "keep_ended: {kept}\nafter_end: {{Carrier.Scanned: {{set: {{places: '${{state.places + [event.data.at]}}'}}}}}}\n"
        );
        let world = world(&late);
        let mut post = Post::of(&world);
        post.packed("t1", "a", "T-1").await;
        post.carry().await;
        post.event(parcel("t1", "a"), "Parcel.Closed", json!({"id": "a"}))
            .await;
        post.carry().await;
        world.clock.advance(Duration::from_hours(hours));
        post.shard.barrier(world.clock.now()).await;
        post.shard.until_idle().await;
        let owners = post.owners("t1", "T-1").len();
        post.shard.stop().await;
        owners
    };
    assert_eq!(owners_after("30d", 24 * 29).await, 1);
    assert_eq!(owners_after("30d", 24 * 31).await, 0);
    assert_eq!(owners_after("{completed: 1h}", 24 * 6).await, 1, "failed: a week");
    assert_eq!(owners_after("1h", 2).await, 0);
}
