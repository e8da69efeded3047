//! Promises across tables, and the bytes that earlier versions left on disks.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;

use super::open;
use crate::kernel::ids::{
    ClusterId, CommandId, DefinitionHash, EffectName, EventId, InstanceId, Key, SagaName, TenantId, TimeMs,
};
use crate::kernel::input::{Control, DomainEvent, Input, InputBody, Origin, Owner, SourceStream};
use crate::kernel::patch::{IgnoreReason, Note, TimerRow};
use crate::kernel::record::{Paused, Phase, Record, Summary};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::storage::kept::{Addressee, Kept, KeptWork};
use crate::storage::read::{Bound, Found, ListCursor};
use crate::storage::rows::{
    ActiveDefinitions, ActiveSaga, AliasRow, ArchivedRow, BlockedRow, DeadLetter, EndedRow, HistoryOutcome,
    HistoryRow, InboxRow, PositionRow, Released, ScheduleRow, Stamp, StreamIdentity, Suspect, TimerTarget,
    Tombstone, UseChanges, Uses, WaitReason, Waiting, decode, encode, encode_waiting,
};
use crate::storage::write::Counters;
use crate::storage::{Batch, OpenOptions, Outdated, Settings, StorageError, Store};

fn store(dir: &Path) -> Store {
    let options = OpenOptions {
        cluster: "shop".to_owned(),
        cluster_id: ClusterId::OFFLINE,
        shard: 0,
        shards: 1,
        create: true,
    };
    open(dir, &Settings::default(), &options).expect("opens")
}

