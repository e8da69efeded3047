//! The connections of one effect: how many there are, where they lead, and which may be used again.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::mysql::MySql;
use super::postgres::Postgres;
use super::relay::Relay;
use super::session::{Access, Answer, Bounds, End, Session, SqlError, Statement};
use super::sqlite::Sqlite;
use crate::clients::tls::is_untrusted;
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
}

/// One way to a server.
pub struct Route {
    /// Whose certificate it has to have, where that is looked at; else the address that is called.
    pub host: String,
    /// What the client connects to instead, so that it does not resolve the name by itself.
    pub relay: Option<Relay>,
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
        for address in self.addresses().await? {
            match self.connect_to(address).await {
                Err(SqlError::Lost(reason)) => last = SqlError::Lost(reason),
                other => return other,
            }
        }
        Err(last)
    }

    /// The addresses of the host, all of them checked.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, SqlError> {
        let (host, port) = (&*self.url.host, self.url.port);
        let found = self.network.lookup(host, port).await;
        found.map_err(|error| match EgressDenied::among(&*error) {
            Some(denied) => SqlError::Denied(denied.to_string()),
            None => SqlError::Lost(format!("{host} cannot be resolved: {error}")),
        })
    }

    /// Connects to an address that was checked. Where the name is part of the handshake the client would resolve it once
    /// more, and it could mean another address by then.
    async fn connect_to(&self, address: SocketAddr) -> Result<Box<dyn Session>, SqlError> {
        let route = match self.url.tls {
            TlsMode::Disable | TlsMode::Prefer => Route {
                host: address.ip().to_string(),
                relay: None,
            },
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => Route {
                host: self.url.host.clone(),
                relay: Some(Relay::to(address, self.url.port).await?),
            },
        };
        match self.url.kind {
            DatabaseKind::Postgres => Postgres::open(self, &route).await.map(|it| Box::new(it) as _),
            DatabaseKind::MySql | DatabaseKind::Sqlite => {
                MySql::open(self, &route).await.map(|it| Box::new(it) as _)
            }
        }
    }
}

/// Reads the files that the address of a database names, so that a missing one is told at start.
///
/// # Errors
/// The parameter, the file, and what is wrong with it.
pub fn check_files(url: &DatabaseUrl) -> Result<(), String> {
    for (parameter, file, label) in [
        ("sslrootcert", &url.root_certificate, "CERTIFICATE-----"),
        ("sslcert", &url.client_certificate, "CERTIFICATE-----"),
        ("sslkey", &url.client_key, "PRIVATE KEY-----"),
    ] {
        let Some(file) = file else { continue };
        let bytes = std::fs::read(file).map_err(|error| format!("{parameter} {file}: {error}"))?;
        if !String::from_utf8_lossy(&bytes).contains(label) {
            let label = label.trim_end_matches('-');
            return Err(format!("{parameter} {file}: holds no {label} in PEM"));
        }
    }
    if url.client_certificate.is_some() != url.client_key.is_some() {
        return Err("sslcert and sslkey belong together; give both or none".to_owned());
    }
    Ok(())
}

/// What the driver says about a connection that broke.
pub fn lost(error: &sqlx::Error) -> SqlError {
    if is_untrusted(error) {
        return SqlError::Untrusted(error.to_string());
    }
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
    since: Instant,
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

    /// Begins a transaction whose statements may take as long as is left until then. A connection that turns out to be
    /// dead is not a failure: nothing was sent over it yet.
    pub async fn begin(&self, until: Instant) -> Result<Held<'_>, SqlError> {
        let access = if self.peer.read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        let left = || until.saturating_duration_since(Instant::now());
        let place = self
            .places
            .acquire()
            .await
            .expect("the semaphore is never closed");
        while let Some(mut session) = self.take() {
            match session.begin(access, left()).await {
                Ok(()) => return Ok(self.held(session, place)),
                Err(error) => tracing::debug!(database = %self.peer.url, ?error, "idle connection is dead"),
            }
        }
        let mut session = self.peer.open().await?;
        session.begin(access, left()).await?;
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

    pub async fn bound(&mut self, limit: Duration) -> Result<(), SqlError> {
        self.session.bound(limit).await
    }

    /// Ends the transaction. The connection is kept if that was well.
    pub async fn end(mut self, end: End) -> Result<(), SqlError> {
        self.session.end(end).await?;
        let idle = Idle {
            session: self.session,
            since: Instant::now(),
        };
        let mut list = self.pool.idle.lock().expect("nothing panics with the lock held");
        list.push(idle);
        Ok(())
    }
}
