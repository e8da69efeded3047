//! SQL, on PostgreSQL and MariaDB, behind a proxy that reads what is asked for and breaks connections before or at the commit.

use std::sync::Arc;

use saga_runner::effects::certainty::{Ending, Said};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::row::{Course, Row, Via};
use super::rows::{self, said};
use super::table::{self as t, YES};
use super::tls;
use super::{ANSWER_BYTES_MAX, Calls, Mark, Provider};
use crate::support::databases::{DatabaseServer, Kind, shared};

pub static POSTGRES: Provider = Provider {
    name: "postgres",
    column: "SQL",
    rows: &[rows::OF_ALL, rows::OF_TLS, OF_BOTH, OF_POSTGRES],
    section: |via, policy| section("postgres", via, policy),
    answer: ANSWER,
};

pub static MARIADB: Provider = Provider {
    name: "mariadb",
    column: "SQL",
    rows: &[rows::OF_ALL, OF_BOTH],
    section: |via, policy| section("mariadb", via, policy),
    answer: ANSWER,
};

const ANSWER: &str = "response.rows[0].id";

/// A statement that the database refuses.
const fn refused(shows: &'static str, conduct: &'static str, class: &'static str) -> Row {
    said(t::REFUSED, shows, conduct, Said::Refused).class(class)
}

const OF_BOTH: &[Row] = &[
    Row::told(t::DONE, "a commit", "does-it", "succeeded"),
    said(t::ROLLED_BACK, YES, "says-nothing-useful", Said::Refused).class("result.expression"),
    refused("a constraint", "is-there-already", "unique_violation"),
    refused("a constraint", "breaks-a-check", "check_violation"),
    refused("a constraint", "lacks-a-value", "not_null_violation"),
    // PostgreSQL tells it at the commit.
    refused("a constraint", "refers-to-nothing", "foreign_key_violation"),
    refused("`expect`", "gives-no-row", "not_there"),
    refused("too many bytes", "rambles", "response.size"),
    refused("another error", "divides-by-nothing", "permanent"),
    said(t::TURNED_AWAY, "a login", "knows-nobody", Said::TurnedAway)
        .via(Via::Stranger)
        .unseen(),
    Row::of(t::UNREACHED, "no connection", "is-gone", Ending::LostUnsent)
        .via(Via::Gone)
        .unseen(),
    Row::of(
        t::LOST_UNSENT,
        "before the commit",
        "hangs-up",
        Ending::LostUnsent,
    ),
    said(t::NOT_NOW, "a deadlock", "is-in-the-way", Said::Conflict),
    said(t::NOT_NOW, "no room", "is-full", Said::NotNow),
    said(t::NOT_NOW, "no room", "goes-down", Said::NotNow),
    Row::of(
        t::LATE_UNSENT,
        "before the commit",
        "says-nothing",
        Ending::LateUnsent,
    )
    .via(Via::Slow),
    Row::of(t::LATE_UNSENT, "before the commit", "sleeps", Ending::LateUnsent).via(Via::Slow),
    Row::of(
        t::UNSENDABLE,
        "an address",
        "is-not-asked",
        Ending::Unsendable("egress.denied"),
    )
    .via(Via::Forbidden)
    .unseen(),
    said(t::CONFLICT, YES, "has-another", Said::Conflict)
        .class("journal.conflict")
        .course(Course::Behind),
    Row::of(t::LOST, "at the commit", "loses-the-commit", Ending::Lost),
    Row::of(t::LOST, "at the commit", "loses-the-answer", Ending::Lost).course(Course::FoundOut),
    Row::of(t::LATE, "at the commit", "keeps-the-commit", Ending::Late).via(Via::Slow),
    Row::of(t::LATE, "at the commit", "keeps-the-answer", Ending::Late)
        .via(Via::Slow)
        .course(Course::FoundOut),
];

