//! Watching an instance: what happens to it comes as server-sent events, and a watch goes on where it broke off.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, instance, post, until};
use crate::api::conflicts::{on_nats, start};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

/// The events of a stream, as far as they have come.
pub(super) struct Stream {
    response: reqwest::Response,
    text: String,
}

impl Stream {
    pub async fn open(rig: &Rig, path: &str, last: Option<&str>) -> Self {
        let mut request = rig.client.get(rig.url(path));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
        }
    }

    /// Reads until `wanted` is there, or the stream ends.
    pub async fn until(
        &mut self,
        wanted: impl Fn(&[(Option<u64>, Value)]) -> bool,
    ) -> Vec<(Option<u64>, Value)> {
        let read = async {
            while !wanted(&self.events()) {
                match self.response.chunk().await {
                    Ok(Some(chunk)) => self.text.push_str(&String::from_utf8_lossy(&chunk)),
                    Ok(None) | Err(_) => break,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), read)
            .await
            .expect("in time");
        self.events()
    }

    fn events(&self) -> Vec<(Option<u64>, Value)> {
        let whole = self.text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
        let events = whole.split("\n\n").map(|event| {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            let data = field("data: ").map(|data| serde_json::from_str(data).expect("JSON"));
            (field("id: ").map(|id| id.parse().expect("a number")), data)
        });
        events.filter_map(|(id, data)| Some((id, data?))).collect()
    }
}

pub(super) fn inputs(events: &[(Option<u64>, Value)]) -> Vec<String> {
    let named = events.iter().filter(|(id, _)| id.is_some());
    named
        .map(|(_, data)| data["input"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_each_entry_once_and_goes_on_over_a_kill_until_the_end() {
    let server = NatsServer::start();
    let mut rig = on_nats(&server, json!({"http": {"streams_max": 1}})).await;
    let path = instance("acme", "patient", "s-1");
    let events = format!("{path}/events");
    assert_eq!(get(&rig, &events).await.status, 404);
    start(&rig, &json!({"key": "s-1", "request_id": "r-1"})).await;
    let mut stream = Stream::open(&rig, &events, None).await;
    let seen = stream.until(|events| !events.is_empty()).await;
    assert_eq!(inputs(&seen), ["r-1"]);
    get(&rig, &events).await.is_problem(503, "SR0504");
    post(
        &rig,
        &format!("{path}/pause"),
        json!({"request_id": "p-1"}).to_string(),
    )
    .await;
    let seen = stream.until(|events| events.len() >= 2).await;
    assert_eq!(inputs(&seen), ["r-1", "p-1"]);
    let last = seen[1].0.expect("its id");
    assert!(last > seen[0].0.expect("its id"));
    assert_eq!(seen[1].1["id"], last);

    rig.kill();
    drop(stream);
    rig.start().await;
    post(
        &rig,
        &format!("{path}/resume"),
        json!({"request_id": "p-2"}).to_string(),
    )
    .await;
    let mut stream = Stream::open(&rig, &events, Some(&last.to_string())).await;
    let seen = stream.until(|events| !events.is_empty()).await;
    assert_eq!(inputs(&seen), ["p-2"], "what came meanwhile, and nothing twice");
    post(
        &rig,
        &format!("{path}/kill"),
        json!({"request_id": "p-3", "reason": "x"}).to_string(),
    )
    .await;
    let seen = stream
        .until(|events| events.iter().any(|(id, _)| id.is_none()))
        .await;
    assert_eq!(inputs(&seen), ["p-2", "p-3"]);
    let (_, end) = seen.last().expect("the end");
    assert_eq!(end["phase"], "cancelled", "{end}");
    assert_eq!(
        stream.until(|_| false).await.len(),
        3,
        "nothing comes behind the end"
    );

    // One that ended long ago is told to its end at once; ids that are none are refused.
    let mut stream = Stream::open(&rig, &format!("{events}?newest=1"), None).await;
    assert_eq!(inputs(&stream.until(|_| false).await), ["p-3"]);
    drop(stream);
    let request = rig.client.get(rig.url(&events)).header("last-event-id", "x");
    assert_eq!(request.send().await.expect("an answer").status().as_u16(), 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_the_drain_and_does_not_hold_it_up() {
    let server = NatsServer::start();
    let mut rig = on_nats(&server, json!({})).await;
    start(&rig, &json!({"key": "d-1", "request_id": "r-1"})).await;
    let mut stream = Stream::open(
        &rig,
        &format!("{}/events", instance("acme", "patient", "d-1")),
        None,
    )
    .await;
    stream.until(|events| !events.is_empty()).await;
    let begun = std::time::Instant::now();
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(stream.until(|_| false).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_prints_a_line_for_each_entry_until_the_end() {
    let server = NatsServer::start();
    let rig = on_nats(&server, json!({})).await;
    start(&rig, &json!({"key": "c-1", "request_id": "r-1"})).await;
    let url = rig.url("");
    let watch = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command.args([
            "instance", "watch", "patient", "c-1", "--tenant", "acme", "--url", &url,
        ]);
        command
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts")
    };
    let (people, lines) = (watch(&[]), watch(&["-o", "jsonl"]));
    let path = instance("acme", "patient", "c-1");
    post(
        &rig,
        &format!("{path}/signals/go"),
        json!({"request_id": "s-1"}).to_string(),
    )
    .await;
    until(&rig, &path, |view| view["steps"][2]["status"] == "waiting").await;
    post(
        &rig,
        &format!("{path}/kill"),
        json!({"request_id": "k-1", "reason": "x"}).to_string(),
    )
    .await;
    let ended = |child: std::process::Child| {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let (people, lines) = tokio::task::spawn_blocking(move || (ended(people), ended(lines)))
        .await
        .expect("they end");
    assert!(
        people.contains("signal go") && people.contains("step pay done"),
        "{people}"
    );
    assert!(people.trim_end().ends_with("ended: cancelled"), "{people}");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let told: Vec<&Value> = lines.iter().map(|line| &line["input"]).collect();
    assert_eq!(
        (told[0], told[1], told[told.len() - 2]),
        (&json!("r-1"), &json!("s-1"), &json!("k-1"))
    );
    assert_eq!(lines[lines.len() - 1]["phase"], "cancelled");
}
