use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::connect::{Peer, Pool};
use super::session::SqlError;
use crate::clients::testing::Authority;
use crate::effects::egress::Egress;
use crate::effects::network::{Network, Resolve};
use crate::kernel::definition::sql_database::DatabaseUrl;

/// Answers with the first address once, and with the second one from then on.
struct Rebinding {
    addresses: [SocketAddr; 2],
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Resolve for Rebinding {
    async fn resolve(&self, _host: &str, _port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let before = self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(vec![self.addresses[before.min(1)]])
    }
}

/// A name that only the test's own resolver knows, and that means something else when it is asked for again.
#[tokio::test]
async fn with_tls_the_address_that_was_checked_is_called_and_the_name_is_proven() {
    let authority = Authority::new();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), authority.pem()).expect("written");
    for (certified, proven) in [("ledger.invalid", true), ("other.invalid", false)] {
        let identity = authority.certify(certified);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            refuse_over_tls(stream, &identity.certificate, &identity.key).await
        });
        let asked = Arc::new(AtomicUsize::new(0));
        let resolver = Rebinding {
            addresses: [address, SocketAddr::from(([127, 0, 0, 2], 1))],
            asked: Arc::clone(&asked),
        };
        let url = format!(
            "postgres://u@ledger.invalid:{}/books?sslmode=verify-full&sslrootcert={}",
            address.port(),
            file.path().display()
        );
        let peer = Peer {
            url: DatabaseUrl::parse(&url).expect("an address"),
            password: String::new(),
            read_only: false,
            network: Network::new(Egress::default(), Arc::new(resolver)),
            connect_timeout: Duration::from_secs(20),
        };
        let pool = Pool::new(peer, 1);
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        let error = pool.begin(until).await.err().expect("it is refused");
        match (&error, proven) {
            (SqlError::Refused(refusal), true) => assert_eq!(refusal.sqlstate.as_deref(), Some("28000")),
            (SqlError::Untrusted(_), false) => {}
            _ => panic!("{certified}: {error:?}"),
        }
        assert_eq!(server.await.expect("it runs").is_some(), proven, "{certified}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}

/// A server of PostgreSQL that takes nobody in; `None` if the client does not take its certificate.
async fn refuse_over_tls(mut stream: TcpStream, certificate: &[u8], key: &[u8]) -> Option<()> {
    let mut request = [0; 8];
    stream.read_exact(&mut request).await.expect("the wish for TLS");
    stream.write_all(b"S").await.expect("written");
    let chain = vec![CertificateDer::from_pem_slice(certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(key).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let mut stream = acceptor.accept(stream).await.ok()?;
    let length = stream.read_u32().await.ok()?;
    let mut startup = vec![0; usize::try_from(length).expect("short") - 4];
    stream.read_exact(&mut startup).await.ok()?;
    let fields = b"SFATAL\0VFATAL\0C28000\0Mnobody\0\0";
    let mut answer = b"E".to_vec();
    answer.extend((u32::try_from(fields.len()).expect("short") + 4).to_be_bytes());
    answer.extend(fields);
    stream.write_all(&answer).await.ok()?;
    stream.shutdown().await.ok()?;
    Some(())
}