const OF_POSTGRES: &[Row] = &[said(t::NOT_NOW, "a deadlock", "cannot-serialize", Said::Conflict)];

/// The table of commands among them: who makes it waits for whoever is in the middle of a call.
const POSTGRES_TABLES: &str = r"
CREATE TABLE one (n int); INSERT INTO one VALUES (1);
CREATE TABLE things (n int PRIMARY KEY, size int NOT NULL CHECK (size > 0)); INSERT INTO things VALUES (1, 1);
CREATE TABLE parts (thing int REFERENCES things DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION act(mark text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  CASE split_part(split_part(mark, ':', 2), '/', 1)
    WHEN 'is-there-already' THEN INSERT INTO things VALUES (1, 1);
    WHEN 'breaks-a-check' THEN INSERT INTO things VALUES (2, 0);
    WHEN 'lacks-a-value' THEN INSERT INTO things VALUES (2, NULL);
    WHEN 'refers-to-nothing' THEN INSERT INTO parts VALUES (7);
    WHEN 'divides-by-nothing' THEN PERFORM 1 / 0;
    WHEN 'is-in-the-way' THEN RAISE deadlock_detected;
    WHEN 'cannot-serialize' THEN RAISE serialization_failure;
    WHEN 'is-full' THEN RAISE too_many_connections;
    WHEN 'goes-down' THEN PERFORM pg_terminate_backend(pg_backend_pid());
    WHEN 'sleeps' THEN PERFORM pg_sleep(60);
    WHEN 'rambles' THEN RETURN repeat('x', 8192);
    WHEN 'says-something-else' THEN RETURN 'something else';
    WHEN 'says-nothing-useful' THEN RETURN 'nothing';
    ELSE NULL;
  END CASE;
  RETURN 'r-1';
END $$;
CREATE TABLE saga_runner_effects (
  tenant text NOT NULL, idempotency_key text NOT NULL, effect text NOT NULL, command_id text NOT NULL,
  fingerprint text NOT NULL, result text, created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (tenant, idempotency_key));
";

const MARIADB_TABLES: [&str; 6] = [
    "CREATE TABLE one (n int)",
    "INSERT INTO one VALUES (1)",
    "CREATE TABLE things (n int PRIMARY KEY, size int NOT NULL CHECK (size > 0))",
    "INSERT INTO things VALUES (1, 1)",
    "CREATE TABLE parts (thing int, FOREIGN KEY (thing) REFERENCES things (n))",
    "CREATE TABLE saga_runner_effects (tenant varchar(63) NOT NULL, idempotency_key varchar(191) NOT NULL, \
     effect varchar(63) NOT NULL, command_id varchar(63) NOT NULL, fingerprint varchar(63) NOT NULL, result longtext, \
     created_at datetime(3) NOT NULL DEFAULT (UTC_TIMESTAMP(3)), PRIMARY KEY (tenant, idempotency_key), \
     KEY created_at (created_at)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
];
const MARIADB_FUNCTION: &str = r"
CREATE FUNCTION act(mark text) RETURNS text MODIFIES SQL DATA
BEGIN
  CASE SUBSTRING_INDEX(SUBSTRING_INDEX(mark, ':', -1), '/', 1)
    WHEN 'is-there-already' THEN INSERT INTO things VALUES (1, 1);
    WHEN 'breaks-a-check' THEN INSERT INTO things VALUES (2, 0);
    WHEN 'lacks-a-value' THEN INSERT INTO things VALUES (2, NULL);
    WHEN 'refers-to-nothing' THEN INSERT INTO parts VALUES (7);
    WHEN 'divides-by-nothing' THEN SIGNAL SQLSTATE '22012' SET MYSQL_ERRNO = 1365;
    WHEN 'is-in-the-way' THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213;
    WHEN 'is-full' THEN SIGNAL SQLSTATE '08004' SET MYSQL_ERRNO = 1040;
    WHEN 'goes-down' THEN SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = 1053;
    WHEN 'sleeps' THEN DO SLEEP(60);
    WHEN 'rambles' THEN RETURN REPEAT('x', 8192);
    WHEN 'says-something-else' THEN RETURN 'something else';
    WHEN 'says-nothing-useful' THEN RETURN 'nothing';
    ELSE BEGIN END;
  END CASE;
  RETURN 'r-1';
END";
const _: () = assert!(ANSWER_BYTES_MAX < 8_192);

/// What tells the proxy and the database which call it is.
const MARK: &[u8] = b"mark:";

fn section(name: &str, via: Via, policy: &str) -> String {
    format!(
        r#"sql:
  database: "${{upstreams.{name}_{}}}"
  statements:
    - query: "SELECT act($1) AS id FROM one WHERE $1 NOT LIKE '%:gives-no-row/%'"
      bind: ["mark:${{input.row}}/{policy}/${{string(command.attempt)}}/${{command.idempotency_key}};"]
      expect: {{rows: 1, else: not_there}}"#,
        via.name()
    )
}

/// One database with its proxy.
struct Books {
    kind: Kind,
    name: &'static str,
    /// Of the superuser.
    url: String,
    server: &'static DatabaseServer,
}

/// The databases of a stage, dropped with it. The servers are those of the whole program.
pub struct Databases(#[expect(dead_code, reason = "kept for as long as they are called")] Vec<Arc<Books>>);

/// The databases, and their addresses by the names of their upstreams.
pub async fn start(calls: &Calls) -> (Databases, Vec<(String, String)>) {
    let (mut all, mut addresses) = (Vec::new(), Vec::new());
    for (kind, name) in [(Kind::Postgres, "postgres"), (Kind::MariaDb, "mariadb")] {
        let books = Arc::new(Books::open(kind, name).await);
        let (proxied, calls) = (Arc::clone(&books), calls.clone());
        let proxy = tls::listen(move |stream| {
            let (books, calls) = (Arc::clone(&proxied), calls.clone());
            // Either side may leave in the middle.
            async move { drop(carry(stream, &books, &calls).await) }
        })
        .await;
        addresses.extend(books.addresses(proxy));
        all.push(books);
    }
    (Databases(all), addresses)
}

impl Books {
    async fn open(kind: Kind, name: &'static str) -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let server = tokio::task::spawn_blocking(move || shared(kind))
            .await
            .expect("started");
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let database = format!("outcomes{number}");
        let create = AssertSqlSafe(format!("CREATE DATABASE {database}"));
        let url = server.url(&database);
        match kind {
            Kind::Postgres => {
                let admin = sqlx::PgConnection::connect(&server.url("postgres")).await;
                admin.expect("connects").execute(create).await.expect("created");
                let mut books = sqlx::PgConnection::connect(&url).await.expect("connects");
                let made = sqlx::raw_sql(POSTGRES_TABLES).execute(&mut books).await;
                made.expect("tables");
            }
            Kind::MariaDb => {
                let admin = sqlx::MySqlConnection::connect(&server.url("mysql")).await;
                admin.expect("connects").execute(create).await.expect("created");
                let mut books = sqlx::MySqlConnection::connect(&url).await.expect("connects");
                for text in MARIADB_TABLES.into_iter().chain([MARIADB_FUNCTION]) {
                    sqlx::raw_sql(text).execute(&mut books).await.expect("tables");
                }
            }
        }
        Self {
            kind,
            name,
            url,
            server,
        }
    }

    /// All but what nobody listens to is called through the proxy, which has to be able to read it.
    fn addresses(&self, proxy: u16) -> Vec<(String, String)> {
        let direct = self.server.address();
        let to = |at: &str| self.url.replace(&direct, at) + "?sslmode=disable";
        let through = to(&format!("127.0.0.1:{proxy}"));
        let somebody = match self.kind {
            Kind::Postgres => "://postgres@",
            Kind::MariaDb => "://root@",
        };
        let plain = [Via::Peer, Via::Slow, Via::Interrupted, Via::Killed].map(|via| (via, through.clone()));
        let others = [
            (Via::Stranger, through.replace(somebody, "://stranger@")),
            (Via::Gone, to(&format!("127.0.0.1:{}", tls::gone()))),
            (Via::Forbidden, to("169.254.0.1:5432")),
            (
                Via::Untrusted,
                format!(
                    "{}?sslmode=verify-full",
                    self.url.replace("127.0.0.1", "localhost")
                ),
            ),
        ];
        let named = |(via, address): (Via, String)| (format!("{}_{}", self.name, via.name()), address);
        plain.into_iter().chain(others).map(named).collect()
    }

    /// Puts the row of another command under the key, as another cluster with the same keys would.
    async fn take(&self, key: &str) {
        let text = format!(
            "INSERT INTO saga_runner_effects (tenant, idempotency_key, effect, command_id, fingerprint, result) \
             VALUES ('{}', '{key}', 'another', 'c-1', 'f-1', '{{}}')",
            crate::support::rig::TENANT
        );
        let text = sqlx::raw_sql(AssertSqlSafe(text));
        match self.kind {
            Kind::Postgres => {
                let mut books = sqlx::PgConnection::connect(&self.url).await.expect("connects");
                books.execute(text).await.expect("the key is free");
            }
            Kind::MariaDb => {
                let mut books = sqlx::MySqlConnection::connect(&self.url).await.expect("connects");
                books.execute(text).await.expect("the key is free");
            }
        }
    }
}

/// What the statements of a transaction ask for.
fn mark_in(bytes: &[u8]) -> Option<String> {
    let at = bytes.windows(MARK.len()).position(|window| window == MARK)?;
    let rest = &bytes[at + MARK.len()..];
    let end = rest.iter().position(|byte| *byte == b';')?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

fn commits(bytes: &[u8]) -> bool {
    bytes.windows(6).any(|window| window == b"COMMIT")
}

/// Carries a connection until what is asked for says otherwise.
async fn carry(mut client: TcpStream, books: &Books, calls: &Calls) -> std::io::Result<()> {
    let mut server = TcpStream::connect(books.server.address()).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut asked: Option<String> = None;
    let (mut sent, mut said) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        let bytes = tokio::select! {
            read = client.read(&mut sent) => &sent[..read?],
            read = server.read(&mut said) => {
                let bytes = &said[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                client.write_all(bytes).await?;
                continue;
            }
        };
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(text) = mark_in(bytes) {
            let (mark, key) = text.rsplit_once('/').expect("a key behind the mark");
            let before = calls.enter(&format!("{}/{mark}", books.name), key);
            let mark = Mark::read(mark);
            match mark.conduct {
                "hangs-up" => return Ok(()),
                "has-another" => {
                    // First its own transaction, which has the key now.
                    drop(server);
                    books.take(key).await;
                    return Ok(());
                }
                _ if mark.is_held(before) => return until_it_leaves(&mut client).await,
                _ => {}
            }
            asked = Some(mark.conduct.to_owned());
        } else if commits(bytes)
            && let Some(conduct) = asked.take()
        {
            match &*conduct {
                "loses-the-commit" => return Ok(()),
                "keeps-the-commit" => return until_it_leaves(&mut client).await,
                "loses-the-answer" | "keeps-the-answer" => {
                    server.write_all(bytes).await?;
                    // It is done with the answer.
                    assert_ne!(server.read(&mut said).await?, 0, "the commit is answered");
                    if conduct == "keeps-the-answer" {
                        return until_it_leaves(&mut client).await;
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        server.write_all(bytes).await?;
    }
}

/// Says nothing any more.
async fn until_it_leaves(client: &mut TcpStream) -> std::io::Result<()> {
    let mut rest = [0; 1_024];
    while client.read(&mut rest).await? > 0 {}
    Ok(())
}
