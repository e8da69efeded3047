//! A real nats-server on loopback, with a data directory of its own.

#![allow(clippy::disallowed_methods, reason = "waits for a process in real time")]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use saga_runner::app::nats_server::free_port;
use tempfile::TempDir;

/// Ends with the value.
pub struct NatsServer {
    dir: TempDir,
    port: u16,
    process: Option<Child>,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `always`, or a duration as the server writes it; the server's default if none.
    pub sync_interval: Option<&'static str>,
    /// Further lines for the configuration file.
    pub config: String,
    /// It answers questions about itself over HTTP, too.
    pub monitored: bool,
}

const START_MAX: Duration = Duration::from_secs(20);

impl NatsServer {
    pub fn start() -> Self {
        Self::start_with(&Options::default())
    }

    pub fn start_with(options: &Options) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let sync = options
            .sync_interval
            .map(|interval| format!("sync_interval: {interval}"))
            .unwrap_or_default();
        let config = format!(
            "server_name: test\nhost: 127.0.0.1\nports_file_dir: \"{dir}\"\n\
             jetstream {{ store_dir: \"{dir}/data\"\n {sync} }}\n{http}\n{more}\n",
            dir = dir.path().display(),
            http = if options.monitored {
                "http: \"127.0.0.1:-1\""
            } else {
                ""
            },
            more = options.config,
        );
        std::fs::write(dir.path().join("server.conf"), config).expect("write the configuration");
        let mut server = Self {
            dir,
            port: 0,
            process: None,
        };
        server.launch();
        server
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// Where it keeps what it keeps.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where a server that is monitored answers over HTTP.
    pub fn monitor(&self) -> String {
        let process = self.process.as_ref().expect("nats-server runs");
        let file = self
            .dir
            .path()
            .join(format!("nats-server_{}.ports", process.id()));
        let deadline = Instant::now() + START_MAX;
        loop {
            if let Some(address) = read_address(&file, "monitoring") {
                return address;
            }
            assert!(
                Instant::now() < deadline,
                "the server tells no address for its monitor"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("kill nats-server");
            process.wait().expect("wait for nats-server");
        }
    }

    /// Sends a signal to it, as SIGSTOP, after which it holds its connections and does not answer.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let process = self.process.as_ref().expect("nats-server runs");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("signalled");
        // Its threads stop one by one.
        let deadline = Instant::now() + START_MAX;
        while signal == nix::sys::signal::Signal::SIGSTOP && !has_stopped(process.id()) {
            assert!(Instant::now() < deadline, "nats-server does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts it again after [`Self::kill`], on the same port and data.
    pub fn launch(&mut self) {
        assert!(self.process.is_none(), "nats-server runs already");
        // Not one that the server chooses: after a kill an outgoing connection could have taken it.
        if self.port == 0 {
            self.port = free_port().expect("a free port");
        }
        let log = std::fs::File::create(self.dir.path().join("server.log")).expect("create the log");
        let process = Command::new(program())
            .arg("-c")
            .arg(self.dir.path().join("server.conf"))
            .args(["-p", &self.port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start nats-server");
        self.process = Some(process);
        let deadline = Instant::now() + START_MAX;
        while !self.answers() {
            let ended = self
                .process
                .as_mut()
                .and_then(|process| process.try_wait().ok().flatten());
            let waits = ended.is_none() && Instant::now() < deadline;
            assert!(waits, "nats-server does not answer: {ended:?}\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts it after [`Self::kill`] on another port, where nobody looks for it, and gives the one that it had.
    pub fn launch_elsewhere(&mut self) -> u16 {
        let port = std::mem::replace(&mut self.port, 0);
        self.launch();
        port
    }

    /// Starts it after [`Self::kill`] on this port.
    pub fn launch_at(&mut self, port: u16) {
        self.port = port;
        self.launch();
    }

    /// Keeps a copy of its data as it is, and starts it again.
    pub fn remember(&mut self) {
        self.kill();
        copy(&self.folder().join("data"), &self.folder().join("before"));
        self.launch();
    }

    /// Ends it and puts back the data that [`Self::remember`] kept, as after a loss of power.
    pub fn lose(&mut self) {
        self.kill();
        let data = self.folder().join("data");
        std::fs::remove_dir_all(&data).expect("remove the data");
        std::fs::rename(self.folder().join("before"), data).expect("put the data back");
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    fn answers(&self) -> bool {
        let Ok(stream) = TcpStream::connect(self.address()) else {
            return false;
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a timeout above zero");
        let mut greeting = String::new();
        BufReader::new(stream).read_line(&mut greeting).is_ok() && greeting.contains("\"jetstream\":true")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("create a folder");
    for entry in std::fs::read_dir(from).expect("read the folder") {
        let path = entry.expect("read the folder").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("copy a file");
        }
    }
}

/// Whether no thread of the process runs.
fn has_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process is there");
    threads.flatten().all(|thread| {
        // A thread may end meanwhile.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| state == Some('T'))
    })
}

/// The address of a listener in the server's ports file, once that is written to its end.
fn read_address(file: &Path, listener: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let ports: serde_json::Value = serde_json::from_str(&text).ok()?;
    ports[listener][0].as_str().map(str::to_owned)
}

/// Finds or installs the server; a machine without one fails the test.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/nats-server.sh");
        let output = Command::new(&script)
            .output()
            .expect("run scripts/nats-server.sh");
        assert!(
            output.status.success(),
            "no nats-server for the tests: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        PathBuf::from(
            String::from_utf8(output.stdout)
                .expect("a path in UTF-8")
                .trim_end(),
        )
    })
}
