use std::time::Duration;

use proptest::prelude::*;
use saga_runner_kernel::ids::{InstanceId, Key, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::{Control, Input, InputBody, Origin, SourceStream};

use super::stored_order::rank;
use super::*;
use crate::machine::message::{Applied, Arrival, Delivery};
use crate::storage::rows::Stamp;

const EVENTS: SourceStream = SourceStream::AggregateEvents;
const RESULTS: SourceStream = SourceStream::WorkflowEvents;
const CONTROLS: SourceStream = SourceStream::WorkflowCommands;

const NOW: TimeMs = TimeMs(1_000);
const WAIT: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Ground {
    Ground {
        now: NOW,
        monotonic: Duration::from_secs(seconds),
        next_due: None,
        late: None,
        events_held: false,
        one: [false; 3],
        timers_max: 10,
    }
}

fn begun() -> CatchUp {
    CatchUp::new(NOW, Duration::ZERO, WAIT)
}

fn input(stream: SourceStream, sequence: u64, time: i64) -> Arrival {
    Arrival::Input(Input {
        instance: InstanceId {
            tenant: TenantId::none(),
            saga: SagaName::parse("s").unwrap(),
            key: Key::parse("k").unwrap(),
        },
        id: format!("{sequence}"),
        time: TimeMs(time),
        origin: Origin::Stream { stream, sequence },
        body: InputBody::Control(Control::Retry),
    })
}

/// Messages `(sequence, time)` behind `after`.
fn delivery(stream: SourceStream, after: u64, messages: &[(u64, i64)]) -> Delivery {
    Delivery {
        stream,
        after,
        sequence: messages.last().map_or(after, |(sequence, _)| *sequence),
        stamp: messages.last().map(|(_, time)| Stamp {
            time: TimeMs(*time),
            content: Some(1),
        }),
        routed_by: 0,
        inputs: messages
            .iter()
            .map(|(sequence, time)| input(stream, *sequence, *time))
            .collect(),
    }
}

fn watermark(stream: SourceStream, after: u64, sequence: u64) -> Delivery {
    Delivery {
        sequence,
        ..delivery(stream, after, &[])
    }
}

/// Takes what can be taken; the times and streams of the messages, and what came last.
fn take_all(merge: &mut CatchUp, ground: Ground) -> (Vec<(i64, SourceStream)>, Next) {
    let mut taken = Vec::new();
    loop {
        match merge.next(ground) {
            Next::Take(delivery, _) => {
                let times = delivery.inputs.iter().map(time_of);
                taken.extend(times.map(|time| (time.0, delivery.stream)));
            }
            last => return (taken, last),
        }
    }
}

fn take(merge: &mut CatchUp, ground: Ground) -> (Delivery, InOrder) {
    match merge.next(ground) {
        Next::Take(delivery, in_order) => (delivery, in_order),
        other => panic!("{other:?}"),
    }
}

#[test]
fn deliveries_come_in_stored_order_and_are_split_where_streams_meet() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10), (2, 20), (5, 30)]));
    merge.push(delivery(RESULTS, 0, &[(7, 15), (8, 20)]));
    assert_eq!(
        take_all(&mut merge, at(0)),
        (vec![], Next::Wait(Duration::from_secs(10)))
    );
    merge.push_barrier(CONTROLS, NOW);
    let (first, _) = take(&mut merge, at(0));
    assert_eq!((first.after, first.sequence, first.inputs.len()), (0, 1, 1));
    assert_eq!(first.stamp, Some(Stamp::at(TimeMs(10))));
    let (second, _) = take(&mut merge, at(0));
    assert_eq!((second.stream, second.after, second.sequence), (RESULTS, 0, 8));
    assert_eq!(
        merge.next(at(0)),
        Next::Wait(WAIT),
        "more results may come that are older"
    );
    merge.push_barrier(RESULTS, NOW);
    let (third, _) = take(&mut merge, at(0));
    assert_eq!((third.after, third.sequence, third.inputs.len()), (1, 5, 2));
    assert_eq!(third.stamp.and_then(|stamp| stamp.content), Some(1), "as it came");
    merge.push_barrier(EVENTS, NOW);
    let (taken, last) = take_all(&mut merge, at(1));
    assert!(taken.is_empty());
    let over = Over {
        proven: [Some(NOW); 3],
        took: Duration::from_secs(1),
        taken: 3,
    };
    assert_eq!(last, Next::Over(over));
}

