//! Real database servers on loopback, each with a data directory of its own.
//!
//! A shell looks after each server: it ends it and removes its directory as soon as the test process is gone,
//! however that went.

#![allow(clippy::disallowed_methods, reason = "waits for a process in real time")]

use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Ports that are tried.
const PORTS_MAX: usize = 5;
const START_MAX: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Postgres,
    MariaDb,
}

/// Ends with the value.
pub struct DatabaseServer {
    kind: Kind,
    dir: PathBuf,
    port: u16,
    programs: Vec<PathBuf>,
    keeper: Option<Keeper>,
}

/// The shell that looks after a server; it stops when its input ends.
struct Keeper {
    child: Child,
    input: Option<ChildStdin>,
}

/// One server of each kind for all tests of a program.
pub fn shared(kind: Kind) -> &'static DatabaseServer {
    static POSTGRES: OnceLock<DatabaseServer> = OnceLock::new();
    static MARIADB: OnceLock<DatabaseServer> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let server = match kind {
        Kind::Postgres => &POSTGRES,
        Kind::MariaDb => &MARIADB,
    };
    // A failed start is told by the test that tried, and the others try again.
    let _one_at_a_time = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    server.get_or_init(|| DatabaseServer::start(kind))
}

impl DatabaseServer {
    pub fn start(kind: Kind) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("saga-runner-db-")
            .tempdir()
            .expect("a temporary directory")
            .keep();
        // The server runs as somebody else.
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&dir, open).expect("its permissions");
        let mut server = Self {
            kind,
            dir,
            port: 0,
            programs: programs(kind),
            keeper: None,
        };
        server.initialize();
        if kind == Kind::Postgres {
            server.secure();
        }
        // Another test may take the port before the server does.
        for _ in 0..PORTS_MAX {
            server.port = saga_runner::app::nats_server::free_port().expect("a free port");
            server.spawn();
            if server.becomes_ready() {
                return server;
            }
            server.kill();
            std::fs::remove_file(server.dir.join("log")).expect("removed");
        }
        panic!("{PORTS_MAX} ports were taken by others");
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address of one of its databases, as its superuser.
    pub fn url(&self, database: &str) -> String {
        match self.kind {
            Kind::Postgres => format!("postgres://postgres@{}/{database}", self.address()),
            Kind::MariaDb => format!("mysql://root@{}/{database}", self.address()),
        }
    }

    /// SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            std::fs::write(self.dir.join("keep"), "").expect("written");
            drop(keeper.input.take());
            keeper.child.wait().expect("the shell ends");
            std::fs::remove_file(self.dir.join("keep")).expect("removed");
        }
    }

    /// Starts it again after [`Self::kill`], on the same port and data.
    pub fn launch(&mut self) {
        self.spawn();
        assert!(self.becomes_ready(), "{}", self.log());
    }

    fn spawn(&mut self) {
        assert!(self.keeper.is_none(), "the server runs already");
        let (dir, port) = (self.dir.display(), self.port);
        let program = self.programs[1].display();
        let server = match self.kind {
            Kind::Postgres => format!(
                "{program} -D {dir}/data -p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
                 -c fsync=off -c max_connections=120 -c ssl=on"
            ),
            Kind::MariaDb => format!(
                "{program} --no-defaults --datadir={dir}/data --port={port} --bind-address=127.0.0.1 \
                 --socket={dir}/socket --pid-file={dir}/pid --skip-name-resolve \
                 --innodb-flush-log-at-trx-commit=2"
            ),
        };
        let script = format!(
            "{user} {server} >>{dir}/log 2>&1 </dev/null & server=$!\n\
             read -r _ || true\n\
             kill -STOP $server; children=$(cat /proc/$server/task/$server/children)\n\
             kill -9 $server $children; wait $server 2>/dev/null\n\
             for child in $children; do\n\
               for look in $(seq 200); do kill -0 $child 2>/dev/null || break; sleep 0.02; done\n\
             done\n\
             [ -e {dir}/keep ] || rm -rf {dir}",
            user = unprivileged(),
        );
        let mut child = Command::new("/bin/sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let input = child.stdin.take();
        self.keeper = Some(Keeper { child, input });
    }

    /// Waits until it answers; false: its port is taken.
    fn becomes_ready(&self) -> bool {
        let deadline = Instant::now() + START_MAX;
        while !self.is_ready() {
            let log = self.log();
            if [
                "Address already in use",
                "Can't start server: Bind on TCP/IP port",
            ]
            .iter()
            .any(|taken| log.contains(taken))
            {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "{:?} does not answer:\n{}",
                self.kind,
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn initialize(&self) {
        let (dir, program) = (self.dir.display(), self.programs[0].display());
        let command = match self.kind {
            Kind::Postgres => {
                format!("{program} -D {dir}/data --auth=trust --no-sync -U postgres -E UTF8 --locale=C")
            }
            Kind::MariaDb => format!(
                "{program} --no-defaults --datadir={dir}/data --auth-root-authentication-method=normal \
                 --skip-test-db --skip-name-resolve"
            ),
        };
        let output = Command::new("/bin/sh")
            .args(["-c", &format!("cd {dir} && {} {command}", unprivileged())])
            .output()
            .expect("a shell");
        assert!(
            output.status.success(),
            "{command}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Whoever is called `keeper` has to give a password, and connections may be encrypted.
    fn secure(&self) {
        let data = self.dir.join("data");
        let rules = std::fs::read_to_string(data.join("pg_hba.conf")).expect("rules");
        let rules = format!("host all keeper 127.0.0.1/32 scram-sha-256\n{rules}");
        std::fs::write(data.join("pg_hba.conf"), rules).expect("written");
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = rcgen::CertificateParams::new(names)
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let owner = std::fs::metadata(&data).expect("a folder");
        for (name, text) in [
            ("server.crt", certificate.pem()),
            ("server.key", key.serialize_pem()),
        ] {
            let file = data.join(name);
            std::fs::write(&file, text).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its permissions");
            let (user, group) = (owner.uid(), owner.gid());
            std::os::unix::fs::chown(&file, Some(user), Some(group)).expect("its owner");
        }
        // Where everybody can read it.
        std::fs::write(self.certificate(), certificate.pem()).expect("written");
    }

    /// The certificate of PostgreSQL, for clients that want to know whom they speak to.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// A port that is open may still belong to a server that recovers; the log says when it is done.
    fn is_ready(&self) -> bool {
        let phrase = match self.kind {
            Kind::Postgres => "database system is ready to accept connections",
            Kind::MariaDb => "ready for connections",
        };
        let log = self.log();
        let starts = match self.kind {
            Kind::Postgres => "starting PostgreSQL",
            Kind::MariaDb => "Starting MariaDB",
        };
        let current = log.rfind(starts).map_or("", |at| &log[at..]);
        current.contains(phrase) && TcpStream::connect(self.address()).is_ok()
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        match self.keeper.take() {
            Some(mut keeper) => {
                drop(keeper.input.take());
                let _ = keeper.child.wait();
            }
            None => drop(std::fs::remove_dir_all(&self.dir)),
        }
    }
}

/// Servers refuse to run as root.
fn unprivileged() -> &'static str {
    let own = std::fs::metadata("/proc/self").expect("a process");
    if own.uid() == 0 {
        "setpriv --reuid nobody --regid nogroup --clear-groups"
    } else {
        ""
    }
}

/// Finds or installs the programs; a machine without them fails the test.
fn programs(kind: Kind) -> Vec<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/databases.sh");
    let name = match kind {
        Kind::Postgres => "postgres",
        Kind::MariaDb => "mariadb",
    };
    let output = Command::new(&script)
        .arg(name)
        .output()
        .expect("run scripts/databases.sh");
    assert!(
        output.status.success(),
        "no {name} for the tests: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let paths = String::from_utf8(output.stdout).expect("paths in UTF-8");
    paths.lines().map(PathBuf::from).collect()
}
