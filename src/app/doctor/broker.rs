//! The broker: whether it is reached and new enough, what its streams are and could lose, and what its clock shows.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Checked;
use crate::app::{SystemClock, archive, cluster, reach_broker, streams};
use crate::broker_clock::BrokerClock;
use crate::config::{BrokerKind, Manifest};
use crate::kernel::input::SourceStream;
use crate::nats::{ConnectError, NatsBroker};
use crate::ports::broker::{Broker, BrokerError, StreamState};

pub(super) async fn examine(
    manifest: &Manifest,
    monitor: Option<&Result<Value, String>>,
    positions: &[(u16, [u64; 3])],
) -> Vec<Checked> {
    match manifest.broker.kind {
        BrokerKind::Embedded => embedded(manifest, positions).await,
        BrokerKind::Nats => nats(manifest, monitor, positions).await,
    }
}

async fn embedded(manifest: &Manifest, positions: &[(u16, [u64; 3])]) -> Vec<Checked> {
    if !manifest.data_dir.join("broker").is_dir() {
        return vec![Checked::ok("broker", "embedded, and holds nothing yet")];
    }
    let clock = Arc::new(SystemClock::new());
    match reach_broker(manifest, clock).await {
        Ok(broker) => {
            let mut checks = vec![Checked::ok("broker", "embedded, its file opens")];
            checks.extend(archive(&*broker, manifest).await);
            let [events, results, commands] = states(&*broker, manifest).await;
            checks.extend(lost(manifest, positions, &[events, results, commands]));
            checks
        }
        Err(error) => vec![Checked::warn(
            "broker",
            error.to_string(),
            "it is well if the runner has it open, which `doctor --url` asks",
        )],
    }
}

async fn nats(
    manifest: &Manifest,
    monitor: Option<&Result<Value, String>>,
    positions: &[(u16, [u64; 3])],
) -> Vec<Checked> {
    let settings = &manifest.broker.nats;
    let broker = match NatsBroker::connect(settings.clone()).await {
        Ok(broker) => broker,
        Err(error) => return vec![Checked::fail("broker", error.to_string(), "correct broker.nats")],
    };
    let patience = settings.connect_timeout.duration() + settings.request_timeout.duration();
    let mut checks = Vec::new();
    match broker.connected_within(patience).await {
        Ok(version) => checks.push(Checked::ok("broker", format!("nats-server {version}"))),
        Err(error) => {
            let fix = if matches!(error, ConnectError::Unreached { .. }) {
                "check the address, the network, and who the runner is for the server"
            } else {
                "upgrade nats-server (SR0301)"
            };
            return vec![Checked::fail("broker", error.to_string(), fix)];
        }
    }
    if let Err(error) = broker.has_jetstream().await {
        let fix = "turn JetStream on in the server, and for the account";
        checks.push(Checked::fail("jetstream", error.to_string(), fix));
        return checks;
    }
    checks.push(Checked::ok("jetstream", "on for this account"));
    checks.push(durability(manifest, monitor));
    checks.extend(of_streams(&*broker, manifest).await);
    checks.extend(archive(&*broker, manifest).await);
    let asking = clock(&*broker, manifest).await;
    checks.extend(asking);
    let states = states(&*broker, manifest).await;
    checks.extend(lost(manifest, positions, &states));
    checks
}

/// Whether what the server has acknowledged outlives a loss of power.
fn durability(manifest: &Manifest, monitor: Option<&Result<Value, String>>) -> Checked {
    let check = "sync";
    let replicas = manifest.streams.replicas;
    let fix = "set `sync_interval: always` under `jetstream` of the server, or keep three replicas on machines that do not fail together";
    match monitor {
        Some(Ok(told)) => {
            let config = &told["jetstream"]["config"];
            if config["sync_always"] == true {
                return Checked::ok(check, "every message is synced before it is acknowledged");
            }
            let interval = Duration::from_nanos(config["sync_interval"].as_u64().unwrap_or(0));
            let detail = format!(
                "the server syncs every {} s: what it acknowledged since can be lost in a loss of power",
                interval.as_secs()
            );
            if replicas >= 3 {
                return Checked::ok(check, format!("{detail}, if all {replicas} replicas have one"));
            }
            Checked::warn(check, detail, fix)
        }
        Some(Err(error)) => Checked::warn(check, format!("the server does not tell: {error}"), fix),
        None if replicas >= 3 => Checked::ok(check, format!("{replicas} replicas")),
        None => Checked::warn(
            check,
            "not known: only the server's monitoring port tells it",
            "give --nats-monitor http://HOST:8222, or make sure that the server has `sync_interval: always`",
        ),
    }
}

