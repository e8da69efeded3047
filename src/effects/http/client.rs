//! The client of HTTP calls, made for thousands that wait for their answers at the same time.
//!
//! It speaks HTTP/1.1, over TLS also HTTP/2 with servers that offer it. It follows no redirects and knows no proxies. What
//! a more general client keeps beside a call for those takes more memory than the call. Without TLS, where there is one
//! version, no room to read or write is kept for a call that waits, either.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, TRANSFER_ENCODING};
use hyper::{Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout, timeout_at};
use tower::Service;
use ureq_proto::Error as Fault;

use super::body::Body;
use super::pool::Pool;
use crate::clients::ending::{is_not_begun, is_untrusted, wants_certificate};
use crate::clients::{UpstreamTls, tls};
use crate::effects::ProviderError;
use crate::effects::certainty::Ending;
use crate::effects::network::Network;
use crate::effects::origin::Origin;

/// How often TCP asks for a heartbeat where nothing is said, how many times, and how long what was sent may remain
/// without a receipt.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVES: u32 = 3;
const RECEIPT: Duration = Duration::from_secs(30);
/// What says how a request is sent is the client's to say.
const FRAMING: [HeaderName; 3] = [CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING];
/// How often a request is sent again that the server has not begun.
const RESENT_MAX: usize = 2;

/// Longest time for which a connection is kept because its server announces so, and what is taken off from the time.
const KEPT_MAX: Duration = Duration::from_mins(1);
const KEPT_MARGIN: Duration = Duration::from_secs(1);

type BoxError = Box<dyn Error + Send + Sync>;
/// Connections without TLS.
pub(super) type Plain = HttpConnector<Resolver>;
type Negotiated<C> = legacy::Client<InTime<C>, Full<Bytes>>;

/// A pool of connections to one origin.
pub enum Client {
    Plain(Pool),
    /// Over TLS the server chooses the version of HTTP.
    Tls {
        client: Box<Negotiated<HttpsConnector<Plain>>>,
        idle: Duration,
    },
}

/// What a client is made for.
#[derive(Clone, Copy)]
pub struct ClientSpec<'a> {
    pub origin: &'a Origin,
    pub tls: Option<&'a UpstreamTls>,
    /// For look-up, connection and handshake together.
    pub connect_timeout: Duration,
    pub network: &'a Network,
    /// How long a connection is kept without a call whose server does not say how long it keeps it.
    pub idle: Duration,
}

impl Client {
    /// # Errors
    /// [`ProviderError`] where the origin or the certificates cannot be used.
    pub fn new(spec: ClientSpec<'_>) -> Result<Self, ProviderError> {
        let mut connector = HttpConnector::new_with_resolver(Resolver(spec.network.clone()));
        connector.enforce_http(false);
        connector.set_nodelay(true);
        // Shared out among the addresses, so that one which says nothing does not use up the time of the others.
        connector.set_connect_timeout(Some(spec.connect_timeout));
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE));
        connector.set_keepalive_retries(Some(KEEPALIVES));
        connector.set_tcp_user_timeout(Some(RECEIPT));
        let limit = spec.connect_timeout;
        if spec.origin.scheme != "https" {
            let pool = Pool::new(InTime { connector, limit }, spec.origin, spec.idle)?;
            return Ok(Self::Plain(pool));
        }
        let config = tls::client_config(spec.tls).map_err(ProviderError::Tls)?;
        let connector = HttpsConnector::from((connector, config));
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(spec.idle)
            .build(InTime { connector, limit });
        Ok(Self::Tls {
            client: Box::new(client),
            idle: spec.idle,
        })
    }

    /// Sends a request and waits for the head of its answer, until `by`.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn send(
        &self,
        mut request: Request<Bytes>,
        by: Instant,
    ) -> BoxFuture<'_, Result<Response<Body>, Unanswered>> {
        for name in FRAMING {
            request.headers_mut().remove(name);
        }
        match self {
            Self::Plain(pool) => pool
                .send(request, by)
                .map(|answer| Ok(answer?.map(Body::Plain)))
                .boxed(),
            Self::Tls { client, idle } => send_until_begun(client, *idle, request.map(Full::new), by)
                .map(|answer| Ok(answer?.map(Body::Tls)))
                .boxed(),
        }
    }
}

