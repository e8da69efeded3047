//! Publications: order, expectations, refusals.

use bytes::Bytes;
use saga_runner::ports::broker::{Expect, Publication, PublishError};

use super::{Case, MESSAGE_BYTES_MAX, next, payload, take, within};

pub async fn publications_are_stored_in_the_order_of_their_first_poll(case: Case) {
    let case = case.with_stream().await;
    // More than any bound on what is in flight, so that most have to wait.
    let count = 6_000;
    let all = (0..count).map(|n| case.broker.publish(case.message("a", &n.to_string())));
    let stored = within("publish", futures::future::join_all(all)).await;
    for (n, ack) in stored.into_iter().enumerate() {
        let ack = ack.unwrap();
        assert_eq!((ack.sequence, ack.duplicate), (n as u64 + 1, false));
    }
    let mut reader = case.reader(&["a"], 1).await;
    for (n, message) in take(&mut *reader, count).await.iter().enumerate() {
        assert_eq!(payload(message), n.to_string());
    }
}

pub async fn a_stored_message_comes_back_whole(case: Case) {
    let case = case.with_stream().await;
    let headers = vec![
        ("alpha".to_owned(), "one; two, \"three\" ü".to_owned()),
        ("traceparent".to_owned(), "00-ab-cd-01".to_owned()),
    ];
    let payload = Bytes::from((0..=255).cycle().take(5_000).collect::<Vec<u8>>());
    let sequence = case
        .try_publish(Publication {
            headers: headers.clone(),
            payload: payload.clone(),
            expect: Expect::FirstOnSubject,
            ..case.message("whole.x", "")
        })
        .await
        .unwrap()
        .sequence;
    let mut reader = case.reader(&[">"], 1).await;
    let read = next(&mut *reader).await;
    assert_eq!(read.subject, case.subject("whole.x"));
    assert_eq!(read.headers, headers);
    assert_eq!(read.payload, payload);
    assert_eq!(read.stream_sequence, sequence);

    let by_sequence = case
        .broker
        .message_at(&case.stream, sequence)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(by_sequence.subject, read.subject);
    assert_eq!(by_sequence.headers, headers);
    assert_eq!(by_sequence.payload, payload);
    assert_eq!(by_sequence.sequence, sequence);
    assert_eq!(by_sequence.time, read.time);
    assert!(read.time.0 > 1_600_000_000_000, "{:?}", read.time);
    let by_subject = case
        .broker
        .last_by_subject(&case.stream, &read.subject)
        .await
        .unwrap();
    assert_eq!(by_subject, Some(by_sequence));
}

fn first(case: &Case, rest: &str, payload: &str) -> Publication {
    Publication {
        expect: Expect::FirstOnSubject,
        ..case.message(rest, payload)
    }
}

pub async fn the_first_on_a_subject_is_stored_once(case: Case) {
    let case = case.with_stream().await;
    assert_eq!(
        case.try_publish(first(&case, "a", "1")).await.unwrap().sequence,
        1
    );
    assert_eq!(
        case.try_publish(first(&case, "b", "2")).await.unwrap().sequence,
        2
    );
    assert_eq!(
        case.try_publish(first(&case, "a", "3")).await,
        Err(PublishError::AlreadyThere)
    );
    assert_eq!(case.publish("c", "4").await, 3);
    assert_eq!(
        case.try_publish(first(&case, "c", "5")).await,
        Err(PublishError::AlreadyThere)
    );
    assert_eq!(case.last_sequence().await, 3);
}

pub async fn of_two_firsts_at_once_exactly_one_is_stored(case: Case) {
    let case = case.with_stream().await;
    let other = case.ground.broker().await;
    for round in 0..100 {
        let subject = format!("race.{round}");
        let (left, right) = within("publish", async {
            tokio::join!(
                case.broker.publish(first(&case, &subject, "left")),
                other.publish(first(&case, &subject, "right"))
            )
        })
        .await;
        let winner = match (&left, &right) {
            (Ok(_), Err(PublishError::AlreadyThere)) => "left",
            (Err(PublishError::AlreadyThere), Ok(_)) => "right",
            both => panic!("round {round}: {both:?}"),
        };
        let stored = case
            .broker
            .last_by_subject(&case.stream, &case.subject(&subject))
            .await;
        assert_eq!(stored.unwrap().unwrap().payload, winner);
    }
}

