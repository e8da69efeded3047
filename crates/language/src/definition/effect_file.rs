//! Reading an effect file.

use std::sync::Arc;

use super::codes;
use super::contract::{ASK, ON_AMBIGUOUS};
use super::effect::{
    AMBIGUOUS, Classify, EFFECT_RETRY_CLASSES, EffectDefinition, EffectSchemas, OnAmbiguous, OnCancel,
    Provider, RuledOutcome,
};
use super::effect_custom;
use super::effect_grpc;
use super::effect_http;
use super::effect_limits;
use super::effect_nats;
use super::effect_smtp;
use super::effect_sql;
use super::fields::{self, Fields, NameRule};
use super::findings::Findings;
use super::grammar;
use super::redaction;
use super::saga::{header, parsed};
use super::schema_files::Schemas;
use super::steps::{RetryBounds, retry};
use super::texts::{self, Readable};
use super::typing::{self, Types};
use super::yaml::{Entry, Node, Value};
use crate::expr::Root;
use crate::expr::types::{Env, Type};
use crate::ids::EffectName;
use crate::retry::RetryPolicy;

/// Keys that say how the call is made; a file has one of them.
/// Keys that say how a call is made and what its answer means.
const CALL_KEYS: &[&str] = &[
    "timeout",
    "retry",
    ON_AMBIGUOUS,
    "on_cancel",
    "breaker",
    "classify",
];

/// Roots of a request.
pub(super) const REQUEST_ROOTS: &[Root] = &[Root::Input, Root::Command, Root::Secrets, Root::Upstreams];
/// Roots of an answer's rules and result.
const RESPONSE_ROOTS: &[Root] = &[Root::Response, Root::Input, Root::Command];
/// Roots of a transformation's result.
const TRANSFORM_ROOTS: &[Root] = &[Root::Input, Root::Command];

/// Why a key is none of an external effect.
const OF_OTHERS: &str = "tells workers of saga-runner what to do; an external effect has others";

/// Most calls of one command, in all.
pub const ATTEMPTS_MAX: u32 = 20;

const TIMEOUT_MS: u64 = 10_000;
const TIMEOUT_MS_MAX: u64 = 15 * 60_000;
const CONNECT_TIMEOUT_MS: u64 = 2_000;
/// Of mail: RFC 5321, 4.5.3.2 gives the end of a message ten minutes and what comes before it five.
const MAIL_TIMEOUT_MS: u64 = TIMEOUT_MS_MAX;
/// Attempts within one command are few; long retries belong to the saga.
const RETRY: RetryBounds = RetryBounds {
    attempts: 1..=ATTEMPTS_MAX,
    default: RetryPolicy {
        attempts: 3,
        initial_ms: 200,
        factor: 2.0,
        max_ms: 3_000,
    },
};

