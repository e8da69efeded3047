//! Effect definitions: how a worker turns a command into a call and its answer into a result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::http_proof::{OAuth2, Signature};
use super::model::EffectContract;
use super::redaction::Redaction;
use super::sql_text::SqlText;
use super::url;
use crate::breaker::BreakerPolicy;
use crate::expr::{Expr, Root, Template, TextPart};
use crate::ids::EffectName;
use crate::rate::Rate;
use crate::retry::RetryPolicy;
use crate::schema::Schema;

/// What is told of all effects, by name. An effect that cannot be read has none.
pub type Effects = BTreeMap<String, EffectSchemas>;

/// What sagas are told of an effect: what it takes and gives, and what follows where nobody knows its outcome.
#[derive(Debug, Clone, Default)]
pub struct EffectSchemas {
    /// Of `input`; absent: anything.
    pub input: Option<Arc<Schema>>,
    /// Of the result; absent: anything.
    pub output: Option<Arc<Schema>>,
    /// An operator is asked for an outcome that nobody knows, and no call is made that might be a second one.
    pub asks: bool,
}

impl EffectSchemas {
    #[must_use]
    pub fn contract(&self) -> Option<EffectContract> {
        EffectContract::of(self.input.as_deref(), self.output.as_ref(), self.asks)
    }
}

/// Class of a call that was sent and not answered.
pub const AMBIGUOUS: &str = "ambiguous";
/// Error classes that a worker tries again where the definition does not say.
pub const EFFECT_RETRY_CLASSES: [&str; 4] = ["transient", "throttled", "timeout", AMBIGUOUS];

/// One effect, ready to run.
#[derive(Debug)]
pub struct EffectDefinition {
    pub name: EffectName,
    pub schemas: EffectSchemas,
    pub provider: Provider,
    /// Whole call of one attempt, in milliseconds. Default 10,000; of mail 900,000.
    pub timeout_ms: u64,
    /// Establishing the connection, in milliseconds. Default 2,000.
    pub connect_timeout_ms: u64,
    /// Attempts within one command, in the worker's memory.
    pub retry: RetryPolicy,
    /// Error classes that are tried again. Default [`EFFECT_RETRY_CLASSES`]; of mail without [`AMBIGUOUS`].
    pub retry_classes: Vec<String>,
    /// What follows a call that was begun and whose outcome is unknown.
    pub on_ambiguous: OnAmbiguous,
    /// What becomes of a call whose result nobody waits for any longer.
    pub on_cancel: OnCancel,
    pub limits: EffectLimits,
    /// When the upstream is left alone. `None`: as others say that call the same host, or the default.
    pub breaker: Option<BreakerRule>,
    /// First match wins; the built-in rules follow.
    pub classify: Vec<Classify>,
    /// The result of a successful call. Default: the response body.
    pub result: Option<Template>,
    /// What is masked in all that is told about its calls.
    pub redaction: Redaction,
}

impl EffectDefinition {
    /// Whether workers of saga-runner leave its commands to others.
    #[must_use]
    pub const fn is_external(&self) -> bool {
        matches!(self.provider, Provider::External)
    }

    /// Whether no call is made after one that was begun and whose outcome is unknown, be it that the worker died in it. A
    /// call that changes nothing may always be made again.
    #[must_use]
    pub fn never_calls_twice(&self) -> bool {
        match self.on_ambiguous {
            OnAmbiguous::Retry => false,
            OnAmbiguous::Fail | OnAmbiguous::Ask => self.provider.acts(),
        }
    }

    /// The base URLs that the manifest must give: `x` of `upstreams.x`.
    #[must_use]
    pub fn upstreams(&self) -> BTreeSet<String> {
        self.named(Root::Upstreams)
    }

    /// The secrets that the manifest must give: `x` of `secrets.x`.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<String> {
        self.named(Root::Secrets)
    }

    /// Whether it hands out the callback token of its command: it reads `command.token`.
    #[must_use]
    pub fn hands_out_token(&self) -> bool {
        let reads = |expr: &Expr| expr.fields_of(Root::Command).iter().any(|name| name == "token");
        let mut found = self.named(Root::Command).contains("token");
        found |= self.classify.iter().any(|rule| reads(&rule.when));
        if let Some(result) = &self.result {
            result.for_each_expr(&mut |expr| found |= reads(expr));
        }
        found
    }

    fn named(&self, root: Root) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for template in self.provider.templates() {
            template.for_each_expr(&mut |expr| names.extend(expr.fields_of(root)));
        }
        names
    }
}