/// What each stream and the bucket must be, and whether they are it.
async fn of_streams(broker: &dyn Broker, manifest: &Manifest) -> Vec<Checked> {
    let mut checks = Vec::new();
    let by_start = manifest.streams.manage;
    let absent = |name: &str, what: &str| {
        let fix = "`saga-runner streams apply` creates it";
        if by_start {
            Checked::ok(
                name,
                format!("{what} does not exist yet; the first start creates it"),
            )
        } else {
            Checked::fail(name, format!("{what} does not exist"), fix)
        }
    };
    let all = streams::specs(manifest)
        .into_iter()
        .chain([streams::audit(manifest)])
        .chain(archive::spec(manifest));
    for spec in all {
        let name = format!("stream {}", spec.name);
        let fix = if spec.foreign {
            "change the stream: it belongs to the aggregates"
        } else {
            "`saga-runner streams apply` changes it"
        };
        let check = match broker.check_stream(&spec).await {
            Ok(differences) if differences.is_empty() => {
                Checked::ok(&name, format!("has {}", spec.subjects.join(", ")))
            }
            Ok(differences) => Checked::fail(&name, differences.join("; "), fix),
            Err(BrokerError::NoStream(_)) => absent(&name, "it"),
            Err(error) => Checked::fail(
                &name,
                error.to_string(),
                "check the permissions of the runner's user",
            ),
        };
        checks.push(check);
    }
    match streams::limits_not_accepted(broker, manifest).await {
        Ok(limits) if limits.is_empty() => {}
        Ok(limits) => checks.push(Checked::fail(
            "unread events",
            limits.join("; "),
            "remove the limit (SR0303)",
        )),
        // It is told above.
        Err(_) => {}
    }
    if manifest.mode.runs_sagas() {
        let spec = cluster::bucket(manifest);
        let name = format!("bucket {}", spec.name);
        checks.push(match broker.check_bucket(&spec).await {
            Ok(differences) if differences.is_empty() => Checked::ok(&name, "as it must be"),
            Ok(differences) => Checked::fail(
                &name,
                differences.join("; "),
                "`saga-runner streams apply` changes it",
            ),
            Err(BrokerError::NoStream(_)) => absent(&name, "it"),
            Err(error) => Checked::fail(
                &name,
                error.to_string(),
                "check the permissions of the runner's user",
            ),
        });
    }
    checks
}

/// What the archive holds, and whether it has room for more.
async fn archive(broker: &dyn Broker, manifest: &Manifest) -> Option<Checked> {
    let settings = manifest.storage.archive.as_ref()?;
    archive::spec(manifest)?;
    // One that is away is told of with the streams.
    let state = broker.stream_state(&settings.stream).await.ok()?;
    let kept = settings.max_age.map_or_else(
        || "are kept without end".to_owned(),
        |age| {
            format!(
                "are kept for {} s (storage.archive.max_age)",
                age.duration().as_secs()
            )
        },
    );
    let of = settings
        .max_bytes
        .map_or_else(String::new, |most| format!(" of {most}"));
    let (entries, bytes) = (state.messages, state.bytes);
    let detail = format!("{entries} entries, {bytes}{of} bytes; they {kept}");
    let fix = "raise storage.archive.max_bytes, or lower storage.archive.max_age: a full archive takes nothing, and nothing is deleted then";
    Some(match settings.max_bytes {
        Some(most) if bytes >= most => Checked::fail("archive", detail, fix),
        Some(most) if bytes >= most - most / 10 => Checked::warn("archive", detail, fix),
        _ => Checked::ok("archive", detail),
    })
}

/// How far the clock of this machine is from the broker's.
async fn clock(broker: &dyn Broker, manifest: &Manifest) -> Option<Checked> {
    let clock = BrokerClock::new(Arc::new(SystemClock::new()));
    for stream in SourceStream::ALL {
        let asked = clock.ask();
        let Ok(state) = broker.stream_state(streams::name(manifest, stream)).await else {
            continue;
        };
        clock.told(stream, asked, state.told);
        let most = manifest.clock_difference_max.duration();
        return Some(judged(clock.ahead_ms()?, most));
    }
    None
}

fn judged(ahead_ms: i64, most: Duration) -> Checked {
    let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let seconds = Duration::from_millis(ahead_ms.unsigned_abs());
    let detail = format!("{:.1} s {direction} the broker's", seconds.as_secs_f64());
    if seconds > most {
        return Checked::fail(
            "clock",
            detail,
            "let NTP set both; timers go by the broker's clock",
        );
    }
    Checked::ok("clock", detail)
}

async fn states(broker: &dyn Broker, manifest: &Manifest) -> [Option<StreamState>; 3] {
    let mut states = [None, None, None];
    for stream in SourceStream::ALL {
        states[stream.index()] = broker.stream_state(streams::name(manifest, stream)).await.ok();
    }
    states
}

/// What the streams have lost that a shard has not read.
fn lost(
    manifest: &Manifest,
    positions: &[(u16, [u64; 3])],
    states: &[Option<StreamState>; 3],
) -> Vec<Checked> {
    let mut checks = Vec::new();
    for stream in SourceStream::ALL {
        let Some(state) = &states[stream.index()] else {
            continue;
        };
        let name = streams::name(manifest, stream);
        for (shard, read) in positions {
            let read = read[stream.index()];
            let detail = if state.first_sequence > read + 1 {
                format!(
                    "{name} begins at {}, and the shard has read only up to {read}",
                    state.first_sequence
                )
            } else if state.last_sequence < read {
                format!(
                    "{name} ends at {}, and the shard has read up to {read}: it was created again or put back",
                    state.last_sequence
                )
            } else {
                continue;
            };
            let fix = "restore the stream; or accept what is lost, once the shard has halted: `saga-runner shard` (docs/operations.md)";
            checks.push(Checked::fail(&format!("positions of shard {shard}"), detail, fix));
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::{Duration, judged};

    #[test]
    fn a_clock_may_differ_by_as_much_as_the_manifest_says() {
        for (ahead_ms, expected, says) in [
            (0, Status::Ok, "0.0 s"),
            (2_000, Status::Ok, "2.0 s ahead of"),
            (2_001, Status::Fail, "ahead of"),
            (-2_000, Status::Ok, "2.0 s behind"),
            (-2_001, Status::Fail, "behind"),
            (i64::MIN, Status::Fail, "behind"),
            (i64::MAX, Status::Fail, "ahead of"),
        ] {
            let checked = judged(ahead_ms, Duration::from_secs(2));
            assert_eq!(checked.status, expected, "{ahead_ms}");
            assert!(checked.detail.contains(says), "{ahead_ms}: {}", checked.detail);
        }
    }
}
