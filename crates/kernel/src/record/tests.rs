//! The stored form of records, and what can be told from them.

use super::*;
use crate::instance_status::{BlockedCause, InstanceStatus, Waits};
use crate::items::{Bounds, Items};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::work::WorkRef;
use saga_runner_language::definition::model::Late;

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
            life: Some("e-0".to_owned()),
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
            undo: true,
            of_before: true,
        }],
        off_ledger: vec![1],
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
        released: vec![Alias {
            name: "basket".to_owned(),
            value: "B-1".to_owned(),
        }],
        paused: Some(Box::new(Paused {
            by: "ada".to_owned(),
            reason: "a look".to_owned(),
            since: TimeMs(1_767_261_600_200),
        })),
        listing: Some(Box::new(Listing {
            status: InstanceStatus {
                phase: Phase::Compensating,
                blocked_by: BlockedCause::Paused,
                waits_for: Waits::Retry,
                error: "timeout".to_owned(),
            },
            sequence: 7,
        })),
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
    record.off_ledger = vec![u16::MAX];
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
    "0102abababababababababababababababababababababababababababababababab090180e4ff8fef66e8eb",
    "ff8fef6603652d310104726f6f74013730302d30616637363531393136636434336464383434386562323131",
    "633830333139632d623761643662373136393230333333312d30310301027b7d01047472697003742d311000",
    "00000000000000000000000000000c0101010101100000000000000000000000000000000d077b2261223a31",
    "7d010104020503011000000000000000000000000000000007ac0202020101027b7d01057368702d31020108",
    "6465636c696e656401010101097472616e7369656e740101050401010201075b375d030000000100027b7d01",
    "00000000000000000000000000000000000000010104747275650c01000000040000006e756c6c0102070102",
    "010301025b5d0120306166373635313931366364343364643834343865623231316338303331396301097374",
    "6570732e6f6c6401100000000000000000000000000000000e20303132333435363738396162636465663031",
    "3233343536373839616263646566096e6f20616e737765721e01050300000000000000000000000000000000",
    "000000010182018b01c8feb3c5038b010101050601035b315d01047472756501020100010001100000000000",
    "0000000000000000000008ac0202020101011473746570732e6f6c642e636f6d70656e736174650103652d30",
    "0101010301100000000000000000000000000000000e20303132333435363738396162636465663031323334",
    "3536373839616263646566096e6f20616e737765721e01010001070810000000000000000000000000000000",
    "09ac0202020101027b7d01010001100000000000000000000000000000000e0101090a0201035b325d010101",
    "010101010102676fd8e8ff8fef6606027b7d0106756e70616964d0f3ff8fef66ab020006756e706169640001",
    "086465636c696e6564086e6f2066756e64730106636861726765a0eaff8fef66010101010473686970010773",
    "6574746c656401020102ffffffffffffffffff01ffffffff0f0105ac02808080808080808080010101030405",
    "01aa0201cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd0101020101066368",
    "61726765100000000000000000000000000000000aac0202020101010663686172676501000108747261636b",
    "696e6703542d310101066261736b657403422d3101036164610661206c6f6f6b90e7ff8fef66",
    "010101020774696d656f757407",
);

#[test]
fn the_start_of_a_turn_in_the_ledger_moves_when_earlier_entries_are_removed() {
    let mut record = full();
    for (before, gone, after) in [(3, &[][..], 3), (3, &[0, 2], 1), (3, &[3, 4], 3), (0, &[0], 0)] {
        record.steps[0].ledger_before = before;
        record.forget_entries(gone);
        assert_eq!(record.steps[0].ledger_before, after);
    }
}
