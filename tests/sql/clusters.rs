//! Money is moved once for each life of an instance, and for each cluster.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::sql::rig::{effect, postgres, until};

const TABLES: &str =
    "CREATE TABLE transfers (id serial PRIMARY KEY, account text NOT NULL, amount bigint NOT NULL);";

const SQL: &str = r#"
sql:
  database: "${upstreams.bank}"
  statements:
    - query: "INSERT INTO transfers (account, amount) VALUES ($1, $2) RETURNING id"
      bind: ["${input.account}", "${input.amount}"]
timeout: {connect: 5s, total: 10s}
result: {id: "${response.rows[0].id}"}
"#;

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: transfer
start: Transfer.Asked
key: {"Transfer.*": event.aggregate_id}
state: {init: {account: "", amount: 0}}
handlers:
  Transfer.Asked: {set: {account: "${event.data.account}", amount: "${event.data.amount}"}}
steps:
  book:
    effect: ledger-book
    with: {account: "${state.account}", amount: "${state.amount}"}
"#;

/// A runner on the embedded broker: a cluster of its own.
struct Runner {
    dir: TempDir,
    address: SocketAddr,
    process: Option<Child>,
    client: reqwest::Client,
}

impl Runner {
    async fn start(database: &str, keep_ended: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = saga_runner::app::nats_server::free_port().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for folder in ["sagas", "effects"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("effects/ledger-book.yaml"), effect(SQL)).unwrap();
        std::fs::write(dir.path().join("sagas/transfer.yaml"), SAGA).unwrap();
        let manifest = json!({
            "apiVersion": "saga-runner/v1",
            "kind": "Manifest",
            "cluster": "bank",
            "shards": 1,
            "tenants": ["acme"],
            "sagas": dir.path().join("sagas"),
            "effects": dir.path().join("effects"),
            "data_dir": dir.path().join("data"),
            "upstreams": {"bank": database},
            "http": {"listen": address, "admin_listen": address, "accept_events": true},
            "storage": {"keep_ended": keep_ended},
            // What is sent twice comes twice.
            "broker": {"embedded": {"duplicate_window": "1ms"}},
        });
        std::fs::write(dir.path().join("manifest.yaml"), manifest.to_string()).unwrap();
        let mut runner = Self {
            dir,
            address,
            process: None,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
        };
        runner.launch().await;
        runner
    }

    async fn launch(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
            .args(["run", "--config"])
            .arg(self.dir.path().join("manifest.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let ready = format!("http://{}/ready", self.address);
        until(async || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap();
            assert!(ended.is_none(), "{}", log());
            let answer = self.client.get(&ready).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    /// Asks for the transfer `t-1`, under the id of an event.
    async fn ask(&self, event_id: &str, account: &str, amount: i64) {
        let body = json!({
            "tenant_id": "acme",
            "event_id": event_id,
            "event_type": "Transfer.Asked",
            "aggregate_type": "Transfer",
            "aggregate_id": "t-1",
            "sequence": 1,
            "schema_version": 1,
            "payload": {"account": account, "amount": amount},
            "metadata": {},
        });
        let url = format!("http://{}/v1/tenants/acme/events", self.address);
        let request = self.client.post(url).header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    async fn instance(&self) -> Option<Value> {
        let url = format!(
            "http://{}/v1/tenants/acme/sagas/transfer/instances/t-1",
            self.address
        );
        let answer = self.client.get(url).send().await.ok()?;
        serde_json::from_slice(&answer.bytes().await.ok()?).ok()
    }

    /// Waits for the end, and says when the instance was started.
    async fn completed(&self) -> Value {
        until(async || {
            let view = self.instance().await?;
            (view["phase"] == "completed").then(|| view["started"].clone())
        })
        .await
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ended = process.kill();
            let _reaped = process.wait();
        }
    }
}

async fn transfers(books: &mut sqlx::PgConnection) -> Vec<(String, i64)> {
    sqlx::query_as("SELECT account, amount FROM transfers ORDER BY id")
        .fetch_all(books)
        .await
        .unwrap()
}

/// The second cluster once took the rows of the first for its own and moved nothing.
#[tokio::test]
async fn two_clusters_with_one_saga_and_one_key_both_move_money() {
    let (url, mut books) = postgres(TABLES).await;
    let runners = [Runner::start(&url, "7d").await, Runner::start(&url, "7d").await];
    for (runner, account, amount) in [(&runners[0], "a", 100), (&runners[1], "b", 7)] {
        runner.ask("e-1", account, amount).await;
        runner.completed().await;
    }
    assert_eq!(
        transfers(&mut books).await,
        [("a".to_owned(), 100), ("b".to_owned(), 7)]
    );
}

#[tokio::test]
async fn a_key_whose_tombstone_is_gone_moves_money_again_but_not_for_the_same_start() {
    let (url, mut books) = postgres(TABLES).await;
    let runner = Runner::start(&url, "1s").await;
    let first = ("a".to_owned(), 100);
    runner.ask("e-1", "a", 100).await;
    let began = runner.completed().await;
    assert_eq!(transfers(&mut books).await, std::slice::from_ref(&first));
    // The first of these that finds no tombstone begins another life, and the work of that is known.
    until(async || {
        runner.ask("e-1", "a", 100).await;
        let view = runner.instance().await?;
        (view["phase"] == "completed" && view["started"] != began).then_some(())
    })
    .await;
    assert_eq!(transfers(&mut books).await, std::slice::from_ref(&first));
    // So does the first of these, and its work is new.
    let mut asked = 0;
    until(async || {
        asked += 1;
        runner.ask(&format!("f-{asked}"), "b", 7).await;
        (transfers(&mut books).await.len() >= 2).then_some(())
    })
    .await;
    assert_eq!(transfers(&mut books).await[..2], [first, ("b".to_owned(), 7)]);
}
