//! Streams: made, checked, told apart, trimmed.

use saga_runner::ports::broker::{BrokerError, PublishError, StreamSpec, StreamState};

use super::{Case, next, within};

pub async fn ensure_creates_a_stream_and_tells_its_bounds(case: Case) {
    let state = within("ensure", case.broker.ensure_stream(&case.spec()))
        .await
        .unwrap();
    assert_eq!(state.identity.name, case.stream);
    assert!(state.identity.created_ns > 1_600_000_000_000_000_000, "{state:?}");
    assert_eq!(
        (state.first_sequence, state.last_sequence, state.messages),
        (1, 0, 0)
    );

    case.publish("a", "x").await;
    case.publish("a", "y").await;
    let state = within("state", case.broker.stream_state(&case.stream))
        .await
        .unwrap();
    assert_eq!(
        (state.first_sequence, state.last_sequence, state.messages),
        (1, 2, 2)
    );
    assert!(state.bytes > 0);
}

pub async fn ensure_again_keeps_messages_and_identity(case: Case) {
    let first = case.broker.ensure_stream(&case.spec()).await.unwrap();
    case.publish("a", "x").await;
    let again = within("ensure", case.broker.ensure_stream(&case.spec()))
        .await
        .unwrap();
    assert_eq!(again.identity, first.identity);
    assert_eq!(again.messages, 1);
}

pub async fn ensure_brings_a_stream_of_ours_to_its_spec(case: Case) {
    let narrow = StreamSpec {
        subjects: vec![case.subject("a.>")],
        message_bytes_max: 1_024,
        ..case.spec()
    };
    let first = case.broker.ensure_stream(&narrow).await.unwrap();
    within("ensure", case.broker.ensure_stream(&case.spec()))
        .await
        .unwrap();
    let differences = case.broker.check_stream(&case.spec()).await.unwrap();
    assert_eq!(differences, Vec::<String>::new());
    case.publish("b", &"x".repeat(2_048)).await;
    assert_eq!(
        case.broker.stream_state(&case.stream).await.unwrap().identity,
        first.identity
    );
}

pub async fn check_names_differences_and_changes_nothing(case: Case) {
    let missing = within("check", case.broker.check_stream(&case.spec())).await;
    assert_eq!(missing, Err(BrokerError::NoStream(case.stream.clone())));

    let case = case.with_stream().await;
    assert_eq!(
        case.broker.check_stream(&case.spec()).await.unwrap(),
        Vec::<String>::new()
    );

    let other = StreamSpec {
        subjects: vec![case.subject("a.>")],
        message_bytes_max: 1_024,
        ..case.spec()
    };
    let differences = case.broker.check_stream(&other).await.unwrap();
    assert_eq!(differences.len(), 2, "{differences:?}");
    assert_eq!(
        case.broker.check_stream(&case.spec()).await.unwrap(),
        Vec::<String>::new()
    );
}

pub async fn a_missing_foreign_stream_is_created(case: Case) {
    let foreign = StreamSpec {
        foreign: true,
        ..case.spec()
    };
    within("ensure", case.broker.ensure_stream(&foreign))
        .await
        .unwrap();
    case.publish("a", "x").await;
    assert_eq!(
        case.broker.check_stream(&foreign).await.unwrap(),
        Vec::<String>::new()
    );
}

pub async fn an_existing_foreign_stream_is_never_changed(case: Case) {
    let case = case.with_stream().await;
    let foreign = StreamSpec {
        subjects: vec![case.subject("a.>")],
        message_bytes_max: 1_024,
        foreign: true,
        ..case.spec()
    };
    within("ensure", case.broker.ensure_stream(&foreign))
        .await
        .unwrap();
    assert_eq!(
        case.broker.check_stream(&case.spec()).await.unwrap(),
        Vec::<String>::new()
    );
}

pub async fn a_foreign_stream_without_the_subjects_is_a_mismatch(case: Case) {
    let case = case.with_stream().await;
    let foreign = StreamSpec {
        subjects: vec!["elsewhere.>".to_owned()],
        foreign: true,
        ..case.spec()
    };
    match within("ensure", case.broker.ensure_stream(&foreign)).await {
        Err(BrokerError::Mismatch { stream, differences }) => {
            assert_eq!(stream, case.stream);
            assert_eq!(differences.len(), 1, "{differences:?}");
            assert!(differences[0].contains("elsewhere.>"), "{differences:?}");
        }
        other => panic!("{other:?}"),
    }
}

