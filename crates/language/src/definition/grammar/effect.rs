//! Effect files.

use super::super::effect_file::ATTEMPTS_MAX;
use super::super::effect_limits::{CALLS_MAX, CONCURRENCY_MAX, PROBES_MAX};
use super::super::effect_sql::ROWS_MAX;
use super::super::saga::API_VERSION;
use super::{BACKOFF, DURATION, EXPRESSION, Kind, RATE, SCHEMA, Shape, TEMPLATE, TOKEN, key, needed, shape};

/// Those who carry effects out.
pub const PROVIDERS: &[&str] = &[
    "http",
    "grpc",
    "smtp",
    "sql",
    "nats",
    "transform",
    "external",
    "custom",
];

pub static EFFECT: Shape = shape(
    "",
    "an effect",
    &[
        &needed("apiVersion", Kind::Word(&[API_VERSION]), ""),
        &needed("kind", Kind::Word(&["Effect"]), ""),
        &needed("name", TOKEN, "One subject token."),
        &key("input", Kind::Named(&SCHEMA), "Of what sagas send."),
        &key("output", Kind::Named(&SCHEMA), "Of the result."),
        &key("http", Kind::Map(&HTTP), "A call over HTTP."),
        &key("grpc", Kind::Map(&GRPC), "One unary call over gRPC."),
        &key("smtp", Kind::Map(&SMTP), "One message to a mail server."),
        &key(
            "sql",
            Kind::Map(&SQL),
            "Statements in one transaction of a database, carried out once.",
        ),
        &key(
            "nats",
            Kind::Map(&NATS),
            "One message over the runner's connection to NATS.",
        ),
        &key(
            "transform",
            Kind::Map(&TRANSFORM),
            "Renders the result without any I/O.",
        ),
        &key(
            "external",
            Kind::Map(&EXTERNAL),
            "Workers that are not saga-runner carry it out; docs/workers.md tells how.",
        ),
        &key(
            "custom",
            Kind::Map(&CUSTOM),
            "A provider that is compiled into the runner.",
        ),
        &key("timeout", Kind::Map(&TIMEOUT), ""),
        &key("retry", Kind::Map(&RETRY), "Short repetitions inside the worker."),
        &key(
            "on_ambiguous",
            Kind::Word(&["retry", "fail", "ask"]),
            "What follows a call that was sent and not answered. ask: an operator says whether it happened.",
        ),
        &key(
            "on_cancel",
            Kind::Word(&["finish", "interrupt"]),
            "What happens to a call whose result is no longer needed.",
        ),
        &key("limits", Kind::Map(&LIMITS), ""),
        &key("breaker", Kind::Map(&BREAKER), "When the upstream is left alone."),
        &key(
            "classify",
            Kind::List(&Kind::Map(&RULE), 0, None),
            "First match wins; the built-in rules follow.",
        ),
        &key(
            "result",
            Kind::Any,
            "Result of a successful call; the body of the response without it.",
        ),
        &key(
            "redact",
            Kind::OneOrMany(&Kind::Pattern("^(input|response|result)([.][^.]+)*$")),
            "Paths of values that are masked in logs and messages: input.card, response.body.pan, result.pan.",
        ),
    ],
)
.about("An effect of saga-runner; docs/language.md tells what the keys mean.")
.one_of(PROVIDERS);

const SECRET: &str = "From a secret: ${secrets.name}.";
const HEADERS: Kind = Kind::MapOf(&Kind::Named(&TEMPLATE), 0, None);