fn write<R>(store: &Store, work: impl FnOnce(&Batch<'_>) -> Result<R, StorageError>) -> R {
    store.write(work).expect("commits")
}

fn id(tenant: &str, saga: &str, key: &str) -> InstanceId {
    InstanceId {
        tenant: TenantId::parse(tenant).expect("legal"),
        saga: SagaName::parse(saga).expect("legal"),
        key: Key::parse(key).expect("legal"),
    }
}

fn record(generation: u32, last_history: Option<u64>) -> Record {
    Record {
        version: 1,
        data: ByteBuf::from(b"{}".to_vec()),
        last_history,
        ..Record::opened(generation, DefinitionHash([7; 32]), "e-1", TimeMs(1))
    }
}

fn input() -> Input {
    Input {
        instance: id("acme", "order", "o-1"),
        id: "e-1".to_owned(),
        time: TimeMs(1_767_225_600_000),
        origin: Origin::Stream {
            stream: SourceStream::AggregateEvents,
            sequence: 300,
        },
        body: InputBody::Event(DomainEvent {
            event_id: EventId::parse("e-1").expect("legal"),
            event_type: "Order.Placed".to_owned(),
            aggregate_type: "Order".to_owned(),
            aggregate_id: "o-1".to_owned(),
            sequence: 1,
            schema_version: 1,
            correlation_id: Some("c".to_owned()),
            causation_id: None,
            traceparent: None,
            hops: 2,
            fact: false,
            payload: Bytes::from_static(b"{}"),
            via: None,
        }),
    }
}

fn work_item() -> WorkItem {
    WorkItem {
        instance: id("acme", "order", "o-1"),
        command_id: CommandId(uuid::Uuid::from_u128(5)),
        idempotency_key: "k".to_owned(),
        path: "steps.charge".to_owned(),
        attempt: 1,
        created: TimeMs(1_767_225_600_000),
        deadline: TimeMs(1_767_225_660_000),
        waited_ms: 0,
        causation_id: "e-1".to_owned(),
        root_correlation_id: None,
        traceparent: None,
        hops: 1,
        kind: WorkKind::Effect {
            effect: EffectName::parse("charge").expect("legal"),
            payload: Bytes::from_static(b"{\"a\":1}"),
        },
    }
}

fn history_row(previous: Option<u64>) -> HistoryRow {
    HistoryRow {
        instance: id("acme", "order", "o-1"),
        input_id: "e-1".to_owned(),
        kind: "event Order.Placed".to_owned(),
        time: TimeMs(1_767_225_600_000),
        source: Some((SourceStream::AggregateEvents, 300)),
        outcome: HistoryOutcome::Applied,
        notes: vec![
            Note::Started,
            Note::StepStarted {
                step: "charge".to_owned(),
                attempt: 1,
            },
            Note::TimerSet {
                timer: "unpaid".to_owned(),
                due: TimeMs(5),
            },
        ],
        late_source: false,
        previous,
    }
}

fn dead_letter(tenant: &str) -> DeadLetter {
    DeadLetter {
        tenant: TenantId::parse(tenant).expect("legal"),
        reason: "payload.syntax".to_owned(),
        message: "no JSON".to_owned(),
        subject: "s".to_owned(),
        time: TimeMs(7),
        source: Some((SourceStream::WorkflowEvents, 9)),
        attempts: 2,
        input: None,
        excerpt: Bytes::from_static(b"{"),
        payload_hash: Some([1; 32]),
        about: Some(id("acme", "order", "o-1")),
        met: None,
    }
}

const KEPT_WORK: &str = concat!(
    "01100000000000000000000000000000000700066368617267650c73746570732e636861726765010a0a0a0a0a",
    "0a0a0a0a0a0a0a0a0a0a0a010c7b22616d6f756e74223a357d"
);

fn kept_work() -> KeptWork {
    KeptWork {
        id: CommandId(uuid::Uuid::from_u128(7)),
        to: Addressee::Effect {
            name: "charge".to_owned(),
        },
        path: "steps.charge".to_owned(),
        attempt: 1,
        idempotency_key: [10; 16],
        payload: Some(Bytes::from_static(br#"{"amount":5}"#)),
    }
}

fn ended_row(key: &str, ended: i64, last_history: Option<u64>) -> EndedRow {
    EndedRow {
        instance: id("acme", "order", key),
        summary: Summary {
            record: record(1, last_history),
            ended: TimeMs(ended),
        },
        until: None,
    }
}

fn outdated(before: i64, count: u64) -> Outdated {
    Outdated {
        now: TimeMs(0),
        before: TimeMs(before),
        count,
        archive: false,
    }
}

/// Checks that a row is written as it always was, and read back as what it is.
fn frozen<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(row: &T, expected: &str) {
    let bytes = encode(row);
    let hex = bytes
        .iter()
        .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    assert_eq!(hex, expected, "{row:?}");
    assert_eq!(decode::<T>(&bytes, "a row").expect("decodes"), *row);
}

#[test]
fn stored_rows_are_frozen() {
    frozen(&history_row(Some(4)), HISTORY);
    frozen(&HistoryOutcome::Deferred, "0101");
    frozen(&HistoryOutcome::Ignored(IgnoreReason::NoHandler), "010205");
    let dead = HistoryOutcome::Dead {
        number: 3,
        reason: "fuel".to_owned(),
    };
    frozen(&dead, "010303046675656c");
    frozen(&HistoryOutcome::Retried { number: 3 }, "010403");
    frozen(&HistoryOutcome::Discarded { number: 3 }, "010503");
    let edited = HistoryOutcome::Edited {
        number: 3,
        original: Bytes::from_static(b"{}"),
        edited: Bytes::from_static(b"[]"),
    };
    frozen(&edited, "010603027b7d025b5d");
    frozen(&HistoryOutcome::Cut { rows: 300 }, "0107ac02");
    frozen(&work_item(), WORK);
    frozen(&kept_work(), KEPT_WORK);
    let timer = TimerTarget {
        instance: id("acme", "order", "o-1"),
        name: "unpaid".to_owned(),
    };
    frozen(&timer, "010461636d65056f72646572036f2d3106756e70616964");
    let waiting = InboxRow {
        reason: WaitReason::Blocked,
        input: input(),
    };
    frozen(&waiting, INBOX);
    assert_eq!(encode_waiting(WaitReason::Blocked, &input()), encode(&waiting));
    let alias = AliasRow {
        owners: vec![Owner {
            key: Key::parse("o-1").expect("legal"),
            generation: 300,
        }],
        released: vec![Released {
            owner: Owner {
                key: Key::parse("o-2").expect("legal"),
                generation: 1,
            },
            until: TimeMs(5),
        }],
    };
    frozen(&alias, "0101036f2d31ac0201036f2d32010a");
    frozen(&BlockedRow { dead_letter: 300 }, "01ac02");
    frozen(&dead_letter("acme"), DEAD_LETTER);
    let tombstone = Tombstone {
        generation: 2,
        ended: TimeMs(1),
        until: Some(TimeMs(9)),
        summary: 300,
        phase: Phase::Failed,
        start: 5,
    };
    frozen(&tombstone, "0102020112ac020305");
    let position = PositionRow {
        stream: StreamIdentity {
            name: "EVENTS".to_owned(),
            created_ns: 3,
        },
        sequence: 9,
        stamp: Some(Stamp {
            time: TimeMs(7),
            content: Some(300),
        }),
    };
    frozen(&position, "01064556454e54530609010e01ac02");
    let suspect = Suspect {
        input: [9; 16],
        attempts: 2,
    };
    frozen(&vec![suspect], "01010909090909090909090909090909090902");
    let counters = Counters {
        log_sequence: 5,
        sent_floor: 6,
        last_time: TimeMs(7),
        early_inputs: 8,
        early_bytes: 9,
        awaited_sagas: 10,
    };
    frozen(&counters, "0105060e08090a");
    let active = ActiveDefinitions {
        revision: 2,
        sagas: BTreeMap::from([(
            "order".to_owned(),
            ActiveSaga {
                hash: DefinitionHash([1; 32]),
                since: [1, 2, 3],
            },
        )]),
    };
    frozen(
        &active,
        "010201056f726465720101010101010101010101010101010101010101010101010101010101010101010203",
    );
}

fn paused_schedule() -> ScheduleRow {
    ScheduleRow {
        zone: "UTC".to_owned(),
        started: 3,
        paused: true,
        pause: Some(Paused {
            by: "ada".to_owned(),
            reason: "x".to_owned(),
            since: TimeMs(7),
        }),
        ..ScheduleRow::new(TimeMs(5))
    }
}

#[test]
fn a_schedule_is_read_that_was_stored_before_pauses_were_explained() {
    frozen(&paused_schedule(), SCHEDULE);
    let now = ScheduleRow {
        pause: None,
        ..paused_schedule()
    };
    let mut before = encode(&now);
    assert_eq!(before.pop(), Some(0), "it ends with what it lacks");
    assert_eq!(decode::<ScheduleRow>(&before, "a row").expect("decodes"), now);
}

const SCHEDULE: &str = "010003555443\
    0a0000000300000001010361646101780e";
const HISTORY: &str = "010461636d65056f72646572036f2d3103652d31126576656e74204f726465722e506c6163656480a0d5edee660100ac\
    020003000106636861726765010806756e706169640a000104";
const WORK: &str = "010461636d65056f72646572036f2d311000000000000000000000000000000005016b0c73746570732e636861726765\
    0180a0d5edee66c0c9dcedee660003652d310000010006636861726765077b2261223a317d";
const INBOX: &str = "01010461636d65056f72646572036f2d3103652d3180a0d5edee660000ac020003652d310c4f726465722e506c616365\
    64054f72646572036f2d31010001010163000002027b7d00";
const DEAD_LETTER: &str = "010461636d650e7061796c6f61642e73796e746178076e6f204a534f4e01730e0101090200017b010101010101010101\
    010101010101010101010101010101010101010101010101010461636d65056f72646572036f2d3100";

/// Rows of before end without the version that their input met.
#[test]
fn a_dead_letter_of_a_version_of_before_is_read() {
    let mut bytes = encode(&dead_letter("acme"));
    assert_eq!(bytes.pop(), Some(0));
    let read = decode::<DeadLetter>(&bytes, "a dead letter").expect("decodes");
    assert_eq!(read, dead_letter("acme"));
    let met = DeadLetter {
        met: Some(DefinitionHash([7; 32])),
        ..dead_letter("acme")
    };
    let read = decode::<DeadLetter>(&encode(&met), "a dead letter").expect("decodes");
    assert_eq!(read, met);
}

#[test]
fn a_batch_appears_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let id = id("acme", "order", "o-1");
    let row = WorkRef {
        log_sequence: 1,
        index: 0,
    };
    let timer = TimerRow {
        due: TimeMs(10),
        set_by: row,
        name: "unpaid".to_owned(),
        fired: 0,
    };
    let fill = |batch: &Batch<'_>| {
        batch.put_record(&id, &record(1, Some(1)))?;
        batch.put_work(row, &work_item())?;
        batch.put_timer(&id, &timer)?;
        batch.put_history(1, &history_row(None))?;
        batch.put_inbox(&id, 1, encode_waiting(WaitReason::Blocked, &input()))?;
        batch.put_dead_letter(1, &dead_letter("acme"))?;
        batch.put_counters(&Counters {
            log_sequence: 1,
            ..Counters::default()
        })
    };
    let failed: Result<(), StorageError> = store.write(|batch| {
        fill(batch)?;
        Err(StorageError::Failed("no".to_owned()))
    });
    assert!(failed.is_err());
    let reader = store.reader();
    let empty = reader.check().expect("reads");
    assert_eq!(
        (
            empty.live,
            empty.outbox,
            empty.timers,
            empty.dead_letters,
            empty.next_due
        ),
        (0, 0, 0, 0, None)
    );
    assert!(store.reader().waiting().expect("reads").is_empty());
    write(&store, fill);
    let counted = reader.check().expect("reads");
    assert_eq!(
        (
            counted.live,
            counted.outbox,
            counted.timers,
            counted.dead_letters,
            counted.next_due
        ),
        (1, 1, 1, 1, Some(TimeMs(10)))
    );
    assert_eq!(
        reader.instance(&id).expect("reads"),
        Some(Found::Live(record(1, Some(1))))
    );
    assert_eq!(reader.work_after(None, 9).expect("reads"), [(row, work_item())]);
    assert_eq!(reader.work_after(Some(row), 9).expect("reads"), []);
    assert_eq!(
        reader.history(Some(1), 9).expect("reads"),
        [(1, history_row(None))]
    );
}

#[test]
fn pending_inputs_are_counted_as_they_are_stored() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let (first, second) = (id("acme", "order", "o-1"), id("acme", "order", "o-10"));
    let row = |reason| encode_waiting(reason, &input());
    let bytes = row(WaitReason::Blocked).len();
    write(&store, |batch| {
        batch.put_blocked(&first, Some(8))?;
        batch.put_inbox(&first, 9, row(WaitReason::Blocked))?;
        batch.put_inbox(&first, 3, row(WaitReason::Deferred))?;
        batch.put_inbox(&second, 4, row(WaitReason::Deferred))
    });
    let waiting = store.reader().waiting().expect("reads");
    assert_eq!(
        waiting[&first],
        Waiting {
            unversioned: 0,
            early: 0,
            behind: Some(8),
            blocked: 1,
            deferred: 1,
            bytes: 2 * bytes,
            ..Waiting::default()
        }
    );
    assert!(waiting[&first].is_blocked() && !waiting[&second].is_blocked());
    let numbers = write(&store, |batch| batch.inbox(&first))
        .into_iter()
        .map(|(number, ..)| number);
    assert_eq!(
        numbers.collect::<Vec<_>>(),
        [3, 9],
        "oldest first, without the mark"
    );
    write(&store, |batch| {
        batch.put_blocked(&first, None)?;
        batch.delete_inbox(&first, 3)?;
        batch.delete_inbox(&first, 9)
    });
    let left = store.reader().waiting().expect("reads");
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [second]);
}

