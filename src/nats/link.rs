//! The connection: made in the background, checked for its server's version, numbered.
//!
//! Each connection has a generation. What depends on one unbroken connection (readers, publications in
//! flight) remembers the generation it began in and ends when that is over. The client's own count of
//! connections is the number: it is raised before the first byte of a new connection is read, so whoever
//! holds a message of the new connection sees the new number.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::{Client, Event, ServerAddr, Statistics};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};

use super::error::ConnectError;
use super::settings::Settings;
use super::version;

/// What is known of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Not connected; tries for ever.
    Connecting { last_error: Option<String> },
    /// Connected to a server that is new enough.
    Ready { version: String },
    /// Connected to a server that is too old; nothing is sent to it.
    Unsupported { version: String },
}

pub(super) struct Link {
    pub client: Client,
    /// The servers as the settings name them, for people.
    pub servers: String,
    status: watch::Receiver<Status>,
    /// Generation found good, 0 while there is none.
    good: Arc<AtomicU64>,
    counters: Arc<Statistics>,
    monitor: JoinHandle<()>,
    pub request_timeout: Duration,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.monitor.abort();
    }
}

/// Events the monitor may lag behind before the client's event task waits for it.
const EVENTS_MAX: usize = 64;
/// Longest wait for the reason why one server takes no connection.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

impl Link {
    /// Starts to connect and returns at once.
    pub async fn open(settings: &Settings) -> Result<Self, ConnectError> {
        let addresses = settings.addresses()?;
        let servers = settings.shown_servers()?;
        let (events, inbound) = mpsc::channel(EVENTS_MAX);
        let spread = RandomState::new();
        let client = settings
            .options()?
            .retry_on_initial_connect()
            .reconnect_delay_callback(move |attempt| reconnect_delay(attempt, spread.hash_one(attempt)))
            .event_callback(move |event| {
                let events = events.clone();
                async move {
                    // The monitor ends only together with the link; then nobody wants to know.
                    let _ = events.send(event).await;
                }
            })
            .connect(addresses.clone())
            .await
            .map_err(|error| ConnectError::settings(error.to_string()))?;
        let (report, status) = watch::channel(Status::Connecting { last_error: None });
        let good = Arc::new(AtomicU64::new(0));
        let monitor = Monitor {
            client: client.clone(),
            report,
            good: Arc::clone(&good),
            patience: settings.request_timeout.duration(),
            addresses,
            servers: servers.clone(),
            was_reached: false,
            has_warned: false,
        };
        Ok(Self {
            counters: client.statistics(),
            client,
            servers,
            status,
            good,
            monitor: tokio::spawn(monitor.run(inbound)),
            request_timeout: settings.request_timeout.duration(),
        })
    }

    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Generation of the connection, if it is up and its server new enough.
    pub fn generation(&self) -> Result<u64, String> {
        let good = self.good.load(Ordering::Acquire);
        if good != 0 && good == connects(&self.counters) {
            return Ok(good);
        }
        Err(match &*self.status.borrow() {
            Status::Connecting {
                last_error: Some(error),
            } => format!("not connected: {error}"),
            Status::Connecting { last_error: None } | Status::Ready { .. } => "not connected".to_owned(),
            Status::Unsupported { version } => ConnectError::Unsupported {
                version: version.clone(),
            }
            .to_string(),
        })
    }

    /// Whether the connection of that generation is still the one in use.
    pub fn holds(&self, generation: u64) -> bool {
        self.good.load(Ordering::Acquire) == generation && connects(&self.counters) == generation
    }

    /// Waits for a connection that is not the one of now, if there is one now.
    ///
    /// # Cancel safety
    /// Safe.
    pub fn next_connection(&self) -> impl Future<Output = ()> + Send + 'static {
        let (good, mut status) = (Arc::clone(&self.good), self.status.clone());
        let before = good.load(Ordering::Acquire);
        async move {
            loop {
                // Marked before the look, so that a change after it wakes.
                status.mark_unchanged();
                let now = good.load(Ordering::Acquire);
                if now != 0 && now != before {
                    return;
                }
                if status.changed().await.is_err() {
                    // The link has ended.
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Waits until the connection of that generation is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self, generation: u64) {
        let mut status = self.status.clone();
        loop {
            // Marked before the look, so that a change after it wakes.
            status.mark_unchanged();
            if !self.holds(generation) || status.changed().await.is_err() {
                return;
            }
        }
    }
}

fn connects(counters: &Statistics) -> u64 {
    counters.connects.load(Ordering::Acquire)
}

/// Doubles from 100 ms to 5 s, of which up to half is taken off at random, so that a fleet does not come
/// back in step. The first attempt is nearly at once.
fn reconnect_delay(attempt: usize, random: u64) -> Duration {
    let full_ms = match attempt {
        0 | 1 => 20,
        2..=7 => (100_u64 << (attempt - 2)).min(5_000),
        _ => 5_000,
    };
    Duration::from_millis(full_ms - random % (full_ms / 2 + 1))
}

/// Follows the client's events and judges each new connection.
struct Monitor {
    client: Client,
    report: watch::Sender<Status>,
    good: Arc<AtomicU64>,
    patience: Duration,
    addresses: Vec<ServerAddr>,
    /// The same, for people.
    servers: String,
    /// Whether there was a connection.
    was_reached: bool,
    /// Whether it was told that the first attempt has failed.
    has_warned: bool,
}

impl Monitor {
    async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            match event {
                Event::Connected => {
                    self.was_reached = true;
                    self.judge().await;
                }
                Event::Disconnected | Event::Closed => self.lost(None),
                Event::ClientError(error) if !self.connected() => self.failed(error.to_string()).await,
                Event::ServerError(error) if !self.connected() => self.failed(error.to_string()).await,
                Event::SlowConsumer(_) | Event::ClientError(_) | Event::ServerError(_) => {
                    warn!(%event, "nats reports a problem");
                }
                Event::LameDuckMode | Event::Draining => debug!(%event, "nats event"),
            }
        }
    }