/// The name of the upstream that a template of an address begins with: `x` of `${upstreams.x}`.
#[must_use]
pub fn upstream_of(template: &Template) -> Option<&str> {
    match template {
        Template::Value(base) => url::upstream(base),
        Template::Text(parts) => match parts.first() {
            Some(TextPart::Expr(base)) => url::upstream(base),
            Some(TextPart::Literal(_)) | None => None,
        },
        Template::Constant(_) | Template::List(_) | Template::Map(_) => None,
    }
}

/// What follows a call that was begun and whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnAmbiguous {
    /// It may be made again, under the same idempotency key; [`EffectDefinition::retry_classes`] says whether it is.
    #[default]
    Retry,
    /// It is not made again.
    Fail,
    /// It is not made again, and an operator is asked: [`EffectSchemas::asks`].
    Ask,
}

/// What becomes of a call whose result nobody waits for any longer. One that changes nothing ends at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnCancel {
    /// It comes to its end, so that it is known what it did; no other follows.
    #[default]
    Finish,
    /// It is broken off, and what it did is not known.
    Interrupt,
}

/// How much of an effect one worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectLimits {
    /// Commands in progress at the same time. Default 32.
    pub concurrency: u32,
    /// Commands of one tenant in progress at the same time. Default: as many as of all tenants.
    pub per_tenant: Option<u32>,
    /// How fast commands are taken. Default: as fast as they come.
    pub rate: Option<Rate>,
    /// How fast calls for one tenant are made. Default: as fast as they come.
    pub tenant_rate: Option<Rate>,
}

impl Default for EffectLimits {
    fn default() -> Self {
        Self {
            concurrency: 32,
            per_tenant: None,
            rate: None,
            tenant_rate: None,
        }
    }
}

/// When an upstream is left alone, and what counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BreakerRule {
    pub scope: BreakerScope,
    pub policy: BreakerPolicy,
}

/// Which calls share a breaker. A tenant never shares one with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BreakerScope {
    /// All that go to one host and port.
    #[default]
    Host,
    /// Those of one effect.
    Effect,
}

#[derive(Debug)]
pub struct Classify {
    pub when: Expr,
    /// `succeeded`, or an error class.
    pub class: String,
    /// What such an answer says about the call. `None`: what class and answer say.
    pub outcome: Option<RuledOutcome>,
}

/// What a rule says about a call that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuledOutcome {
    /// The upstream has refused it.
    Refused,
    /// This call did nothing; it may be made again under the same idempotency key.
    NotDone,
    Unknown,
}

#[derive(Debug)]
pub enum Provider {
    Http(HttpCall),
    Grpc(GrpcCall),
    Smtp(Box<SmtpMail>),
    Sql(SqlCall),
    Nats(NatsCall),
    /// Renders `result` from `input` without any I/O.
    Transform,
    /// A worker that is not saga-runner takes its commands.
    External,
    /// A provider that is compiled into the runner by whoever builds it.
    Custom(CustomCall),
}

impl Provider {
    /// Whether it changes something outside: safe methods of HTTP do not, nor those that their descriptors call so,
    /// nor transactions and requests that only read.
    #[must_use]
    pub fn acts(&self) -> bool {
        match self {
            Self::Http(call) => !["GET", "HEAD", "OPTIONS"].contains(&call.method.as_str()),
            Self::Grpc(call) => !call.is_safe,
            Self::Sql(call) => !call.read_only,
            Self::Nats(call) => !call.is_safe(),
            Self::Smtp(_) | Self::External | Self::Custom(_) => true,
            Self::Transform => false,
        }
    }

    /// All that is rendered for a call.
    fn templates(&self) -> Vec<&Template> {
        match self {
            Self::Http(call) => call.templates(),
            Self::Grpc(call) => call.templates(),
            Self::Smtp(mail) => mail.templates(),
            Self::Sql(call) => call.templates(),
            Self::Nats(call) => call.templates(),
            Self::Custom(call) => vec![&call.with],
            Self::Transform | Self::External => Vec::new(),
        }
    }

