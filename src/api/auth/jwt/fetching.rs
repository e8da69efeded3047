//! Keys that the issuer publishes: fetched now and then, and when a token has one that is not known, but not more often than
//! they may be.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Url};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::keys::Keys;
use super::settings::JwtSettings;
use crate::clients::tls::client_config;
use crate::clients::{UpstreamTls, told};
use crate::ports::clock::Clock;

/// Longest fetch.
const FETCH_MAX: Duration = Duration::from_secs(5);
/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// The keys that were fetched last, and what fetches them.
pub struct Fetching {
    client: Client,
    url: Url,
    refresh: Duration,
    refetch_after: Duration,
    age_max: Duration,
    clock: Arc<dyn Clock>,
    known: watch::Sender<Known>,
    /// A token has a key that is not known.
    wanted: Notify,
}

#[derive(Default, Clone)]
struct Known {
    keys: Option<Arc<Keys>>,
    /// When the fetch began that brought them, in monotonic time.
    fetched: Duration,
    /// When the last fetch began; `None`: none has.
    begun: Option<Duration>,
    is_under_way: bool,
    /// Fetches that have ended.
    ended: u64,
}

impl Fetching {
    /// # Errors
    /// A sentence that names the file that cannot be used.
    pub fn new(url: &str, settings: &JwtSettings, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let ca = settings.jwks_ca_file.as_ref().map(|path| {
            std::fs::read(path).map_err(|error| format!("jwks_ca_file {}: {error}", path.display()))
        });
        let tls = UpstreamTls {
            ca: ca.transpose()?,
            identity: None,
        };
        let client = Client::builder()
            .tls_backend_preconfigured(
                client_config(Some(&tls)).map_err(|error| format!("jwks_url: {error}"))?,
            )
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(FETCH_MAX)
            .build()
            .map_err(|error| told("jwks_url", &error))?;
        Ok(Self {
            client,
            url: Url::parse(url).map_err(|error| format!("jwks_url: {error}"))?,
            refresh: settings.refresh.duration(),
            refetch_after: settings.refetch_after.duration(),
            age_max: settings.keys_age_max.duration(),
            clock,
            known: watch::Sender::new(Known::default()),
            wanted: Notify::new(),
        })
    }

    /// The keys in force, which have that of the token if the issuer has it; `None` where there are none. `now` is the
    /// monotonic time.
    pub async fn keys(&self, id: &str, now: Duration) -> Option<Arc<Keys>> {
        let mut known = self.known.subscribe();
        let first = known.borrow_and_update().clone();
        let has = first.keys.as_ref().is_some_and(|keys| keys.has(id));
        let may = self.may_fetch(&first, now);
        if !has && (may || first.is_under_way) {
            if may {
                self.wanted.notify_one();
            }
            let ended = known.wait_for(|known| known.ended > first.ended);
            // Whoever waits for longer gets what there is.
            let _in_time = tokio::time::timeout(FETCH_MAX, ended).await;
        }
        let last = self.known.borrow();
        let is_fresh = now.saturating_sub(last.fetched) <= self.age_max;
        last.keys.clone().filter(|_| is_fresh)
    }

    fn may_fetch(&self, known: &Known, now: Duration) -> bool {
        known
            .begun
            .is_none_or(|begun| now.saturating_sub(begun) >= self.refetch_after)
    }

    /// Fetches until it is told to stop.
    pub async fn keep(&self, stop: &CancellationToken) {
        let mut failing = false;
        loop {
            let begun = self.clock.monotonic();
            self.known.send_modify(|known| {
                known.begun = Some(begun);
                known.is_under_way = true;
            });
            let fetched = tokio::select! {
                fetched = self.fetch() => fetched,
                () = stop.cancelled() => return,
            };
            match &fetched {
                Ok(_) if failing => tracing::info!("the keys of http.jwt.jwks_url were fetched again"),
                Ok(_) => {}
                Err(error) if failing => tracing::debug!(error, "http.jwt.jwks_url"),
                Err(error) => tracing::warn!(
                    error,
                    keys_age_max_s = self.age_max.as_secs(),
                    "the keys of http.jwt.jwks_url cannot be fetched; those of before stay in force for http.jwt.keys_age_max"
                ),
            }
            failing = fetched.is_err();
            self.known.send_modify(|known| {
                known.ended += 1;
                known.is_under_way = false;
                if let Ok(keys) = fetched {
                    known.keys = Some(Arc::new(keys));
                    known.fetched = begun;
                }
            });
            let pause = if failing { self.refetch_after } else { self.refresh };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.until_wanted() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Waits until a token has a key that is not known, and may be fetched for.
    async fn until_wanted(&self) {
        loop {
            self.wanted.notified().await;
            let may = self.may_fetch(&self.known.borrow(), self.clock.monotonic());
            if may {
                return;
            }
        }
    }

    async fn fetch(&self) -> Result<Keys, String> {
        let failed = |error: reqwest::Error| told("no answer", &error);
        let mut answer = self.client.get(self.url.clone()).send().await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(format!("the answer is {}", answer.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Keys::parse(&body).map_err(|wrong| format!("the answer {wrong}"))
    }
}
