//! The real binary on a real nats-server.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::sql::rig::until;

/// Ends with the value.
pub struct Runner {
    dir: TempDir,
    address: SocketAddr,
    process: Option<Child>,
    pub client: reqwest::Client,
}

impl Runner {
    /// A runner of tenant `acme` with what the test adds to the manifest, and with its definitions, by path.
    pub fn new(nats: &str, extra: Value, files: &[(&str, String)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = saga_runner::app::nats_server::free_port().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for folder in ["sagas", "effects"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        for (path, text) in files {
            std::fs::write(dir.path().join(path), text).unwrap();
        }
        let mut manifest = json!({
            "apiVersion": "saga-runner/v1",
            "kind": "Manifest",
            "cluster": "kills",
            "tenants": ["acme"],
            "sagas": dir.path().join("sagas"),
            "effects": dir.path().join("effects"),
            "data_dir": dir.path().join("data"),
            "http": {"listen": address, "admin_listen": address, "accept_events": true},
            "broker": {"kind": "nats", "nats": {"urls": [nats]}},
            "worker": {"ack_wait": "1500ms", "recheck_after": "1s"},
        });
        if let (Some(manifest), Value::Object(extra)) = (manifest.as_object_mut(), extra) {
            manifest.extend(extra);
        }
        std::fs::write(dir.path().join("manifest.yaml"), manifest.to_string()).unwrap();
        Self {
            dir,
            address,
            process: None,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Starts it without waiting for it.
    pub fn launch(&mut self) {
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
    }

    /// Starts it and waits until it is ready.
    pub async fn start(&mut self) {
        self.launch();
        let ready = self.url("/ready");
        until(async || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{}", self.log());
            let answer = self.client.get(&ready).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.kill();
    }
}
