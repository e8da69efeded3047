//! The connections of the API: no more than there may be, and none for a client that is too slow.
//!
//! What `axum::serve` leaves to its caller: TLS, hyper's time limit for headers, which idle connections fall under as well,
//! a bound for connections, and a time limit for answers that are not taken. How long a request may take is the router's.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::settings::Settings;
use super::tls::{ClientCertificate, Tls};

/// Connections beyond those that there may be, each for one request: probes are answered, so that nobody restarts a
/// process because it has many clients.
const SPARE: usize = 64;
/// Bytes of the headers of one request.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// How long nothing is accepted after the system could not.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// What is at the other end of a connection.
struct Client {
    peer: Peer,
    certificate: Option<ClientCertificate>,
}

/// Serves `router` until it is told to stop, and `crowded` where there are too many connections; then lets what is under
/// way come to its end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    crowded: Router,
    settings: &Settings,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(
        settings.connections_max.min(Semaphore::MAX_PERMITS),
    ));
    let spare = Arc::new(Semaphore::new(SPARE));
    let tasks = TaskTracker::new();
    let mut is_full = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, Peer(peer)),
            Err(error) => {
                if !is_of_connection(&error) {
                    tracing::warn!(%error, "cannot accept a connection of the API");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
                continue;
            }
        };
        let place = Arc::clone(&places).try_acquire_owned().ok();
        if place.is_none() != is_full {
            is_full = place.is_none();
            let most = settings.connections_max;
            if is_full {
                tracing::warn!(connections_max = most, "the API has reached http.connections_max");
            } else {
                tracing::info!(connections_max = most, "the API accepts connections again");
            }
        }
        let (place, router, keep_alive) = match place {
            Some(place) => (place, router.clone(), true),
            None => match Arc::clone(&spare).try_acquire_owned() {
                Ok(place) => (place, crowded.clone(), false),
                Err(_) => continue,
            },
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout.duration())
            .max_buf_size(HEADER_BYTES_MAX)
            .keep_alive(keep_alive);
        let stream = Taken::new(stream, settings.answer_timeout.duration());
        let (stop, tls) = (stop.clone(), tls.clone());
        let patience = settings.header_timeout.duration();
        tasks.spawn(async move {
            match tls {
                None => {
                    let certificate = None;
                    converse(&http, stream, Client { peer, certificate }, router, &stop).await;
                }
                Some(tls) => {
                    let shaken = tokio::select! {
                        shaken = shake_hands(&tls, stream, patience) => shaken,
                        () = stop.cancelled() => None,
                    };
                    if let Some(stream) = shaken {
                        let certificate = ClientCertificate::of(stream.get_ref().1);
                        converse(&http, stream, Client { peer, certificate }, router, &stop).await;
                    }
                }
            }
            drop(place);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// A connection with TLS; `None` where its client does not speak it, has no certificate that is trusted, or is too slow.
async fn shake_hands(
    tls: &Tls,
    stream: Taken<TcpStream>,
    patience: Duration,
) -> Option<TlsStream<Taken<TcpStream>>> {
    let shaking = TlsAcceptor::from(tls.config()).accept(stream);
    match tokio::time::timeout(patience, shaking).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake of the API failed");
            None
        }
        Err(_) => {
            tracing::debug!("a TLS handshake of the API took longer than http.header_timeout");
            None
        }
    }
}

/// Answers the requests of one connection.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    http: &http1::Builder,
    stream: S,
    client: Client,
    router: Router,
    stop: &CancellationToken,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let extensions = request.extensions_mut();
        extensions.insert(client.peer);
        if let Some(certificate) = &client.certificate {
            extensions.insert(certificate.clone());
        }
        router.call(request)
    });
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // A client that breaks off or is too slow is not news.
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the API ended early");
    }
}

/// Whether only this connection could not be accepted.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

/// A stream whose reader takes what is written within a time limit, from when it first lets the writer wait.
struct Taken<S> {
    stream: S,
    limit: Duration,
    /// Set while something waits to be taken.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    const fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            deadline: None,
        }
    }

    fn within<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let limit = self.limit;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.within(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.within(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            // hyper flushes once everything is written.
            self.deadline = None;
        }
        self.within(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.within(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::kernel::duration::Millis;

    /// More than the buffers of a connection hold.
    const LARGE: usize = 32 * 1024 * 1024;

    async fn serving(settings: Settings) -> (std::net::SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/large", get(|| async { vec![b'x'; LARGE] }));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            serve(listener, router, Router::new(), &settings, None, stopped).await;
        });
        (address, stop)
    }

    async fn ask(address: std::net::SocketAddr) -> TcpStream {
        let mut client = TcpStream::connect(address).await.expect("connected");
        let request = b"GET /large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        client.write_all(request).await.expect("sent");
        client
    }

    #[tokio::test]
    async fn an_answer_that_is_not_taken_is_given_up_and_one_that_is_comes_whole() {
        let settings = Settings {
            answer_timeout: Millis(300),
            ..Settings::default()
        };
        let (address, stop) = serving(settings).await;
        let mut slow = ask(address).await;
        let mut first = [0];
        slow.read_exact(&mut first).await.expect("it begins");
        tokio::time::sleep(Duration::from_millis(600)).await;
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ended = slow.read_to_end(&mut rest).await;
        assert!(rest.len() < LARGE, "{} bytes came", rest.len());

        let mut quick = ask(address).await;
        let mut whole = Vec::new();
        quick.read_to_end(&mut whole).await.expect("a whole answer");
        assert!(whole.len() > LARGE);
        stop.cancel();
    }

    #[tokio::test]
    async fn connections_that_nobody_has_room_for_are_closed() {
        let settings = Settings {
            connections_max: 1,
            ..Settings::default()
        };
        let (address, stop) = serving(settings).await;
        let mut held = Vec::new();
        for _ in 0..=SPARE {
            held.push(TcpStream::connect(address).await.expect("connected"));
        }
        let mut further = TcpStream::connect(address).await.expect("connected");
        let mut nothing = Vec::new();
        let ended = further.read_to_end(&mut nothing).await;
        assert!(ended.is_err() || nothing.is_empty());
        drop(held);
        stop.cancel();
    }
}