pub async fn an_unknown_stream_is_named_as_such(case: Case) {
    let unknown = BrokerError::NoStream(case.stream.clone());
    let broker = &case.broker;
    assert_eq!(broker.stream_state(&case.stream).await, Err(unknown.clone()));
    assert_eq!(broker.message_at(&case.stream, 1).await, Err(unknown.clone()));
    let last = broker.last_by_subject(&case.stream, &case.subject("a")).await;
    assert_eq!(last, Err(unknown.clone()));
    assert_eq!(broker.trim(&case.stream, 5).await, Err(unknown.clone()));
    let reader = broker.reader(case.reader_spec(&[">"], 1)).await;
    assert_eq!(reader.err(), Some(unknown.clone()));
    let queue = broker.queue(case.queue_spec()).await;
    assert_eq!(queue.err(), Some(unknown));
    let published = case.try_publish(case.message("a", "x")).await;
    assert!(
        matches!(published, Err(PublishError::Unavailable(_))),
        "{published:?}"
    );
}

pub async fn a_recreated_stream_has_another_identity(case: Case) {
    let first = case.broker.ensure_stream(&case.spec()).await.unwrap();
    case.publish("a", "x").await;
    case.ground.delete_stream(&case.stream).await;
    let second = within("ensure", case.broker.ensure_stream(&case.spec()))
        .await
        .unwrap();
    assert_eq!(second.last_sequence, 0);
    assert_eq!(second.identity.name, first.identity.name);
    assert_ne!(second.identity, first.identity);
}

pub async fn the_time_told_with_a_state_stands_between_the_messages_before_and_behind_it(case: Case) {
    let case = case.with_stream().await;
    for round in 0..20 {
        let before = case.publish("a", "").await;
        let asked = case.broker.stream_state(&case.stream).await.unwrap();
        let behind = case.publish("a", "").await;
        let time = async |sequence| {
            let found = case.broker.message_at(&case.stream, sequence).await.unwrap();
            found.unwrap().time
        };
        let (before, behind) = (time(before).await, time(behind).await);
        let told = asked.told;
        assert!(
            before <= told && told <= behind,
            "{round}: {before:?} {told:?} {behind:?}"
        );
    }
}

pub async fn the_time_of_the_last_message_is_that_of_its_lookup(case: Case) {
    let case = case.with_stream().await;
    let state = async || case.broker.stream_state(&case.stream).await.unwrap();
    assert_eq!(state().await.last_time, None);
    case.publish_many("a", 3).await;
    let last = case.broker.message_at(&case.stream, 3).await.unwrap().unwrap();
    assert_eq!(state().await.last_time, Some(last.time));
    within("trim", case.broker.trim(&case.stream, 3)).await.unwrap();
    assert_eq!(state().await.last_time, Some(last.time));
    within("trim", case.broker.trim(&case.stream, 4)).await.unwrap();
    assert_eq!(state().await.last_time, None);
}

pub async fn trim_removes_exactly_what_lies_below(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 10).await;
    for nothing_below in [0, 1] {
        within("trim", case.broker.trim(&case.stream, nothing_below))
            .await
            .unwrap();
        assert_eq!(case.broker.stream_state(&case.stream).await.unwrap().messages, 10);
    }
    within("trim", case.broker.trim(&case.stream, 4)).await.unwrap();
    let state = case.broker.stream_state(&case.stream).await.unwrap();
    assert_eq!(
        (state.first_sequence, state.last_sequence, state.messages),
        (4, 10, 7)
    );
    assert_eq!(case.broker.message_at(&case.stream, 3).await.unwrap(), None);
    assert!(case.broker.message_at(&case.stream, 4).await.unwrap().is_some());
    within("trim", case.broker.trim(&case.stream, 2)).await.unwrap();
    let after = case.broker.stream_state(&case.stream).await.unwrap();
    let told = state.told;
    assert_eq!(StreamState { told, ..after }, state);
}

pub async fn trim_never_reaches_beyond_the_end(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 3).await;
    within("trim", case.broker.trim(&case.stream, 1_000))
        .await
        .unwrap();
    let state = case.broker.stream_state(&case.stream).await.unwrap();
    assert_eq!(
        (state.first_sequence, state.last_sequence, state.messages),
        (4, 3, 0)
    );
    assert_eq!(case.publish("a", "x").await, 4);
}

pub async fn a_reader_from_before_a_trim_starts_at_the_first_message_left(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 10).await;
    case.broker.trim(&case.stream, 6).await.unwrap();
    let mut reader = case.reader(&["a"], 2).await;
    let message = next(&mut *reader).await;
    assert_eq!((message.stream_sequence, message.consumer_sequence), (6, 1));
}
