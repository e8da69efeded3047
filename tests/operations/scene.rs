//! One cluster for all cases: a nats-server, a runner that has the shards, and one in mode `effect` that has none.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::definitions;
use crate::api::caller::{event, instance, items};
use crate::api::generated::document::Document;
use crate::api::generated::wire::Answer;
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

pub const TENANT: &str = "acme";
/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// Instances that the slow jobs select, of which they do one a second.
const MANY: usize = 20;
/// Keys of instances of `poll`; those of each shard are two at least.
const POLLS: [&str; 8] = [
    "poll-0", "poll-1", "poll-2", "poll-3", "poll-4", "poll-5", "poll-6", "poll-7",
];

/// What the effects call: rejects the first call of each path below `/once`, and takes all others.
#[derive(Default)]
struct Desk {
    called: Mutex<BTreeSet<String>>,
}

impl Respond for Desk {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let path = request.url.path().to_owned();
        let is_once = path.starts_with("/once/");
        let is_first = self.called.lock().expect("not poisoned").insert(path);
        if is_once && is_first {
            ResponseTemplate::new(422)
        } else {
            ResponseTemplate::new(200).set_body_json(json!({"id": 1}))
        }
    }
}

/// A process of the cluster.
pub struct Process {
    pub url: String,
    pub rig: tokio::sync::Mutex<Rig>,
}

pub struct Scene {
    pub owner: Process,
    pub other: Process,
    pub server: NatsServer,
    pub desk: MockServer,
    folder: TempDir,
    client: reqwest::Client,
    document: Document,
    asked: Mutex<BTreeSet<&'static str>>,
    many: OnceCell<()>,
}

/// docs/openapi.json.
pub fn document() -> Document {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    let text = std::fs::read_to_string(path).expect("readable");
    Document::of(&serde_json::from_str(&text).expect("JSON"))
}

pub fn json_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", text_of(answer)))
}

