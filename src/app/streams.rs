//! The streams that a manifest names.

use std::sync::Arc;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{StartError, archive, cluster, reach_broker, runtime, unanswered};
use crate::broker_clock::BrokerClock;
use crate::config::Manifest;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::kernel::subject::{self, Tenancy};
use crate::ports::broker::{Broker, BrokerError, BucketSpec, StreamSpec, StreamState, WorkflowStreams};

/// What each stream must be, in the order of [`SourceStream::ALL`].
#[must_use]
pub fn specs(manifest: &Manifest) -> [StreamSpec; 3] {
    let prefix = match manifest.tenancy() {
        Tenancy::Multi => "tenant.*.",
        Tenancy::Single => "",
    };
    let spec = |name: &str, kinds: &[&str]| StreamSpec {
        name: name.to_owned(),
        subjects: kinds.iter().map(|kind| format!("{prefix}{kind}.>")).collect(),
        replicas: manifest.streams.replicas,
        // Room for the envelope around the largest payload.
        message_bytes_max: manifest.limits.payload_bytes + 64 * 1024,
        foreign: false,
    };
    let streams = &manifest.streams;
    let mut commands = spec(&streams.workflow_commands.name, subject::COMMAND_KINDS);
    commands
        .subjects
        .push(subject::control_filter(&manifest.cluster, None));
    [
        StreamSpec {
            foreign: true,
            ..spec(&streams.aggregate_events.name, subject::AGGREGATE_KINDS)
        },
        spec(&streams.workflow_events.name, subject::EVENT_KINDS),
        commands,
    ]
}

/// Largest record of the audit with its headers, in bytes.
const AUDIT_BYTES_MAX: usize = 16 * 1024;

/// What the stream of the audit must be.
#[must_use]
pub fn audit(manifest: &Manifest) -> StreamSpec {
    StreamSpec {
        name: manifest.streams.audit.name.clone(),
        subjects: vec![subject::audit_filter(&manifest.cluster)],
        replicas: manifest.streams.replicas,
        message_bytes_max: AUDIT_BYTES_MAX,
        foreign: false,
    }
}

/// Creates the stream of the audit or brings it to what it must be, where this process may; otherwise checks it.
///
/// # Errors
/// [`BrokerError`].
pub(super) async fn prepare_audit(broker: &dyn Broker, manifest: &Manifest) -> Result<(), BrokerError> {
    let spec = audit(manifest);
    // A process without shards has no right to make streams.
    let manages = manifest.streams.manage && manifest.mode.runs_sagas();
    prepare_as(broker, &spec, manages).await.map(drop)
}

/// Creates or checks every stream, as the manifest says, and gives their states in the order of
/// [`SourceStream::ALL`].
///
/// # Errors
/// [`BrokerError`]; a stream that must not be created and does not exist is [`BrokerError::NoStream`].
pub async fn prepare(broker: &dyn Broker, manifest: &Manifest) -> Result<[StreamState; 3], BrokerError> {
    let [aggregate, events, commands] = specs(manifest);
    let states = [
        prepare_one(broker, manifest, &aggregate).await?,
        prepare_one(broker, manifest, &events).await?,
        prepare_one(broker, manifest, &commands).await?,
    ];
    if let Some(spec) = archive::spec(manifest) {
        prepare_one(broker, manifest, &spec).await?;
    }
    let limits = limits_not_accepted(broker, manifest).await?;
    if limits.is_empty() {
        return Ok(states);
    }
    Err(BrokerError::Refused(format!(
        "stream {}: {} [SR0303]",
        aggregate.name,
        limits.join("; ")
    )))
}

/// One line for each limit of the stream of events that could drop what was not read yet, and is not accepted.
pub(super) async fn limits_not_accepted(
    broker: &dyn Broker,
    manifest: &Manifest,
) -> Result<Vec<String>, BrokerError> {
    if !manifest.mode.runs_sagas() {
        return Ok(Vec::new());
    }
    let events = &manifest.streams.aggregate_events;
    let mut limits = broker.dropping_limits(&events.name).await?;
    limits.retain(|limit| {
        let mut accepted = events.accept_limits.iter();
        !accepted.any(|accepted| accepted.as_str() == limit.name)
    });
    let lines = limits.into_iter().map(|limit| {
        format!(
            "{} is {}, which deletes events even if they were not read; remove the limit, or accept it under streams.aggregate_events.accept_limits",
            limit.name, limit.value
        )
    });
    Ok(lines.collect())
}

async fn prepare_one(
    broker: &dyn Broker,
    manifest: &Manifest,
    spec: &StreamSpec,
) -> Result<StreamState, BrokerError> {
    prepare_as(broker, spec, manifest.streams.manage).await
}

async fn prepare_as(
    broker: &dyn Broker,
    spec: &StreamSpec,
    manages: bool,
) -> Result<StreamState, BrokerError> {
    if manages {
        return broker.ensure_stream(spec).await;
    }
    let differences = broker.check_stream(spec).await?;
    if !differences.is_empty() {
        return Err(BrokerError::Mismatch {
            stream: spec.name.clone(),
            differences,
        });
    }
    broker.stream_state(&spec.name).await
}

/// The state of one stream, or of a bucket.
#[derive(Debug, Serialize)]
pub struct Line {
    pub name: String,
    /// `exists` or `does not exist`.
    pub state: &'static str,
    #[serde(flatten)]
    pub holds: Option<Holds>,
    /// How it differs from the manifest.
    pub differences: Vec<String>,
}

