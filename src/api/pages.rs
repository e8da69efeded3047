//! Pages of lists, sent in portions as their clients take them: a client that is slow holds one portion, and not a page.
//!
//! The first portion is read before anything is sent, so whatever is wrong with a request has its status. A page that does not fit into
//! it goes on behind its cursor, as the next page would: each portion is a read of its own, so nobody keeps the rows of a shard from
//! changing for as long as a client takes. Where a portion cannot be had, the connection ends without the end of the answer.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, stream};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::ApiState;
use super::answers::Answers;
use super::problem::Problem;
use super::trace::{self, RequestTrace};
use crate::ports::clock::Clock;
use crate::ports::control::{ControlError, Page, PageRequest};

/// Bytes of the items of one portion; the item that passes them is in it. No answer is counted that is shorter than this.
pub const PORTION_BYTES: usize = 64 * 1024;

/// Of a forwarded request: the other process wants no more than a portion.
pub const PORTION: HeaderName = HeaderName::from_static("x-saga-runner-portion");

/// What the items of a page are called.
pub const ITEMS: &str = "items";
/// The same of the inputs of an instance.
pub const INPUTS: &str = "inputs";

tokio::task_local! {
    static WANTED: Option<Wanted>;
}

/// What the process wants that sends a page on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub bytes: usize,
    pub looked_at: usize,
}

impl Wanted {
    /// Of a request that another process has forwarded. What cannot be read is not wanted.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(PORTION)?.to_str().ok()?;
        let (bytes, looked_at) = text.split_once('/')?;
        Some(Self {
            bytes: bytes.parse().ok()?,
            looked_at: looked_at.parse().ok()?,
        })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bytes, self.looked_at)
    }
}

/// Runs what answers a request, of whose page no more than this is wanted.
pub async fn within<F: Future>(wanted: Option<Wanted>, answering: F) -> F::Output {
    WANTED.scope(wanted, answering).await
}

/// Some items of a page, and what is said of the list behind them.
#[derive(Debug, Default)]
pub struct Portion {
    /// As JSON, with commas between them.
    pub items: Vec<u8>,
    pub count: usize,
    /// Without the commas.
    pub bytes: usize,
    pub next: Option<String>,
    pub absent_shards: Vec<u16>,
    pub looked_at: Option<usize>,
    /// Other members, each behind a comma.
    pub members: String,
}

impl Portion {
    /// Adds an item.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.count > 0 {
            self.items.push(b',');
        }
        let before = self.items.len();
        write(&mut self.items);
        self.bytes += self.items.len() - before;
        self.count += 1;
    }
}

impl<T: Serialize> From<Page<T>> for Portion {
    fn from(page: Page<T>) -> Self {
        let mut portion = Self {
            next: page.next,
            absent_shards: page.absent_shards,
            looked_at: page.looked_at,
            ..Self::default()
        };
        for item in page.items {
            portion.push(|items| serde_json::to_writer(items, &item).expect("a view is plain data"));
        }
        portion
    }
}

/// Why there is no portion.
#[derive(Debug)]
pub enum Refusal {
    Here(Box<Problem>),
    /// What another process has answered.
    There(Box<Response>),
}

impl Refusal {
    pub fn into_response(self) -> Response {
        match self {
            Self::Here(problem) => problem.into_response(),
            Self::There(response) => *response,
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Here(Box::new(problem))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(problem) => f.write_str(&problem.detail),
            Self::There(response) => write!(f, "another process answers {}", response.status()),
        }
    }
}

/// Where the items of a list are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the shards, within milliseconds: so many reads go on at a time as `http.reads_max` says.
    Shards,
    /// In the broker as well, which may take its time.
    Broker,
}

/// Reads a portion.
pub type Ask = Box<dyn FnMut(PageRequest) -> BoxFuture<'static, Result<Portion, Refusal>> + Send>;