#[test]
fn at_equal_times_results_come_before_controls_and_these_before_events() {
    let mut merge = begun();
    for (stream, times) in [(EVENTS, [5, 5]), (CONTROLS, [5, 5]), (RESULTS, [5, 6])] {
        merge.push(delivery(stream, 0, &[(1, times[0]), (2, times[1])]));
        merge.push_barrier(stream, NOW);
    }
    let (taken, _) = take_all(&mut merge, at(0));
    let expected = [
        (5, RESULTS),
        (5, CONTROLS),
        (5, CONTROLS),
        (5, EVENTS),
        (5, EVENTS),
        (6, RESULTS),
    ];
    assert_eq!(taken, expected);
}

#[test]
fn a_barrier_from_before_catching_up_is_no_end() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10)]));
    merge.push_barrier(CONTROLS, NOW);
    merge.push_barrier(RESULTS, TimeMs(NOW.0 - 1));
    assert_eq!(merge.next(at(0)), Next::Wait(WAIT));
    merge.push_barrier(RESULTS, NOW);
    take(&mut merge, at(0));
}

#[test]
fn a_watermark_waits_for_nobody() {
    let mut merge = begun();
    merge.push(watermark(EVENTS, 0, 9));
    let (taken, _) = take(&mut merge, at(0));
    assert_eq!((taken.after, taken.sequence), (0, 9));
}

#[test]
fn a_stream_that_brings_nothing_is_left_out_after_a_time_and_counts_again_once_it_brings_something() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10), (2, 40)]));
    merge.push_barrier(EVENTS, NOW);
    merge.push_barrier(CONTROLS, NOW);
    assert_eq!(merge.next(at(0)), Next::Wait(WAIT));
    assert_eq!(merge.next(at(4)), Next::Wait(Duration::from_secs(6)));
    assert!(!merge.leaves_out(Duration::from_secs(9)) && merge.leaves_out(Duration::from_secs(10)));
    let one = Ground {
        one: [true; 3],
        ..at(10)
    };
    let (taken, in_order) = take(&mut merge, one);
    assert_eq!(taken.sequence, 1);
    assert!(in_order.incomplete);
    assert_eq!(in_order.covered, TimeMs(i64::MIN), "timers go on waiting for it");
    merge.push(delivery(RESULTS, 0, &[(1, 30)]));
    let (taken, last) = take_all(&mut merge, at(11));
    assert_eq!(taken, [(30, RESULTS)]);
    assert_eq!(last, Next::Wait(WAIT), "it is waited for as at first");
    let (taken, last) = take_all(&mut merge, at(21));
    assert_eq!(taken, [(40, EVENTS)]);
    assert!(matches!(last, Next::Over(over) if over.proven == [Some(NOW), None, Some(NOW)]));
}

#[test]
fn a_control_waits_for_a_stream_that_cannot_be_read_no_longer_than_readers_take_to_open() {
    let mut merge = begun();
    merge.push(delivery(CONTROLS, 0, &[(1, 10), (2, 50)]));
    merge.push(delivery(RESULTS, 0, &[(1, 20)]));
    assert_eq!(merge.next(at(0)), Next::Wait(CONTROLS_WAIT));
    let (taken, last) = take_all(&mut merge, at(1));
    assert_eq!(taken, [(10, CONTROLS)]);
    assert_eq!(
        last,
        Next::Wait(Duration::from_secs(9)),
        "a result waits for older events"
    );
}

#[test]
fn held_events_stand_in_the_way_of_nothing_but_timers_and_the_end() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10)]));
    for stream in SourceStream::ALL {
        merge.push_barrier(stream, NOW);
    }
    merge.push(delivery(RESULTS, 0, &[(1, 20)]));
    let held = Ground {
        events_held: true,
        ..at(0)
    };
    let (taken, in_order) = take(&mut merge, held);
    assert_eq!((taken.stream, in_order.covered), (RESULTS, TimeMs(9)));
    assert!(matches!(merge.next(held), Next::Wait(_)));
    assert_eq!(take_all(&mut merge, at(0)).0, [(10, EVENTS)]);
}