#[test]
fn due_timers_come_earliest_first_and_no_sooner() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let id = id("acme", "order", "o-1");
    let timer = |due, log_sequence| TimerRow {
        due: TimeMs(due),
        set_by: WorkRef {
            log_sequence,
            index: 0,
        },
        name: format!("t{due}"),
        fired: 0,
    };
    write(&store, |batch| {
        for row in [timer(30, 1), timer(-5, 2), timer(10, 9), timer(10, 3)] {
            batch.put_timer(&id, &row)?;
        }
        Ok(())
    });
    let due = |now, limit| {
        write(&store, |batch| batch.due_timers(TimeMs(now), limit))
            .into_iter()
            .map(|(due, set_by, _)| (due.0, set_by.log_sequence))
            .collect::<Vec<_>>()
    };
    assert_eq!(due(10, 9), [(-5, 2), (10, 3), (10, 9)]);
    assert_eq!(due(9, 9), [(-5, 2)]);
    assert_eq!(due(99, 2), [(-5, 2), (10, 3)]);
    let reader = store.reader();
    assert_eq!(reader.timers_due(TimeMs(10), 99).expect("reads"), 3);
    assert_eq!(reader.timers_due(TimeMs(10), 2).expect("reads"), 2);
    let page = reader.timers(None, 2).expect("reads");
    let last = page.last().map(|(due, set_by, _)| (*due, *set_by));
    let rest = reader.timers(last, 9).expect("reads");
    let all: Vec<_> = page.iter().chain(&rest).map(|(due, ..)| due.0).collect();
    assert_eq!(all, [-5, 10, 10, 30]);
    assert!(write(&store, |batch| batch
        .delete_timer(TimeMs(30), timer(30, 1).set_by)));
    assert!(!write(&store, |batch| batch
        .delete_timer(TimeMs(30), timer(30, 1).set_by)));
}

