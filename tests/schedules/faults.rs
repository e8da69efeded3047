//! Planned runs that cannot begin, because an expression of their saga fails.

use std::collections::BTreeSet;
use std::time::Duration;

use saga_runner::app::Node;
use saga_runner::kernel::ids::TimeMs;
use saga_runner::kernel::schedule::Skip;
use saga_runner::ports::control::{
    DeadLetterView, DeadLetters as _, LetterDecision, LetterFilter, PageRequest,
};

use super::{HOUR_MS, Stage, TENANTS, stop, tenant, until, until_told};

/// The first of its expressions divides by zero for every planned time.
fn share(name: &str, overlap: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Saga
name: {name}
schedule: {{cron: "0 6 * * *", overlap: {overlap}}}
state: {{init: {{share: "${{1 / (size(input.time) - 20)}}"}}}}
steps:
  tell: {{publish: {{type: share.told}}}}
"#
    )
}

async fn letters(node: &Node, of: &str) -> Vec<DeadLetterView> {
    let page = PageRequest::new(None, 500);
    node.dead_letters(&tenant(of), LetterFilter::default(), page)
        .await
        .expect("a list")
        .items
}

/// Waits until there are dead letters of the runs of a saga at these times, for every tenant.
async fn until_letters(node: &Node, name: &str, planned: &[i64]) {
    let wanted: BTreeSet<String> = planned.iter().map(|at| TimeMs(*at).to_string()).collect();
    for of in TENANTS {
        let mut found = BTreeSet::new();
        for _ in 0..3_000 {
            let of_saga = |letter: &DeadLetterView| letter.saga.as_deref() == Some(name);
            let letters = letters(node, of).await.into_iter().filter(of_saga);
            found = letters.filter_map(|letter| letter.key).collect();
            if found == wanted {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(found, wanted, "{of}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_run_that_cannot_begin_is_owed_until_an_operator_decides_about_its_dead_letter() {
    let stage = Stage::new(None);
    let sagas = [("share", "skip"), ("shares", "allow")];
    for (name, overlap) in sagas {
        stage.write(name, &share(name, overlap));
    }
    let node = stage.start().await;
    for (name, _) in sagas {
        until_told(&node, name, |view| view.next.is_some()).await;
    }
    let first = stage.clock.go_to(7, 0) + 6 * HOUR_MS;
    until_letters(&node, "share", &[first]).await;
    until_letters(&node, "shares", &[first]).await;
    let second = stage.clock.go_to(7, 1) + 6 * HOUR_MS;
    // The run that did not begin counts as under way, where it matters.
    until_told(&node, "share", |view| {
        let skipped = view.last_skipped.as_ref();
        skipped.is_some_and(|skipped| skipped.reason == Skip::Overlap) && view.running.len() == 1
    })
    .await;
    until_letters(&node, "shares", &[first, second]).await;
    until_letters(&node, "share", &[first]).await;

    for (name, overlap) in sagas {
        stage.write(name, &share(name, overlap).replace("- 20", "- 19"));
    }
    node.reload().await.expect("reloaded");
    for of in TENANTS {
        for round in 0..3_000 {
            let letters = letters(&node, of).await;
            if letters.is_empty() {
                break;
            }
            assert!(round < 2_999, "{letters:?}");
            for letter in letters {
                node.decide(&tenant(of), &letter.id, LetterDecision::Retry.into())
                    .await
                    .expect("tried again");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    until(&node, "share", &[(first, "completed")]).await;
    until(&node, "shares", &[(first, "completed"), (second, "completed")]).await;
    until_told(&node, "share", |view| view.running.is_empty()).await;
    let third = stage.clock.go_to(7, 1) + 6 * HOUR_MS;
    until(&node, "share", &[(first, "completed"), (third, "completed")]).await;
    stop(node).await;
}
