//! A ledger is what a plain list of its entries would be, and its bytes tell nothing of how it came about.

use proptest::prelude::*;
use saga_runner_language::ids::CommandId;

use super::*;
use crate::work::WorkRef;

fn entry(number: u16, status: LedgerStatus) -> LedgerEntry {
    let outstanding = Outstanding {
        command: CommandId(uuid::Uuid::from_u128(u128::from(number))),
        row: WorkRef {
            log_sequence: 1,
            index: number,
        },
        attempt: 1,
        round: 0,
    };
    LedgerEntry {
        step: number % 7,
        item: Some(u32::from(number)),
        iteration: 0,
        input: None,
        result: Some(ByteBuf::from(number.to_string())),
        status,
        attempt: 0,
        tries: Tries::default(),
        outstanding: (status == LedgerStatus::Undoing).then_some(outstanding),
        asks: false,
        of_child: false,
        again: false,
        known_as: None,
        life: None,
        late: None,
        question: None,
    }
}

fn encode(ledger: &Ledger) -> Vec<u8> {
    postcard::to_stdvec(ledger).expect("encodes")
}

fn read(bytes: &[u8]) -> Result<Ledger, postcard::Error> {
    postcard::from_bytes(bytes)
}

fn listed(ledger: &Ledger) -> Vec<LedgerEntry> {
    ledger.iter().map(Cow::into_owned).collect()
}

#[derive(Debug, Clone)]
enum Change {
    Push(LedgerStatus),
    /// The entry at this place of those that are there.
    Set(prop::sample::Index, LedgerStatus),
    /// Through its bytes.
    Store,
    Clear,
}

fn status() -> impl Strategy<Value = LedgerStatus> {
    prop::sample::select(LedgerStatus::ALL.to_vec())
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        30 => status().prop_map(Change::Push),
        10 => (any::<prop::sample::Index>(), status()).prop_map(|(at, status)| Change::Set(at, status)),
        5 => Just(Change::Store),
        1 => Just(Change::Clear),
    ]
}

proptest! {
    #[test]
    fn a_ledger_is_what_a_list_would_be(changes in prop::collection::vec(change(), 0..120)) {
        let (mut ledger, mut list) = (Ledger::default(), Vec::new());
        for (number, change) in (0..).zip(changes) {
            match change {
                Change::Push(status) => {
                    ledger.push(entry(number, status));
                    list.push(entry(number, status));
                }
                Change::Set(at, status) if !list.is_empty() => {
                    let at = at.index(list.len());
                    *ledger.entry(at) = entry(number, status);
                    list[at] = entry(number, status);
                }
                Change::Set(..) => {}
                Change::Store => ledger = read(&encode(&ledger)).expect("decodes"),
                Change::Clear => {
                    ledger.clear();
                    list.clear();
                }
            }
            prop_assert_eq!((ledger.len(), ledger.is_empty()), (list.len(), list.is_empty()));
        }
        prop_assert_eq!(&listed(&ledger), &list);
        prop_assert_eq!(ledger.highest_step(), list.iter().map(|entry| entry.step).max());
        for wanted in LedgerStatus::ALL {
            let is = |status| status == wanted;
            let expected: Vec<usize> = (0..list.len()).filter(|at| list[*at].status == wanted).collect();
            prop_assert_eq!(ledger.has(is), !expected.is_empty());
            let found: Vec<usize> = ledger.having(is).map(|(at, _)| at).collect();
            prop_assert_eq!(&found, &expected);
            let newest = ledger.having(is).next_back().map(|(at, _)| at);
            prop_assert_eq!(newest, expected.last().copied());
        }
        let awaited: Vec<_> = ledger.outstanding().collect();
        let expected: Vec<_> = list.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.outstanding?))).collect();
        prop_assert_eq!(awaited, expected);
        let afresh: Ledger = list.into_iter().collect();
        prop_assert_eq!(&afresh, &ledger);
        prop_assert_eq!(encode(&afresh), encode(&ledger));
        prop_assert!(encode(&ledger).len() <= ledger.bytes_at_most());
    }

    #[test]
    fn a_ledger_with_a_changed_byte_is_not_believed(
        entries in 1_u16..40,
        at in any::<prop::sample::Index>(),
        by in 1_u8..,
    ) {
        let ledger: Ledger = (0..entries).map(|number| entry(number, LedgerStatus::Held)).collect();
        let mut bytes = encode(&ledger);
        let at = at.index(bytes.len());
        bytes[at] ^= by;
        prop_assert!(read(&bytes).is_err());
    }
}

#[test]
fn one_entry_more_opens_no_chunk_but_the_last() {
    let ledger: Ledger = (0..1_000)
        .map(|number| entry(number, LedgerStatus::Held))
        .collect();
    let mut ledger = read(&encode(&ledger)).expect("decodes");
    ledger.push(entry(1_000, LedgerStatus::Due));
    assert!(ledger.has(|status| status == LedgerStatus::Due));
    let open = ledger
        .chunks
        .iter()
        .filter(|chunk| matches!(chunk, Chunk::Open(_)));
    assert_eq!(open.count(), 1);
}
