//! The store on disk and the one in memory are the same to whoever writes and reads: random transactions give the same
//! rows, answers and refusals.

use proptest::collection::vec;
use proptest::prelude::*;
use saga_runner_partition::storage::{Memory, ReadRows, Row, StorageError, TableIndex, WriteRows, rows_of};

use super::environment::Environment;
use crate::storage::tables::NAMES;

/// One call of a transaction.
#[derive(Debug, Clone)]
enum Step {
    Put(TableIndex, Vec<u8>, Vec<u8>),
    Append(TableIndex, Vec<u8>, Vec<u8>),
    Delete(TableIndex, Vec<u8>),
    Get(TableIndex, Vec<u8>),
    Count(TableIndex),
    Scan(TableIndex, Vec<u8>, usize),
}

/// Steps, and whether the transaction is given up at its end.
type Transaction = (Vec<Step>, bool);

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Few different ones, so that they meet.
        20 => vec(0_u8..3, 1..4),
        1 => Just(vec![1; 2_022]),
        1 => Just(vec![1; 2_023]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => vec(any::<u8>(), 0..20),
        2 => vec(any::<u8>(), 5_000..9_000),
        1 => (any::<u8>(), 60_000..300_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    // Few of the tables, so that steps meet, the last one among them.
    let table = prop_oneof![4 => 0..3_usize, 1 => 3..NAMES.len()];
    prop_oneof![
        4 => (table.clone(), key(), value()).prop_map(|(table, key, value)| Step::Put(table, key, value)),
        3 => (table.clone(), key(), value()).prop_map(|(table, key, value)| Step::Append(table, key, value)),
        2 => (table.clone(), key()).prop_map(|(table, key)| Step::Delete(table, key)),
        1 => (table.clone(), key()).prop_map(|(table, key)| Step::Get(table, key)),
        1 => table.clone().prop_map(Step::Count),
        2 => (table, vec(0_u8..3, 0..3), 0..5_usize).prop_map(|(table, from, most)| Step::Scan(table, from, most)),
    ]
}

/// What an operator would be told: the same class of error, whatever its text.
fn refusal(error: &StorageError) -> String {
    format!("refused: {}", error.reason())
}

/// What a step answers.
fn perform(rows: &dyn WriteRows, step: &Step) -> Result<String, StorageError> {
    Ok(match step {
        Step::Put(table, key, value) => format!("{:?}", rows.put(*table, key, value.clone())?),
        Step::Append(table, key, value) => format!("{:?}", rows.append(*table, key, value.clone())?),
        Step::Delete(table, key) => format!("{:?}", rows.delete(*table, key)?),
        Step::Get(table, key) => format!("{:?}", rows.get(*table, key)?),
        Step::Count(table) => format!("{:?}", rows.count(*table)?),
        Step::Scan(table, from, most) => format!("{:?}", scanned(rows, *table, from, *most)?),
    })
}

fn scanned(
    rows: &(impl ReadRows + ?Sized),
    table: TableIndex,
    from: &[u8],
    most: usize,
) -> Result<Vec<Row>, StorageError> {
    let mut found = Vec::new();
    rows.scan(table, from, &mut |key, value| {
        found.push((key.to_vec(), value));
        Ok(found.len() < most)
    })?;
    Ok(found)
}

/// Runs a transaction up to its first refusal, and gives what each step has answered.
fn run(
    rows: &dyn WriteRows,
    (steps, given_up): &Transaction,
    told: &mut Vec<String>,
) -> Result<(), StorageError> {
    for step in steps {
        let answer = perform(rows, step);
        told.push(answer.as_ref().map_or_else(refusal, String::clone));
        answer?;
    }
    if *given_up {
        return Err(StorageError::Failed("given up".to_owned()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_transactions_give_the_same_rows_answers_and_refusals_on_disk_and_in_memory(
        transactions in vec((vec(step(), 1..12), any::<bool>()), 1..12)
    ) {
        let dir = tempfile::tempdir().expect("a folder");
        let disk = Environment::open(dir.path(), NAMES, 64 << 20).expect("opens");
        let memory = Memory::default();
        for transaction in &transactions {
            let (mut on_disk, mut in_memory) = (Vec::new(), Vec::new());
            let first = disk.write(|rows| run(rows, transaction, &mut on_disk));
            let second = memory.write_rows(|rows| run(rows, transaction, &mut in_memory));
            prop_assert_eq!(on_disk, in_memory);
            prop_assert_eq!(first.is_ok(), second.is_ok());
        }
        let rows = rows_of(&disk).expect("reads");
        prop_assert_eq!(rows, memory.rows());
    }
}

#[test]
fn a_full_store_in_memory_says_so_keeps_what_it_had_and_works_again_after_deletes() {
    let memory = Memory::bounded(100);
    let put = |key: u8, bytes: usize| memory.write_rows(|rows| rows.put(0, &[key], vec![7; bytes]));
    put(1, 60).expect("there is room");
    let full = put(2, 60).expect_err("there is none");
    assert!(matches!(full, StorageError::Full(_)), "{full}");
    assert_eq!(memory.rows(), [(0, (vec![1], vec![7; 60]))]);
    memory
        .write_rows::<_, StorageError>(|rows| rows.delete(0, &[1]))
        .expect("deletes");
    put(2, 60).expect("there is room again");
}

/// Writes rows until there is no room; how many fitted.
fn fill(put: impl Fn(u16) -> Result<(), StorageError>) -> u16 {
    for number in 0..u16::MAX {
        match put(number) {
            Ok(()) => {}
            Err(full) => {
                assert!(matches!(full, StorageError::Full(_)), "{full}");
                return number;
            }
        }
    }
    panic!("it is never full");
}

fn key_of(number: u16) -> [u8; 2] {
    number.to_be_bytes()
}

#[test]
fn a_full_store_refuses_a_transaction_as_a_whole_keeps_what_it_had_and_takes_deletes_on_disk_as_in_memory() {
    const VALUE: usize = 1 << 19;
    let dir = tempfile::tempdir().expect("a folder");
    let disk = Environment::open(dir.path(), NAMES, 16 << 20).expect("opens");
    let memory = Memory::bounded(16 << 20);
    // Two rows a transaction, in two tables: both or none.
    let two = |rows: &dyn WriteRows, number: u16| {
        rows.put(0, &key_of(number), vec![7; 8])?;
        rows.put(1, &key_of(number), vec![7; VALUE])
    };
    let on_disk = fill(|number| disk.write(|rows| two(rows, number)));
    let in_memory = fill(|number| memory.write_rows(|rows| two(rows, number)));
    for (rows, filled) in [
        (rows_of(&disk).expect("reads"), on_disk),
        (memory.rows(), in_memory),
    ] {
        assert_eq!(rows.len(), 2 * usize::from(filled));
    }
    for number in 0..on_disk / 2 {
        let delete = |rows: &dyn WriteRows| rows.delete(1, &key_of(number)).map(drop);
        disk.write(|rows| delete(rows)).expect("deletes need no room");
        memory
            .write_rows(|rows| delete(rows))
            .expect("deletes need no room");
    }
    disk.write(|rows| two(rows, on_disk))
        .expect("there is room again");
    memory
        .write_rows(|rows| two(rows, in_memory))
        .expect("there is room again");
}

/// It waited for itself without end.
#[test]
fn a_thread_that_reads_in_its_own_transaction_sees_what_was_committed_or_is_told_and_never_waits() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = Environment::open(dir.path(), NAMES, 16 << 20).expect("opens");
    let memory = Memory::default();
    disk.write::<_, StorageError>(|rows| {
        rows.put(0, b"k", b"new".to_vec())?;
        assert_eq!(rows_of(&disk).expect("reads"), [], "nothing is committed");
        Ok(())
    })
    .expect("writes");
    memory
        .write_rows::<_, StorageError>(|rows| {
            rows.put(0, b"k", b"new".to_vec())?;
            let told = rows_of(&memory).expect_err("it cannot be read");
            assert!(matches!(told, StorageError::Failed(_)), "{told}");
            Ok(())
        })
        .expect("writes");
    assert_eq!(rows_of(&disk).expect("reads"), memory.rows());
    // A reader elsewhere waits, and sees all of a transaction.
    let reading = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            reading.wait();
            memory.rows().len()
        });
        memory
            .write_rows::<_, StorageError>(|rows| {
                rows.put(0, b"a", Vec::new())?;
                reading.wait();
                rows.put(0, b"b", Vec::new())
            })
            .expect("writes");
        assert_eq!(other.join().expect("reads"), 3);
    });
}