#[test]
fn instances_are_listed_page_by_page_within_their_tenant_and_saga() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    write(&store, |batch| {
        for (tenant, saga) in [("acme", "order"), ("acme", "orders"), ("acm", "order")] {
            for number in 0..3 {
                batch.put_record(&id(tenant, saga, &format!("live-{number}")), &record(1, None))?;
            }
        }
        for number in 1..=3 {
            batch.end(number, &ended_row(&format!("ended-{number}"), 5, None))?;
        }
        Ok(())
    });
    let reader = store.reader();
    let wanted = id("acme", "order", "any");
    let mut keys = Vec::new();
    let mut after: Option<ListCursor> = None;
    for _ in 0..20 {
        let (page, next) = reader
            .instances(&wanted.tenant, &wanted.saga, after.as_ref(), 2)
            .expect("reads");
        assert!(page.len() <= 2);
        keys.extend(page.into_iter().map(|listed| listed.id.key.to_string()));
        after = next;
        if after.is_none() {
            break;
        }
    }
    let expected = ["live-0", "live-1", "live-2", "ended-1", "ended-2", "ended-3"];
    assert_eq!(keys, expected);
}

#[test]
fn a_page_ends_with_the_row_that_passes_its_bytes_and_the_next_goes_on_behind_it() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    write(&store, |batch| {
        for number in 1..=3 {
            batch.put_record(&id("acme", "order", &format!("live-{number}")), &record(1, None))?;
            batch.end(number, &ended_row(&format!("ended-{number}"), 5, None))?;
            batch.put_dead_letter(number, &dead_letter("acme"))?;
        }
        Ok(())
    });
    let wanted = id("acme", "order", "any");
    let one = Bound { items: 9, bytes: 1 };
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let reader = store.reader();
        let page = reader.instances(&wanted.tenant, &wanted.saga, after.as_ref(), one);
        let (page, next) = page.expect("reads");
        assert!(page.len() <= 1);
        keys.extend(page.iter().map(|listed| listed.id.key.to_string()));
        assert!(next.is_none() || page.last().map(|listed| &listed.place) == next.as_ref());
        after = next;
        if after.is_none() {
            break;
        }
    }
    let expected = ["live-1", "live-2", "live-3", "ended-1", "ended-2", "ended-3"];
    assert_eq!(keys, expected);
    let (letters, next) = store
        .reader()
        .dead_letters(&wanted.tenant, Some(1), one)
        .expect("reads");
    assert_eq!((letters.len(), letters[0].0, next), (1, 2, Some(2)));
}

