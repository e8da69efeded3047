//! What the tests of providers share.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use uuid::Uuid;

use super::environment::Environment;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::secrets::Secrets;
use super::tls::Identity;
use crate::kernel::envelope::{CommandMetadata, EffectCommand};
use crate::kernel::ids::{CommandId, EffectName, Key, SagaName, TenantId, TimeMs};
use crate::kernel::json::Json;

/// The idempotency key of every command.
pub const KEY: &str = "00112233445566778899aabbccddeeff";

/// When every call begins.
pub const NOW: TimeMs = TimeMs(1_700_000_000_500);

/// A command for an effect of the tenant `acme`.
fn command<'p>(effect: &str, payload: &'p RawValue) -> EffectCommand<'p> {
    EffectCommand {
        progress: None,
        tenant_id: TenantId::parse("acme").expect("legal"),
        command_id: CommandId(Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0007)),
        effect_name: EffectName::parse(effect).expect("legal"),
        payload,
        metadata: CommandMetadata {
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse("o-1").expect("legal"),
            correlation_id: "o-1".to_owned(),
            root_correlation_id: None,
            causation_id: "e-1".to_owned(),
            idempotency_key: KEY.to_owned(),
            path: "steps.charge".to_owned(),
            attempt: 1,
            deadline_ms: i64::MAX,
            traceparent: None,
            hops: 0,
        },
    }
}

/// The secrets of a test, by name.
pub fn secrets(values: &BTreeMap<String, String>) -> Arc<Secrets> {
    Arc::new(Secrets::new(values))
}

/// Makes one call.
pub async fn attempt(
    provider: &dyn Provider,
    environment: &Environment,
    effect: &str,
    input: &str,
) -> CallOutcome {
    attempt_at(NOW, provider, environment, effect, input).await
}

/// Makes one call that begins at `now`.
pub async fn attempt_at(
    now: TimeMs,
    provider: &dyn Provider,
    environment: &Environment,
    effect: &str,
    input: &str,
) -> CallOutcome {
    let payload: &RawValue = serde_json::from_str(input).expect("json");
    let input = Json::parse(input.as_bytes(), 64).expect("json");
    let known = environment.secrets();
    let context = CallContext {
        command: &command(effect, payload),
        input: &input,
        secrets: known.object(),
        now,
    };
    provider.call(&context).await
}

/// How a call failed.
pub fn failure(outcome: CallOutcome) -> CallFailure {
    match outcome {
        CallOutcome::Failed(failure) => failure,
        CallOutcome::Succeeded { payload } => panic!("succeeded: {}", String::from_utf8_lossy(&payload)),
    }
}

/// What a call gave.
pub fn payload(outcome: CallOutcome) -> String {
    match outcome {
        CallOutcome::Succeeded { payload } => String::from_utf8(payload).expect("utf-8"),
        CallOutcome::Failed(failure) => panic!("failed: {failure:?}"),
    }
}

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