/// Compiles an effect; `None` where there are errors among the findings.
pub fn compile(
    root: &Node<'_>,
    schemas: &mut Schemas<'_>,
    findings: &mut Findings<'_>,
) -> Option<Arc<EffectDefinition>> {
    let fields = Fields::read(root, &(0..0), &grammar::effect::EFFECT, findings)?;
    let name = header(&fields, "Effect", findings).and_then(|entry| {
        let text = fields::text(&entry.value, &entry.key_span, "the name of the effect", findings)?;
        parsed(EffectName::parse(text), &entry.value.span, findings)
    });
    let mut contract = EffectSchemas {
        input: fields
            .get("input")
            .and_then(|entry| schemas.read(entry, findings)),
        output: fields
            .get("output")
            .and_then(|entry| schemas.read(entry, findings)),
        asks: false,
    };
    let section = fields.chosen(findings);
    let response = match section.map(|entry| &*entry.key) {
        Some("http") => effect_http::response(),
        Some("grpc") => effect_grpc::response(),
        Some("smtp") => effect_smtp::response(),
        Some("sql") => effect_sql::response(),
        Some("nats") => effect_nats::response(),
        _ => Type::dynamic(),
    };
    let types = Types::of_effect(&contract, response);
    let env = &types.env;
    let provider = section.and_then(|entry| provider(entry, &fields, env, schemas, findings));
    let redaction = fields
        .get("redact")
        .map(|entry| redaction::read(entry, provider.as_ref(), &contract, env, findings))
        .unwrap_or_default();
    let is_mail = section.is_some_and(|entry| entry.key == "smtp");
    let (timeout_ms, connect_timeout_ms) = timeouts(&fields, is_mail, findings);
    let (policy, mut retry_classes) = retries(&fields, is_mail, findings);
    let on_ambiguous = on_ambiguous(&fields, provider.as_ref(), &mut retry_classes, findings);
    contract.asks = on_ambiguous == OnAmbiguous::Ask;
    let on_cancel = on_cancel(&fields, findings);
    let limits = effect_limits::limits(&fields, findings);
    let breaker = effect_limits::breaker(&fields, findings);
    let classify = fields
        .get("classify")
        .map(|entry| classify(entry, env, findings))
        .unwrap_or_default();
    let result_roots = match provider {
        Some(Provider::Transform) => TRANSFORM_ROOTS,
        Some(_) | None => RESPONSE_ROOTS,
    };
    let result = fields
        .get("result")
        .map(|entry| texts::template(&entry.value, Readable::knowing(result_roots, env), findings));
    if let (Some(entry), Some(result), Some(output)) = (fields.get("result"), &result, &contract.output) {
        typing::value(entry, result, &Type::of_schema(output), env, findings);
    }
    if findings.has_errors() {
        return None;
    }
    Some(Arc::new(EffectDefinition {
        name: name?,
        schemas: contract,
        provider: provider?,
        timeout_ms,
        connect_timeout_ms,
        retry: policy,
        retry_classes,
        on_ambiguous,
        on_cancel,
        limits,
        breaker,
        classify,
        result,
        redaction,
    }))
}

fn provider(
    entry: &Entry<'_>,
    fields: &Fields<'_, '_>,
    env: &Env,
    schemas: &Schemas<'_>,
    findings: &mut Findings<'_>,
) -> Option<Provider> {
    let provider = match &*entry.key {
        "http" => Provider::Http(effect_http::read(entry, env, findings)?),
        "grpc" => Provider::Grpc(effect_grpc::read(entry, env, schemas, findings)?),
        "smtp" => Provider::Smtp(Box::new(effect_smtp::read(entry, env, findings)?)),
        "sql" => Provider::Sql(effect_sql::read(entry, env, findings)?),
        "nats" => Provider::Nats(effect_nats::read(entry, env, findings)?),
        "custom" => {
            let why = "says what an answer means; a custom provider says so itself";
            refuse(&["classify", "result"], fields, why, findings);
            Provider::Custom(effect_custom::read(entry, env, findings)?)
        }
        "external" => {
            external(entry, fields, findings);
            Provider::External
        }
        _ => {
            transform(entry, fields, findings);
            Provider::Transform
        }
    };
    if let Some(feature) = provider.absent_feature() {
        let message = format!("this runner is built without \"{}\"", entry.key);
        findings
            .error(codes::NO_PROVIDER, entry.key_span.clone(), message)
            .help(Some(format!("build it with the feature \"{feature}\"")));
    }
    Some(provider)
}

fn transform(entry: &Entry<'_>, fields: &Fields<'_, '_>, findings: &mut Findings<'_>) {
    let _ = Fields::read(
        &entry.value,
        &entry.key_span,
        &grammar::effect::TRANSFORM,
        findings,
    );
    refuse(
        CALL_KEYS,
        fields,
        "belongs to a call; a transformation has none",
        findings,
    );
    if fields.get("result").is_none() {
        let message = "a transformation needs the key \"result\"";
        findings.error(codes::MISSING_KEY, entry.key_span.clone(), message);
    }
}

/// Another program executes it, so nothing here could say how.
fn external(entry: &Entry<'_>, fields: &Fields<'_, '_>, findings: &mut Findings<'_>) {
    let _ = Fields::read(
        &entry.value,
        &entry.key_span,
        &grammar::effect::EXTERNAL,
        findings,
    );
    // Of this one the sagas heed an answer.
    let others: Vec<&str> = CALL_KEYS
        .iter()
        .copied()
        .filter(|key| *key != ON_AMBIGUOUS)
        .collect();
    refuse(&others, fields, OF_OTHERS, findings);
    refuse(&["limits", "result"], fields, OF_OTHERS, findings);
}