#[test]
fn dead_letters_are_shown_to_their_tenant_alone() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    write(&store, |batch| {
        for (number, tenant) in [(1, "acme"), (2, "other"), (3, "acme")] {
            batch.put_dead_letter(number, &dead_letter(tenant))?;
        }
        Ok(())
    });
    let acme = TenantId::parse("acme").expect("legal");
    let numbers = |after, limit| {
        let (letters, _) = store.reader().dead_letters(&acme, after, limit).expect("reads");
        letters.into_iter().map(|(number, _)| number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(None, 9), [1, 3]);
    assert_eq!(numbers(Some(1), 9), [3]);
    assert_eq!(numbers(None, 1), [1]);
}

#[test]
fn dead_letters_behind_many_of_other_tenants_are_found_page_by_page() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    write(&store, |batch| {
        for number in 1..=20_005 {
            batch.put_dead_letter(number, &dead_letter("other"))?;
        }
        batch.put_dead_letter(20_006, &dead_letter("acme"))
    });
    let acme = TenantId::parse("acme").expect("legal");
    let (letters, next) = store.reader().dead_letters(&acme, None, 9).expect("reads");
    assert!(
        letters.is_empty() && next.is_some(),
        "the first page looks at a bounded number of rows"
    );
    let (letters, next) = store.reader().dead_letters(&acme, next, 9).expect("reads");
    assert_eq!((letters.len(), letters[0].0, next), (1, 20_006, None));
}

