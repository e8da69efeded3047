//! The calls that effects make, by provider.

use std::sync::Arc;

use super::super::http_proof::{OAuth2, Signature};
use super::super::sql_text::SqlText;
use crate::expr::Template;

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
    /// A provider that is compiled into the runner by a team that builds its own.
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
    pub(super) fn templates(&self) -> Vec<&Template> {
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
    /// A service answers it.
    Request {
        /// Whether the answer is all that it is for.
        read_only: bool,
    },
    /// All listeners receive it.
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