/// HTTP/2 tells which requests it has not begun, as those that are on the way when a server stops.
async fn send_until_begun<C>(
    client: &Negotiated<C>,
    idle: Duration,
    request: Request<Full<Bytes>>,
    by: Instant,
) -> Result<Response<Incoming>, Unanswered>
where
    InTime<C>: legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    for _ in 0..RESENT_MAX {
        match send_once(client, idle, request.clone(), by).await {
            Err(error) if error.ending() == Ending::NotBegun => {}
            end => return end,
        }
    }
    send_once(client, idle, request, by).await
}

async fn send_once<C>(
    client: &Negotiated<C>,
    idle: Duration,
    mut request: Request<Full<Bytes>>,
    by: Instant,
) -> Result<Response<Incoming>, Unanswered>
where
    InTime<C>: legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    let connection = capture_connection(&mut request);
    let Ok(answer) = timeout_at(by, client.request(request)).await else {
        // Without a connection it cannot have gone.
        return Err(match &*connection.connection_metadata() {
            Some(_) => Unanswered::Lost(late()),
            None => Unanswered::Unsent(late()),
        });
    };
    let answer = answer?;
    // The pool keeps all of its connections for one time. What the server keeps for less is not used again.
    if kept_for(answer.headers()).is_some_and(|kept| kept < idle)
        && let Some(connection) = &*connection.connection_metadata()
    {
        connection.poison();
    }
    Ok(answer)
}

/// How long a connection may wait for its next request by what the server announces (`Keep-Alive: timeout=5`). The margin
/// is for a request that is on its way when the time ends.
pub(super) fn kept_for(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("keep-alive")?.to_str().ok()?;
    let seconds = text.split(',').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.trim().trim_matches('"').parse().ok())?
    })?;
    let announced = Duration::from_secs(seconds).min(KEPT_MAX);
    Some(announced.saturating_sub(KEPT_MARGIN))
}

/// The error of a call whose time is over.
pub(super) fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no answer in time")
}

