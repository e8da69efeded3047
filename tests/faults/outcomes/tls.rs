//! Peers behind TLS: one whose certificate nobody trusts, and ones that are trusted and begin nothing.

use std::sync::Arc;

use h2::Reason;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Of a server that is called `localhost`.
pub struct Certificates {
    /// Who signed its certificate, in PEM.
    pub authority: String,
    pub acceptor: TlsAcceptor,
}

impl Certificates {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names");
        parameters
            .distinguished_name
            .push(DnType::CommonName, "authority");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(parameters, key).expect("signed");
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = parameters.signed_by(&key, &authority).expect("signed");
        let chain =
            vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self {
            authority: authority.pem(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    }

    /// Serves whoever trusts the authority, and gives its port.
    pub async fn serve<F>(&self, serve: fn(TlsStream<TcpStream>) -> F) -> u16
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let acceptor = self.acceptor.clone();
        listen(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream).await;
                }
            }
        })
        .await
    }
}

/// Serves each connection, and gives the port.
pub async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

/// A port at which connections are made and nothing is said.
pub async fn mute() -> u16 {
    listen(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await
}

/// A port at which nobody listens.
pub fn gone() -> u16 {
    saga_runner::app::nats_server::free_port().expect("a free port")
}

/// Refuses each request before it begins it.
pub async fn refuse(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((_, mut answer))) = connection.accept().await {
        answer.send_reset(Reason::REFUSED_STREAM);
    }
}

/// Goes away as soon as there is a request, before it has begun one.
pub async fn leave(mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const HEADERS: u8 = 1;
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // The last stream that was begun is none, and there was no error.
    const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let exchange: std::io::Result<()> = async {
        stream.write_all(&SETTINGS).await?;
        stream.read_exact(&mut [0; PREFACE.len()]).await?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).await?;
            if head[3] == HEADERS {
                stream.write_all(&GOAWAY).await?;
                stream.shutdown().await?;
                // A connection that ends with something unread is reset, and the farewell may be lost with it.
                let mut rest = [0; 1_024];
                while stream.read(&mut rest).await? > 0 {}
                return Ok(());
            }
        }
    }
    .await;
    // A caller may leave first.
    drop(exchange);
}
