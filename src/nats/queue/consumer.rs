//! The consumer of a queue: the one that the runner makes, and in what one that is there differs from it.

use std::time::Duration;

use crate::nats::api::{ConsumerAction, ConsumerConfig, ConsumerInfo, nanos};
use crate::nats::error::ApiError;
use crate::nats::link::Link;
use crate::ports::broker::{BrokerError, QueueSpec};

/// Where a consumer of ours pushes to begins with it; its name follows.
const PUSH_SUBJECT: &str = "_saga_runner.push";
/// What a consumer has in its metadata: the group of workers that share it.
const GROUP: &str = "saga_runner_group";

/// Creates the consumer, or takes the one that is there, with the waits and bounds of `spec` unless it is bound.
pub(super) async fn ensure_consumer(link: &Link, spec: &QueueSpec) -> Result<ConsumerInfo, BrokerError> {
    let config = wanted(spec);
    let failed = |error: ApiError| error.into_broker_error(&spec.stream);
    let found = match link.consumer_info(&spec.stream, &spec.durable).await {
        Ok(info) => info,
        Err(ApiError::Failed(failure)) if failure.no_consumer() && spec.manner.bound => {
            return Err(mismatch(spec, vec![absent(spec)]));
        }
        Err(ApiError::Failed(failure)) if failure.no_consumer() => {
            match link
                .put_consumer(&spec.stream, &config, ConsumerAction::Create)
                .await
            {
                Ok(made) => return Ok(made),
                // Another member was faster.
                Err(ApiError::Failed(failure)) if failure.consumer_exists() => link
                    .consumer_info(&spec.stream, &spec.durable)
                    .await
                    .map_err(failed)?,
                Err(error) => return Err(failed(error)),
            }
        }
        Err(error) => return Err(failed(error)),
    };
    let differences = differences(spec, &found.config);
    if !differences.is_empty() {
        return Err(mismatch(spec, differences));
    }
    let is_same = found.config.ack_wait == config.ack_wait
        && found.config.max_ack_pending == config.max_ack_pending
        && (spec.group.is_none() || group(&found.config) == group(&config));
    if !spec.manner.bound && !is_same {
        let mut metadata = found.config.metadata.clone();
        metadata.extend(config.metadata);
        let update = ConsumerConfig {
            num_replicas: found.config.num_replicas,
            metadata,
            ..config
        };
        link.put_consumer(&spec.stream, &update, ConsumerAction::Update)
            .await
            .map_err(failed)?;
    }
    Ok(found)
}

/// The consumer that the runner makes.
fn wanted(spec: &QueueSpec) -> ConsumerConfig {
    let mut config = ConsumerConfig {
        name: spec.durable.clone(),
        durable_name: Some(spec.durable.clone()),
        deliver_policy: "all".to_owned(),
        ack_policy: "explicit".to_owned(),
        ack_wait: nanos(spec.ack_wait),
        max_deliver: -1,
        max_ack_pending: i64::try_from(spec.max_unacknowledged).unwrap_or(i64::MAX),
        replay_policy: "instant".to_owned(),
        metadata: spec
            .group
            .iter()
            .map(|group| (GROUP.to_owned(), group.clone()))
            .collect(),
        ..ConsumerConfig::default()
    };
    config.set_filters(&spec.filters);
    if spec.manner.push {
        config.deliver_subject = Some(format!("{PUSH_SUBJECT}.{}", spec.durable));
        config.deliver_group = Some(spec.durable.clone());
    }
    config
}

/// The group that a consumer was made for.
pub(super) fn group(config: &ConsumerConfig) -> Option<&String> {
    config.metadata.get(GROUP)
}

/// One line for each difference that keeps this process from joining the queue.
pub(in crate::nats) async fn check(link: &Link, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
    match link.consumer_info(&spec.stream, &spec.durable).await {
        Ok(found) => Ok(differences(spec, &found.config)),
        Err(ApiError::Failed(failure)) if failure.no_consumer() => {
            Ok(spec.manner.bound.then(|| absent(spec)).into_iter().collect())
        }
        Err(error) => Err(error.into_broker_error(&spec.stream)),
    }
}

fn absent(spec: &QueueSpec) -> String {
    format!("stream {} has no consumer {}", spec.stream, spec.durable)
}

fn mismatch(spec: &QueueSpec, differences: Vec<String>) -> BrokerError {
    BrokerError::Mismatch {
        stream: spec.stream.clone(),
        differences,
    }
}

