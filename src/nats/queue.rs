//! A durable consumer that workers share, each message answered for by itself.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Message, Subject};
use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tracing::debug;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{BrokerError, KnownQueue, Queue, QueueMessage, QueueSpec, ReaderBroken, Receipt};

use super::api::{ConsumerAction, ConsumerConfig, ConsumerInfo, nanos};
use super::error::ApiError;
use super::link::Link;
use super::message;
use super::pull::{Arrived, Pull};
use super::push::Push;

/// Where a consumer of ours pushes to begins with it; its name follows.
const PUSH_SUBJECT: &str = "_saga_runner.push";
/// What a consumer has in its metadata: the group of workers that share it.
const GROUP: &str = "saga_runner_group";

pub(super) struct NatsQueue {
    link: Arc<Link>,
    way: Way,
    created: TimeMs,
}

/// How messages come.
enum Way {
    Pull(Box<Pull>),
    Push(Box<Push>),
}

impl Way {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        match self {
            Self::Pull(pull) => pull.next().await,
            Self::Push(push) => push.next().await,
        }
    }

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        match self {
            Self::Pull(pull) => pull.ready(),
            Self::Push(push) => push.ready(),
        }
    }

    fn make_room(&mut self, room: usize) {
        match self {
            Self::Pull(pull) => pull.make_room(room),
            Self::Push(_) => {}
        }
    }

    async fn close(&mut self, patience: Duration) -> Vec<Message> {
        match self {
            Self::Pull(pull) => pull.close(patience).await,
            Self::Push(push) => push.close(patience).await,
        }
    }
}

impl NatsQueue {
    pub async fn join(link: Arc<Link>, spec: QueueSpec, heartbeat: Duration) -> Result<Self, BrokerError> {
        if spec.filters.is_empty() {
            let what = format!("consumer {} needs at least one filter", spec.durable);
            return Err(BrokerError::Refused(what));
        }
        let found = ensure_consumer(&link, &spec).await?;
        let created = created(&found)?;
        let names = (&*spec.stream, &*spec.durable);
        let target = found.config.deliver_subject.zip(found.config.deliver_group);
        let way = if let Some(target) = target {
            let push = Push::open(Arc::clone(&link), names, target, heartbeat);
            Way::Push(Box::new(push.await?))
        } else {
            let pull = Pull::open(Arc::clone(&link), names, spec.buffer, heartbeat, Arrived::Use);
            Way::Pull(Box::new(pull.await?))
        };
        Ok(Self { link, way, created })
    }

    fn hand_over(&self, raw: async_nats::Message) -> Result<QueueMessage, ReaderBroken> {
        let receipt = NatsReceipt {
            link: Arc::clone(&self.link),
            // A copy: the original would keep the whole read buffer of the connection alive.
            reply: Subject::from(raw.reply.as_deref().unwrap_or_default().to_owned()),
        };
        Ok(QueueMessage {
            message: message::delivered(raw).map_err(ReaderBroken)?,
            receipt: Box::new(receipt),
        })
    }
}