#[test]
fn the_oldest_dead_letters_are_forgotten_but_none_for_which_an_instance_waits() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let acme = TenantId::parse("acme").expect("legal");
    write(&store, |batch| {
        for number in 1..=9 {
            let letter = DeadLetter {
                input: Some(input()),
                ..dead_letter("acme")
            };
            batch.put_dead_letter(number, &letter)?;
        }
        batch.put_blocked(&input().instance, Some(2))
    });
    let left = || -> Vec<u64> {
        let (letters, _) = store.reader().dead_letters(&acme, None, 99).expect("reads");
        letters.into_iter().map(|(number, _)| number).collect()
    };
    assert_eq!(write(&store, |batch| batch.prune_dead_letters(9, 2)), 0);
    assert_eq!(write(&store, |batch| batch.prune_dead_letters(5, 2)), 1);
    assert_eq!(left(), [2, 3, 4, 5, 6, 7, 8, 9]);
    // It goes on behind what it looked at.
    assert_eq!(write(&store, |batch| batch.prune_dead_letters(5, 2)), 2);
    assert_eq!(write(&store, |batch| batch.prune_dead_letters(5, 2)), 1);
    assert_eq!(left(), [2, 6, 7, 8, 9]);
    assert_eq!(write(&store, |batch| batch.prune_dead_letters(5, 2)), 0);
}

#[test]
fn a_history_is_cut_behind_its_newest_rows_and_keeps_its_first_and_the_number_of_those_deleted() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let add = |from: u64, to: u64| {
        write(&store, |batch| {
            for number in from..=to {
                batch.put_history(number, &history_row((number > 1).then(|| number - 1)))?;
                batch.put_input(number, &InputBody::Control(Control::Retry), 64)?;
            }
            Ok(())
        });
    };
    let rows = |newest| {
        let rows = store.reader().history(Some(newest), 99).expect("reads");
        rows.into_iter()
            .map(|(number, row)| match row.outcome {
                HistoryOutcome::Cut { rows } => (number, Some(rows)),
                _ => (number, None),
            })
            .collect::<Vec<_>>()
    };
    let whole = |numbers: std::ops::RangeInclusive<u64>| numbers.rev().map(|number| (number, None));
    add(1, 12);
    for keep in [10, 11, 12, 99] {
        write(&store, |batch| batch.cut_history(12, keep));
        assert_eq!(
            rows(12),
            whole(1..=12).collect::<Vec<_>>(),
            "nothing is won: {keep}"
        );
    }
    write(&store, |batch| batch.cut_history(12, 4));
    let left = whole(9..=12).chain([(8, Some(7)), (1, None)]);
    assert_eq!(rows(12), left.collect::<Vec<_>>());
    let kept = store
        .reader()
        .kept_with_history([7, 8, 9, 1], 9_999)
        .expect("reads");
    let kept: Vec<_> = kept.iter().map(|kept| kept.input.is_some()).collect();
    assert_eq!(kept, [false, false, true, true]);

    // Again: those that were cut before are counted with the others.
    add(13, 20);
    write(&store, |batch| batch.cut_history(20, 4));
    let left = whole(17..=20).chain([(16, Some(15)), (1, None)]);
    assert_eq!(rows(20), left.collect::<Vec<_>>());
    let (oldest, more) = store.reader().history_behind(Some(20), None, 2).expect("reads");
    assert_eq!((oldest[0].0, oldest[1].0, more), (1, 16, true));
}

