//! Whether the process takes work and gets on with it, and why not.
//!
//! Ready means that whatever there is to do was got on with in the last `stalled_after`, or that there was nothing to do. It
//! does not tell of upstreams and gateways that are away: their work waits for them, and breakers tell of them.

use std::time::Duration;

use super::control::blocking;
use super::node::Node;
use super::running::Running;
use super::{consumers, shards, streams, undeclared};
use crate::intake::StreamStatus;
use crate::kernel::definition::Severity;
use crate::ports::control::{Check, Health, Readiness};
use crate::shard::{self, ShardState};

/// Why the process is not ready, if it is not.
pub(super) async fn ready(node: &Node) -> Readiness {
    let mut reasons = Vec::new();
    if node.is_draining() {
        reasons.push("draining".to_owned());
    }
    reasons.extend(node.tasks.troubles());
    reasons.extend(clock_trouble(node).map(|trouble| format!("clock: {trouble}")));
    match node.running() {
        None => reasons.push(node.waiting_for()),
        Some(running) => {
            let shards = running.shards.all();
            reasons.extend(shards.iter().filter_map(|shard| {
                let trouble = shard_trouble(node, shard)?;
                Some(format!("shard {}: {trouble}", shard.index))
            }));
            if let Some(keeper) = running.keeper() {
                let shards = shards.iter();
                reasons.extend(shards.filter_map(|shard| {
                    let trouble = keeper.trouble(shard.index)?;
                    Some(format!("shard {}: {trouble}", shard.index))
                }));
            }
            reasons.extend(running.consumer_troubles().await);
            for stream in running.streams().await {
                if let Some(trouble) = stream_trouble(node, &stream) {
                    let name = streams::name(&node.manifest, stream.stream);
                    reasons.push(format!("{name} is not being read{trouble}"));
                }
            }
            reasons.extend(unstored(node));
            if node.is_deaf() {
                reasons.push("requests that other processes forward are not heard".to_owned());
            }
        }
    }
    Readiness {
        ready: reasons.is_empty(),
        reasons,
        absent_shards: node.absent_shards(),
        revision: node.catalog.now().revision,
    }
}

/// Each check, told.
pub(super) async fn health(node: &Node) -> Health {
    let mut checks = Vec::new();
    let Some(running) = node.running() else {
        checks.push(check("start", Err(node.waiting_for())));
        return Health {
            healthy: false,
            checks,
        };
    };
    checks.push(check(
        "broker",
        match running.broker.ping().await {
            Ok(took) => Ok(format!("answers in {:.1} ms", took.as_secs_f64() * 1_000.0)),
            Err(error) => Err(error.to_string()),
        },
    ));
    checks.push(check("definitions", definitions_check(node)));
    checks.push(check(
        "clock",
        match clock_trouble(node) {
            None => Ok("it shows the broker's time".to_owned()),
            Some(trouble) => Err(trouble),
        },
    ));
    for stream in running.streams().await {
        let name = streams::name(&node.manifest, stream.stream);
        checks.push(check(name, stream_check(node, running, &stream).await));
    }
    let unstored = unstored(node);
    checks.push(check(
        "publications",
        if unstored.is_empty() {
            Ok("all are stored".to_owned())
        } else {
            Err(unstored.join("; "))
        },
    ));
    checks.extend(node.trail.check().map(|outcome| check("audit", outcome)));
    let archive = running.archive_seen.check();
    checks.extend(archive.map(|outcome| check("archive", outcome)));
    for shard in 0..node.manifest.shards {
        let name = format!("shard {shard}");
        match (running.shards.get(shard), &running.common) {
            (Some(shard), _) => checks.push(check(&name, shard_check(node, &shard).await)),
            (None, Some(common)) => {
                let owner = common.absent.owner(shard).await;
                checks.push(check(&name, Ok(format!("not open in this process: {owner}"))));
            }
            (None, None) => {}
        }
    }
    if running.common.is_some() {
        checks.push(check("effects", effects_check(node).await));
    }
    let planned = &node.catalog.now().consumers;
    checks.push(consumers::check(running, &node.consumers_seen, planned).await);
    let troubles = node.tasks.troubles();
    checks.push(check(
        "tasks",
        if troubles.is_empty() {
            Ok("all run".to_owned())
        } else {
            Err(troubles.join("; "))
        },
    ));
    Health {
        healthy: checks.iter().all(|check| check.ok),
        checks,
    }
}

fn check(name: &str, outcome: Result<String, String>) -> Check {
    let ok = outcome.is_ok();
    let (Ok(detail) | Err(detail)) = outcome;
    Check {
        name: name.to_owned(),
        ok,
        detail,
    }
}

/// Findings of refused definitions that are told; `/info` has more.
const FINDINGS_TOLD: usize = 3;

