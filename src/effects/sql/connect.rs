//! The connections of one effect: how many there are, where they lead, and which may be used again.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::mysql::MySql;
use super::postgres::Postgres;
use super::session::{Answer, Bounds, Session, SqlError, Statement};
use super::sqlite::Sqlite;
use crate::effects::egress::EgressDenied;
use crate::effects::network::Network;
use crate::kernel::definition::sql_database::{DatabaseKind, DatabaseUrl, TlsMode};
use crate::kernel::json::Json;

/// An idle connection is closed after this long, well before firewalls forget it.
const IDLE_MAX: Duration = Duration::from_mins(5);

/// Whom the connections of an effect lead to.
pub struct Peer {
    pub url: DatabaseUrl,
    /// Empty for none.
    pub password: String,
    pub read_only: bool,
    pub network: Network,
    pub connect_timeout: Duration,
    /// What the server is told that a statement may take, in milliseconds.
    pub statement_ms: u64,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Peer {
    async fn open(&self) -> Result<Box<dyn Session>, SqlError> {
        tokio::time::timeout(self.connect_timeout, self.connect())
            .await
            .unwrap_or_else(|_| {
                let ms = self.connect_timeout.as_millis();
                Err(SqlError::Lost(format!("no connection within {ms} ms")))
            })
    }

    async fn connect(&self) -> Result<Box<dyn Session>, SqlError> {
        if self.url.kind == DatabaseKind::Sqlite {
            return Ok(Box::new(Sqlite::open(self, self.read_only).await?));
        }
        let mut last = SqlError::Lost(format!("{} has no address", self.url.host));
        for host in self.hosts().await? {
            let opened: Result<Box<dyn Session>, SqlError> = match self.url.kind {
                DatabaseKind::Postgres => Postgres::open(self, &host).await.map(|it| Box::new(it) as _),
                DatabaseKind::MySql | DatabaseKind::Sqlite => {
                    MySql::open(self, &host).await.map(|it| Box::new(it) as _)
                }
            };
            match opened {
                Err(SqlError::Lost(reason)) => last = SqlError::Lost(reason),
                other => return other,
            }
        }
        Err(last)
    }

    /// What to connect to, all of it checked. Where the name is part of the handshake it is resolved once more by
    /// the client; elsewhere the checked address is called, so that the name cannot mean another one by then.
    async fn hosts(&self) -> Result<Vec<String>, SqlError> {
        let (host, port) = (&*self.url.host, self.url.port);
        let found = self.network.lookup(host, port).await;
        let addresses = found.map_err(|error| match EgressDenied::among(&*error) {
            Some(denied) => SqlError::Denied(denied.to_string()),
            None => SqlError::Lost(format!("{host} cannot be resolved: {error}")),
        })?;
        Ok(match self.url.tls {
            TlsMode::Disable | TlsMode::Prefer => {
                addresses.iter().map(|address| address.ip().to_string()).collect()
            }
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => vec![host.to_owned()],
        })
    }
}

/// What the driver says about a connection that broke.
pub fn lost(error: &sqlx::Error) -> SqlError {
    SqlError::Lost(error.to_string())
}

/// At most so many connections, opened when they are needed.
#[derive(Debug)]
pub struct Pool {
    peer: Peer,
    places: Semaphore,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    session: Box<dyn Session>,
    since: tokio::time::Instant,
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub fn new(peer: Peer, connections: usize) -> Self {
        Self {
            peer,
            places: Semaphore::new(connections),
            idle: Mutex::default(),
        }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Begins a transaction with `begin`. A connection that turns out to be dead is no failure: nothing was sent
    /// over it yet.
    pub async fn begin(&self, begin: &str) -> Result<Held<'_>, SqlError> {
        let place = self
            .places
            .acquire()
            .await
            .expect("the semaphore is never closed");
        while let Some(mut session) = self.take() {
            match session.control(begin).await {
                Ok(()) => return Ok(self.held(session, place)),
                Err(error) => tracing::debug!(database = %self.peer.url, ?error, "idle connection is dead"),
            }
        }
        let mut session = self.peer.open().await?;
        session.control(begin).await?;
        Ok(self.held(session, place))
    }

    fn take(&self) -> Option<Box<dyn Session>> {
        let mut idle = self.idle.lock().expect("nothing panics with the lock held");
        idle.retain(|idle| idle.since.elapsed() < IDLE_MAX);
        idle.pop().map(|idle| idle.session)
    }

    fn held<'p>(&'p self, session: Box<dyn Session>, place: SemaphorePermit<'p>) -> Held<'p> {
        Held {
            session,
            pool: self,
            _place: place,
        }
    }
}

/// A connection in a transaction. Dropped as it is, it is closed, which ends the transaction without a commit.
pub struct Held<'p> {
    session: Box<dyn Session>,
    pool: &'p Pool,
    _place: SemaphorePermit<'p>,
}

impl Held<'_> {
    pub async fn run(
        &mut self,
        statement: &Statement,
        values: &[Json<'_>],
        bounds: Bounds,
    ) -> Result<Answer, SqlError> {
        self.session.run(statement, values, bounds).await
    }

    pub async fn control(&mut self, text: &str) -> Result<(), SqlError> {
        self.session.control(text).await
    }

    /// Ends the transaction. The connection is kept if that was well.
    pub async fn end(mut self, text: &str) -> Result<(), SqlError> {
        self.session.control(text).await?;
        let idle = Idle {
            session: self.session,
            since: tokio::time::Instant::now(),
        };
        let mut list = self.pool.idle.lock().expect("nothing panics with the lock held");
        list.push(idle);
        Ok(())
    }
}