    fn connected(&self) -> bool {
        self.good.load(Ordering::Acquire) != 0
    }

    /// An attempt to connect has failed.
    async fn failed(&mut self, error: String) {
        let mut error = error;
        if !self.was_reached {
            if tells_only_its_kind(&error) {
                error = refusal(&self.addresses).await.unwrap_or(error);
            }
            if !self.has_warned {
                self.has_warned = true;
                warn!(
                    servers = self.servers,
                    error, "no connection to nats; it is tried again and again"
                );
            }
        }
        self.lost(Some(error));
    }

    fn lost(&self, error: Option<String>) {
        self.good.store(0, Ordering::Release);
        if let Some(error) = &error {
            debug!(%error, "attempt to connect to nats failed");
        } else {
            warn!("connection to nats lost");
        }
        self.report.send_modify(|status| {
            if error.is_some() || !matches!(status, Status::Connecting { .. }) {
                *status = Status::Connecting { last_error: error };
            }
        });
    }

    async fn judge(&self) {
        let counters = self.client.statistics();
        let generation = connects(&counters);
        // The event comes before the client has taken over the server's greeting; a flush is answered after.
        loop {
            let flushed = tokio::time::timeout(self.patience, self.client.flush()).await;
            let gone = connects(&counters) != generation
                || self.client.connection_state() != async_nats::connection::State::Connected;
            if gone || matches!(flushed, Ok(Err(_))) {
                // Its end has an event of its own.
                return;
            }
            if flushed.is_ok() {
                break;
            }
        }
        let version = self.client.server_info().version;
        if version::is_supported(&version) {
            info!(%version, generation, "connected to nats");
            self.good.store(generation, Ordering::Release);
            self.report.send_replace(Status::Ready { version });
        } else {
            let refusal = ConnectError::Unsupported {
                version: version.clone(),
            };
            error!(%refusal, "nothing is sent to this server");
            self.good.store(0, Ordering::Release);
            self.report.send_replace(Status::Unsupported { version });
        }
    }
}

/// Whether the client keeps the reason of this error to itself.
fn tells_only_its_kind(error: &str) -> bool {
    error.ends_with("IO error") || error.ends_with("DNS error")
}

/// Why the first of these servers that takes no connection does not, in the words of the system.
async fn refusal(servers: &[ServerAddr]) -> Option<String> {
    for server in servers {
        let tried = TcpStream::connect((server.host(), server.port()));
        match tokio::time::timeout(REFUSAL_MAX, tried).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.raw_os_error().is_some() => return Some(error.kind().to_string()),
            Ok(Err(error)) => return Some(error.to_string()),
            Err(_) => return Some("no answer".to_owned()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_to_reconnect_back_off_within_bounds() {
        for random in [0, 1, u64::MAX, 77_777] {
            assert!(reconnect_delay(1, random) <= Duration::from_millis(20));
            for attempt in 2..200 {
                let delay = reconnect_delay(attempt, random);
                assert!(delay >= Duration::from_millis(50), "{attempt}: {delay:?}");
                assert!(delay <= Duration::from_secs(5), "{attempt}: {delay:?}");
            }
        }
        assert!(reconnect_delay(30, 0) > reconnect_delay(2, 0));
    }
    #[tokio::test]
    async fn a_server_that_takes_no_connection_is_told_with_the_reason() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let servers: Vec<ServerAddr> = vec![format!("nats://{address}").parse().expect("an address")];
        assert_eq!(refusal(&servers).await, None, "it takes one");
        drop(listener);
        assert_eq!(refusal(&servers).await.as_deref(), Some("connection refused"));
    }
}
