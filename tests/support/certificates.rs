//! Certificates of an authority that only the test knows.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names");
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(parameters, key).expect("signed"))
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate with these names: of the DNS, addresses, or URIs.
    pub fn certify(&self, names: &[&str]) -> Certified {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names");
        for name in names {
            let text = || (*name).try_into().expect("ASCII");
            parameters.subject_alt_names.push(if name.contains("://") {
                SanType::URI(text())
            } else if let Ok(address) = name.parse() {
                SanType::IpAddress(address)
            } else {
                SanType::DnsName(text())
            });
        }
        let certificate = parameters.signed_by(&key, &self.0).expect("signed");
        Certified {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Certified {
    /// Certificate and key, as a client takes them.
    pub fn identity(&self) -> reqwest::Identity {
        let pem = format!("{}{}", self.certificate, self.key);
        reqwest::Identity::from_pem(pem.as_bytes()).expect("an identity")
    }
}
