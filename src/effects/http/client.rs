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
use hyper::header::{CONTENT_LENGTH, EXPECT, HeaderName, TRANSFER_ENCODING};
use hyper::{Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;
use tower::Service;
use ureq_proto::Error as Fault;

use super::body::Body;
use super::pool::Pool;
use crate::clients::{UpstreamTls, tls};
use crate::effects::network::Network;
use crate::effects::origin::Origin;

/// Idle connections are dropped before common servers drop them, so a request is rarely sent into a closing one.
const IDLE: Duration = Duration::from_secs(45);
/// How often TCP asks for a sign of life where nothing is said, how many times, and how long what was sent may remain
/// without a receipt.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVES: u32 = 3;
const RECEIPT: Duration = Duration::from_secs(30);
/// What says how a request goes over the wire is the client's to say.
const FRAMING: [HeaderName; 3] = [CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING];
/// How often a request is sent again that the server has not begun.
const RESENT_MAX: usize = 2;

type BoxError = Box<dyn Error + Send + Sync>;
/// Connections without TLS.
pub(super) type Plain = HttpConnector<Resolver>;
type Negotiated<C> = legacy::Client<InTime<C>, Full<Bytes>>;

/// A pool of connections to one origin.
pub enum Client {
    Plain(Pool),
    /// Over TLS the server chooses the version of HTTP.
    Tls(Negotiated<HttpsConnector<Plain>>),
}

/// What a client is made for.
#[derive(Clone, Copy)]
pub struct ClientSpec<'a> {
    pub origin: &'a Origin,
    pub tls: Option<&'a UpstreamTls>,
    /// For look-up, connection and handshake together.
    pub connect_timeout: Duration,
    pub network: &'a Network,
}

impl Client {
    /// # Errors
    /// A sentence, where the origin or the certificates cannot be used.
    pub fn new(spec: ClientSpec<'_>) -> Result<Self, String> {
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
            let pool = Pool::new(InTime { connector, limit }, spec.origin, IDLE)?;
            return Ok(Self::Plain(pool));
        }
        let connector = HttpsConnector::from((connector, tls::client_config(spec.tls)?));
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(InTime { connector, limit });
        Ok(Self::Tls(client))
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn send(&self, mut request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, Unanswered>> {
        for name in FRAMING {
            request.headers_mut().remove(name);
        }
        match self {
            Self::Plain(pool) => pool
                .send(request)
                .map(|answer| Ok(answer?.map(Body::Plain)))
                .boxed(),
            Self::Tls(client) => send_until_begun(client, request.map(Full::new))
                .map(|answer| Ok(answer?.map(Body::Tls)))
                .boxed(),
        }
    }
}

/// HTTP/2 tells which requests it has not begun, as those that are on the way when a server stops.
async fn send_until_begun<C>(
    client: &Negotiated<C>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Unanswered>
where
    InTime<C>: legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    for _ in 0..RESENT_MAX {
        match client.request(request.clone()).await.map_err(Unanswered::from) {
            Err(error) if error.is_not_begun() => {}
            end => return end,
        }
    }
    client.request(request).await.map_err(Unanswered::from)
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
    /// Whether it is certain that nothing was sent.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Unconnected(_) | Self::Unsendable(_) | Self::Unsent(_) => true,
            Self::Lost(_) | Self::Malformed(_) | Self::Broken(_) => false,
            Self::Negotiated(error) => error.is_connect(),
        }
    }

    pub fn is_timeout(&self) -> bool {
        self.causes().any(|cause| {
            let io = cause.downcast_ref::<io::Error>();
            let hyper = cause.downcast_ref::<hyper::Error>();
            io.is_some_and(|error| error.kind() == ErrorKind::TimedOut)
                || hyper.is_some_and(hyper::Error::is_timeout)
        })
    }

    /// Whether the server has said that it has not begun the request.
    fn is_not_begun(&self) -> bool {
        self.causes()
            .filter_map(|cause| cause.downcast_ref::<h2::Error>())
            .any(|error| {
                let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
                let stopped = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
                error.is_remote() && (refused || stopped)
            })
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
    use rustls::ServerConfig;
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::clients::Identity;
    use crate::clients::testing::Authority;

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
        send_until_begun(&client, request.expect("a request")).await
    }

    #[tokio::test]
    async fn a_request_that_the_server_has_not_begun_is_sent_again_but_not_for_ever() {
        let last = answer(RESENT_MAX).await.expect("begun in the end");
        assert_eq!(last.status(), 200);
        let refused = answer(RESENT_MAX + 1).await.expect_err("refused each time");
        assert!(refused.is_not_begun() && !refused.is_unsent(), "{refused:?}");
    }

    /// A server that has to be asked for HTTP/2. It tells the number of the connection and what was asked, and says
    /// goodbye after two requests on each.
    async fn tls_server(own: &Identity) -> Origin {
        let certificate = CertificateDer::from_pem_slice(&own.certificate).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(&own.key).expect("a key");
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
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
        Origin {
            scheme: "https".to_owned(),
            host: "localhost".to_owned(),
            port: Some(port),
        }
    }

    #[tokio::test]
    async fn over_tls_a_server_that_offers_it_is_called_by_http_2() {
        let authority = Authority::new();
        let origin = tls_server(&authority.certify("localhost")).await;
        let tls = UpstreamTls {
            ca: Some(authority.pem()),
            identity: None,
        };
        let client = Client::new(ClientSpec {
            origin: &origin,
            tls: Some(&tls),
            connect_timeout: Duration::from_secs(30),
            network: &Network::default(),
        });
        let client = client.expect("a client");
        for connection in [0, 0, 1, 1] {
            let url = format!("https://{origin}/charges?n=1");
            let request = Request::post(&url).body(Bytes::from_static(b"{}"));
            let answer = client.send(request.expect("a request")).await.expect("an answer");
            assert_eq!(answer.version(), Version::HTTP_2);
            let Ok(body) = answer.into_body().read(1_000).await else {
                panic!("no body");
            };
            assert_eq!(body, format!("{connection}: POST {url}").into_bytes());
        }
    }
}