fn with_id(case: &Case, rest: &str, id: &str) -> Publication {
    Publication {
        expect: Expect::MessageId(id.to_owned()),
        ..case.message(rest, "x")
    }
}

pub async fn a_repeated_message_id_returns_the_first_sequence(case: Case) {
    let case = case.with_stream().await;
    case.publish("a", "before").await;
    let stored = case.try_publish(with_id(&case, "a", "one")).await.unwrap();
    assert_eq!((stored.sequence, stored.duplicate), (2, false));
    let other = case.try_publish(with_id(&case, "a", "two")).await.unwrap();
    assert_eq!((other.sequence, other.duplicate), (3, false));
    let again = case.try_publish(with_id(&case, "a", "one")).await.unwrap();
    assert_eq!((again.sequence, again.duplicate), (2, true));
    assert_eq!(case.last_sequence().await, 3);
}

pub async fn a_message_id_counts_for_the_whole_stream(case: Case) {
    let case = case.with_stream().await;
    case.try_publish(with_id(&case, "a", "one")).await.unwrap();
    let elsewhere = case.try_publish(with_id(&case, "b", "one")).await.unwrap();
    assert_eq!((elsewhere.sequence, elsewhere.duplicate), (1, true));
    assert_eq!(
        case.broker
            .last_by_subject(&case.stream, &case.subject("b"))
            .await
            .unwrap(),
        None
    );
}

pub async fn an_oversized_message_is_refused_and_not_stored(case: Case) {
    let case = case.with_stream().await;
    for size in [MESSAGE_BYTES_MAX + 1, 16 * 1024 * 1024] {
        let large = Publication {
            payload: Bytes::from(vec![b'x'; size]),
            ..case.message("a", "")
        };
        let refused = case.try_publish(large).await;
        assert!(
            matches!(refused, Err(PublishError::Refused(_))),
            "{size}: {refused:?}"
        );
    }
    assert_eq!(case.last_sequence().await, 0);
    assert_eq!(case.publish("a", &"x".repeat(MESSAGE_BYTES_MAX / 2)).await, 1);
}

pub async fn control_characters_in_headers_are_refused(case: Case) {
    let case = case.with_stream().await;
    for (name, value) in [
        ("a", "x\r\nNats-Rollup: all"),
        ("a", "x\ny"),
        ("a\r\nb", "x"),
        ("a", "\0"),
    ] {
        let message = Publication {
            headers: vec![(name.to_owned(), value.to_owned())],
            ..case.message("a", "x")
        };
        let refused = case.try_publish(message).await;
        assert!(
            matches!(refused, Err(PublishError::Refused(_))),
            "{name:?}: {refused:?}"
        );
    }
    let refused = case.try_publish(with_id(&case, "a", "x\r\ny")).await;
    assert!(matches!(refused, Err(PublishError::Refused(_))), "{refused:?}");
    assert_eq!(case.last_sequence().await, 0);
}

pub async fn subjects_that_are_not_literal_are_refused(case: Case) {
    let case = case.with_stream().await;
    for rest in ["*", ">", "a.*", "a..b", "a.", "a b", "a\r\nb", "a\tb"] {
        let refused = case.try_publish(case.message(rest, "x")).await;
        assert!(
            matches!(refused, Err(PublishError::Refused(_))),
            "{rest:?}: {refused:?}"
        );
    }
    assert_eq!(case.last_sequence().await, 0);
}

pub async fn a_subject_without_a_stream_is_unavailable(case: Case) {
    let case = case.with_stream().await;
    let message = Publication {
        subject: "nobody.takes.this".to_owned(),
        ..case.message("a", "x")
    };
    let refused = case.try_publish(message).await;
    assert!(
        matches!(refused, Err(PublishError::Unavailable(_))),
        "{refused:?}"
    );
}