/// Creates the consumer, or takes the one that is there, with the waits and bounds of `spec` unless it is bound.
async fn ensure_consumer(link: &Link, spec: &QueueSpec) -> Result<ConsumerInfo, BrokerError> {
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
fn group(config: &ConsumerConfig) -> Option<&String> {
    config.metadata.get(GROUP)
}

/// All consumers of a stream that are durable.
pub(super) async fn all(link: &Link, stream: &str) -> Result<Vec<KnownQueue>, BrokerError> {
    let found = link.consumers(stream).await;
    let found = found.map_err(|error| error.into_broker_error(stream))?;
    let durable = found.into_iter().filter(|config| config.durable_name.is_some());
    Ok(durable
        .map(|config| KnownQueue {
            group: group(&config).cloned(),
            durable: config.name,
        })
        .collect())
}

/// One line for each difference that keeps this process from joining the queue.
pub(super) async fn check(link: &Link, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
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
    let mut differences = Vec::new();
    let mut differs = |what: String| differences.push(format!("consumer {name} {what}"));
    let wanted = wanted(spec);
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
    if !spec.manner.bound {
        return differences;
    }
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

fn created(info: &ConsumerInfo) -> Result<TimeMs, BrokerError> {
    let time = info.created.parse::<Timestamp>();
    let time = time.map_err(|error| BrokerError::Refused(format!("time of a consumer: {error}")))?;
    // Whatever was stored in the same millisecond counts as older.
    Ok(TimeMs(time.as_millisecond()))
}

/// What a durable consumer is, for whoever holds it against something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerView {
    pub filters: Vec<String>,
    pub ack_policy: String,
    pub deliver_policy: String,
    pub ack_wait: Duration,
    pub max_deliver: i64,
    pub max_unacknowledged: usize,
    /// Messages that nobody was given yet.
    pub pending: u64,
    /// Messages that somebody was given and has not answered for.
    pub unacknowledged: u64,
    /// Requests of workers that wait for messages.
    pub waiting: u64,
}

/// The consumer of this name, `None` where it does not exist.
pub(super) async fn view(
    link: &Link,
    stream: &str,
    durable: &str,
) -> Result<Option<ConsumerView>, BrokerError> {
    let info = match link.consumer_info(stream, durable).await {
        Ok(info) => info,
        Err(ApiError::Failed(failure)) if failure.no_consumer() => return Ok(None),
        Err(error) => return Err(error.into_broker_error(stream)),
    };
    let config = info.config;
    Ok(Some(ConsumerView {
        filters: config.filters().into_iter().map(str::to_owned).collect(),
        ack_wait: Duration::from_nanos(config.ack_wait),
        max_deliver: config.max_deliver,
        max_unacknowledged: usize::try_from(config.max_ack_pending).unwrap_or(usize::MAX),
        ack_policy: config.ack_policy,
        deliver_policy: config.deliver_policy,
        pending: info.num_pending,
        unacknowledged: info.num_ack_pending,
        waiting: info.num_waiting,
    }))
}

/// Removes a consumer that nobody takes from.
pub(super) async fn delete(link: &Link, stream: &str, durable: &str) -> Result<(), BrokerError> {
    let failed = |error: ApiError| error.into_broker_error(stream);
    let info = link.consumer_info(stream, durable).await.map_err(failed)?;
    if info.num_waiting > 0 || info.push_bound || info.num_ack_pending > 0 {
        let listening = if info.push_bound {
            ", workers listen to it"
        } else {
            ""
        };
        return Err(BrokerError::Refused(format!(
            "consumer {durable} is in use: {} request(s) of workers wait, {} command(s) are not acknowledged{listening}",
            info.num_waiting, info.num_ack_pending
        )));
    }
    let _: Value = link
        .api(&format!("CONSUMER.DELETE.{stream}.{durable}"), &Value::Null)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Up to where all that matches is answered for.
///
/// With messages out, the floor ends at the last answer without a gap. With none out, it reaches to the next
/// message that matches, and where there is none to the end of the stream as it was before anything else was
/// asked.
pub(super) async fn floor(link: &Link, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
    let failed = |error: ApiError| error.into_broker_error(stream);
    let end = link.stream_info(stream).await.map_err(failed)?.state.last_seq;
    let info = match link.consumer_info(stream, durable).await {
        Ok(info) => info,
        Err(ApiError::Failed(failure)) if failure.no_consumer() => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if info.num_ack_pending > 0 {
        return Ok(Some(info.ack_floor.stream_seq));
    }
    let mut floor = end.max(info.delivered.stream_seq);
    let delivered = info.delivered.stream_seq.max(info.ack_floor.stream_seq);
    for filter in info.config.filters() {
        if let Some(next) = link
            .next_matching(stream, filter, delivered + 1)
            .await
            .map_err(failed)?
        {
            floor = floor.min(next - 1);
        }
    }
    Ok(Some(floor))
}

#[async_trait]
impl Queue for NatsQueue {
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken> {
        let raw = self.way.next().await?;
        self.hand_over(raw)
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        Some(match self.way.ready()? {
            Ok(raw) => self.hand_over(raw),
            Err(broken) => Err(broken),
        })
    }

    fn make_room(&mut self, room: usize) {
        self.way.make_room(room);
    }

    fn created(&self) -> TimeMs {
        self.created
    }

    async fn close(&mut self) {
        for raw in self.way.close(self.link.request_timeout).await {
            let Some(reply) = raw.reply else { continue };
            let given_back = self.link.client.publish(reply, AckKind::Nak(None).into()).await;
            if let Err(error) = given_back {
                // The ack wait gives it back.
                debug!(%error, "cannot give back a message");
            }
        }
    }
}

struct NatsReceipt {
    link: Arc<Link>,
    reply: Subject,
}

impl NatsReceipt {
    /// Hands the answer to the connection. Without one it waits a while: an answer stays good across
    /// connections until the ack wait is over.
    async fn answer(&self, kind: AckKind) -> Result<(), BrokerError> {
        let sent = self.link.client.publish(self.reply.clone(), kind.into());
        match tokio::time::timeout(self.link.request_timeout, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
            Err(_) => Err(BrokerError::Unavailable(
                "the connection took no acknowledgement in time".to_owned(),
            )),
        }
    }
}

#[async_trait]
impl Receipt for NatsReceipt {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.answer(AckKind::Ack).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.answer(AckKind::Nak((!delay.is_zero()).then_some(delay)))
            .await
    }

    /// As a request, so that it is known when the server has taken it. It does not tell an old delivery from a new one.
    async fn progress(&self) -> Result<(), BrokerError> {
        self.link.generation().map_err(BrokerError::Unavailable)?;
        let asked = self
            .link
            .client
            .request(self.reply.clone(), AckKind::Progress.into());
        match asked.await {
            Ok(_) => Ok(()),
            Err(error) => Err(BrokerError::Unavailable(error.to_string())),
        }
    }

    async fn term(&self) -> Result<(), BrokerError> {
        self.answer(AckKind::Term).await
    }
}