pub fn text_of(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

async fn process(server: &NatsServer, extra: Value) -> Rig {
    let rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    for (name, text) in definitions::SAGAS {
        rig.add_saga(name, text);
    }
    for (name, text) in definitions::effects() {
        rig.add_effect(name, &text);
    }
    rig
}

impl Scene {
    pub async fn start() -> Self {
        let server = NatsServer::start();
        let desk = MockServer::start().await;
        Mock::given(any())
            .respond_with(Desk::default())
            .mount(&desk)
            .await;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let key = folder.path().join("key");
        std::fs::write(&key, "a key for the callbacks of a test\n").expect("written");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("its permissions");
        let extra = |mode: &str| {
            json!({
                "mode": mode,
                "upstreams": {"desk": desk.uri()},
                "callbacks": {"key": {"file": key}},
                // A shard that has nothing to read is soon known to have read everything, and a stream that was created again is
                // not waited for.
                "intake": {"watermark_interval": "100ms"},
                "shard": {"catch_up_wait": "1s"},
            })
        };
        let mut owner = process(&server, extra("combined")).await;
        let mut other = process(&server, extra("effect")).await;
        // The first one creates the streams.
        owner.start().await;
        other.start().await;
        let client = owner.client.clone();
        let [owner, other] = [owner, other].map(|rig| Process {
            url: rig.url(""),
            rig: tokio::sync::Mutex::new(rig),
        });
        Self {
            owner,
            other,
            server,
            desk,
            folder,
            client,
            document: document(),
            asked: Mutex::default(),
            many: OnceCell::new(),
        }
    }

    /// A file of the scene, which may not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the effects call, as breakers name it.
    pub fn upstream(&self) -> String {
        self.desk.address().to_string()
    }

    /// A case has sent its request, or run its command.
    pub fn has_done(&self, name: &'static str) {
        self.asked.lock().expect("not poisoned").insert(name);
    }

    pub fn is_done(&self, name: &str) -> bool {
        self.asked.lock().expect("not poisoned").contains(name)
    }

    /// What is wrong with an answer, by the document.
    pub fn fault(&self, operation: &str, answer: &Answer) -> Option<String> {
        let mut operations = self.document.operations.iter();
        let operation = operations
            .find(|known| known.name() == operation)
            .expect("an operation of the document");
        self.document.fault(operation, answer, false)
    }

    /// Opens what does not end by itself.
    pub async fn open(&self, process: &Process, path: &str) -> reqwest::Response {
        let request = self.client.get(format!("{}{path}", process.url));
        request.send().await.expect("an answer")
    }

    /// Whether a process takes connections.
    pub async fn is_listening(&self, process: &Process) -> bool {
        let request = self.client.get(format!("{}/live", process.url));
        request.send().await.is_ok()
    }

    /// Sends a request.
    pub async fn send(&self, process: &Process, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.client.request(method, format!("{}{path}", process.url));
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await.expect("an answer");
        let headers = response.headers().iter();
        let headers = headers.map(|(name, value)| {
            let value = value.to_str().expect("visible").to_owned();
            (name.as_str().to_owned(), value)
        });
        let (status, headers) = (response.status().as_u16(), headers.collect());
        let body = response.bytes().await.expect("a whole answer").to_vec();
        Answer {
            status,
            headers,
            body,
        }
    }

    /// Prepares a case: a POST that must be answered with 2xx.
    pub async fn post(&self, process: &Process, path: &str, body: Value) -> Value {
        let answer = self.send(process, Method::POST, path, Some(&body)).await;
        let text = text_of(&answer);
        assert!((200..300).contains(&answer.status), "{path}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// What the process without shards shows of a path.
    pub async fn shown(&self, path: &str) -> Value {
        let answer = self.send(&self.other, Method::GET, path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", text_of(&answer));
        json_of(&answer)
    }

    /// Asks the process without shards until `wanted` holds.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until_at(&self.other, path, wanted).await
    }

    pub async fn until_at(&self, process: &Process, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let answer = self.send(process, Method::GET, path, None).await;
            if answer.status == 200 {
                let body = json_of(&answer);
                if wanted(&body) {
                    return body;
                }
            }
            let told = text_of(&answer);
            assert!(begin.elapsed() < PATIENCE, "{path} did not get there: {told}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts an instance by the process without shards, and gives its path.
    pub async fn begin(&self, saga: &str, key: &str) -> String {
        let starts = format!("/v1/tenants/{TENANT}/sagas/{saga}/instances?wait=60s");
        let body = json!({"key": key, "input": {}, "request_id": format!("start-{key}")});
        let started = self.post(&self.other, &starts, body).await;
        assert_eq!(started["outcome"]["state"], "applied", "{started}");
        instance(TENANT, saga, key)
    }

    /// Pauses an instance by another request, and waits until that is in the audit: the filter for its record.
    pub async fn audited(&self, key: &str) -> String {
        let path = self.begin("visit", key).await;
        let body = json!({"by": "ann", "reason": "a look"});
        self.request(&path, "pause", body).await;
        let filter = format!("action=instances.pause&key={key}");
        let path = format!("/v1/tenants/{TENANT}/audit?{filter}");
        self.until(&path, |page| !items(page).is_empty()).await;
        filter
    }

    /// A request to an instance that must be applied.
    pub async fn request(&self, path: &str, verb: &str, body: Value) {
        let path = format!("{path}/{verb}?wait=60s");
        let done = self.post(&self.other, &path, body).await;
        assert_eq!(done["outcome"]["state"], "applied", "{path}: {done}");
    }

    /// An instance of `visit` that waits for `leave`, with something to undo.
    pub async fn booked(&self, key: &str) -> String {
        let path = self.begin("visit", key).await;
        self.request(&path, "signals/go", json!({})).await;
        self.until(&path, |view| view["steps"][2]["status"] == "waiting")
            .await;
        path
    }

    /// An instance of `repair` whose compensation is stuck.
    pub async fn stuck(&self, key: &str) -> String {
        let path = self.begin("repair", key).await;
        let view = self
            .until(&path, |view| view["phase"] == "compensation_failed")
            .await;
        assert_eq!(view["ledger"][0]["status"], "stuck", "{view}");
        path
    }

    /// An instance of `patience` whose next attempt is an hour away.
    pub async fn backing_off(&self, key: &str) -> String {
        let path = self.begin("patience", key).await;
        self.until(&path, |view| view["steps"][0]["status"] == "backing_off")
            .await;
        path
    }

    /// Waits until an instance has ended.
    pub async fn ended(&self, path: &str) -> Value {
        self.until(path, |view| view["ended"].is_string()).await
    }

    /// Publishes an event; `id` names it.
    pub async fn publish(&self, kind: &str, id: &str, payload: &Value) -> Value {
        let body = event(TENANT, id, kind, payload);
        let body = serde_json::from_str(&body).expect("JSON");
        self.post(&self.other, &format!("/v1/tenants/{TENANT}/events"), body)
            .await
    }

    /// An instance of `ratio` with a dead letter, and the id of that.
    pub async fn letter(&self, key: &str) -> String {
        self.publish("Ratio.Opened", &format!("opened-{key}"), &json!({"ratio": key}))
            .await;
        let poison = json!({"ratio": key, "by": 0});
        self.publish("Ratio.Divided", &format!("divided-{key}"), &poison)
            .await;
        let path = format!("/v1/tenants/{TENANT}/dead-letters?key={key}");
        let page = self.until(&path, |page| !items(page).is_empty()).await;
        items(&page)[0]["id"].as_str().expect("an id").to_owned()
    }

    /// Stores a job that does one of many instances a second, and gives its id.
    pub async fn slow_job(&self) -> String {
        self.many.get_or_init(|| self.open_many()).await;
        let order = json!({
            "verb": "pause", "filter": {"saga": "ratio", "key_prefix": "many-"}, "rate": 1, "by": "ann", "reason": "slowly",
        });
        let job = self
            .post(&self.other, &format!("/v1/tenants/{TENANT}/jobs"), order)
            .await;
        job["id"].as_str().expect("an id").to_owned()
    }

    async fn open_many(&self) {
        for number in 0..MANY {
            let key = format!("many-{number}");
            self.publish("Ratio.Opened", &key, &json!({"ratio": key})).await;
        }
        let path = format!("/v1/tenants/{TENANT}/instances?key_prefix=many-");
        self.until(&path, |page| items(page).len() == MANY).await;
    }

    /// Ends a job, so that it is not in the way of others.
    pub async fn stop_job(&self, id: &str) {
        let path = format!("/v1/tenants/{TENANT}/jobs/{id}/stop");
        self.post(&self.other, &path, json!({})).await;
    }

    /// Brings a saga with two instances, `one` and `two`, and puts another version in force: the hashes of both.
    pub async fn deal(&self, saga: &str) -> [String; 2] {
        let [first, second] = definitions::deal(saga);
        let first = self.in_force(saga, &first).await;
        for key in ["one", "two"] {
            self.begin(saga, key).await;
        }
        let second = self.in_force(saga, &second).await;
        [first, second]
    }

    /// Puts the text of a saga in force, and gives the hash of that version.
    pub async fn in_force(&self, saga: &str, text: &str) -> String {
        self.owner.rig.lock().await.add_saga(saga, text);
        self.post(&self.owner, "/admin/reload", json!({})).await;
        self.active(saga).await
    }

    /// The hash of the version that is in force.
    pub async fn active(&self, saga: &str) -> String {
        let page = self.shown(&format!("/v1/definitions?saga={saga}")).await;
        let active = items(&page).iter().find(|version| version["active"] == true);
        let hash = active.expect("an active version")["hash"].as_str();
        hash.expect("a hash").to_owned()
    }

    /// Commands that no worker takes, some on each shard.
    pub async fn poll(&self) {
        for key in POLLS {
            self.begin("poll", key).await;
        }
    }

    /// The streams as their producers and administrators use them.
    pub async fn jetstream(&self) -> jetstream::Context {
        let client = async_nats::connect(self.server.url()).await;
        jetstream::new(client.expect("connected"))
    }

    /// The ends of the logs, for a failure.
    pub async fn logs(&self) -> String {
        let (owner, other) = (self.owner.rig.lock().await, self.other.rig.lock().await);
        format!("{}\n\n{}", owner.log_tail(), other.log_tail())
    }
}