fn refuse(keys: &[&str], fields: &Fields<'_, '_>, why: &str, findings: &mut Findings<'_>) {
    for key in keys {
        if let Some(entry) = fields.get(key) {
            let message = format!("\"{key}\" {why}");
            findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
        }
    }
}

fn timeouts(fields: &Fields<'_, '_>, is_mail: bool, findings: &mut Findings<'_>) -> (u64, u64) {
    let usual = if is_mail { MAIL_TIMEOUT_MS } else { TIMEOUT_MS };
    let default = (usual, CONNECT_TIMEOUT_MS);
    let Some(entry) = fields.get("timeout") else {
        return default;
    };
    let Some(fields) = Fields::read(&entry.value, &entry.key_span, &grammar::effect::TIMEOUT, findings)
    else {
        return default;
    };
    let mut read = |key: &str| {
        let entry = fields.get(key)?;
        fields::duration(entry, 1..=TIMEOUT_MS_MAX, codes::WRONG_VALUE, findings)
    };
    let total = read("total").unwrap_or(usual);
    let connect = read("connect");
    if connect.is_some_and(|connect| connect > total) {
        let span = fields
            .get("connect")
            .map_or(0..0, |entry| entry.value.span.clone());
        findings.error(
            codes::CONTRADICTION,
            span,
            "connecting may take longer than the whole call",
        );
    }
    (total, connect.unwrap_or(CONNECT_TIMEOUT_MS.min(total)))
}

fn retries(
    fields: &Fields<'_, '_>,
    is_mail: bool,
    findings: &mut Findings<'_>,
) -> (RetryPolicy, Vec<String>) {
    let default = || {
        let classes = EFFECT_RETRY_CLASSES.iter();
        // Mail servers heed no idempotency key: a repeated message arrives twice.
        let classes = classes.filter(|class| !is_mail || **class != AMBIGUOUS);
        classes.map(|class| (*class).to_owned()).collect()
    };
    let Some(entry) = fields.get("retry") else {
        return (RETRY.default, default());
    };
    let Some(fields) = Fields::read(&entry.value, &entry.key_span, &grammar::effect::RETRY, findings) else {
        return (RETRY.default, default());
    };
    let policy = retry(&fields, &RETRY, findings);
    let Some(errors) = fields.get("errors") else {
        return (policy, default());
    };
    let mut classes = Vec::new();
    for item in fields::one_or_many(&errors.value) {
        classes.extend(class(item, errors, findings).map(str::to_owned));
    }
    (policy, classes)
}

/// What follows a call whose outcome is unknown. Whether one that was sent and not answered is made again is also among
/// the classes that are tried again.
fn on_ambiguous(
    fields: &Fields<'_, '_>,
    provider: Option<&Provider>,
    classes: &mut Vec<String>,
    findings: &mut Findings<'_>,
) -> OnAmbiguous {
    let listed = classes.iter().any(|class| class == AMBIGUOUS);
    let Some(entry) = fields.get(ON_AMBIGUOUS) else {
        return match provider {
            Some(Provider::Smtp(_)) if !listed => OnAmbiguous::Fail,
            Some(_) | None => OnAmbiguous::default(),
        };
    };
    let is_external = matches!(provider, Some(Provider::External));
    match fields::text(
        &entry.value,
        &entry.key_span,
        "`retry`, `fail` or `ask`",
        findings,
    ) {
        Some("retry" | "fail") if is_external => refuse(&[ON_AMBIGUOUS], fields, OF_OTHERS, findings),
        Some("retry") if listed => {}
        Some("retry") => classes.push(AMBIGUOUS.to_owned()),
        Some("fail") => {
            classes.retain(|class| class != AMBIGUOUS);
            return OnAmbiguous::Fail;
        }
        Some(ASK) => {
            classes.retain(|class| class != AMBIGUOUS);
            // That of a transformation was refused with the others.
            let is_harmless =
                provider.is_some_and(|provider| !provider.acts() && !matches!(provider, Provider::Transform));
            if is_harmless {
                let message = "a call that changes nothing needs no question: it can be made again";
                findings.error(codes::CONTRADICTION, entry.value.span.clone(), message);
            }
            return OnAmbiguous::Ask;
        }
        Some(other) => {
            let message = format!("unknown answer \"{}\"", other.escape_debug());
            findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
                .help(Some("answers are retry, fail and ask".to_owned()));
        }
        None => {}
    }
    OnAmbiguous::default()
}

