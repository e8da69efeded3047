//! A runner process, killed with SIGKILL again and again around planned times of every minute.
//!
//! Nobody waits for real minutes: the process is this test program, started anew as [`the_runner`], whose clock goes
//! [`FASTER`] times as fast as the machine's. Everything behind the clock is what the binary runs.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use saga_runner::app::{self, SystemClock};
use saga_runner::config::{Manifest, Overrides};
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::clock::Clock;
use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;
use crate::support::other_time::{OtherTime, Shift};
use crate::support::rig::Rig;

const MINUTELY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: minutely
schedule: {cron: "* * * * *", overlap: allow, catch_up: all}
state: {init: {}}
steps:
  count: {effect: count, with: {at: "${input.time}"}}
"#;

const COUNT: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: count
input: {type: object}
transform: {}
result: {at: "${input.at}"}
"#;

/// Planned times that the runner is killed around.
const MINUTES: u64 = 2;
const TENANTS: [&str; 2] = ["acme", "globex"];
/// How often the clock of the runner goes round while that of the machine goes round once: a minute takes two seconds.
const FASTER: u64 = 30;
/// When the clocks showed the same time, in milliseconds, and where the manifest is.
const SINCE: &str = "FAST_CLOCK_SINCE";
const MANIFEST: &str = "FAST_CLOCK_MANIFEST";

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("a time of this age")
}

/// A clock that showed the machine's time at `since`, and has been faster from then on.
struct FastClock {
    clock: SystemClock,
    since: u64,
}

impl FastClock {
    fn now_ms(since: u64) -> u64 {
        since + now_ms().saturating_sub(since) * FASTER
    }

    /// The clock of a broker in the same time.
    fn shift(&self) -> Shift {
        let since = i64::try_from(self.since).expect("a time of this age");
        let faster = i64::try_from(FASTER).expect("small");
        Arc::new(move |time| TimeMs(since + (time.0 - since) * faster))
    }
}

impl Clock for FastClock {
    fn now(&self) -> TimeMs {
        TimeMs(i64::try_from(Self::now_ms(self.since)).expect("a time of this age"))
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

#[test]
#[ignore = "the process that the other tests here start and kill"]
fn the_runner() {
    let path = std::env::var_os(MANIFEST).expect("started by another test");
    let since = std::env::var(SINCE).expect("started by another test");
    let clock = FastClock {
        clock: SystemClock::new(),
        since: since.parse().expect("milliseconds"),
    };
    let manifest = Manifest::load(path.as_ref(), &Overrides::default()).expect("a manifest");
    let shift = clock.shift();
    app::main_with_adapters(manifest, Arc::new(clock), Arc::new(OtherTime(shift)))
        .expect("it runs until it is killed");
}

fn launch(rig: &mut Rig, since: u64) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "--exact",
            "schedules::killed::the_runner",
            "--ignored",
            "--nocapture",
        ])
        .env(SINCE, since.to_string())
        .env(MANIFEST, rig.manifest());
    rig.launch_as(command);
}

async fn get(rig: &Rig, path: &str) -> Option<Value> {
    let answer = rig.client.get(rig.url(path)).send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}

/// Kills and starts the runner until some planned times are over, then looks for one completed run of each.
async fn each_minute_runs_once_under_kills(nats: Option<String>) {
    let settings = json!({
        "worker": {"ack_wait": "2s"},
        // Its monotonic clock goes as that of the machine does, so the broker's time is heard often.
        "intake": {"watermark_interval": "50ms"},
        "clock_difference_max": "5m",
    });
    let mut rig = Rig::new(nats, "30m", Duration::ZERO, settings).await;
    rig.add_saga("minutely", MINUTELY);
    rig.add_effect("count", COUNT);
    let since = now_ms();
    launch(&mut rig, since);
    rig.wait_until_ready().await;
    let schedule = "/v1/tenants/acme/sagas/minutely/schedule";
    // A shard is ready before its first commit tells of its schedules.
    let first = loop {
        match get(&rig, schedule).await {
            Some(view) if view["next"].is_string() => break view["next"].clone(),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let end = FastClock::now_ms(since) / 60_000 * 60_000 + MINUTES * 60_000 + 30_000;
    let mut kills = 0;
    while FastClock::now_ms(since) < end {
        // Shortly before a planned time, and at another moment after it each time.
        let to_minute = (60_000 - FastClock::now_ms(since) % 60_000) / FASTER;
        let pause = if to_minute > 500 {
            to_minute - 150
        } else {
            100 + kills * 7_919 % 400
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        rig.kill();
        kills += 1;
        launch(&mut rig, since);
    }
    rig.kill();
    launch(&mut rig, since);
    rig.wait_until_ready().await;
    assert!(kills >= 4, "only {kills} kills");
    let first: jiff::Timestamp = first.as_str().expect("a time").parse().expect("RFC 3339");
    for tenant in TENANTS {
        until_complete(&rig, tenant, first).await;
    }
}

async fn until_complete(rig: &Rig, tenant: &str, first: jiff::Timestamp) {
    let list = format!("/v1/tenants/{tenant}/sagas/minutely/instances?limit=500");
    let begin = Instant::now();
    loop {
        let found = get(rig, &list).await.unwrap_or_default();
        let items = found["items"].as_array().cloned().unwrap_or_default();
        let keys: Vec<&str> = items.iter().filter_map(|item| item["key"].as_str()).collect();
        let completed = items.iter().filter(|item| item["phase"] == "completed").count();
        // Every minute from the first one on, as long as this takes. The schedules of a tenant begin with its shard, which
        // may have been a minute before another one told of them.
        let times = keys.iter().filter_map(|key| key.parse::<jiff::Timestamp>().ok());
        let from = times.min().map_or(first, |earliest| first.min(earliest));
        let wanted: BTreeSet<String> = (0..items.len())
            .filter_map(|minute| {
                let minutes = jiff::SignedDuration::from_mins(i64::try_from(minute).ok()?);
                Some((from + minutes).to_string())
            })
            .collect();
        let distinct: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let enough = u64::try_from(items.len()).is_ok_and(|runs| runs >= MINUTES);
        if enough && completed == items.len() {
            assert_eq!(distinct, wanted, "{tenant}");
            assert_eq!(keys.len(), distinct.len(), "{tenant}: a planned time ran twice");
            for item in &items {
                assert_eq!(item["input"]["time"], item["key"]);
            }
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "{tenant}: {completed} of {keys:?} are completed\n{}",
            rig.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_minute_runs_once_under_kills_on_the_embedded_broker() {
    each_minute_runs_once_under_kills(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_minute_runs_once_under_kills_on_nats() {
    let server = NatsServer::start();
    each_minute_runs_once_under_kills(Some(server.url())).await;
}