/// Why there is no answer, or no whole one. Its causes tell, beginning with the first.
#[derive(Debug, thiserror::Error)]
#[error("request failed")]
pub enum Unanswered {
    /// There is no connection.
    Unconnected(#[source] BoxError),
    /// There is no such request in HTTP/1.1.
    Unsendable(#[source] Fault),
    /// The connection ended before anything of the request had gone.
    Unsent(#[source] io::Error),
    /// The connection ended before the answer did.
    Lost(#[source] io::Error),
    /// The answer is none of HTTP/1.1.
    Malformed(#[source] BoxError),
    /// There is no head of an answer, over TLS.
    Negotiated(#[from] legacy::Error),
    /// The body of the answer broke off, over TLS.
    Broken(#[from] hyper::Error),
}

impl Unanswered {
    /// The outcome of the call.
    pub fn ending(&self) -> Ending {
        let unsent = if self.is_timeout() {
            Ending::LateUnsent
        } else {
            Ending::LostUnsent
        };
        let lost = if self.is_timeout() {
            Ending::Late
        } else {
            Ending::Lost
        };
        match self {
            Self::Unsendable(_) => Ending::Unsendable("permanent"),
            Self::Unconnected(_) => self.unconnected(),
            Self::Negotiated(error) if error.is_connect() => self.unconnected(),
            Self::Unsent(_) => unsent,
            Self::Negotiated(_) if wants_certificate(self.causes()) => Ending::Untrusted,
            Self::Negotiated(_) if is_not_begun(self.causes()) => Ending::NotBegun,
            // It waited for a connection that ended, and was not given to another one.
            Self::Negotiated(_) if self.is_canceled() => unsent,
            Self::Lost(_) | Self::Malformed(_) | Self::Broken(_) | Self::Negotiated(_) => lost,
        }
    }

    fn unconnected(&self) -> Ending {
        if is_untrusted(self.causes()) {
            Ending::Untrusted
        } else if self.is_timeout() {
            Ending::LateUnsent
        } else {
            Ending::Unconnected
        }
    }

    fn is_timeout(&self) -> bool {
        self.causes().any(|cause| {
            let io = cause.downcast_ref::<io::Error>();
            let hyper = cause.downcast_ref::<hyper::Error>();
            io.is_some_and(|error| error.kind() == ErrorKind::TimedOut)
                || hyper.is_some_and(hyper::Error::is_timeout)
        })
    }

    fn is_canceled(&self) -> bool {
        let mut errors = self
            .causes()
            .filter_map(|cause| cause.downcast_ref::<hyper::Error>());
        errors.any(hyper::Error::is_canceled)
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        std::iter::successors(self.source(), |&cause| cause.source())
    }
}

/// The network's look-up of names, as the connector wants it.
#[derive(Debug, Clone)]
pub struct Resolver(pub(super) Network);

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let network = self.0.clone();
        async move { Ok(network.lookup(name.as_str(), 0).await?.into_iter()) }.boxed()
    }
}

/// A connector with a limit for all that it does.
#[derive(Debug, Clone)]
pub struct InTime<C> {
    pub(super) connector: C,
    pub(super) limit: Duration,
}

impl<C> Service<Uri> for InTime<C>
where
    C: Service<Uri, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connected = timeout(self.limit, self.connector.call(to));
        async move {
            let late = |_| io::Error::new(ErrorKind::TimedOut, "operation timed out");
            connected.await.map_err(late)?.map_err(Into::into)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use h2::Reason;
    use hyper::Version;
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::clients::Identity;
    use crate::clients::testing::Authority;

    const IDLE: Duration = Duration::from_secs(30);

    /// A server that speaks HTTP/2 and refuses the first so many requests before it begins them.
    async fn server(refusals: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await.expect("a connection");
            let mut connection = h2::server::handshake(socket).await.expect("a handshake");
            let mut seen = 0;
            while let Some(Ok((_, mut answer))) = connection.accept().await {
                seen += 1;
                if seen <= refusals {
                    answer.send_reset(Reason::REFUSED_STREAM);
                } else {
                    answer.send_response(Response::new(()), true).expect("sent");
                }
            }
        });
        format!("http://{address}/")
    }

    async fn answer(refusals: usize) -> Result<Response<Incoming>, Unanswered> {
        let client: Negotiated<Plain> = legacy::Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build(InTime {
                connector: HttpConnector::new_with_resolver(Resolver(Network::default())),
                limit: Duration::from_secs(30),
            });
        let request = Request::post(server(refusals).await).body(Full::default());
        let by = Instant::now() + Duration::from_secs(30);
        send_until_begun(&client, IDLE, request.expect("a request"), by).await
    }

    #[tokio::test]
    async fn a_request_that_the_server_has_not_begun_is_sent_again_but_not_for_ever() {
        let last = answer(RESENT_MAX).await.expect("begun in the end");
        assert_eq!(last.status(), 200);
        let refused = answer(RESENT_MAX + 1).await.expect_err("refused each time");
        assert_eq!(refused.ending(), Ending::NotBegun, "{refused:?}");
    }

    /// The settings of a server that proves itself and may want to see a certificate of its callers.
    fn server_config(own: &Identity, callers: Option<&Authority>) -> ServerConfig {
        let certificate = CertificateDer::from_pem_slice(&own.certificate).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(&own.key).expect("a key");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = match callers {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                let authority = CertificateDer::from_pem_slice(&authority.pem()).expect("a certificate");
                roots.add(authority).expect("an authority");
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
            }
        };
        let mut config = builder.with_single_cert(vec![certificate], key).expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    async fn listen() -> (TcpListener, Origin) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let origin = Origin {
            scheme: "https".to_owned(),
            host: "localhost".to_owned(),
            port: Some(port),
        };
        (listener, origin)
    }

    fn client(origin: &Origin, tls: &UpstreamTls) -> Client {
        let client = Client::new(ClientSpec {
            origin,
            tls: Some(tls),
            connect_timeout: Duration::from_secs(30),
            network: &Network::default(),
            idle: IDLE,
        });
        client.expect("a client")
    }

    /// What happens to a call that may take so long.
    async fn ending(client: &Client, origin: &Origin, limit: Duration) -> Ending {
        let request = Request::post(format!("https://{origin}/charges")).body(Bytes::from_static(b"{}"));
        let by = Instant::now() + limit;
        let answer = client.send(request.expect("a request"), by).await;
        answer.map(drop).expect_err("no answer").ending()
    }

    /// A server that has to be asked for HTTP/2. It tells the number of the connection and what was asked, and says
    /// goodbye after two requests on each.
    async fn tls_server(own: &Identity) -> Origin {
        let acceptor = TlsAcceptor::from(Arc::new(server_config(own, None)));
        let (listener, origin) = listen().await;
        tokio::spawn(async move {
            for n in 0.. {
                let (socket, _) = listener.accept().await.expect("a connection");
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let socket = acceptor.accept(socket).await.expect("a handshake of TLS");
                    let mut connection = h2::server::handshake(socket).await.expect("a handshake");
                    let mut seen = 0;
                    while let Some(Ok((request, mut answer))) = connection.accept().await {
                        let told = format!("{n}: {} {}", request.method(), request.uri());
                        let mut body = answer.send_response(Response::new(()), false).expect("sent");
                        body.send_data(Bytes::from(told), true).expect("sent");
                        seen += 1;
                        if seen == 2 {
                            connection.graceful_shutdown();
                        }
                    }
                });
            }
        });
        origin
    }

