//! Entries of buckets: compare-and-set.

use bytes::Bytes;
use saga_runner::ports::broker::{
    BrokerError, BucketSpec, ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, Entry, PutError,
};

use super::{Case, eventually, within};

impl Case {
    fn bucket(&self) -> BucketSpec {
        BucketSpec {
            name: self.stream.clone(),
            replicas: 1,
        }
    }

    async fn with_bucket(self) -> Self {
        within("ensure", self.broker.ensure_bucket(&self.bucket()))
            .await
            .expect("a new bucket can be made");
        self
    }

    async fn put(&self, key: &str, value: &str, expected: Option<u64>) -> Result<u64, PutError> {
        let value = Bytes::copy_from_slice(value.as_bytes());
        within("put", self.broker.put_entry(&self.stream, key, value, expected)).await
    }

    async fn entry(&self, key: &str) -> Option<Entry> {
        within("get", self.broker.entry(&self.stream, key))
            .await
            .expect("the bucket is there")
    }

    async fn value(&self, key: &str) -> Option<String> {
        let entry = self.entry(key).await;
        entry.map(|entry| String::from_utf8(entry.value.to_vec()).expect("text"))
    }
}

pub async fn a_bucket_is_made_once_and_keeps_its_entries(case: Case) {
    let spec = case.bucket();
    let missing = within("check", case.broker.check_bucket(&spec)).await;
    assert!(matches!(missing, Err(BrokerError::NoStream(_))), "{missing:?}");
    let found = within("get", case.broker.entry(&case.stream, "a")).await;
    assert!(matches!(found, Err(BrokerError::NoStream(_))), "{found:?}");
    let refused = case.put("a", "1", None).await;
    assert!(matches!(refused, Err(PutError::Unavailable(_))), "{refused:?}");

    let case = case.with_bucket().await;
    let revision = case.put("a", "1", None).await.expect("created");
    let case = case.with_bucket().await;
    assert_eq!(case.broker.check_bucket(&spec).await, Ok(Vec::new()));
    let entry = case.entry("a").await.expect("kept");
    assert_eq!((entry.revision, &entry.value[..]), (revision, &b"1"[..]));
}

pub async fn an_entry_is_created_once(case: Case) {
    let case = case.with_bucket().await;
    assert_eq!(case.entry("a.b").await, None);
    case.put("a.b", "first", None).await.expect("created");
    assert_eq!(case.put("a.b", "second", None).await, Err(PutError::Conflict));
    assert_eq!(case.value("a.b").await.as_deref(), Some("first"));
}

pub async fn an_entry_is_replaced_at_the_revision_that_was_expected_only(case: Case) {
    let case = case.with_bucket().await;
    assert_eq!(
        case.put("a", "x", Some(7)).await,
        Err(PutError::Conflict),
        "not there"
    );
    let first = case.put("a", "1", None).await.expect("created");
    let second = case.put("a", "2", Some(first)).await.expect("replaced");
    assert!(second > first);
    for stale in [Some(first), Some(second + 1), None] {
        assert_eq!(
            case.put("a", "3", stale).await,
            Err(PutError::Conflict),
            "{stale:?}"
        );
    }
    // The same bytes again are no excuse for a stale revision.
    assert_eq!(case.put("a", "2", Some(first)).await, Err(PutError::Conflict));
    let entry = case.entry("a").await.expect("there");
    assert_eq!((entry.revision, &entry.value[..]), (second, &b"2"[..]));
}

pub async fn of_two_writes_at_once_exactly_one_counts(case: Case) {
    let case = case.with_bucket().await;
    let values: Vec<String> = (0..16).map(|n| n.to_string()).collect();
    let written = futures::future::join_all(values.iter().map(|value| case.put("a", value, None))).await;
    let winners: Vec<usize> = (0..16).filter(|n| written[*n].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{written:?}");
    assert_eq!(case.value("a").await, Some(winners[0].to_string()));
}

pub async fn keys_and_buckets_do_not_disturb_each_other(case: Case) {
    let case = case.with_bucket().await;
    let other = BucketSpec {
        name: format!("{}_2", case.stream),
        replicas: 1,
    };
    case.broker.ensure_bucket(&other).await.expect("made");
    let first = case.put("a", "1", None).await.expect("created");
    for key in ["a.b", "b", "a/b", "A", "a-b_c=d"] {
        assert_eq!(case.entry(key).await, None, "{key}");
        case.put(key, key, None).await.expect("created");
    }
    assert_eq!(case.broker.entry(&other.name, "a").await, Ok(None));
    let elsewhere = Bytes::from_static(b"elsewhere");
    case.broker
        .put_entry(&other.name, "a", elsewhere, None)
        .await
        .expect("created");
    case.put("a", "2", Some(first))
        .await
        .expect("nobody else wrote this key");
    assert_eq!(case.value("a.b").await.as_deref(), Some("a.b"));
}

pub async fn names_and_sizes_of_entries_have_bounds(case: Case) {
    let case = case.with_bucket().await;
    let long = "k".repeat(ENTRY_KEY_BYTES_MAX);
    case.put(&long, "x", None).await.expect("the longest key");
    let too_long = format!("{long}k");
    for key in [
        "", ".", "a.", ".a", "a..b", "a b", "a*", ">", "a\n", "\u{e9}", &too_long,
    ] {
        let refused = case.put(key, "x", None).await;
        let Err(PutError::Refused(message)) = &refused else {
            panic!("{key:?}: {refused:?}");
        };
        assert!(message.contains("256"), "{message}");
        let refused = case.broker.entry(&case.stream, key).await;
        assert!(
            matches!(refused, Err(BrokerError::Refused(_))),
            "{key:?}: {refused:?}"
        );
    }
    let large = "v".repeat(ENTRY_VALUE_BYTES_MAX);
    case.put("large", &large, None).await.expect("the largest value");
    assert_eq!(case.value("large").await, Some(large.clone()));
    let refused = case.put("larger", &format!("{large}v"), None).await;
    let Err(PutError::Refused(message)) = &refused else {
        panic!("{refused:?}");
    };
    assert!(
        message.contains("65536") && message.contains("65537"),
        "{message}"
    );
    for name in ["", "a.b", "a b", "*"] {
        let spec = BucketSpec {
            name: name.to_owned(),
            replicas: 1,
        };
        let refused = case.broker.ensure_bucket(&spec).await;
        assert!(
            matches!(refused, Err(BrokerError::Refused(_))),
            "{name:?}: {refused:?}"
        );
    }
}

pub async fn a_restart_keeps_entries_and_their_revisions(case: Case) {
    let case = case.with_bucket().await;
    let first = case.put("a", "1", None).await.expect("created");
    let second = case.put("a", "2", Some(first)).await.expect("replaced");
    within("restart", case.ground.restart()).await;
    eventually("the broker is back", || async {
        case.broker.ping().await.is_ok() && case.broker.entry(&case.stream, "a").await.is_ok()
    })
    .await;
    let entry = case.entry("a").await.expect("kept");
    assert_eq!((entry.revision, &entry.value[..]), (second, &b"2"[..]));
    assert_eq!(case.put("a", "3", Some(first)).await, Err(PutError::Conflict));
    assert!(case.put("a", "3", Some(second)).await.expect("replaced") > second);
}
