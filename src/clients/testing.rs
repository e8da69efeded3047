//! Certificates for the tests of whatever connects.

use super::Identity;

/// An authority for the certificates of a test's servers and clients.
pub struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        // Of another name than what it certifies: one that signs for its own name is taken for signed by itself.
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, "authority");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        Self(rcgen::CertifiedIssuer::self_signed(parameters, key).expect("signed"))
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A certificate for `host` with its key, in PEM.
    pub fn certify(&self, host: &str) -> Identity {
        let key = rcgen::KeyPair::generate().expect("a key");
        let parameters = rcgen::CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let certificate = parameters.signed_by(&key, &self.0).expect("signed");
        Identity {
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        }
    }
}
