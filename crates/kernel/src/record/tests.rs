//! The stored form of records, and what can be told from them.

use super::*;
use crate::items::Bounds;
use crate::ledger::{LedgerEntry, LedgerStatus};

fn outstanding(id: u128) -> Outstanding {
    Outstanding {
        command: CommandId(uuid::Uuid::from_u128(id)),
        row: WorkRef {
            log_sequence: 300,
            index: 2,
        },
        attempt: 2,
        round: 1,
    }
}

fn question() -> Question {
    Question {
        command: CommandId(uuid::Uuid::from_u128(14)),
        idempotency_key: "0123456789abcdef0123456789abcdef".to_owned(),
        message: "no answer".to_owned(),
        since: TimeMs(15),
        doubted: true,
    }
}

/// A loop over two items, of which the first runs.
fn items() -> Items {
    let bounds = Bounds {
        parallel: 7,
        at_least: Some(2),
        tolerated: Some(3),
    };
    let mut items = Items::new(1, &[b"{}".to_vec(), b"[7]".to_vec()], bounds);
    let (index, value) = items.take().expect("there are two");
    items.running.push(crate::items::Item {
        index,
        value,
        steps: vec![StepState::pending()],
        results: vec![(1, ByteBuf::from("true"))],
    });
    items.keep_result(1, b"null");
    items.done = 1;
    items.failed = 2;
    items
}

fn left() -> Left {
    Left {
        definition: DefinitionHash([0xcd; 32]),
        forgotten: vec![(1, StepStatus::Done)],
    }
}

