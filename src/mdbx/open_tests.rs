//! A folder and whose it is.

use std::path::Path;

use super::{file, open};
use crate::kernel::ids::ClusterId;
use crate::storage::{OpenOptions, Ownership, Settings};

fn options(cluster: &str, shard: u16, create: bool) -> OpenOptions {
    OpenOptions {
        cluster: cluster.to_owned(),
        cluster_id: ClusterId([7; 16]),
        shard,
        shards: 4,
        create,
    }
}

fn refusal(dir: &Path, options: &OpenOptions) -> String {
    open(dir, &Settings::default(), options)
        .expect_err("must be refused")
        .to_string()
}

#[test]
fn data_of_others_is_refused_and_own_data_opens_again() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard-0000");
    let message = refusal(&path, &options("shop", 0, false));
    assert!(message.contains("SR0205"), "{message}");
    let store = open(&path, &Settings::default(), &options("shop", 0, true)).expect("created");
    assert!(store.was_created());
    let message = refusal(&path, &options("shop", 0, true));
    assert!(message.contains("SR0201"), "{message}");
    drop(store);
    let resharded = OpenOptions {
        shards: 8,
        ..options("shop", 0, true)
    };
    let of_another_id = OpenOptions {
        cluster_id: ClusterId([8; 16]),
        ..options("shop", 0, true)
    };
    for (other, code) in [
        (options("else", 0, true), "SR0202"),
        (of_another_id, "SR0202"),
        (options("shop", 1, true), "SR0204"),
        (resharded, "SR0204"),
    ] {
        let message = refusal(&path, &other);
        assert!(message.contains(code), "{message}");
    }
    let again = open(&path, &Settings::default(), &options("shop", 0, false)).expect("opens");
    assert!(!again.was_created());
}

#[test]
fn a_folder_keeps_its_name_and_its_claim() {
    let dir = tempfile::tempdir().expect("folder");
    assert_eq!(file(dir.path()), None);
    let store = open(dir.path(), &Settings::default(), &options("shop", 0, true)).expect("created");
    assert_eq!(store.ownership().expect("readable"), None);
    let ownership = Ownership {
        owner: [1; 16],
        epoch: 7,
        claim: [2; 16],
    };
    store.put_ownership(&ownership).expect("stored");
    let before = file(dir.path());
    drop(store);
    let store = open(dir.path(), &Settings::default(), &options("shop", 0, false)).expect("opens");
    assert_eq!(store.ownership().expect("readable"), Some(ownership));
    assert!(before.is_some() && file(dir.path()) == before);
}