fn on_cancel(fields: &Fields<'_, '_>, findings: &mut Findings<'_>) -> OnCancel {
    let answers = [("finish", OnCancel::Finish), ("interrupt", OnCancel::Interrupt)];
    let Some(entry) = fields.get("on_cancel") else {
        return OnCancel::default();
    };
    let Some(text) = fields::text(&entry.value, &entry.key_span, "`finish` or `interrupt`", findings) else {
        return OnCancel::default();
    };
    let known = answers.iter().find(|(name, _)| *name == text);
    if known.is_none() {
        let message = format!("unknown answer \"{}\"", text.escape_debug());
        findings
            .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
            .help(Some("answers are finish and interrupt".to_owned()));
    }
    known.map_or_else(OnCancel::default, |(_, answer)| *answer)
}

fn class<'n>(node: &'n Node<'_>, entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<&'n str> {
    let text = fields::text(node, &entry.key_span, "an error class", findings)?;
    fields::is_name(text, &node.span, "error class", NameRule::Dotted, findings).then_some(text)
}

fn classify(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Vec<Classify> {
    let Value::List(items) = &entry.value.value else {
        fields::expected(&entry.value, &entry.key_span, "a list of {when, as}", findings);
        return Vec::new();
    };
    let mut rules = Vec::new();
    let mut always_taken = false;
    for item in items {
        if always_taken {
            let span = fields::visible(item, &entry.key_span, findings.text());
            let message = "this rule never applies: one before it always does";
            findings.error(codes::UNREACHABLE_HANDLER, span, message);
        }
        let Some(fields) = Fields::item(item, &entry.key_span, &grammar::effect::RULE, findings) else {
            continue;
        };
        let written = fields.require("when", findings);
        let when = written.map(|when| texts::expr(when, Readable::knowing(RESPONSE_ROOTS, env), findings));
        if let (Some(written), Some(when)) = (written, &when) {
            let holds = when.certain();
            if holds == Some(false) {
                let span = fields::visible(&written.value, &written.key_span, findings.text());
                findings.error(codes::CERTAIN, span, "this never holds: the rule never applies");
            }
            always_taken |= holds == Some(true);
        }
        let class = fields
            .require("as", findings)
            .and_then(|name| class(&name.value, name, findings));
        let outcome = fields
            .get("outcome")
            .and_then(|entry| ruled_outcome(entry, class, findings));
        if let (Some(when), Some(class)) = (when, class) {
            rules.push(Classify {
                when,
                class: class.to_owned(),
                outcome,
            });
        }
    }
    rules
}

/// What a rule says about a call whose answer has the class `class`.
fn ruled_outcome(
    entry: &Entry<'_>,
    class: Option<&str>,
    findings: &mut Findings<'_>,
) -> Option<RuledOutcome> {
    if class == Some("succeeded") {
        let message = "\"outcome\" is of a failure; what is classified as succeeded has happened";
        findings.error(codes::CONTRADICTION, entry.key_span.clone(), message);
        return None;
    }
    let what = "`refused`, `not_done` or `unknown`";
    match fields::text(&entry.value, &entry.key_span, what, findings)? {
        "refused" => Some(RuledOutcome::Refused),
        "not_done" => Some(RuledOutcome::NotDone),
        "unknown" => Some(RuledOutcome::Unknown),
        other => {
            let message = format!("unknown outcome \"{}\"", other.escape_debug());
            findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
                .help(Some("outcomes are refused, not_done and unknown".to_owned()));
            None
        }
    }
}
