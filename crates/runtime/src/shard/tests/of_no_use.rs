//! Commands that change nothing.

use super::world::*;
use crate::kernel::input::{Control, Input, InputBody};
use crate::kernel::patch::IgnoreReason;
use crate::storage::rows::HistoryOutcome;

fn command(at: u64, id: &str, control: Control) -> Input {
    Input {
        id: id.to_owned(),
        body: InputBody::Control(control),
        ..cancel(pay("p"), at)
    }
}

fn signal(name: &str) -> Control {
    Control::Signal {
        name: name.to_owned(),
        data: "{}".into(),
        by: "ada".to_owned(),
        hops: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_history_tells_of_commands_that_were_of_no_use_and_not_of_repetitions() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    let version = shard.record(&pay("p")).expect("it runs").version;
    let commands = [
        ("s-1", signal("aprove")),
        ("r-1", Control::Retry),
        ("c-1", Control::cancel("enough")),
        ("c-1", Control::cancel("enough")),
        ("c-2", Control::cancel("enough")),
        ("h-1", Control::Heartbeat { work: "w".to_owned() }),
    ];
    for (at, (id, control)) in (1..).zip(commands) {
        shard.deliver(CONTROLS, at, vec![command(at, id, control)]).await;
    }
    shard.until_idle().await;
    let history = shard.history(&pay("p"));
    let of_commands = history.iter().rev().skip(1);
    let told: Vec<_> = of_commands
        .map(|row| (row.kind.as_str(), row.input_id.as_str(), row.outcome.clone()))
        .collect();
    let ignored = HistoryOutcome::Ignored;
    assert_eq!(
        told,
        [
            ("signal aprove", "s-1", ignored(IgnoreReason::NoHandler)),
            ("retry", "r-1", ignored(IgnoreReason::NoHandler)),
            ("cancel", "c-1", HistoryOutcome::Applied),
            ("cancel", "c-2", ignored(IgnoreReason::Ended)),
        ]
    );
    let record = shard.record(&pay("p")).expect("its charge is still under way");
    assert_eq!(
        record.version,
        version + 1,
        "they are no inputs that it has applied"
    );
    shard.stop().await;
}
