//! Reading `auth` of the `http` section of an effect file.

use super::codes;
use super::effect_file::REQUEST_ROOTS;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::http_proof::{OAuth2, SendCredentials};
use super::texts::{self, Readable};
use super::url;
use super::yaml::Entry;
use crate::expr::types::Env;
use crate::expr::{Root, Template};

/// Parameters of the form that the runner writes itself.
const RESERVED: [&str; 5] = ["grant_type", "client_id", "client_secret", "scope", "audience"];
const SCOPES_MAX: usize = 64;
const PARAMETERS_MAX: usize = 16;

pub fn read(entry: &Entry<'_>, env: &Env, findings: &mut Findings<'_>) -> Option<Box<OAuth2>> {
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::AUTH, findings)?;
    let entry = fields.require("oauth2", findings)?;
    let fields = Fields::read(&entry.value, &entry.key_span, &grammar::effect::OAUTH2, findings)?;
    let readable = Readable::knowing(REQUEST_ROOTS, env);
    let text = |entry: &Entry<'_>, what: &str, findings: &mut Findings<'_>| {
        texts::text_template(&entry.value, &entry.key_span, what, readable, findings)
    };
    let token_url = fields.require("token_url", findings).and_then(|entry| {
        let template = text(entry, "a url", findings)?;
        url::check(&template, &entry.value, findings);
        Some(template)
    });
    let client_id = fields
        .require("client_id", findings)
        .and_then(|entry| text(entry, "a client", findings));
    let client_secret = fields
        .require("client_secret", findings)
        .and_then(|entry| secret(entry, "a client secret", readable, findings));
    let send = fields.get("send").and_then(|entry| send(entry, findings));
    let scopes = fields
        .get("scopes")
        .map(|entry| scopes(entry, findings))
        .unwrap_or_default();
    let audience = fields
        .get("audience")
        .and_then(|entry| text(entry, "an audience", findings));
    let parameters = fields
        .get("parameters")
        .map(|entry| parameters(entry, readable, findings))
        .unwrap_or_default();
    Some(Box::new(OAuth2 {
        token_url: token_url?,
        client_id: client_id?,
        client_secret: client_secret?,
        send: send.unwrap_or_default(),
        scopes,
        audience,
        parameters,
    }))
}

/// A text that comes from a secret, so that no file holds it.
pub(super) fn secret(
    entry: &Entry<'_>,
    what: &str,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Option<Template> {
    let template = texts::text_template(&entry.value, &entry.key_span, what, readable, findings)?;
    if !template.reads(Root::Secrets) {
        let span = fields::visible(&entry.value, &entry.key_span, findings.text());
        findings
            .error(
                codes::CREDENTIALS,
                span,
                format!("{what} is not written into a file"),
            )
            .help(Some("write ${secrets.<name>}".to_owned()));
    }
    Some(template)
}

fn send(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<SendCredentials> {
    match fields::text(&entry.value, &entry.key_span, "`basic` or `body`", findings)? {
        "basic" => Some(SendCredentials::Basic),
        "body" => Some(SendCredentials::Body),
        other => {
            let message = format!("unknown way \"{}\"", other.escape_debug());
            findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message)
                .help(Some("ways are basic and body".to_owned()));
            None
        }
    }
}

fn scopes(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Vec<String> {
    let items = fields::one_or_many(&entry.value);
    if items.len() > SCOPES_MAX {
        let message = format!("{} has more than {SCOPES_MAX} scopes", entry.key);
        findings.error(codes::WRONG_VALUE, entry.key_span.clone(), message);
    }
    let mut scopes = Vec::new();
    for item in items {
        let Some(scope) = fields::text(item, &entry.key_span, "a scope", findings) else {
            continue;
        };
        // The characters of RFC 6749, 3.3; a space would make two of one.
        let legal = |c: char| matches!(c, '!' | '#'..='[' | ']'..='~');
        if !scope.chars().all(legal) {
            let message = format!("\"{}\" is not a scope", scope.escape_debug());
            findings
                .error(codes::WRONG_VALUE, item.span.clone(), message)
                .help(Some(
                    "each scope is an item of the list, without spaces".to_owned(),
                ));
        }
        scopes.push(scope.to_owned());
    }
    scopes
}

fn parameters(
    entry: &Entry<'_>,
    readable: Readable<'_>,
    findings: &mut Findings<'_>,
) -> Vec<(String, Template)> {
    let entries = fields::entries(&entry.value, &entry.key_span, "parameters", findings).unwrap_or_default();
    if entries.len() > PARAMETERS_MAX {
        let message = format!("there are more than {PARAMETERS_MAX} parameters");
        findings.error(codes::WRONG_VALUE, entry.key_span.clone(), message);
    }
    let mut parameters = Vec::new();
    for parameter in entries {
        if RESERVED.contains(&&*parameter.key) {
            let message = format!("the parameter \"{}\" is written by the runner", parameter.key);
            findings
                .error(codes::CREDENTIALS, parameter.key_span.clone(), message)
                .help(Some(
                    "client, secret, scopes and audience have keys of their own".to_owned(),
                ));
        }
        let value = texts::text_template(
            &parameter.value,
            &parameter.key_span,
            "a parameter",
            readable,
            findings,
        );
        parameters.extend(value.map(|value| (parameter.key.clone().into_owned(), value)));
    }
    parameters
}
