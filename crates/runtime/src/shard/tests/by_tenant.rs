//! What the series by tenant count.

use serde_json::json;

use super::world::{EVENTS, START, Shard, World, divided, event, list, named, opened};
use crate::kernel::ids::{InstanceId, TenantId};
use crate::shard::mailbox::{Arrival, Delivery, Mail, Unreadable};

/// A message of the tenant that cannot be read, as the first one of the stream.
async fn send_unreadable(shard: &Shard, tenant: &str) {
    let unreadable = Unreadable {
        tenant: TenantId::parse(tenant).unwrap(),
        subject: format!("tenant.{tenant}.aggregate.List.a"),
        reason: "payload.syntax",
        message: "no JSON".to_owned(),
        time: START,
        excerpt: "{".into(),
        payload_hash: [7; 32],
        sequence: 1,
    };
    let delivery = Delivery {
        stream: EVENTS,
        after: 0,
        sequence: 1,
        stamp: None,
        routed_by: 0,
        inputs: vec![Arrival::Unreadable(unreadable)],
    };
    shard.mail(Mail::Delivery(delivery)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn instances_and_dead_letters_are_counted_for_their_tenant_and_unreadable_messages_name_none() {
    let world = World::new();
    world.metrics.tenants.name_at_most(1);
    let shard = world.start();
    send_unreadable(&shard, "t9").await;
    let of_another = InstanceId {
        tenant: TenantId::parse("t2").unwrap(),
        ..list("c")
    };
    for (sequence, input) in [
        (2, opened("a", 2)),
        (3, opened("b", 3)),
        (4, named("a", "List.Closed", 4)),
        (5, divided("b", 5, 0)),
        (6, event(of_another, "List.Opened", 6, &json!({}))),
    ] {
        shard.deliver(EVENTS, sequence, vec![input]).await;
    }
    shard.until_idle().await;
    let text = world.metrics.render();
    for line in [
        "inputs_total{tenant=\"t1\"} 4",
        "instances_started_total{tenant=\"t1\"} 2",
        "instances_ended_total{phase=\"completed\",tenant=\"t1\"} 1",
        "instances_ended_total{phase=\"failed\",tenant=\"t1\"} 0",
        "dead_letters_total{tenant=\"t1\"} 1",
        "instances_started_total{tenant=\"other\"} 1",
        "dead_letters_total{tenant=\"other\"} 1",
    ] {
        let line = format!("saga_runner_tenant_{line}");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    shard.stop().await;
}