/// Whether the definitions are those of the files, as they were read last.
fn definitions_check(node: &Node) -> Result<String, String> {
    let revision = node.catalog.now().revision;
    let Some(last) = node.last_reload().filter(|last| !last.ok) else {
        return Ok(format!("revision {revision} is in force"));
    };
    let mut told = vec![format!(
        "revision {revision} stays in force, because those of {} are refused: {}",
        last.time, last.message
    )];
    let errors = last
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error);
    told.extend(errors.clone().take(FINDINGS_TOLD).map(ToString::to_string));
    let more = errors.count().saturating_sub(FINDINGS_TOLD);
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    Err(told.join("; "))
}

/// Whether files declare all effects that live instances may call.
async fn effects_check(node: &Node) -> Result<String, String> {
    let missing = undeclared::told(node).await.map_err(|error| error.to_string())?;
    if missing.is_empty() {
        Ok("files declare all that live instances may call".to_owned())
    } else {
        Err(missing.join("; "))
    }
}

/// How the clock of the machine differs from the broker's, where it does so by more than it may.
fn clock_trouble(node: &Node) -> Option<String> {
    let ahead_ms = node.broker_clock.ahead_ms()?;
    let differs = Duration::from_millis(ahead_ms.unsigned_abs());
    let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
    (differs > node.manifest.clock_difference_max.duration()).then(|| {
        let seconds = differs.as_secs_f64();
        format!("the clock of this machine is {seconds:.1} s {direction} the broker's")
    })
}

/// Streams that have taken no message for too long.
fn unstored(node: &Node) -> Vec<String> {
    node.tasks
        .stuck()
        .longer_than(node.manifest.stalled_after.duration())
}

/// What is wrong with the reading of a stream, as the end of a sentence.
fn stream_trouble(node: &Node, stream: &StreamStatus) -> Option<String> {
    if !stream.connected {
        return Some(String::new());
    }
    // At rest it is looked at once in an interval; the look may just have begun when the last one was over.
    let at_rest = node.manifest.intake.watermark_interval.duration() * 2;
    let stalled = stream.quiet > node.manifest.stalled_after.duration() + at_rest;
    stalled.then(|| format!(": no progress for {} s", stream.quiet.as_secs()))
}

async fn stream_check(node: &Node, running: &Running, stream: &StreamStatus) -> Result<String, String> {
    if let Some(halt) = &stream.halted {
        return Err(format!("{}: {}", halt.reason, halt.message));
    }
    if !stream.connected {
        let name = streams::name(&node.manifest, stream.stream);
        let why = match running.broker.stream_state(name).await {
            Ok(_) => "its reader is being opened".to_owned(),
            Err(error) => error.to_string(),
        };
        return Err(format!("it is not being read: {why}"));
    }
    let behind = format!("{} message(s) behind", stream.lag);
    match stream_trouble(node, stream) {
        Some(trouble) => Err(format!("{behind}{trouble}")),
        None => Ok(behind),
    }
}

fn shard_trouble(node: &Node, shard: &shards::Shown) -> Option<String> {
    match shard.status.state() {
        ShardState::Running => {
            let idle = node
                .clock
                .monotonic()
                .saturating_sub(shard.status.last_progress());
            // At rest it looks around once in that time.
            let stalled = idle > node.manifest.stalled_after.duration() + shard::IDLE;
            let reading = || Some(format!("cannot read its state: {}", shard.status.unreadable()?));
            stalled.then(|| stalled_for(idle)).or_else(reading)
        }
        ShardState::Full(message) => Some(format!("storage is full: {message}")),
        ShardState::Halted { reason, message } => Some(format!("halted, {reason}: {message}")),
        ShardState::Stopped => Some("stopped".to_owned()),
    }
}

fn stalled_for(idle: Duration) -> String {
    format!("no progress for {} s", idle.as_secs())
}

async fn shard_check(node: &Node, shard: &shards::Shown) -> Result<String, String> {
    let keeper = node.running().and_then(Running::keeper);
    let unowned = || keeper.and_then(|keeper| keeper.trouble(shard.index));
    if let Some(trouble) = shard_trouble(node, shard).or_else(unowned) {
        return Err(trouble);
    }
    if shard.status.is_outdated() {
        let message = "it had no room for the definitions of the last reload; make room and reload again";
        return Err(message.to_owned());
    }
    let reader = shard.reader.clone();
    let rows = blocking(&node.tasks, move || reader.check())
        .await
        .map_err(|error| error.to_string())?;
    let unversioned = shard.status.instances_unversioned();
    if unversioned > 0 {
        return Err(format!(
            "the definition of {unversioned} instance(s) is not loaded; their inputs wait"
        ));
    }
    Ok(format!(
        "{} live and {} ended instance(s), {} in the outbox, {} timer(s), {} dead letter(s)",
        rows.live, rows.ended, rows.outbox, rows.timers, rows.dead_letters
    ))
}
