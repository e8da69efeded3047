//! A nats-server of one's own, for demo and bench.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::StartError;

/// Among which [`free_port`] chooses.
const PORTS: Range<u16> = 20_000..32_000;

/// Starts `program` with JetStream on a free loopback port, its data below `dir`; gives its URL. It is stopped
/// when the child is dropped. With `sync_always` it syncs each write to disk before it acknowledges.
///
/// # Errors
/// [`StartError::System`] where it does not start or does not answer within ten seconds.
pub async fn start(program: &Path, dir: &Path, sync_always: bool) -> Result<(Child, String), StartError> {
    let failed = |error: std::io::Error| StartError::System(format!("{}: {error}", program.display()));
    let port = free_port().map_err(failed)?;
    let log = File::create(dir.join("nats-server.log")).map_err(failed)?;
    let configuration = dir.join("nats-server.conf");
    let jetstream = if sync_always {
        "jetstream {sync_interval: always}\n"
    } else {
        "jetstream {}\n"
    };
    std::fs::write(&configuration, jetstream).map_err(failed)?;
    let child = Command::new(program)
        .arg("-c")
        .arg(configuration)
        .args(["-a", "127.0.0.1", "-js", "-sd"])
        .arg(dir.join("nats"))
        .args(["-p", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    for _ in 0..200 {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
            return Ok((child, format!("nats://127.0.0.1:{port}")));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(StartError::System(format!(
        "{} did not answer within 10 s",
        program.display()
    )))
}

/// A port of the loopback address that nobody uses now. The next call gives another one.
///
/// It is below those that Linux gives to outgoing connections and to listeners that ask for any port (32768 and above by
/// default), of which one may be gone before it is listened to.
///
/// # Errors
/// Where none of a thousand can be listened to.
pub fn free_port() -> std::io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin at different places.
    let begin = std::process::id().wrapping_mul(97);
    let mut last = std::io::ErrorKind::AddrInUse.into();
    for _ in 0..1_000 {
        let step = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let ports = u32::from(PORTS.end - PORTS.start);
        let port = PORTS.start + u16::try_from(step % ports).unwrap_or(0);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}