    #[tokio::test]
    async fn over_tls_a_server_that_offers_it_is_called_by_http_2() {
        let authority = Authority::new();
        let origin = tls_server(&authority.certify("localhost")).await;
        let tls = UpstreamTls {
            ca: Some(authority.pem()),
            identity: None,
        };
        let client = client(&origin, &tls);
        let by = Instant::now() + Duration::from_secs(30);
        for connection in [0, 0, 1, 1] {
            let url = format!("https://{origin}/charges?n=1");
            let request = Request::post(&url).body(Bytes::from_static(b"{}"));
            let answer = client
                .send(request.expect("a request"), by)
                .await
                .expect("an answer");
            assert_eq!(answer.version(), Version::HTTP_2);
            let Ok(body) = answer.into_body().read(1_000, by).await else {
                panic!("no body");
            };
            assert_eq!(body, format!("{connection}: POST {url}").into_bytes());
        }
    }

    #[tokio::test]
    async fn over_tls_a_call_whose_time_is_over_knows_whether_it_was_sent() {
        let authority = Authority::new();
        let tls = UpstreamTls {
            ca: Some(authority.pem()),
            identity: None,
        };
        let soon = Duration::from_millis(300);
        // It never says hello.
        let (mute, origin) = listen().await;
        assert_eq!(
            ending(&client(&origin, &tls), &origin, soon).await,
            Ending::LateUnsent
        );
        drop(mute);

        let (listener, origin) = listen().await;
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&authority.certify("localhost"), None)));
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await.expect("a connection");
            let socket = acceptor.accept(socket).await.expect("a handshake of TLS");
            let mut connection = h2::server::handshake(socket).await.expect("a handshake");
            let mut held = Vec::new();
            while let Some(Ok(request)) = connection.accept().await {
                held.push(request);
            }
        });
        assert_eq!(ending(&client(&origin, &tls), &origin, soon).await, Ending::Late);
    }

    #[tokio::test]
    async fn a_side_that_does_not_accept_the_certificate_of_the_other_has_begun_nothing() {
        let authority = Authority::new();
        let own = authority.certify("localhost");
        let known = UpstreamTls {
            ca: Some(authority.pem()),
            identity: None,
        };
        let strange = UpstreamTls {
            ca: Some(Authority::new().pem()),
            identity: None,
        };
        let of_itself = UpstreamTls {
            ca: Some(own.certificate.clone()),
            identity: None,
        };
        for (tls, callers) in [
            (&strange, None),
            (&of_itself, None),
            // In TLS 1.3 the server says so when a request may have been sent.
            (&known, Some(&authority)),
        ] {
            let acceptor = TlsAcceptor::from(Arc::new(server_config(&own, callers)));
            let (listener, origin) = listen().await;
            tokio::spawn(async move {
                loop {
                    let (socket, _) = listener.accept().await.expect("a connection");
                    assert!(acceptor.accept(socket).await.is_err(), "no handshake ends");
                }
            });
            let wait = Duration::from_secs(30);
            assert_eq!(
                ending(&client(&origin, tls), &origin, wait).await,
                Ending::Untrusted
            );
        }
    }
}