    /// The feature that this runner must be built with for such calls, and is not.
    #[must_use]
    pub fn absent_feature(&self) -> Option<&'static str> {
        let (feature, is_built_in) = match self {
            Self::Http(_) => ("effect-http", cfg!(feature = "effect-http")),
            Self::Grpc(_) => ("effect-grpc", cfg!(feature = "effect-grpc")),
            Self::Smtp(_) => ("effect-smtp", cfg!(feature = "effect-smtp")),
            Self::Sql(_) => ("effect-sql", cfg!(feature = "effect-sql")),
            Self::Nats(_) => ("effect-nats", cfg!(feature = "effect-nats")),
            Self::Transform | Self::External | Self::Custom(_) => return None,
        };
        (!is_built_in).then_some(feature)
    }
}

#[derive(Debug)]
pub struct HttpCall {
    /// Upper-case method name.
    pub method: String,
    /// Text template; its expressions are calls of `url()`, so no value can change host or path depth.
    pub url: Template,
    pub headers: Vec<(String, Template)>,
    /// JSON body, absent for none.
    pub body: Option<Template>,
    pub oauth2: Option<Box<OAuth2>>,
    pub sign: Option<Box<Signature>>,
}

impl HttpCall {
    fn templates(&self) -> Vec<&Template> {
        let headers = self.headers.iter().map(|(_, template)| template);
        let mut all: Vec<_> = headers.chain([&self.url]).chain(&self.body).collect();
        if let Some(oauth2) = &self.oauth2 {
            all.extend(oauth2.templates());
        }
        all.extend(self.sign.as_ref().map(|sign| &sign.key));
        all
    }
}

/// One unary call of a gRPC service.
#[derive(Debug)]
pub struct GrpcCall {
    /// Text template of `http(s)://host:port`, fixed by the file or the manifest.
    pub url: Template,
    /// Full name of the service, with its package.
    pub service: String,
    pub method: String,
    /// An encoded `FileDescriptorSet`; absent: the server is asked by reflection.
    pub descriptors: Option<Arc<[u8]>>,
    /// Whether the descriptors say that the method changes nothing.
    pub is_safe: bool,
    /// Names are lower case.
    pub metadata: Vec<(String, Template)>,
    /// The request in the JSON mapping of Protocol Buffers.
    pub message: Template,
}

impl GrpcCall {
    fn templates(&self) -> Vec<&Template> {
        let metadata = self.metadata.iter().map(|(_, template)| template);
        metadata.chain([&self.url, &self.message]).collect()
    }
}

/// One message to a mail server.
#[derive(Debug)]
pub struct SmtpMail {
    /// Text template of `smtp(s)://host:port`, fixed by the file or the manifest.
    pub server: Template,
    /// Absent: what the scheme of the server says.
    pub security: Option<SmtpSecurity>,
    /// What the runner calls itself. Absent: the domain of `from`.
    pub hello: Option<String>,
    pub user: Option<Template>,
    pub password: Option<Template>,
    /// Address, or name and address: `Shop <shop@example.com>`.
    pub from: Template,
    /// One address as text, or a list of them; likewise `cc` and `bcc`.
    pub to: Option<Template>,
    pub cc: Option<Template>,
    pub bcc: Option<Template>,
    pub reply_to: Option<Template>,
    pub subject: Template,
    /// One of `text` and `html` is there, or both as alternatives.
    pub text: Option<Template>,
    pub html: Option<Template>,
    pub headers: Vec<(String, Template)>,
    pub attachments: Vec<Attachment>,
}

/// How the connection to a mail server is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpSecurity {
    /// Opened in the clear and protected before anything is said; refused where the server cannot.
    StartTls,
    /// Protected from the first byte.
    Tls,
    None,
}

#[derive(Debug)]
pub struct Attachment {
    pub name: Template,
    /// Default `application/octet-stream`, of text `text/plain; charset=utf-8`.
    pub media_type: Option<Template>,
    pub body: AttachmentBody,
}

