//! Single messages, and the connection as such.

use saga_runner::ports::broker::BrokerError;

use super::{Case, within};

pub async fn the_last_message_of_a_subject_is_found_by_exact_subject(case: Case) {
    let case = case.with_stream().await;
    let published = [
        "a", "a.b", "a.bc", "a.b.c", "a.*b", "a.b*", "a.>x", "a.b", "a.%2A",
    ];
    for (n, rest) in published.iter().enumerate() {
        case.publish(rest, &n.to_string()).await;
    }
    for (rest, sequence) in [
        ("a", 1),
        ("a.b", 8),
        ("a.bc", 3),
        ("a.b.c", 4),
        ("a.*b", 5),
        ("a.b*", 6),
        ("a.>x", 7),
        ("a.%2A", 9),
    ] {
        let found = within(
            "last",
            case.broker.last_by_subject(&case.stream, &case.subject(rest)),
        )
        .await;
        let found = found.unwrap().unwrap_or_else(|| panic!("{rest}: nothing"));
        assert_eq!((found.sequence, found.subject), (sequence, case.subject(rest)));
    }
    for rest in ["b", "a.c", "a.b.d", "a.b.c.d"] {
        let found = case
            .broker
            .last_by_subject(&case.stream, &case.subject(rest))
            .await;
        assert_eq!(found.unwrap(), None, "{rest}");
    }
    for rest in [">", "a.*", "*.b"] {
        let found = case
            .broker
            .last_by_subject(&case.stream, &case.subject(rest))
            .await;
        assert!(matches!(found, Err(BrokerError::Refused(_))), "{rest}: {found:?}");
    }
}

pub async fn a_message_is_found_by_its_sequence(case: Case) {
    let case = case.with_stream().await;
    case.publish("a", "one").await;
    case.publish("b", "two").await;
    let found = within("get", case.broker.message_at(&case.stream, 2))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((found.sequence, &found.payload[..]), (2, &b"two"[..]));
    assert_eq!(found.subject, case.subject("b"));
    for nowhere in [0, 3, u64::from(u32::MAX)] {
        assert_eq!(
            case.broker.message_at(&case.stream, nowhere).await.unwrap(),
            None,
            "{nowhere}"
        );
    }
}

pub async fn ping_and_flush_answer(case: Case) {
    within("ping", case.broker.ping()).await.unwrap();
    within("flush", case.broker.flush()).await.unwrap();
}