#[test]
fn a_due_timer_stands_at_the_time_it_was_due() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10), (2, 20), (3, 30)]));
    merge.push(delivery(RESULTS, 0, &[(1, 25)]));
    for stream in SourceStream::ALL {
        merge.push_barrier(stream, NOW);
    }
    let due = |due| Ground {
        next_due: Some(TimeMs(due)),
        ..at(0)
    };
    let until = TimeMs(9);
    let timers = Next::Timers {
        until,
        late_source: false,
    };
    assert_eq!(merge.next(due(9)), timers);
    let (taken, in_order) = take(&mut merge, due(10));
    assert_eq!((taken.sequence, in_order.covered), (2, TimeMs(24)));
    assert_eq!(
        (
            in_order.until(TimeMs(20), NOW),
            in_order.until(TimeMs(20), TimeMs(11))
        ),
        (TimeMs(19), TimeMs(11)),
        "before each of its messages, and never in the future"
    );
    assert_eq!(take(&mut merge, at(0)).0.stream, RESULTS);
    let (_, in_order) = take(&mut merge, at(0));
    assert_eq!(in_order.covered, NOW, "the others are at their ends");
}

#[test]
fn an_applied_result_stands_where_it_was_stored_and_before_timers_that_were_due_since_it_was_applied() {
    let mut merge = begun();
    let applied = |sequence, time, stored| match input(RESULTS, sequence, time) {
        Arrival::Input(input) => Arrival::Applied(Applied {
            input: Input {
                origin: Origin::Local,
                ..input
            },
            stored: TimeMs(stored),
            sequence,
        }),
        other => panic!("{other:?}"),
    };
    merge.push(Delivery {
        inputs: vec![applied(1, 10, 20), applied(2, 5, 40)],
        ..delivery(RESULTS, 0, &[(1, 20), (2, 40)])
    });
    merge.push(delivery(EVENTS, 0, &[(1, 15), (2, 30)]));
    for stream in SourceStream::ALL {
        merge.push_barrier(stream, NOW);
    }
    let due = |due| Ground {
        next_due: Some(TimeMs(due)),
        ..at(0)
    };
    assert_eq!(take(&mut merge, at(0)).0.stream, EVENTS);
    let timers = Next::Timers {
        until: TimeMs(9),
        late_source: false,
    };
    assert_eq!(merge.next(due(9)), timers);
    let (first, _) = take(&mut merge, due(10));
    assert_eq!((first.stream, first.sequence), (RESULTS, 1));
    assert_eq!(
        first.stamp,
        Some(Stamp::at(TimeMs(20))),
        "its message is known again"
    );
    assert_eq!(take_all(&mut merge, at(0)).0, [(30, EVENTS), (40, RESULTS)]);
}

#[test]
fn timers_wait_for_the_barrier_of_a_stream_that_is_left_out_until_they_have_waited_long_enough() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10), (2, 20)]));
    merge.push_barrier(EVENTS, NOW);
    merge.push_barrier(CONTROLS, NOW);
    merge.next(at(0));
    let due = |late| Ground {
        next_due: Some(TimeMs(5)),
        late,
        one: [true; 3],
        ..at(10)
    };
    let timers = |until| Next::Timers {
        until: TimeMs(until),
        late_source: true,
    };
    assert_eq!(merge.next(due(Some(TimeMs(7)))), timers(7));
    assert_eq!(
        merge.next(due(Some(TimeMs(70)))),
        timers(9),
        "not before what is there"
    );
    assert_eq!(take(&mut merge, due(None)).0.sequence, 1);
}

#[test]
fn a_stream_that_is_read_again_has_another_end_and_so_have_those_that_had_reached_theirs() {
    let mut merge = begun();
    assert!(merge.asks(Duration::ZERO) && !merge.asks(Duration::from_secs(4)));
    merge.push_barrier(CONTROLS, NOW);
    merge.push_barrier(RESULTS, NOW);
    assert!(matches!(merge.next(at(0)), Next::Wait(_)));
    merge.push(delivery(EVENTS, 0, &[(1, 2_100)]));
    merge.opened_again(EVENTS, TimeMs(2_000));
    assert!(merge.asks(Duration::from_secs(4)), "the ends are asked for anew");
    assert!(matches!(merge.next(at(4)), Next::Wait(_)));
    for stream in SourceStream::ALL {
        merge.push_barrier(stream, TimeMs(2_000));
    }
    let (taken, last) = take_all(&mut merge, at(5));
    assert_eq!(taken, [(2_100, EVENTS)]);
    assert!(matches!(last, Next::Over(_)) && !merge.asks(Duration::from_mins(1)));
}