#[derive(Debug)]
pub enum AttachmentBody {
    Text(Template),
    /// Renders to base64, standard alphabet with padding.
    Base64(Template),
}

impl SmtpMail {
    fn templates(&self) -> Vec<&Template> {
        let mut all = vec![&self.server, &self.from, &self.subject];
        let optional = [
            &self.user,
            &self.password,
            &self.to,
            &self.cc,
            &self.bcc,
            &self.reply_to,
            &self.text,
            &self.html,
        ];
        all.extend(optional.into_iter().flatten());
        all.extend(self.headers.iter().map(|(_, template)| template));
        for attachment in &self.attachments {
            let (AttachmentBody::Text(body) | AttachmentBody::Base64(body)) = &attachment.body;
            all.extend([&attachment.name, body]);
            all.extend(&attachment.media_type);
        }
        all
    }
}

/// Statements that are carried out in one transaction.
#[derive(Debug)]
pub struct SqlCall {
    /// Its address, or `upstreams.<name>`: no value can change it.
    pub database: Template,
    pub password: Option<Template>,
    /// Whether the statements change nothing.
    pub read_only: bool,
    /// Where it is kept that a command was carried out. `None`: nothing is changed.
    pub journal: Option<SqlJournal>,
    /// In order, 1 to 16.
    pub statements: Vec<SqlStatement>,
}

/// The table of the commands that a database has carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlJournal {
    /// `table` or `schema.table`, of small letters, digits and `_`.
    pub table: String,
    /// How long its rows are kept, in milliseconds.
    pub keep_ms: u64,
}

#[derive(Debug)]
pub struct SqlStatement {
    pub text: SqlText,
    pub returned: Returned,
    /// The values of the placeholders, `$1` first.
    pub bind: Vec<Template>,
    pub expect: Option<SqlExpectation>,
}

/// What a statement gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// How many rows it touched.
    Count,
    Rows,
}

/// How many rows a statement gives or touches; otherwise nothing is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlExpectation {
    pub rows_min: u64,
    pub rows_max: u64,
    /// The error class of any other number.
    pub class: String,
}

impl SqlCall {
    fn templates(&self) -> Vec<&Template> {
        let binds = self.statements.iter().flat_map(|statement| &statement.bind);
        binds.chain([&self.database]).chain(&self.password).collect()
    }
}

/// One message over the runner's own connection to NATS.
#[derive(Debug)]
pub struct NatsCall {
    pub act: NatsAct,
    /// Of a put, the key.
    pub subject: Vec<SubjectPart>,
    pub headers: Vec<(String, Template)>,
    /// JSON, absent for an empty message.
    pub body: Option<Template>,
}

/// What is done with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NatsAct {
    /// Somebody answers it.
    Request {
        /// Whether the answer is all that it is for.
        read_only: bool,
    },
    /// Whoever listens hears it.
    Publish,
    /// A stream keeps it.
    Store,
    /// It becomes the value of a key.
    Put { bucket: String },
}

impl NatsAct {
    /// Whether a token of the subject or key may hold `c`.
    #[must_use]
    pub fn allows(&self, c: char) -> bool {
        match self {
            Self::Request { .. } | Self::Publish | Self::Store => {
                !c.is_whitespace() && !c.is_control() && !".*>".contains(c)
            }
            Self::Put { .. } => c.is_ascii_alphanumeric() || "-_=/".contains(c),
        }
    }
}

/// A part of a subject or key.
#[derive(Debug)]
pub enum SubjectPart {
    Literal(String),
    /// Renders to a part of one token.
    Value(Template),
}

impl NatsCall {
    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_safe(&self) -> bool {
        matches!(self.act, NatsAct::Request { read_only: true })
    }

    fn templates(&self) -> Vec<&Template> {
        let values = self.subject.iter().filter_map(|part| match part {
            SubjectPart::Literal(_) => None,
            SubjectPart::Value(template) => Some(template),
        });
        let headers = self.headers.iter().map(|(_, template)| template);
        values.chain(headers).chain(&self.body).collect()
    }
}

/// One call of a provider that the runner knows by name.
#[derive(Debug)]
pub struct CustomCall {
    pub provider: String,
    /// What the provider is given in place of the input.
    pub with: Template,
}
