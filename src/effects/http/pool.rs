//! Connections to one origin over HTTP/1.1 without TLS, each for one call at a time.
//!
//! There are as many sockets as there were calls at the same time; those without a call end after a while.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{InvalidUri, PathAndQuery};
use hyper::{Request, Response, Uri};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::ServiceExt as _;

use super::client::{InTime, Plain, Unanswered, kept_for, late};
use super::exchange::{Incoming, Outgoing};
use crate::effects::ProviderError;
use crate::effects::origin::Origin;

pub struct Pool {
    connector: InTime<Plain>,
    origin: Uri,
    host: HeaderValue,
    idle: Arc<Idle>,
}

impl Pool {
    /// A pool that ends connections which have been without a call for `idle_max`, or as long as their server announces.
    ///
    /// # Errors
    /// [`ProviderError::Host`] where the origin cannot be written into a request.
    pub fn new(connector: InTime<Plain>, origin: &Origin, idle_max: Duration) -> Result<Self, ProviderError> {
        let refused =
            |reason: String| ProviderError::Host(format!("{origin} is not a host of a request: {reason}"));
        // RFC 9110, 7.2: without the port that the scheme has by default.
        let host = match origin.port {
            Some(80) => origin.host.clone(),
            _ => origin.to_string(),
        };
        Ok(Self {
            connector,
            origin: format!("http://{origin}/")
                .parse()
                .map_err(|error: InvalidUri| refused(error.to_string()))?,
            host: HeaderValue::try_from(host).map_err(|error| refused(error.to_string()))?,
            idle: Arc::new(Idle {
                max: idle_max,
                waiting: Mutex::default(),
            }),
        })
    }

    /// Sends a request to the origin, whatever host its URL names, and waits for the head of its answer, until `by`.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn send(
        &self,
        request: Request<Bytes>,
        by: Instant,
    ) -> impl Future<Output = Result<Response<Rest>, Unanswered>> {
        // Before the future is made, which would keep all shapes of the request.
        let outgoing = Outgoing::new(self.addressed(request)).map(Box::new);
        async move {
            let mut outgoing = outgoing?;
            loop {
                let (socket, is_used) = match self.idle.take() {
                    Some(socket) => (socket, true),
                    None => (self.connect(by).await?, false),
                };
                outgoing = match outgoing.exchange(socket, by).await {
                    Ok(answer) => {
                        let keep = kept_for(answer.headers()).unwrap_or(self.idle.max);
                        return Ok(answer.map(|incoming| Rest {
                            incoming: Some(incoming),
                            keep,
                            idle: Arc::clone(&self.idle),
                        }));
                    }
                    // The server has closed what was idle.
                    Err((_, Some(unsent))) if is_used => unsent,
                    Err((error, _)) => return Err(error),
                };
            }
        }
    }

    /// The request as HTTP/1.1 has it: the host in a header of its own.
    fn addressed(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        request
            .headers_mut()
            .entry(HOST)
            .or_insert_with(|| self.host.clone());
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
        request
    }

    async fn connect(&self, by: Instant) -> Result<TcpStream, Unanswered> {
        // Boxed: few calls connect while thousands wait for an answer.
        let connecting = Box::pin(timeout_at(
            by,
            self.connector.clone().oneshot(self.origin.clone()),
        ));
        let socket = connecting
            .await
            .map_err(|_| Unanswered::Unconnected(late().into()))?;
        Ok(socket.map_err(Unanswered::Unconnected)?.into_inner())
    }
}

/// An answer without its head. Where it is read to its end, its socket goes back to the pool.
pub struct Rest {
    incoming: Option<Incoming>,
    /// How long the socket may wait there.
    keep: Duration,
    idle: Arc<Idle>,
}

impl Rest {
    /// The length of the body that the head has told.
    pub fn announced(&self) -> Option<u64> {
        self.incoming.as_ref().and_then(Incoming::announced)
    }

    /// The next piece of the body, `None` behind the last.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Unanswered> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(None);
        };
        let chunk = incoming.chunk().await;
        if let Ok(Some(_)) = chunk {
            return chunk;
        }
        let ended = self.incoming.take();
        if let Some(socket) = ended.and_then(Incoming::into_socket) {
            self.idle.put(socket, self.keep);
        }
        chunk
    }
}

/// Sockets without a call, and until when they are kept. Those at the end were used last and are used first, so that what is
/// not needed any more comes to its end.
struct Idle {
    /// How long where the server does not say.
    max: Duration,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    sockets: VecDeque<(TcpStream, Instant)>,
    /// Whether a task closes them.
    is_reaped: bool,
}

impl Idle {
    fn take(&self) -> Option<TcpStream> {
        let now = Instant::now();
        let mut waiting = self.waiting();
        std::iter::from_fn(|| waiting.sockets.pop_back())
            .filter(|(_, end)| now < *end)
            .map(|(socket, _)| socket)
            .find(is_open)
    }

    fn put(self: &Arc<Self>, socket: TcpStream, keep: Duration) {
        if keep.is_zero() {
            return;
        }
        let mut waiting = self.waiting();
        waiting.sockets.push_back((socket, Instant::now() + keep));
        if !std::mem::replace(&mut waiting.is_reaped, true) {
            tokio::spawn(reap(Arc::downgrade(self)));
        }
    }

    /// Ends what has waited for too long. What the server has closed is found when it is wanted, or ends here as well.
    ///
    /// # Returns
    /// When to look again, if there is anything left.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut waiting = self.waiting();
        // The first has waited longest. A server that announces another time with each answer has the last one heeded
        // when the socket is wanted.
        let end = |waiting: &Waiting| waiting.sockets.front().map(|(_, end)| *end);
        while end(&waiting).is_some_and(|end| end <= now) {
            waiting.sockets.pop_front();
        }
        let next = end(&waiting);
        waiting.is_reaped = next.is_some();
        next
    }

    /// Whoever panics while it holds the lock leaves sockets, each of them whole.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nothing has come from the server, neither a close nor an answer that nobody asked for. Asks the system itself:
/// the runtime may not have heard of it yet.
fn is_open(socket: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    let peeked = SockRef::from(socket).peek(&mut byte);
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

async fn reap(idle: Weak<Idle>) {
    while let Some(next) = idle.upgrade().and_then(|idle| idle.expire(Instant::now())) {
        sleep_until(next).await;
    }
}