#[test]
fn ends_noted_by_a_clock_that_was_put_back_are_noted_again() {
    let mut merge = begun();
    merge.forget_the_future(TimeMs(400));
    for stream in SourceStream::ALL {
        merge.push_barrier(stream, TimeMs(400));
    }
    assert!(matches!(merge.next(at(0)), Next::Over(_)));
}

#[test]
fn a_delivery_that_is_put_back_is_taken_again_after_the_position() {
    let mut merge = begun();
    merge.push(delivery(EVENTS, 0, &[(1, 10), (2, 20), (3, 30)]));
    merge.push(delivery(RESULTS, 0, &[(1, 25)]));
    for stream in SourceStream::ALL {
        merge.push_barrier(stream, NOW);
    }
    let (events, _) = take(&mut merge, at(0));
    let (results, _) = take(&mut merge, at(0));
    merge.put_back(results, 0);
    merge.put_back(events, 1);
    assert_eq!(merge.deliveries(), 3);
    let (again, _) = take(&mut merge, at(0));
    assert_eq!((again.after, again.sequence, again.inputs.len()), (1, 2, 1));
    assert_eq!(take_all(&mut merge, at(0)).0, [(25, RESULTS), (30, EVENTS)]);
    assert_eq!(merge.deliveries(), 0);
}

#[test]
fn waiting_deliveries_are_counted_by_stream() {
    let mut merge = begun();
    let bounds = Bounds {
        deliveries: 2,
        bytes: 100,
    };
    merge.push(delivery(EVENTS, 0, &[(1, 10)]));
    assert!(!merge.is_full(EVENTS, bounds));
    merge.push(delivery(EVENTS, 1, &[(2, 10)]));
    assert!(merge.is_full(EVENTS, bounds) && !merge.is_full(RESULTS, bounds));
}

/// One message of a stream, whether its delivery ends with it, and when it arrives compared to the others.
type Sent = (u8, u8, bool, u8);

proptest! {
    #[test]
    fn however_messages_arrive_they_are_taken_as_they_were_stored(
        messages in prop::collection::vec(any::<Sent>(), 0..60),
        pauses in prop::collection::vec(any::<bool>(), 60),
    ) {
        let mut expected = Vec::new();
        let mut arrivals: Vec<(u8, SourceStream, Delivery)> = Vec::new();
        for stream in SourceStream::ALL {
            let mut own: Vec<_> = messages
                .iter()
                .filter(|(of, ..)| usize::from(of % 3) == stream.index())
                .collect();
            own.sort_by_key(|(_, time, ..)| time % 16);
            let (mut after, mut open, mut arrives) = (0, Vec::new(), 0);
            for (sequence, (_, time, ends, lag)) in (1..).zip(own) {
                let time = i64::from(time % 16);
                expected.push((TimeMs(time), rank(stream), sequence));
                open.push((sequence, time));
                if *ends {
                    arrives = arrives.max(*lag);
                    arrivals.push((arrives, stream, delivery(stream, after, &open)));
                    after = sequence;
                    open.clear();
                }
            }
            if !open.is_empty() {
                arrivals.push((u8::MAX, stream, delivery(stream, after, &open)));
            }
        }
        expected.sort_unstable();
        // Stable: those of one stream stay in their order.
        arrivals.sort_by_key(|(arrives, ..)| *arrives);
        let mut merge = begun();
        let mut taken = Vec::new();
        let mut look = |merge: &mut CatchUp| loop {
            match merge.next(at(0)) {
                Next::Take(delivery, _) => {
                    let last = delivery.sequence;
                    let places = delivery.inputs.iter();
                    taken.extend(places.map(|arrival| place_of(delivery.stream, arrival, last)));
                }
                other => return other,
            }
        };
        for ((_, _, delivery), looks) in arrivals.into_iter().zip(pauses) {
            merge.push(delivery);
            if looks {
                prop_assert!(matches!(look(&mut merge), Next::Wait(_)));
            }
        }
        for stream in SourceStream::ALL {
            merge.push_barrier(stream, NOW);
        }
        prop_assert!(matches!(look(&mut merge), Next::Over(_)));
        prop_assert_eq!(taken, expected);
        prop_assert_eq!(merge.deliveries(), 0);
    }
}