/// What a stream holds.
#[derive(Debug, Serialize)]
pub struct Holds {
    pub messages: u64,
    pub bytes: u64,
    pub first_sequence: u64,
    pub last_sequence: u64,
}

/// Carries out `streams apply` (`change`) or `streams check`.
///
/// # Errors
/// [`StartError::Unreached`] where the broker is away, [`StartError::Broker`] where it refuses to answer.
pub fn report(manifest: &Manifest, change: bool) -> Result<Vec<Line>, StartError> {
    runtime()?.block_on(async {
        let broker: Arc<dyn Broker> = reach_broker(manifest, Arc::new(super::SystemClock::new())).await?;
        let mut lines = Vec::new();
        for spec in specs(manifest).into_iter().chain([audit(manifest)]) {
            lines.push(line(&*broker, &spec, change).await?);
        }
        match limits_not_accepted(&*broker, manifest).await {
            Ok(limits) => lines[0].differences.extend(limits),
            // That is among the differences.
            Err(BrokerError::NoStream(_)) => {}
            Err(error) => return Err(unanswered(error)),
        }
        if let Some(spec) = archive::spec(manifest) {
            lines.push(line(&*broker, &spec, change).await?);
        }
        if manifest.mode.runs_sagas() {
            lines.push(bucket_line(&*broker, &cluster::bucket(manifest), change).await?);
        }
        Ok(lines)
    })
}

async fn line(broker: &dyn Broker, spec: &StreamSpec, change: bool) -> Result<Line, StartError> {
    let mut line = Line {
        name: spec.name.clone(),
        state: "does not exist",
        holds: None,
        differences: Vec::new(),
    };
    if change {
        match broker.ensure_stream(spec).await {
            Ok(_) => {}
            Err(BrokerError::Mismatch { differences, .. }) => line.differences = differences,
            Err(error) => return Err(unanswered(error)),
        }
    } else {
        match broker.check_stream(spec).await {
            Ok(differences) => line.differences = differences,
            Err(BrokerError::NoStream(_)) => {
                line.differences.push("the stream does not exist".to_owned());
                return Ok(line);
            }
            Err(error) => return Err(unanswered(error)),
        }
    }
    let state = broker.stream_state(&spec.name).await.map_err(unanswered)?;
    line.state = "exists";
    line.holds = Some(Holds {
        messages: state.messages,
        bytes: state.bytes,
        first_sequence: state.first_sequence,
        last_sequence: state.last_sequence,
    });
    Ok(line)
}

async fn bucket_line(broker: &dyn Broker, spec: &BucketSpec, change: bool) -> Result<Line, StartError> {
    let compared = if change {
        match broker.ensure_bucket(spec).await {
            Ok(()) => Ok(Vec::new()),
            Err(BrokerError::Mismatch { differences, .. }) => Ok(differences),
            Err(error) => Err(error),
        }
    } else {
        broker.check_bucket(spec).await
    };
    let (state, differences) = match compared {
        Ok(differences) => ("exists", differences),
        Err(BrokerError::NoStream(_)) => ("does not exist", vec!["the bucket does not exist".to_owned()]),
        Err(error) => return Err(unanswered(error)),
    };
    Ok(Line {
        name: format!("bucket {}", spec.name),
        state,
        holds: None,
        differences,
    })
}

/// The stream that plays `role`.
#[must_use]
pub fn name(manifest: &Manifest, role: SourceStream) -> &str {
    match role {
        SourceStream::AggregateEvents => &manifest.streams.aggregate_events.name,
        SourceStream::WorkflowEvents => &manifest.streams.workflow_events.name,
        SourceStream::WorkflowCommands => &manifest.streams.workflow_commands.name,
    }
}

/// Asks the broker for its time until the drain.
pub(super) async fn hear_the_time(
    broker: Arc<dyn Broker>,
    clock: Arc<BrokerClock>,
    manifest: Manifest,
    drain: CancellationToken,
) {
    let stream = SourceStream::WorkflowCommands;
    let every = manifest.intake.watermark_interval.duration();
    while drain
        .run_until_cancelled(tokio::time::sleep(every))
        .await
        .is_some()
    {
        let asked = clock.ask();
        match broker.stream_state(name(&manifest, stream)).await {
            Ok(state) => {
                clock.told(stream, asked, state.told);
            }
            Err(error) => tracing::debug!(%error, "broker time is unknown"),
        }
    }
}

/// Names of the streams that commands and results go through.
pub(super) fn workflow(manifest: &Manifest) -> WorkflowStreams {
    WorkflowStreams {
        cluster: manifest.cluster.clone(),
        commands: name(manifest, SourceStream::WorkflowCommands).to_owned(),
        events: name(manifest, SourceStream::WorkflowEvents).to_owned(),
    }
}

/// Sequence of the first message that was stored at this time or later; one that cannot be read counts as such.
///
/// # Errors
/// As the broker answers.
pub(super) async fn first_since(
    broker: &dyn Broker,
    stream: &str,
    state: &StreamState,
    since: TimeMs,
) -> Result<u64, BrokerError> {
    let (first, end) = (state.first_sequence, state.last_sequence + 1);
    let (mut from, mut to) = (first, end);
    while from < to {
        // The first one at first: in most cases it is young enough.
        let at = if (from, to) == (first, end) {
            from
        } else {
            from + (to - from) / 2
        };
        match broker.message_at(stream, at).await? {
            Some(message) if message.time < since => from = at + 1,
            Some(_) | None => to = at,
        }
    }
    Ok(from)
}