#[test]
fn an_ended_instance_is_found_until_it_is_forgotten_and_its_tombstone_outlives_it() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let work = vec![kept_work()];
    write(&store, |batch| {
        for number in 1..=6 {
            let key = format!("o-{number}");
            batch.put_record(&id("acme", "order", &key), &record(1, None))?;
            batch.put_history(10 * number - 1, &history_row(None))?;
            batch.put_history(10 * number, &history_row(Some(10 * number - 1)))?;
            batch.put_input(10 * number, &InputBody::Control(Control::Retry), 64)?;
            batch.put_work_of(10 * number, work.clone(), 4_096)?;
            let ended = i64::try_from(number).expect("small") * 100;
            batch.end(10 * number, &ended_row(&key, ended, Some(10 * number)))?;
        }
        Ok(())
    });
    let reader = store.reader();
    let found = |key: &str| reader.instance(&id("acme", "order", key)).expect("reads");
    assert!(matches!(found("o-1"), Some(Found::Ended(_))));
    assert_eq!(reader.check().expect("reads").live, 0);

    // Beyond the number: the oldest two go, with their history; their keys stay used up.
    assert_eq!(
        write(&store, |batch| batch.prune_ended(outdated(0, 4), 99))
            .instances
            .len(),
        2
    );
    assert_eq!(found("o-2"), None);
    assert!(matches!(found("o-3"), Some(Found::Ended(_))));
    assert_eq!(reader.history(Some(20), 9).expect("reads"), []);
    let kept = |number| reader.kept_with_history([number], 9).expect("reads").remove(0);
    assert_eq!(kept(20), Kept::default());
    assert_eq!(kept(30).input, Some(InputBody::Control(Control::Retry)));
    assert_eq!(kept(30).work, work);
    assert_eq!(reader.history(Some(30), 9).expect("reads").len(), 2);
    let tombstone = |key: &str| write(&store, |batch| batch.tombstone(&id("acme", "order", key)));
    assert_eq!(tombstone("o-1").map(|found| found.ended), Some(TimeMs(100)));

    // Beyond their age: in slices, and the tombstones with them.
    while !write(&store, |batch| batch.prune_ended(outdated(401, 99), 1))
        .instances
        .is_empty()
    {}
    for _ in 0..12 {
        write(&store, |batch| batch.prune_ended(outdated(401, 99), 1));
    }
    let left: Vec<bool> = (1..=6)
        .map(|number| tombstone(&format!("o-{number}")).is_some())
        .collect();
    assert_eq!(left, [false, false, false, false, true, true]);
    assert_eq!(reader.check().expect("reads").ended, 2);
}

#[test]
fn a_definition_is_archived_once_and_stays_while_it_is_referred_to() {
    let dir = tempfile::tempdir().expect("folder");
    let store = store(dir.path());
    let hash = DefinitionHash([3; 32]);
    let row = |source: &str| ArchivedRow {
        saga: SagaName::parse("order").expect("legal"),
        source: source.to_owned(),
    };
    let archived = |live, ended, left| vec![(hash, row("first"), Uses { live, ended, left })];
    let definitions = || store.reader().definitions().expect("reads");
    write(&store, |batch| {
        batch.put_definition(&hash, &row("first"))?;
        batch.put_definition(&hash, &row("second"))
    });
    assert_eq!(definitions(), archived(0, 0, 0));
    let change = |live, ended, active: bool| {
        let mut changes = UseChanges::default();
        changes.live(hash, live);
        changes.ended(hash, ended);
        write(&store, |batch| batch.change_uses(&changes, |_| active));
    };
    change(2, 0, true);
    change(-1, 1, false);
    assert_eq!(definitions(), archived(1, 1, 0));
    write(&store, |batch| batch.prune_definitions(|_| false));
    change(-1, 0, false);
    assert_eq!(definitions(), archived(0, 1, 0), "an ended instance is enough");
    let leave = |by| {
        let mut changes = UseChanges::default();
        changes.left(hash, by);
        write(&store, |batch| batch.change_uses(&changes, |_| true));
    };
    leave(1);
    change(0, -1, false);
    assert_eq!(definitions(), archived(0, 0, 1), "an instance may come back");
    leave(-1);
    assert_eq!(definitions(), archived(0, 0, 0), "new instances may need it");
    write(&store, |batch| batch.prune_definitions(|_| false));
    assert_eq!(definitions(), []);
}
