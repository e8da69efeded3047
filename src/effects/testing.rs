//! What the tests of providers share.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::environment::Environment;
use super::network::Resolve;
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::secrets::Secrets;
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
    call(NOW, LIMIT, provider, environment, effect, input).await
}

/// Makes one call that may take as long as `limit`.
pub async fn attempt_within(
    limit: std::time::Duration,
    provider: &dyn Provider,
    environment: &Environment,
    effect: &str,
    input: &str,
) -> CallOutcome {
    call(NOW, limit, provider, environment, effect, input).await
}

/// How long a call may take.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Makes one call that begins at `now`.
pub async fn attempt_at(
    now: TimeMs,
    provider: &dyn Provider,
    environment: &Environment,
    effect: &str,
    input: &str,
) -> CallOutcome {
    call(now, LIMIT, provider, environment, effect, input).await
}

async fn call(
    now: TimeMs,
    limit: std::time::Duration,
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
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        limit,
    };
    provider.call(&context).await
}

/// How a call failed.
pub fn failure(outcome: CallOutcome) -> CallFailure {
    match outcome {
        CallOutcome::Failed(failure) => failure,
        CallOutcome::Succeeded { payload } | CallOutcome::Unusable { payload, .. } => {
            panic!("succeeded: {}", String::from_utf8_lossy(&payload))
        }
    }
}

/// What a call gave.
pub fn payload(outcome: CallOutcome) -> String {
    match outcome {
        CallOutcome::Succeeded { payload } => String::from_utf8(payload).expect("utf-8"),
        other @ (CallOutcome::Unusable { .. } | CallOutcome::Failed(_)) => panic!("no result: {other:?}"),
    }
}

/// A resolver that gives one answer after the other, whatever it is asked for; behind the last, that one again.
#[derive(Debug)]
pub struct Answers {
    list: Vec<Vec<IpAddr>>,
    asked: AtomicUsize,
}

impl Answers {
    pub fn of(list: &[&[&str]]) -> Arc<Self> {
        let addresses = |one: &&[&str]| one.iter().map(|text| text.parse().expect("an address")).collect();
        Arc::new(Self {
            list: list.iter().map(addresses).collect(),
            asked: AtomicUsize::new(0),
        })
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Resolve for Answers {
    async fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let turn = self.asked.fetch_add(1, Ordering::SeqCst);
        let last = self.list.len().saturating_sub(1);
        let answer = self.list.get(turn.min(last)).into_iter().flatten();
        Ok(answer.map(|address| SocketAddr::new(*address, port)).collect())
    }
}
