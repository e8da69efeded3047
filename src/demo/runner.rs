//! The runner as a process of its own, which the demo kills and starts again.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::app::exit::Failure;

/// A runner under the demo's control.
pub struct Runner {
    config: PathBuf,
    log: PathBuf,
    pub base: String,
    client: reqwest::Client,
    child: Option<Child>,
}

impl Runner {
    pub fn new(config: PathBuf, log: PathBuf, address: SocketAddr, client: reqwest::Client) -> Self {
        Self {
            config,
            log,
            base: format!("http://{address}"),
            client,
            child: None,
        }
    }

    /// Starts the process and waits until it is ready.
    pub async fn start(&mut self) -> Result<(), Failure> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(Failure::software)?;
        let program = std::env::current_exe().map_err(Failure::software)?;
        let child = Command::new(program)
            .args(["run", "--config"])
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::software)?;
        self.child = Some(child);
        for _ in 0..600 {
            if let Some(child) = &mut self.child
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(Failure::software(format!(
                    "the runner stopped with {status}; its log is {}",
                    self.log.display()
                )));
            }
            let answer = self.client.get(format!("{}/ready", self.base)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(Failure::software(format!(
            "the runner was not ready after 30 s; its log is {}",
            self.log.display()
        )))
    }

    /// Ends the process with SIGKILL.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        match self.child.take() {
            Some(mut child) => child.kill().await.map_err(Failure::software),
            None => Ok(()),
        }
    }
}