pub static HTTP: Shape = shape(
    "",
    "a call",
    &[
        &needed(
            "method",
            Kind::Word(&["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
            "",
        ),
        &needed("url", Kind::Named(&TEMPLATE), ""),
        &key("headers", HEADERS, ""),
        &key("body", Kind::Any, "JSON body."),
        &key("auth", Kind::Map(&AUTH), "A token that goes with the call."),
        &key(
            "sign",
            Kind::Map(&SIGNATURE),
            "A keyed hash (HMAC) of what is sent.",
        ),
    ],
);

pub static AUTH: Shape = shape(
    "",
    "auth",
    &[&needed(
        "oauth2",
        Kind::Map(&OAUTH2),
        "Client credentials of OAuth 2.",
    )],
);

pub static OAUTH2: Shape = shape(
    "",
    "oauth2",
    &[
        &needed("token_url", Kind::Named(&TEMPLATE), ""),
        &needed("client_id", Kind::Named(&TEMPLATE), ""),
        &needed("client_secret", Kind::Text, SECRET),
        &key("send", Kind::Word(&["basic", "body"]), ""),
        &key("scopes", Kind::OneOrMany(&Kind::Text), ""),
        &key("audience", Kind::Named(&TEMPLATE), ""),
        &key("parameters", HEADERS, "What else the endpoint is told."),
    ],
);

pub static SIGNATURE: Shape = shape(
    "",
    "a signature",
    &[
        &needed("key", Kind::Text, SECRET),
        &key("algorithm", Kind::Word(&["sha256", "sha512"]), ""),
        &key("encoding", Kind::Word(&["hex", "base64"]), ""),
        &needed("header", Kind::Text, "The header that carries the signature."),
        &key(
            "value",
            Kind::Text,
            "Its text, with ${signature} and ${timestamp}.",
        ),
        &key(
            "content",
            Kind::Text,
            "What is signed: ${method}, ${path}, ${timestamp}, ${body}.",
        ),
        &key("timestamp", Kind::Map(&TIMESTAMP), ""),
    ],
);

pub static TIMESTAMP: Shape = shape(
    "",
    "a timestamp",
    &[
        &key("header", Kind::Text, "The header that tells when it was signed."),
        &key("unit", Kind::Word(&["s", "ms"]), ""),
    ],
);

pub static GRPC: Shape = shape(
    "",
    "a call",
    &[
        &needed("url", Kind::Named(&TEMPLATE), ""),
        &needed(
            "method",
            Kind::Pattern("^/?[A-Za-z_][A-Za-z0-9_.]*/[A-Za-z_][A-Za-z0-9_]*$"),
            "package.Service/Method",
        ),
        &key(
            "descriptors",
            Kind::Pattern("\\.binpb$"),
            "Path of a FileDescriptorSet, relative to this file.",
        ),
        &key("reflection", Kind::True, "Ask the server for its descriptors."),
        &key("metadata", HEADERS, ""),
        &key("message", Kind::Any, "The request as JSON."),
    ],
)
.one_of(&["descriptors", "reflection"]);

pub static SMTP: Shape = shape(
    "",
    "a message",
    &[
        &needed(
            "server",
            Kind::Text,
            "smtp://host:port, smtps://host:port or ${upstreams.<name>}.",
        ),
        &key("security", Kind::Word(&["starttls", "tls", "none"]), ""),
        &key(
            "hello",
            Kind::Text,
            "What the runner calls itself, by default the domain of `from`.",
        ),
        &key("user", Kind::Named(&TEMPLATE), ""),
        &key("password", Kind::Named(&TEMPLATE), ""),
        &needed("from", Kind::Named(&TEMPLATE), ""),
        &key("to", Kind::Any, "An address, or a list of addresses."),
        &key("cc", Kind::Any, "As to."),
        &key("bcc", Kind::Any, "As to; not in the message."),
        &key("reply_to", Kind::Named(&TEMPLATE), ""),
        &needed("subject", Kind::Named(&TEMPLATE), ""),
        &key("text", Kind::Named(&TEMPLATE), ""),
        &key("html", Kind::Named(&TEMPLATE), ""),
        &key("headers", HEADERS, ""),
        &key(
            "attachments",
            Kind::List(&Kind::Map(&ATTACHMENT), 0, Some(16)),
            "",
        ),
    ],
);

pub static ATTACHMENT: Shape = shape(
    "",
    "an attachment",
    &[
        &needed("name", Kind::Named(&TEMPLATE), ""),
        &key("type", Kind::Named(&TEMPLATE), ""),
        &key("text", Kind::Named(&TEMPLATE), ""),
        &key("base64", Kind::Named(&TEMPLATE), ""),
    ],
)
.one_of(&["text", "base64"]);

pub static SQL: Shape = shape(
    "",
    "a transaction",
    &[
        &needed(
            "database",
            Kind::Text,
            "postgres://user@host/name, mysql://user@host/name, sqlite:/path, or ${upstreams.name}.",
        ),
        &key("password", Kind::Text, SECRET),
        &key("read_only", Kind::Bool, "The statements change nothing."),
        &key(
            "idempotency",
            Kind::Map(&JOURNAL),
            "The table of the commands that were carried out.",
        ),
        &needed("statements", Kind::List(&Kind::Map(&STATEMENT), 1, Some(16)), ""),
    ],
);

pub static JOURNAL: Shape = shape(
    "",
    "idempotency",
    &[
        &key(
            "table",
            Kind::Pattern("^[a-z_][a-z0-9_]*([.][a-z_][a-z0-9_]*)?$"),
            "",
        ),
        &key("keep", Kind::Named(&DURATION), "How long its rows are kept."),
    ],
);

pub static STATEMENT: Shape = shape(
    "",
    "a statement",
    &[
        &key("execute", Kind::Text, "One statement, with placeholders $1, $2."),
        &key("query", Kind::Text, "The same, and its rows are read."),
        &key(
            "bind",
            Kind::List(&Kind::Any, 0, Some(64)),
            "The values of the placeholders.",
        ),
        &key(
            "expect",
            Kind::Map(&EXPECTATION),
            "Otherwise nothing is committed.",
        ),
    ],
)
.one_of(&["execute", "query"]);

pub static EXPECTATION: Shape = shape(
    "",
    "an expectation",
    &[
        &needed(
            "rows",
            Kind::Either(&[Kind::Integer(0, ROWS_MAX), Kind::Text]),
            "1, 0..1, 1..",
        ),
        &key("else", Kind::Text, "The error class of any other number."),
    ],
);

pub static NATS: Shape = shape(
    "",
    "a message",
    &[
        &key(
            "request",
            Kind::Text,
            "The subject of a request, which is answered.",
        ),
        &key(
            "publish",
            Kind::Text,
            "The subject of a message to all listeners.",
        ),
        &key(
            "store",
            Kind::Text,
            "The subject of a message that a stream keeps.",
        ),
        &key("put", Kind::Map(&PUT), "The key of a bucket that gets a value."),
        &key("read_only", Kind::Bool, "The request changes nothing."),
        &key("headers", HEADERS, ""),
        &key("body", Kind::Any, "JSON body."),
    ],
)
.one_of(&["request", "publish", "store", "put"]);

pub static PUT: Shape = shape(
    "",
    "a put",
    &[&needed("bucket", Kind::Text, ""), &needed("key", Kind::Text, "")],
);

pub static TRANSFORM: Shape = shape("", "transform", &[]);
pub static EXTERNAL: Shape = shape("", "external", &[]);

pub static CUSTOM: Shape = shape(
    "",
    "a call",
    &[
        &needed("provider", Kind::Text, "Its name."),
        &key("with", Kind::Any, "What it is given, as JSON."),
    ],
);

pub static TIMEOUT: Shape = shape(
    "",
    "a timeout",
    &[
        &key("connect", Kind::Named(&DURATION), "Of a connection."),
        &key("total", Kind::Named(&DURATION), "Of a call."),
    ],
);

pub static RETRY: Shape = shape(
    "",
    "a retry",
    &[
        &key("attempts", Kind::Integer(1, ATTEMPTS_MAX), "Calls in all."),
        &key(
            "errors",
            Kind::OneOrMany(&Kind::Text),
            "Error classes that are tried again.",
        ),
        &key("backoff", Kind::Map(&BACKOFF), ""),
    ],
);

pub static LIMITS: Shape = shape(
    "",
    "limits",
    &[
        &key(
            "concurrency",
            Kind::Integer(1, CONCURRENCY_MAX),
            "Commands in progress at the same time in one worker.",
        ),
        &key(
            "per_tenant",
            Kind::Integer(1, CONCURRENCY_MAX),
            "The same, of one tenant.",
        ),
        &key("rate", Kind::Named(&RATE), "How fast one worker takes commands."),
        &key(
            "tenant_rate",
            Kind::Named(&RATE),
            "How fast one worker makes calls for one tenant.",
        ),
    ],
);

pub static BREAKER: Shape = shape(
    "",
    "a breaker",
    &[
        &key(
            "scope",
            Kind::Word(&["host", "effect"]),
            "What shares a breaker: calls of one host, or of this effect.",
        ),
        &key("window", Kind::Named(&DURATION), ""),
        &key("min_calls", Kind::Integer(1, CALLS_MAX), ""),
        &key("failure_rate", Kind::Number(0.01, 1.0), ""),
        &key("open", Kind::Named(&DURATION), ""),
        &key("probes", Kind::Integer(1, PROBES_MAX), ""),
    ],
);

pub static RULE: Shape = shape(
    "",
    "a rule",
    &[
        &needed("when", Kind::Named(&EXPRESSION), ""),
        &needed("as", Kind::Text, "`succeeded`, or an error class."),
        &key(
            "outcome",
            Kind::Word(&["refused", "not_done", "unknown"]),
            "What a failure says about the call; without it what class and answer say.",
        ),
    ],
);
