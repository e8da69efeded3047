//! What the templates of a call may read besides its input.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::egress::Egress;
use super::network::{Network, Resolve, SystemResolver};
use super::secrets::{Known, Secrets};
use crate::clients::UpstreamTls;
use crate::kernel::definition::effect::upstream_of;
use crate::kernel::envelope::EffectCommand;
use crate::kernel::expr::Template;
use crate::kernel::json::Json;
use crate::kernel::token::TokenKey;
use crate::kernel::trace;
use crate::ports::messenger::Messenger;

/// Values that templates may read besides the command: secrets and base URLs, by name.
pub struct Environment {
    secrets: Arc<Secrets>,
    upstreams: Json<'static>,
    /// By upstream.
    tls: BTreeMap<String, UpstreamTls>,
    /// Makes `command.token`.
    tokens: Option<TokenKey>,
    /// Absent where the broker is not a server that others use.
    messenger: Option<Arc<dyn Messenger>>,
    resolver: Arc<dyn Resolve>,
}

impl Environment {
    pub fn new(
        secrets: Arc<Secrets>,
        upstreams: &BTreeMap<String, String>,
        tokens: Option<TokenKey>,
    ) -> Self {
        let member = |(name, value): (&String, &String)| {
            let clean = value.trim_end_matches('/').to_owned();
            (Cow::Owned(name.clone()), Json::Str(Cow::Owned(clean)))
        };
        Self {
            secrets,
            upstreams: Json::Map(upstreams.iter().map(member).collect()),
            tls: BTreeMap::new(),
            tokens,
            messenger: None,
            resolver: Arc::new(SystemResolver),
        }
    }

    /// The same with what proves upstreams and this runner to them, by upstream.
    pub fn with_tls(self, tls: BTreeMap<String, UpstreamTls>) -> Self {
        Self { tls, ..self }
    }

    /// The same with the runner's own connection to NATS.
    pub fn with_messenger(self, messenger: Option<Arc<dyn Messenger>>) -> Self {
        Self { messenger, ..self }
    }

    /// The same with another resolver of names than the system's.
    pub fn with_resolver(self, resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, ..self }
    }

    /// Where calls may go, and how they get there.
    pub fn network(&self, egress: &Egress) -> Network {
        Network::new(egress.clone(), Arc::clone(&self.resolver))
    }

    pub const fn messenger(&self) -> Option<&Arc<dyn Messenger>> {
        self.messenger.as_ref()
    }

    /// What an address that begins with an upstream is to be protected with.
    pub fn tls(&self, address: &Template) -> Option<&UpstreamTls> {
        self.tls.get(upstream_of(address)?)
    }

    /// The secrets of this moment.
    pub fn secrets(&self) -> Arc<Known> {
        self.secrets.now()
    }

    /// The base URLs, without a slash at their ends, as an object.
    pub fn upstreams(&self) -> &Json<'static> {
        &self.upstreams
    }

    /// What `command` is in expressions.
    pub fn command<'a>(&self, command: &'a EffectCommand<'_>) -> Json<'a> {
        fn text<'a>(text: impl Into<Cow<'a, str>>) -> Json<'a> {
            Json::Str(text.into())
        }
        let meta = &command.metadata;
        let mut members = vec![
            ("attempt".into(), Json::Int(i64::from(meta.attempt))),
            ("id".into(), text(command.command_id.to_string())),
            ("idempotency_key".into(), text(&*meta.idempotency_key)),
            ("key".into(), text(meta.key.as_str())),
            ("saga".into(), text(meta.saga.as_str())),
            ("tenant".into(), text(command.tenant_id.as_str())),
            ("trace_id".into(), text(trace_id(command))),
        ];
        if let Some(tokens) = &self.tokens {
            let token = tokens.token(&command.tenant_id, &meta.saga, &meta.key, &meta.idempotency_key);
            members.push(("token".into(), text(token)));
        }
        Json::Map(members)
    }
}

/// The trace of the command, or one that all its attempts share.
fn trace_id<'a>(command: &'a EffectCommand<'_>) -> Cow<'a, str> {
    let known = command.metadata.traceparent.as_deref().and_then(trace::trace_id);
    known.map_or_else(|| command.command_id.0.simple().to_string().into(), Cow::Borrowed)
}
