//! The worker as a process of its own.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};

use super::super::StartError;

pub struct Process {
    line: Vec<String>,
    child: Option<Child>,
}

impl Process {
    pub fn start(line: Vec<String>) -> Result<Self, StartError> {
        let mut process = Self { line, child: None };
        process.launch()?;
        Ok(process)
    }

    /// Starts it again after its end.
    pub fn launch(&mut self) -> Result<(), StartError> {
        let refused = |error: &dyn std::fmt::Display| {
            StartError::System(format!("the worker {:?} does not start: {error}", self.line))
        };
        let (program, arguments) = self.line.split_first().ok_or_else(|| refused(&"no program"))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| refused(&error))?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended by itself cannot be killed, which is as well.
            let _ = child.kill().await;
        }
    }

    /// SIGTERM, and how it ends after it.
    pub async fn end(&mut self, patience: Duration) -> Result<ExitStatus, String> {
        let Some(mut child) = self.child.take() else {
            return Err("the worker does not run".to_owned());
        };
        let id = child.id().ok_or("the worker has ended before")?.to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status().await;
        if !told.is_ok_and(|status| status.success()) {
            return Err("the worker cannot be told to end".to_owned());
        }
        match tokio::time::timeout(patience, child.wait()).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                let _ = child.kill().await;
                Err(format!(
                    "the worker still ran {} s after SIGTERM",
                    patience.as_secs()
                ))
            }
        }
    }
}