/// In what a consumer that is there is not the one that `spec` asks for. Of one that the runner has made, waits
/// and bounds may differ: they are altered.
fn differences(spec: &QueueSpec, found: &ConsumerConfig) -> Vec<String> {
    let name = &spec.durable;
    let wanted = wanted(spec);
    let mut differences = differences_of_all(spec, found, &wanted);
    differences.extend(differences_of_delivery(spec, found, &wanted));
    if spec.manner.bound {
        differences.extend(differences_of_bound(spec, found, &wanted));
    }
    let named = differences.into_iter();
    named.map(|what| format!("consumer {name} {what}")).collect()
}

/// In what commands would be handed out otherwise than workers need, whoever has made the consumer.
fn differences_of_all(spec: &QueueSpec, found: &ConsumerConfig, wanted: &ConsumerConfig) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differs = |what: String| differences.push(what);
    if found.filters() != wanted.filters() {
        let (has, needs) = (found.filters(), wanted.filters());
        differs(format!("filters {has:?}, expected {needs:?}"));
    }
    if found.ack_policy != wanted.ack_policy {
        let (has, needs) = (&found.ack_policy, &wanted.ack_policy);
        differs(format!("has ack_policy {has}, expected {needs}"));
    }
    if let Some((theirs, ours)) = group(found)
        .zip(spec.group.as_ref())
        .filter(|(theirs, ours)| theirs != ours)
        && !spec.manner.bound
    {
        differs(format!("is of the group {theirs:?}, expected {ours:?}"));
    }
    if found.max_deliver > 0 {
        let times = found.max_deliver;
        differs(format!(
            "delivers at most {times} times (max_deliver), expected -1: the deadline of a command bounds it"
        ));
    }
    differences
}

/// In what messages come otherwise: pulled, or pushed to a group.
fn differences_of_delivery(spec: &QueueSpec, found: &ConsumerConfig, wanted: &ConsumerConfig) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differs = |what: String| differences.push(what);
    match (spec.manner.push, &found.deliver_subject) {
        (false, Some(subject)) => {
            differs(format!(
                "pushes to {subject}, expected a pull consumer (delivery: pull)"
            ));
        }
        (true, None) => {
            differs("is a pull consumer, expected one that pushes to a group (delivery: push)".to_owned());
        }
        (true, Some(_)) => {
            if found.deliver_group.is_none() {
                differs("has no deliver_group, expected one: workers share it".to_owned());
            }
            if found.flow_control {
                differs("has flow_control, expected none: a group cannot answer it".to_owned());
            }
        }
        (false, None) => {}
    }
    if !spec.manner.bound
        && spec.manner.push
        && (found.deliver_subject.is_some() && found.deliver_subject != wanted.deliver_subject
            || found.deliver_group.is_some() && found.deliver_group != wanted.deliver_group)
    {
        differs(format!(
            "pushes to {:?} for {:?}, expected {:?} for {:?}",
            found.deliver_subject, found.deliver_group, wanted.deliver_subject, wanted.deliver_group
        ));
    }
    differences
}

/// In what a consumer that somebody else has made, and that is not altered, does not do.
fn differences_of_bound(spec: &QueueSpec, found: &ConsumerConfig, wanted: &ConsumerConfig) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differs = |what: String| differences.push(what);
    if found.durable_name.is_none() {
        differs("is not durable".to_owned());
    }
    if found.deliver_policy != wanted.deliver_policy {
        let (has, needs) = (&found.deliver_policy, &wanted.deliver_policy);
        differs(format!("has deliver_policy {has}, expected {needs}"));
    }
    if found.replay_policy != wanted.replay_policy {
        let (has, needs) = (&found.replay_policy, &wanted.replay_policy);
        differs(format!("has replay_policy {has}, expected {needs}"));
    }
    if found.ack_wait < wanted.ack_wait {
        let (has, needs) = (Duration::from_nanos(found.ack_wait), spec.ack_wait);
        differs(format!(
            "has ack_wait {has:?}, expected at least {needs:?} (worker.ack_wait), of which workers report every third"
        ));
    }
    if !found.backoff.is_empty() {
        differs("has a backoff, expected none: it would stand in place of ack_wait".to_owned());
    }
    if found.headers_only {
        differs("delivers headers only, expected whole messages".to_owned());
    }
    if found.inactive_threshold > 0 {
        let threshold = Duration::from_nanos(found.inactive_threshold);
        differs(format!(
            "goes away after {threshold:?} without workers (inactive_threshold), expected never"
        ));
    }
    if !found.priority_groups.is_empty() {
        let groups = &found.priority_groups;
        differs(format!("has the priority groups {groups:?}, expected none"));
    }
    differences
}
