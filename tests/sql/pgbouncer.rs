//! PostgreSQL behind PgBouncer in transaction mode: two connections to the server are shared by all that call.

use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use sqlx::Connection as _;

use crate::sql::rig::{Rig, effect, payload, postgres, send, until};

/// Ends with the value.
struct Bouncer {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Bouncer {
    async fn before(url: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/databases.sh");
        let found = Command::new(script).arg("pgbouncer").output().unwrap();
        assert!(
            found.status.success(),
            "{}",
            String::from_utf8_lossy(&found.stderr)
        );
        let program = String::from_utf8(found.stdout).unwrap();
        let server = url.split('@').nth(1).unwrap().split('/').next().unwrap();
        let (host, server_port) = server.split_once(':').unwrap();
        let port = saga_runner::app::nats_server::free_port().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let config = format!(
            "[databases]\n* = host={host} port={server_port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"
        );
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, config).unwrap();
        // It refuses to run as root.
        let mut command = if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
            command.arg(program.trim());
            command
        } else {
            Command::new(program.trim())
        };
        let process = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until(async || TcpStream::connect(("127.0.0.1", port)).ok()).await;
        Self {
            process,
            port,
            _dir: dir,
        }
    }
}

#[tokio::test]
async fn connections_that_change_between_transactions_carry_each_command_out_once() {
    const COMMANDS: i64 = 60;
    let (url, mut books) =
        postgres("CREATE TABLE ledger (n int NOT NULL, took interval); CREATE TYPE mood AS ENUM ('calm')")
            .await;
    let bouncer = Bouncer::before(&url).await;
    let database = url.rsplit('/').next().unwrap();
    let pooled = format!("postgres://postgres@127.0.0.1:{}/{database}", bouncer.port);
    let rig = Rig::new(format!("{pooled}?pool_mode=transaction")).await;
    let text = effect(
        r#"
sql:
  database: "${upstreams.ledger}"
  statements:
    - execute: "INSERT INTO ledger VALUES ($1, $2)"
      bind: ["${input.n}", "1 day"]
    - query: "SELECT $1::mood AS mood, current_setting('statement_timeout') AS timeout"
      bind: [calm]
timeout: {total: 20s}
retry: {attempts: 1}
limits: {concurrency: 8}
result: {n: "${input.n}", timeout: "${response.rows[0].timeout}"}
"#,
    );
    let _workers = [rig.worker(&text), rig.worker(&text)];
    let mut ids = Vec::new();
    for n in 1..=COMMANDS {
        ids.push((n, send(&*rig.broker, json!({"n": n}), None).await));
    }
    for (n, id) in ids {
        let done = rig.result(id).await;
        assert_eq!(payload(&done)["n"], n);
        assert_ne!(payload(&done)["timeout"], "0", "{done}");
    }
    let (rows, sum): (i64, i64) = sqlx::query_as("SELECT count(*), sum(n) FROM ledger")
        .fetch_one(&mut books)
        .await
        .unwrap();
    assert_eq!((rows, sum), (COMMANDS, COMMANDS * (COMMANDS + 1) / 2));
    // Nothing that was set or prepared stays for the next client.
    let options: sqlx::postgres::PgConnectOptions = pooled.parse().unwrap();
    let mut other = sqlx::PgConnection::connect_with(&options.extra_float_digits(None))
        .await
        .unwrap();
    let left: (String, i64) = sqlx::query_as(
        "SELECT current_setting('statement_timeout'), \
         (SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%INSERT INTO ledger%' AND name <> '')",
    )
    .persistent(false)
    .fetch_one(&mut other)
    .await
    .unwrap();
    assert_eq!(left, ("0".to_owned(), 0));
}