/// Answers with a page of a list whose items are the member `name`.
///
/// # Errors
/// [`Problem`] where the first portion cannot be read, or nobody has room for more than that.
pub async fn listed<T, F, Asked>(
    state: &ApiState,
    (name, source): (&'static str, Source),
    page: PageRequest,
    ask: F,
) -> Result<Response, Problem>
where
    T: Serialize + Send + 'static,
    F: Fn(PageRequest) -> Asked + Send + 'static,
    Asked: Future<Output = Result<Page<T>, ControlError>> + Send + 'static,
{
    let places = (source == Source::Shards).then(|| Arc::clone(&state.reads));
    let wanted = WANTED.try_with(|wanted| *wanted).ok().flatten();
    if let Some(Wanted { bytes, looked_at }) = wanted {
        let page = PageRequest {
            bytes: Some(bytes),
            looked_at,
            ..page
        };
        let mut portion = in_turn(places, ask(page)).await?;
        let mut whole = begin(name);
        whole.append(&mut portion.items);
        let absent_shards = portion.absent_shards.iter().copied().collect();
        end(&mut whole, &portion, &absent_shards);
        return Ok(json(whole.into()));
    }
    let ask: Ask = Box::new(move |page| {
        let asked = in_turn(places.clone(), ask(page));
        async move { asked.await.map_err(|error| Problem::from(error).into()) }.boxed()
    });
    match answered(state, name, page, ask).await {
        Ok(response) => Ok(response),
        Err(Refusal::Here(problem)) => Err(*problem),
        Err(Refusal::There(response)) => Ok(*response),
    }
}

/// Reads a portion in one of these places, which it has until it is JSON: what is read is larger than that.
async fn in_turn<T: Serialize>(
    places: Option<Arc<Semaphore>>,
    asked: impl Future<Output = Result<Page<T>, ControlError>>,
) -> Result<Portion, ControlError> {
    let _place = match places {
        Some(places) => places.acquire_owned().await.ok(),
        None => None,
    };
    asked.await.map(Portion::from)
}

/// Answers with a page that is read by `ask`, portion by portion.
///
/// # Errors
/// [`Refusal`] of the first portion, or where there is no room for more than that.
pub async fn answered(
    state: &ApiState,
    name: &'static str,
    page: PageRequest,
    ask: Ask,
) -> Result<Response, Refusal> {
    let sending = Sending {
        name,
        left: state.page_bytes_max,
        page,
        ask,
        absent_shards: BTreeSet::new(),
        has_begun: false,
        has_items: false,
        is_over: false,
        answers: state.answers.clone(),
        clock: Arc::clone(&state.clock),
        give_up_at: state.clock.monotonic() + state.answer_timeout,
        patience: state.request_timeout,
        trace: trace::of_request(),
    };
    sending.answered().await
}

const JSON: &str = "application/json";

fn json(whole: Bytes) -> Response {
    ([(header::CONTENT_TYPE, JSON)], Body::from(whole)).into_response()
}

/// What a page begins with.
fn begin(name: &str) -> Vec<u8> {
    format!("{{\"{name}\":[").into_bytes()
}

/// Writes what stands behind the items of a page that ends with this portion.
fn end(page: &mut Vec<u8>, portion: &Portion, absent_shards: &BTreeSet<u16>) {
    let mut end = String::from("]");
    if let Some(next) = &portion.next {
        let next = serde_json::Value::from(next.as_str());
        end.extend([",\"next\":", &next.to_string()]);
    }
    if !absent_shards.is_empty() {
        let absent: Vec<u16> = absent_shards.iter().copied().collect();
        let absent = serde_json::Value::from(absent);
        end.extend([",\"absent_shards\":", &absent.to_string()]);
    }
    if let Some(looked_at) = portion.looked_at {
        end.extend([",\"looked_at\":", &looked_at.to_string()]);
    }
    end += &portion.members;
    end.push('}');
    page.extend_from_slice(end.as_bytes());
}

/// A page that is being sent.
struct Sending {
    name: &'static str,
    /// What is still to come, behind which cursor.
    page: PageRequest,
    /// Bytes that may still come.
    left: usize,
    ask: Ask,
    /// Those that were absent at any portion.
    absent_shards: BTreeSet<u16>,
    has_begun: bool,
    has_items: bool,
    is_over: bool,
    answers: Answers,
    clock: Arc<dyn Clock>,
    /// The monotonic time from which on no portion is read.
    give_up_at: Duration,
    /// Longest time until a portion is read.
    patience: Duration,
    trace: Option<RequestTrace>,
}

impl Sending {
    /// The answer, which begins with the first portion.
    async fn answered(mut self) -> Result<Response, Refusal> {
        let portion = self.read().await?;
        let first = self.take(portion);
        if self.is_over {
            return Ok(json(first));
        }
        let first = self.answers.room_or_refusal(first.len())?.hold(first);
        let bytes = stream::unfold((Some(self), Some(first)), |(sending, first)| async move {
            if let Some(first) = first {
                return Some((Ok(first), (sending, None)));
            }
            let mut sending = sending.filter(|sending| !sending.is_over)?;
            match sending.go_on().await {
                Ok(bytes) => Some((Ok(bytes), (Some(sending), None))),
                Err(error) => {
                    let trace_id = sending.trace.as_ref().map(RequestTrace::id);
                    tracing::debug!(trace_id, %error, "a page was not sent to its end");
                    Some((Err(error), (None, None)))
                }
            }
        });
        Ok(([(header::CONTENT_TYPE, JSON)], Body::from_stream(bytes)).into_response())
    }

    fn portion_bytes(&self) -> usize {
        PORTION_BYTES.min(self.left)
    }

    /// Reads the next portion.
    async fn read(&mut self) -> Result<Portion, Refusal> {
        let portion = PageRequest {
            bytes: Some(self.portion_bytes()),
            ..self.page.clone()
        };
        let asked = tokio::time::timeout(self.patience, (self.ask)(portion));
        let read = match &self.trace {
            Some(trace) => trace::within(trace.clone(), asked).await,
            None => asked.await,
        };
        read.map_err(|_| Problem::unavailable("the rest of a page took longer than http.request_timeout"))?
    }

    /// Takes a portion that was read, as it is sent.
    fn take(&mut self, mut portion: Portion) -> Bytes {
        // One that is short although the list goes on has ended because enough was looked at.
        let is_full = portion.count >= self.page.limit || portion.bytes >= self.portion_bytes();
        self.page.limit = self.page.limit.saturating_sub(portion.count);
        self.left = self.left.saturating_sub(portion.bytes);
        self.is_over = portion.next.is_none() || !is_full || self.page.limit == 0 || self.left == 0;
        self.page.after.clone_from(&portion.next);
        self.page.looked_at = portion.looked_at.unwrap_or_default();
        self.absent_shards.extend(&portion.absent_shards);
        let mut sent = std::mem::take(&mut portion.items);
        if !self.has_begun {
            sent.splice(0..0, begin(self.name));
        } else if self.has_items && portion.count > 0 {
            sent.insert(0, b',');
        }
        self.has_begun = true;
        self.has_items |= portion.count > 0;
        if self.is_over {
            end(&mut sent, &portion, &self.absent_shards);
        }
        // Nothing is held but what is counted.
        sent.shrink_to_fit();
        sent.into()
    }

    /// The next portion, for a client that has taken the ones before.
    async fn go_on(&mut self) -> io::Result<Bytes> {
        let left = self.give_up_at.saturating_sub(self.clock.monotonic());
        match tokio::time::timeout(left, self.read_in_room()).await {
            Ok(read) => read.map_err(|refusal| io::Error::other(refusal.to_string())),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client took longer than http.answer_timeout, or there was no room in http.answer_bytes_max",
            )),
        }
    }

    async fn read_in_room(&mut self) -> Result<Bytes, Refusal> {
        let mut bytes = self.portion_bytes();
        loop {
            let room = self.answers.room_in_turn(bytes).await;
            let portion = self.read().await?;
            if let Some(room) = self.answers.fitted(room, portion.items.len()) {
                return Ok(room.hold(self.take(portion)));
            }
            // It is read again when there is room for all of it.
            bytes = portion.items.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::body::to_bytes;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::{Settings, serve};
    use crate::kernel::ids::TimeMs;
    use crate::telemetry::Metrics;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> TimeMs {
            TimeMs(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// A page of items of 30,000 bytes, which are numbered.
    fn sending(ask: Ask, limit: usize) -> Sending {
        Sending {
            name: ITEMS,
            page: PageRequest::new(None, limit),
            left: usize::MAX,
            ask,
            absent_shards: BTreeSet::new(),
            has_begun: false,
            has_items: false,
            is_over: false,
            answers: Answers::new(10_000_000, Arc::new(Metrics::new())),
            clock: Arc::new(Still),
            give_up_at: Duration::from_mins(1),
            patience: Duration::from_secs(10),
            trace: None,
        }
    }

    /// The items behind the cursor, of `of`.
    fn items(page: &PageRequest, of: usize) -> Portion {
        let begin = page
            .after
            .as_deref()
            .map_or(0, |after| after.parse().expect("a number"));
        let mut portion = Portion::default();
        let (mut at, most) = (begin, page.bytes.expect("a bound"));
        while at < of && portion.count < page.limit && portion.bytes < most {
            let item = format!("\"{at}{}\"", "x".repeat(30_000));
            portion.push(|items| items.extend_from_slice(item.as_bytes()));
            at += 1;
        }
        portion.next = (at < of).then(|| at.to_string());
        portion
    }

    async fn page(sending: Sending) -> serde_json::Value {
        let response = sending.answered().await.expect("a page");
        let body = to_bytes(response.into_body(), usize::MAX)
            .await
            .expect("all of it");
        serde_json::from_slice(&body).expect("JSON")
    }

    #[tokio::test]
    async fn a_page_ends_with_its_items_and_where_enough_was_looked_at() {
        let whole: Ask = Box::new(|page| async move { Ok(items(&page, 20)) }.boxed());
        let read = page(sending(whole, 500)).await;
        let found = read["items"].as_array().expect("items");
        assert_eq!((found.len(), read.get("next")), (20, None));
        for (at, item) in found.iter().enumerate() {
            assert!(
                item.as_str().expect("text").starts_with(&format!("{at}x")),
                "{at}"
            );
        }

        let limited: Ask = Box::new(|page| async move { Ok(items(&page, 20)) }.boxed());
        let read = page(sending(limited, 7)).await;
        assert_eq!(read["items"].as_array().map(Vec::len), Some(7));
        assert_eq!(read["next"], "7");

        let short: Ask = Box::new(|page| {
            let mut portion = items(&page, 20);
            portion.looked_at = Some(page.looked_at + 100);
            if portion.next.as_deref() == Some("6") {
                // Shorter than it may be.
                portion.bytes = 1;
                portion.absent_shards = vec![3];
            }
            async move { Ok(portion) }.boxed()
        });
        let read = page(sending(short, 500)).await;
        assert_eq!(read["items"].as_array().map(Vec::len), Some(6));
        let said = (&read["next"], &read["looked_at"], &read["absent_shards"]);
        assert_eq!(said, (&"6".into(), &200.into(), &serde_json::json!([3])));
    }

    #[tokio::test]
    async fn a_portion_is_read_when_the_one_before_was_taken_and_an_error_breaks_the_answer() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let ask: Ask = Box::new(move |page| {
            let at = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                match at {
                    300 => Err(Problem::unavailable("the disk is gone").into()),
                    _ => Ok(items(&page, 5_000)),
                }
            }
            .boxed()
        });
        let sending = Arc::new(Mutex::new(Some(sending(ask, 5_000))));
        let handler = move || {
            let sending = sending.lock().expect("unpoisoned").take().expect("asked once");
            async move { sending.answered().await.map_err(Refusal::into_response) }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (router, stop) = (Router::new().route("/", get(handler)), CancellationToken::new());
        let stopped = stop.clone();
        let settings = Settings::default();
        let serving =
            tokio::spawn(
                async move { serve(listener, router, Router::new(), &settings, None, stopped).await },
            );
        let mut client = TcpStream::connect(address).await.expect("connected");
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(request).await.expect("sent");
        let mut first = [0; 12];
        client.read_exact(&mut first).await.expect("it begins");
        assert_eq!(&first, b"HTTP/1.1 200");
        assert!(asked.load(Ordering::Relaxed) < 300);
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ended = client.read_to_end(&mut rest).await;
        assert_eq!(asked.load(Ordering::Relaxed), 301);
        assert!(rest.len() > 20_000_000, "{} bytes", rest.len());
        assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks whole");
        stop.cancel();
        serving.await.expect("it ends");
    }
}
