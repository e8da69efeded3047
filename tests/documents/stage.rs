//! Where commands of a page are run: a folder, the addresses of the page in place of which free ones stand, and processes.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use saga_runner::app::nats_server::free_port;
use saga_runner::demo::upstream::{Settings, Upstream};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::nats_server::NatsServer;
use crate::support::shell_blocks::{Shown, root};

const PATIENCE: Duration = Duration::from_mins(1);
/// What was just published or sent is seen after a moment.
const SOON: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// Texts of a page and what stands in their place.
pub type Fills = Vec<(String, String)>;

pub struct Stage {
    servers: Vec<Server>,
    nats: Option<NatsServer>,
    demo: Option<Upstream>,
    pub(super) client: reqwest::Client,
    pub(super) runtime: Runtime,
    dir: TempDir,
    /// Where commands are run.
    pub folder: PathBuf,
    /// Addresses: of the API, of that for operators, and of the upstream.
    pub api: String,
    pub admin: String,
    pub upstream: String,
    environment: Fills,
    fills: Fills,
    faults: Vec<String>,
}

struct Server {
    child: Child,
    line: String,
    is_background: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn address() -> String {
    format!("127.0.0.1:{}", free_port().expect("a free port"))
}

fn program(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

pub fn told(error: &impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether a command of the runner goes on until it is told to end.
fn is_server(words: &[String]) -> bool {
    words
        .get(1)
        .is_some_and(|word| ["run", "dev", "demo-upstream"].contains(&word.as_str()))
}

impl Stage {
    /// An empty folder.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let folder = dir.path().join("project");
        fs::create_dir(&folder).expect("created");
        let [api, admin, upstream] = [(); 3].map(|()| address());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        // The process behind an address ends and another one begins: no connection is kept.
        let client = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(PATIENCE)
            .build()
            .expect("a client");
        let mut stage = Self {
            dir,
            folder,
            api,
            admin,
            upstream,
            environment: Fills::new(),
            fills: Fills::new(),
            servers: Vec::new(),
            nats: None,
            demo: None,
            client,
            runtime,
            faults: Vec::new(),
        };
        let (api, admin, upstream) = (stage.api.clone(), stage.admin.clone(), stage.upstream.clone());
        // The longer ones first.
        stage.fill("https://admin.sagas.example.com", &format!("http://{admin}"));
        stage.fill("https://sagas.example.com", &format!("http://{api}"));
        stage.fill("127.0.0.1:8080", &api);
        stage.fill("127.0.0.1:8081", &admin);
        stage.fill("127.0.0.1:7070", &upstream);
        stage.fill("127.0.0.1:8090", &address());
        stage.fill("127.0.0.1:8091", &address());
        stage.set("PATH", &std::env::var("PATH").expect("a path of programs"));
        stage.set("SAGA_RUNNER_LISTEN", &api);
        stage.set("SAGA_RUNNER_ADMIN_LISTEN", &admin);
        stage.set("SAGA_RUNNER_DEMO_UPSTREAM", &upstream);
        stage
    }

    /// With a NATS server, in the place of the one at the usual address.
    pub fn with_nats(mut self) -> Self {
        let server = NatsServer::start();
        self.fill("127.0.0.1:4222", &server.address());
        self.nats = Some(server);
        self
    }

    /// With the manifest and the definitions of the repository.
    pub fn with_project(self) -> Self {
        for folder in ["config", "sagas", "effects"] {
            copy(&root().join(folder), &self.folder.join(folder));
        }
        self
    }

    /// From now on a process of it belongs to the cluster of the manifest, on the stage's NATS server and with its upstream.
    pub fn join_cluster(&mut self) {
        let upstream = format!("http://{}", self.upstream);
        self.set("SAGA_RUNNER_NATS_URL", &self.nats_url());
        self.set("SAGA_RUNNER_UPSTREAMS", &format!("{{shop: \"{upstream}\"}}"));
        self.set("SAGA_RUNNER_GATEWAY_URL", &format!("{upstream}/gateway/commands"));
        self.set("SAGA_RUNNER_HTTP_ACCEPT_EVENTS", "true");
        // The manifest has two.
        self.set("SAGA_RUNNER_TENANT", "acme");
    }

    /// The address of its NATS server.
    pub fn nats_url(&self) -> String {
        self.nats.as_ref().expect("a stage with NATS").url()
    }

    /// Starts the demo's upstream, whose `slow-` payments never come.
    pub fn start_upstream(&mut self) {
        let settings = Settings {
            runner: None,
            slow: Duration::from_hours(1),
        };
        let listen = self.upstream.parse().expect("an address");
        let upstream = self.runtime.block_on(Upstream::start(listen, settings));
        self.demo = Some(upstream.expect("the upstream starts"));
    }

    /// Below the folder that goes with the stage, beside the project.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// From now on this stands in the place of a text of the pages.
    pub fn fill(&mut self, text: &str, instead: &str) {
        self.fills.push((text.to_owned(), instead.to_owned()));
    }

    pub fn set(&mut self, variable: &str, value: &str) {
        self.environment.push((variable.to_owned(), value.to_owned()));
    }

    fn filled(&self, word: &str, fills: &[(String, String)]) -> String {
        let all = fills.iter().chain(&self.fills);
        all.fold(word.to_owned(), |word, (text, instead)| {
            word.replace(text, instead)
        })
    }

    /// Runs a command of a page, which has to exit with this code, and gives what it prints; nothing where it does not, which is
    /// told at the end.
    pub fn run(&mut self, shown: &Shown, fills: &[(String, String)], exit: i32) -> Option<String> {
        let words: Vec<String> = shown.words.iter().map(|word| self.filled(word, fills)).collect();
        let outcome = self
            .perform(shown, &words, exit)
            .and_then(|printed| self.compare(shown, printed));
        match outcome {
            Ok(printed) => Some(printed),
            Err(fault) => {
                let line = words.join(" ");
                self.faults.push(format!("{}: {line}\n  {fault}", shown.place()));
                None
            }
        }
    }

    fn perform(&mut self, shown: &Shown, words: &[String], exit: i32) -> Result<String, String> {
        match program(&words[0]) {
            _ if shown.is_piped => Err("show it without a pipe, which the tests do not run".to_owned()),
            "cd" => {
                self.folder = self.folder.join(&words[1]);
                let is_there = self.folder.is_dir();
                is_there
                    .then(String::new)
                    .ok_or_else(|| "there is no such folder".to_owned())
            }
            "curl" => self.curl(&words[1..]),
            "nats" => self.entry(&words[3], &words[4]),
            "saga-runner" if is_server(words) && exit == 0 => self.serve(&words[1..], shown.is_background),
            _ => self.call(words, exit),
        }
    }

    /// The output goes where the page says, and has the heading that the page shows.
    fn compare(&self, shown: &Shown, printed: String) -> Result<String, String> {
        if let Some(file) = &shown.file {
            fs::write(self.folder.join(file), &printed).map_err(|error| told(&error))?;
        }
        let columns = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        for line in shown.output.iter().filter(|line| is_heading(line)) {
            if !printed.lines().any(|found| columns(found) == columns(line)) {
                return Err(format!("it prints no heading {line:?}: {printed}"));
            }
        }
        Ok(printed)
    }

    /// Runs a command to its end, again while what it asks for is not there yet.
    pub fn call(&self, words: &[String], exit: i32) -> Result<String, String> {
        let begin = Instant::now();
        loop {
            let (status, printed, errors) = self.output(words)?;
            let code = status.code();
            if code == Some(exit) {
                return Ok(printed);
            }
            let may_come = matches!(code, Some(4 | 69)) && begin.elapsed() < SOON;
            if !may_come {
                return Err(format!("exit code {code:?} and not {exit}: {errors}{printed}"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A command of the scene itself, which must succeed.
    pub fn must(&self, words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.call(&words, 0)
            .unwrap_or_else(|fault| panic!("{}: {fault}", words.join(" ")))
    }

    /// What a command exits with and prints, on both streams.
    pub fn output(&self, words: &[String]) -> Result<(ExitStatus, String, String), String> {
        let (printed, errors) = (self.path("stdout"), self.path("stderr"));
        let file = |path: &Path| fs::File::create(path).expect("a file for the output");
        let mut child = self
            .command(words)
            .stdout(file(&printed))
            .stderr(file(&errors))
            .spawn()
            .map_err(|error| told(&error))?;
        let read = |path: &Path| fs::read_to_string(path).expect("UTF-8");
        let begin = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                return Ok((status, read(&printed), read(&errors)));
            }
            if begin.elapsed() > PATIENCE {
                child.kill().expect("killed");
                child.wait().expect("reaped");
                return Err(format!("it does not end: {}", read(&errors)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn command(&self, words: &[String]) -> Command {
        let is_runner = program(&words[0]) == "saga-runner";
        let path: &str = if is_runner {
            env!("CARGO_BIN_EXE_saga-runner")
        } else {
            &words[0]
        };
        let mut command = Command::new(path);
        command
            .args(&words[1..])
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        // With the address of a process `doctor` would ask that one.
        if is_runner && words.get(1).is_none_or(|word| word != "doctor") {
            command.env("SAGA_RUNNER_URL", format!("http://{}", self.api));
        }
        command
    }

    /// Starts the runner of the scene itself, in front of the terminal.
    pub fn start(&mut self) {
        self.serve(&["run".to_owned()], false)
            .unwrap_or_else(|fault| panic!("{fault}"));
    }

    /// Starts the runner or its upstream and waits until it works. As in a terminal, one that is not in the background ends
    /// before the next one begins.
    fn serve(&mut self, arguments: &[String], is_background: bool) -> Result<String, String> {
        self.end_servers(false);
        let path = self.path("server.log");
        let log = fs::File::create(&path).expect("a log");
        let program = std::iter::once("saga-runner".to_owned());
        let words: Vec<String> = program.chain(arguments.iter().cloned()).collect();
        let mut child = self
            .command(&words)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| told(&error))?;
        let begin = Instant::now();
        while !self.works(arguments) {
            let ended = child.try_wait().expect("a child");
            if ended.is_some() || begin.elapsed() > PATIENCE {
                // It may have ended already.
                let _ended = child.kill();
                child.wait().expect("reaped");
                let log = fs::read_to_string(&path).unwrap_or_default();
                return Err(format!("it does not work ({ended:?}): {log}"));
            }
            std::thread::sleep(PAUSE);
        }
        self.servers.push(Server {
            child,
            line: words.join(" "),
            is_background,
        });
        Ok(String::new())
    }

    /// Whether a process with these arguments takes work. One that waits for an operator does what it can.
    fn works(&self, arguments: &[String]) -> bool {
        if arguments[0] == "demo-upstream" {
            return TcpStream::connect(&self.upstream).is_ok();
        }
        let at = arguments.iter().position(|word| word == "--listen");
        let listen = at.map_or(&self.api, |at| &arguments[at + 1]);
        let answer = self.request("GET", &format!("http://{listen}/ready"), None);
        let is_held =
            |text: &str| text.contains("holds back what") && !text.contains("nothing is sent before");
        answer.is_ok_and(|(status, text)| status.is_success() || is_held(&text))
    }

    /// Ends the processes in front of the terminal, or all, each of which has to exit with 0.
    pub fn end_servers(&mut self, all: bool) {
        let mut kept = Vec::new();
        for mut server in std::mem::take(&mut self.servers) {
            if server.is_background && !all {
                kept.push(server);
                continue;
            }
            let pid = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).expect("a pid"));
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
            let code = server.child.wait().expect("reaped").code();
            // Only the runner drains.
            if code != Some(0) && !server.is_background {
                self.faults
                    .push(format!("{} has ended with {code:?}", server.line));
            }
        }
        self.servers = kept;
    }

    /// Waits until this holds.
    pub fn until(&self, wanted: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            let log = fs::read_to_string(self.path("server.log")).unwrap_or_default();
            assert!(begin.elapsed() < PATIENCE, "{wanted}: {log}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends every process, and tells all faults.
    pub fn end(mut self) {
        self.end_servers(true);
        assert!(
            self.faults.is_empty(),
            "{} command(s) do not do what their pages say; docs/testing.md, \"Commands in these pages\", has more:\n{}",
            self.faults.len(),
            self.faults.join("\n")
        );
    }
}

/// A row of names in capitals, as tables of the command line begin.
fn is_heading(line: &str) -> bool {
    line.split_whitespace().count() > 2 && line.chars().all(|c| c.is_uppercase() || c.is_whitespace())
}

/// Replaces a text of a file, which must be there.
pub fn replace(path: &Path, text: &str, instead: &str) {
    let old = fs::read_to_string(path).expect("readable");
    assert!(old.contains(text), "{} has no {text:?}", path.display());
    fs::write(path, old.replacen(text, instead, 1)).expect("written");
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("readable").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}