/// A record in which every field has a value.
#[allow(clippy::too_many_lines, reason = "a record has many members")]
fn full() -> Record {
    Record {
        generation: 2,
        definition: DefinitionHash([0xab; 32]),
        version: 9,
        phase: Phase::Compensating,
        started: TimeMs(1_767_261_600_000),
        updated: TimeMs(1_767_261_600_500),
        start_event: "e-1".to_owned(),
        root_correlation_id: Some("root".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        hops: 3,
        input: Some(ByteBuf::from(b"{}".to_vec())),
        parent: Some(Box::new(Parent {
            saga: SagaName::parse("trip").expect("legal"),
            key: Key::parse("t-1").expect("legal"),
            command: CommandId(uuid::Uuid::from_u128(12)),
            depth: 1,
            waits: true,
            undoable: true,
            answered: true,
            undo: Some(CommandId(uuid::Uuid::from_u128(13))),
        })),
        data: ByteBuf::from(r#"{"a":1}"#),
        machine: Some(MachineState { state: 1, entries: 4 }),
        steps: vec![
            StepState {
                status: StepStatus::Abandoned,
                iteration: 3,
                outstanding: Some(outstanding(7)),
                sent: Some(Sent {
                    payload: ByteBuf::from("{}"),
                    target: Some("shp-1".to_owned()),
                }),
                attempt: 2,
                error: Some("declined".to_owned()),
                tries: Tries {
                    round: 1,
                    unknown: true,
                    has_failed: true,
                    failures: vec![ClassFailures {
                        class: "transient".to_owned(),
                        count: 1,
                    }],
                },
                needed: Some(5),
                turn: 4,
                result: Some(ByteBuf::from("[]")),
                callback: Some("0af7651916cd43dd8448eb211c80319c".to_owned()),
                known_as: Some("steps.old".to_owned()),
                items: Some(Box::new(items())),
                question: Some(Box::new(question())),
                since: 5,
                ledger_before: 3,
            },
            StepState::pending(),
        ],
        ledger: Ledger::from_iter([LedgerEntry {
            step: 1,
            item: Some(5),
            iteration: 6,
            input: Some(ByteBuf::from("[1]")),
            result: Some(ByteBuf::from("true")),
            status: LedgerStatus::Undoing,
            attempt: 2,
            tries: Tries {
                round: 1,
                unknown: false,
                has_failed: true,
                failures: Vec::new(),
            },
            outstanding: Some(outstanding(8)),
            asks: true,
            of_child: true,
            again: true,
            known_as: Some("steps.old.compensate".to_owned()),
            late: Some(Late::Cancelled),
            question: Some(Box::new(question())),
        }]),
        doubts: vec![Doubt {
            command: CommandId(uuid::Uuid::from_u128(14)),
            step: 1,
            item: Some(9),
            iteration: 10,
            round: 2,
            input: Some(ByteBuf::from("[2]")),
            on_ledger: true,
            late: Late::TimedOut,
        }],
        strays: vec![Stray {
            step: 0,
            item: Some(7),
            iteration: 8,
            outstanding: outstanding(9),
            input: Some(ByteBuf::from("{}")),
            unknown: true,
            failed: true,
            late: Late::Enough,
        }],
        buffer: vec![Buffered {
            kind: MessageKind::Signal,
            name: "go".to_owned(),
            time: TimeMs(1_767_261_600_300),
            version: 6,
            value: ByteBuf::from("{}"),
        }],
        timers: BTreeMap::from([(
            "unpaid".to_owned(),
            TimerRow {
                due: TimeMs(1_767_261_601_000),
                set_by: WorkRef {
                    log_sequence: 299,
                    index: 0,
                },
                name: "unpaid".to_owned(),
                fired: 0,
            },
        )]),
        failure: Some(Failure {
            code: "declined".to_owned(),
            message: "no funds".to_owned(),
            step: Some("charge".to_owned()),
            time: TimeMs(1_767_261_600_400),
            cancelled: Some(CancelMode::Drain),
            drain: true,
            keep: vec!["ship".to_owned()],
        }),
        early: Some(Box::new(EarlyEnd {
            outcome: "settled".to_owned(),
            begun: true,
        })),
        seen_events: vec![
            Seen { id: 1, content: 2 },
            Seen {
                id: u64::MAX,
                content: u32::MAX,
            },
        ],
        sources: vec![Source {
            aggregate: 5,
            highest: 300,
            below: 1 << 63,
            repeats: true,
        }],
        seen_results: vec![Seen { id: 3, content: 4 }],
        deferred: 5,
        last_history: Some(298),
        left: Some(left()),
        program: Some(Box::new(ProgramState {
            tries: vec![ProgramTries {
                name: "charge".to_owned(),
                round: 1,
                unknown: false,
            }],
            pending: vec![Pending {
                name: "charge".to_owned(),
                outstanding: outstanding(10),
            }],
            completing: true,
        })),
        aliases: vec![Registered {
            alias: Alias {
                name: "tracking".to_owned(),
                value: "T-1".to_owned(),
            },
            refused: true,
        }],
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
    }
    text
}

#[test]
fn the_stored_form_of_a_record_is_frozen() {
    let record = full();
    assert_eq!(
        hex(&record.encode()),
        FROZEN_RECORD,
        "stored records can no longer be read"
    );
    assert_eq!(Record::decode(&record.encode()), Ok(record));
}

#[test]
fn bytes_that_are_no_record_are_told_apart() {
    let bytes = full().encode();
    assert_eq!(
        Record::decode(&[&[2], &bytes[1..]].concat()),
        Err(RecordError::Newer { found: 2, newest: 1 })
    );
    for broken in [&[][..], &[0], &bytes[..bytes.len() - 1], &bytes[..1]] {
        assert!(
            matches!(Record::decode(broken), Err(RecordError::Broken(_))),
            "{broken:?}"
        );
    }
}

#[test]
fn the_bound_on_the_encoded_size_holds_for_the_largest_numbers() {
    let mut record = full();
    record.version = u64::MAX;
    record.started = TimeMs(i64::MIN);
    record.updated = TimeMs(i64::MIN);
    record.hops = u32::MAX;
    record.generation = u32::MAX;
    record.deferred = u32::MAX;
    record.last_history = Some(u64::MAX);
    record.machine = Some(MachineState {
        state: u16::MAX,
        entries: u64::MAX,
    });
    let largest = Outstanding {
        command: CommandId(uuid::Uuid::max()),
        row: WorkRef {
            log_sequence: u64::MAX,
            index: u16::MAX,
        },
        attempt: u32::MAX,
        round: u32::MAX,
    };
    for step in &mut record.steps {
        step.outstanding = Some(largest);
        if let Some(question) = &mut step.question {
            question.since = TimeMs(i64::MIN);
        }
        step.attempt = u32::MAX;
        (step.iteration, step.turn) = (u32::MAX, u32::MAX);
        if let Some(items) = &mut step.items {
            (items.first, items.total, items.next) = (u16::MAX, u32::MAX, u32::MAX);
            (items.done, items.failed) = (u32::MAX, u32::MAX);
            for item in &mut items.running {
                item.index = u32::MAX;
                item.results[0].0 = u16::MAX;
                item.steps[0].outstanding = Some(largest);
                item.steps[0].iteration = u32::MAX;
            }
        }
    }
    if let Some(program) = &mut record.program {
        program.pending[0].outstanding = largest;
    }
    for at in 0..record.ledger.len() {
        let entry = record.ledger.entry(at);
        entry.outstanding = Some(largest);
        (entry.step, entry.attempt, entry.tries.round) = (u16::MAX, u32::MAX, u32::MAX);
        (entry.item, entry.iteration) = (Some(u32::MAX), u32::MAX);
    }
    for doubt in &mut record.doubts {
        (doubt.step, doubt.item, doubt.iteration, doubt.round) =
            (u16::MAX, Some(u32::MAX), u32::MAX, u32::MAX);
        doubt.command = largest.command;
    }
    for timer in record.timers.values_mut() {
        (timer.due, timer.set_by) = (TimeMs(i64::MIN), largest.row);
    }
    let largest = Seen {
        id: u64::MAX,
        content: u32::MAX,
    };
    record.seen_events = vec![largest; SEEN_EVENTS_MAX];
    record.seen_results = vec![largest; SEEN_RESULTS_MAX];
    let source = Source {
        aggregate: u64::MAX,
        highest: u64::MAX,
        below: u64::MAX,
        repeats: true,
    };
    record.sources = vec![source; SOURCES_MAX];
    let waiting = record.steps.first_mut().expect("a step");
    waiting.result = Some(ByteBuf::from(vec![b'1'; 5_000]));
    waiting.callback = Some("f".repeat(32));
    assert!(record.encode().len() <= record.encoded_bytes_at_most());
}

#[test]
fn a_record_has_nothing_open_when_nothing_can_come_back() {
    let mut record = full();
    assert!(!record.has_nothing_open());
    record.steps[0].outstanding = None;
    record.ledger.entry(0).outstanding = None;
    record.strays.clear();
    record.program = None;
    for (status, is_closed) in [
        (LedgerStatus::Held, true),
        (LedgerStatus::Undoing, false),
        (LedgerStatus::BackingOff, false),
        (LedgerStatus::Undone, true),
        (LedgerStatus::Stuck, false),
        (LedgerStatus::Due, false),
        (LedgerStatus::Kept, true),
    ] {
        record.ledger.entry(0).status = status;
        assert_eq!(record.has_nothing_open(), is_closed, "{status:?}");
    }
}

const FROZEN_RECORD: &str = concat!(
    "0102abababababababababababababababababababababababababababababababab090180e4ff8fef66e8ebff8fef66",
    "03652d310104726f6f74013730302d30616637363531393136636434336464383434386562323131633830333139632d",
    "623761643662373136393230333333312d30310301027b7d01047472697003742d311000000000000000000000000000",
    "00000c0101010101100000000000000000000000000000000d077b2261223a317d010104020503011000000000000000",
    "000000000000000007ac0202020101027b7d01057368702d310201086465636c696e656401010101097472616e736965",
    "6e740101050401010201075b375d030000000100027b7d01000000000000000000000000000000000000000101047472",
    "75650c01000000040000006e756c6c0102070102010301025b5d01203061663736353139313663643433646438343438",
    "656232313163383033313963010973746570732e6f6c6401100000000000000000000000000000000e20303132333435",
    "3637383961626364656630313233343536373839616263646566096e6f20616e737765721e0105030000000000000000",
    "0000000000000000000000010182018601b19ad60a86010101050601035b315d01047472756501020100010001100000",
    "0000000000000000000000000008ac0202020101011473746570732e6f6c642e636f6d70656e73617465010101030110",
    "0000000000000000000000000000000e2030313233343536373839616263646566303132333435363738396162636465",
    "66096e6f20616e737765721e0101000107081000000000000000000000000000000009ac0202020101027b7d01010001",
    "100000000000000000000000000000000e0101090a0201035b325d0101010102676fd8e8ff8fef6606027b7d0106756e",
    "70616964d0f3ff8fef66ab020006756e706169640001086465636c696e6564086e6f2066756e64730106636861726765",
    "a0eaff8fef660101010104736869700107736574746c656401020102ffffffffffffffffff01ffffffff0f0105ac0280",
    "808080808080808001010103040501aa0201cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
    "cdcd010102010106636861726765100000000000000000000000000000000aac02020201010106636861726765010001",
    "08747261636b696e6703542d3101",
);

#[test]
fn what_is_of_a_turn_stands_behind_the_same_entries_when_others_are_gone() {
    let mut record = full();
    for (before, gone, after) in [(3, &[][..], 3), (3, &[0, 2], 1), (3, &[3, 4], 3), (0, &[0], 0)] {
        record.steps[0].ledger_before = before;
        record.forget_entries(gone);
        assert_eq!(record.steps[0].ledger_before, after);
    }
}
