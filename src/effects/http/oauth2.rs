//! Tokens of OAuth 2 by client credentials (RFC 6749, 4.4): fetched when a call needs one, and kept until shortly
//! before they end.
//!
//! Whatever goes wrong here, the call itself has not been sent, so every failure is a definite one.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use data_encoding::BASE64;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Response};
use moka::sync::Cache;
use reqwest::Url;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::answer::{retry_after, said};
use super::body::BodyFault;
use super::client::{Client, Unanswered};
use super::coding::{Undecoded, decoded};
use super::request::{checked_url, request_of};
use crate::clients::told;
use crate::effects::certainty::{Ending, SideEffects};
use crate::effects::egress::EgressDenied;
use crate::effects::mask::Mask;
use crate::effects::network::Network;
use crate::effects::origin::Origin;
use crate::effects::provider::{CallFailure, CallOutcome};
use crate::effects::rendering::Rendering;
use crate::effects::secrets::SCRUBBED_BYTES_MIN;
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::http_proof::{OAuth2, SendCredentials};
use crate::kernel::expr::percent_encode;
use crate::kernel::ids::TimeMs;
use crate::kernel::json::Json;

/// Tokens of one effect that are kept at the same time: one for each client that its templates name.
const TOKENS_MAX: u64 = 1_024;
/// A token that nobody asks for any more is forgotten.
const IDLE: Duration = Duration::from_hours(1);
/// Largest answer with a token, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting of it, in levels.
const ANSWER_DEPTH_MAX: usize = 16;
/// How long a token is used whose answer does not say when it ends.
const LIFETIME: Duration = Duration::from_mins(5);
/// Whatever the answer says, a token is not used for longer.
const LIFETIME_MAX: Duration = Duration::from_hours(24);
/// So long before its end a token is replaced, or a quarter of its lifetime if that is shorter.
const MARGIN: Duration = Duration::from_secs(30);
/// After a failure the endpoint is left alone for so long; calls fail meanwhile as the last one did.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest `error` of an answer that is repeated, in bytes.
const ERROR_BYTES_MAX: usize = 64;

/// The tokens of one effect.
pub struct Tokens {
    client: Client,
    origin: Origin,
    network: Network,
    /// By the fingerprint of what they are asked for with. Whoever holds the lock fetches, the others wait for it.
    slots: Cache<[u8; 32], Arc<Mutex<Slot>>>,
}

#[derive(Default)]
struct Slot {
    token: Option<Arc<Token>>,
    /// The last failure, and until when the endpoint is left alone.
    failed: Option<(Instant, CallFailure)>,
}

/// A token as it goes with calls. Not `Debug`: it is a secret.
pub struct Token {
    pub header: HeaderValue,
    text: String,
    prospect: StdMutex<Prospect>,
}

/// How far a token is still of use.
struct Prospect {
    /// When it is time for another one.
    until: Instant,
    /// It was refused, and so was the one before it: another one would be, too.
    hopeless: bool,
}

/// What a token is asked for with. Not `Debug`: it holds secrets.
pub struct Ask {
    url: Url,
    authorization: Option<HeaderValue>,
    form: String,
    fingerprint: [u8; 32],
    /// When it is asked for, by the worker's clock.
    now: TimeMs,
    /// What the endpoint may repeat and nobody may see.
    mask: Mask,
}

impl Tokens {
    pub fn new(client: Client, origin: Origin, network: Network) -> Self {
        Self {
            client,
            origin,
            network,
            slots: Cache::builder()
                .max_capacity(TOKENS_MAX)
                .time_to_idle(IDLE)
                .build(),
        }
    }

    /// Renders what the token of one call is asked for with.
    pub fn ask(
        &self,
        oauth2: &OAuth2,
        rendering: &mut Rendering<'_>,
        now: TimeMs,
    ) -> Result<Ask, CallFailure> {
        let url = rendering.text("token_url", &oauth2.token_url)?;
        let url = checked_url("token_url", &url, &self.origin, &self.network)?;
        let id = rendering.text("client_id", &oauth2.client_id)?;
        let secret = rendering.text("client_secret", &oauth2.client_secret)?;
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        if !oauth2.scopes.is_empty() {
            form.push(("scope", oauth2.scopes.join(" ")));
        }
        if let Some(audience) = &oauth2.audience {
            form.push(("audience", rendering.text("audience", audience)?));
        }
        for (name, template) in &oauth2.parameters {
            form.push((name, rendering.text(name, template)?));
        }
        let mut hidden = vec![percent_encode(&secret)];
        let basic = match oauth2.send {
            SendCredentials::Basic => {
                let pair = format!("{}:{}", percent_encode(&id), percent_encode(&secret));
                Some(BASE64.encode(pair.as_bytes()))
            }
            SendCredentials::Body => {
                form.push(("client_id", id));
                form.push(("client_secret", secret.clone()));
                None
            }
        };
        hidden.extend(basic.clone());
        hidden.push(secret);
        let encoded =
            |(name, value): &(&str, String)| format!("{}={}", percent_encode(name), percent_encode(value));
        let form = form.iter().map(encoded).collect::<Vec<_>>().join("&");
        let header =
            |basic: String| secret_header(&format!("Basic {basic}")).expect("base64 may stand in a header");
        let authorization = basic.map(header);
        Ok(Ask {
            fingerprint: fingerprint(&[
                url.as_str().as_bytes(),
                authorization.as_ref().map_or(b"", HeaderValue::as_bytes),
                form.as_bytes(),
            ]),
            url,
            authorization,
            form,
            now,
            mask: Mask::of(SCRUBBED_BYTES_MIN, hidden.iter().map(String::as_str)),
        })
    }

    /// A token, until `by`: one that is known, or a new one.
    pub async fn token(&self, ask: &Ask, by: Instant) -> Result<Arc<Token>, CallFailure> {
        let late = || failure("timeout", "the endpoint has not answered in time", None);
        let slot = self.slots.get_with(ask.fingerprint, Arc::default);
        let mut slot = timeout_at(by, slot.lock()).await.map_err(|_| late())?;
        let now = Instant::now();
        if let Some(token) = slot.token.as_ref().filter(|token| now < token.prospect().until) {
            return Ok(Arc::clone(token));
        }
        if let Some((until, failure)) = slot.failed.as_ref().filter(|(until, _)| now < *until) {
            return Err(CallFailure {
                retry_after: Some(*until - now),
                ..failure.clone()
            });
        }
        slot.token = None;
        let fetched = timeout_at(by, self.fetch(ask, by)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(late())).map_err(|failure| {
            match ask.mask.scrub(CallOutcome::Failed(failure)) {
                CallOutcome::Failed(failure) => failure,
                CallOutcome::Succeeded { .. } | CallOutcome::Unusable { .. } => late(),
            }
        });
        match fetched {
            Ok(token) => {
                let token = Arc::new(token);
                *slot = Slot {
                    token: Some(Arc::clone(&token)),
                    failed: None,
                };
                Ok(token)
            }
            Err(failure) => {
                let pause = failure.retry_after.unwrap_or(PAUSE);
                slot.failed = Some((Instant::now() + pause, failure.clone()));
                Err(failure)
            }
        }
    }

    async fn fetch(&self, ask: &Ask, by: Instant) -> Result<Token, CallFailure> {
        let mut headers = HeaderMap::new();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(authorization) = &ask.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let form = ask.form.clone().into();
        let request = request_of(&Method::POST, "token_url", &ask.url, headers, form)?;
        let begin = Instant::now();
        let answer = self.client.send(request, by).await;
        let mut answer = answer.map_err(|error| unreachable(&error))?;
        let too_long = || {
            let message = format!("the answer is longer than {ANSWER_BYTES_MAX} bytes");
            failure("response.size", &message, None)
        };
        let body = match answer.body_mut().read(ANSWER_BYTES_MAX, by).await {
            Ok(body) => body,
            Err(BodyFault::Broken(error)) => return Err(unreachable(&error)),
            Err(BodyFault::TooLong) => return Err(too_long()),
        };
        let body = match decoded(answer.headers(), body, ANSWER_BYTES_MAX) {
            Ok(body) => body,
            Err(Undecoded::TooLong) => return Err(too_long()),
            Err(Undecoded::Unreadable(reason)) => return Err(failure("response.malformed", &reason, None)),
        };
        if !answer.status().is_success() {
            return Err(refused(&answer, &body, ask.now));
        }
        read(&body, begin).map_err(|message| failure("permanent", message, None))
    }
}

/// Reads the answer to a request that began at `begin`.
fn read(body: &[u8], begin: Instant) -> Result<Token, &'static str> {
    let answer = Json::parse(body, ANSWER_DEPTH_MAX).map_err(|_| "the answer is not JSON")?;
    let text = |name: &str| match answer.get(name) {
        Some(Json::Str(text)) => Some(text.as_ref()),
        _ => None,
    };
    let token = text("access_token")
        .filter(|token| !token.is_empty())
        .ok_or("the answer has no access_token")?;
    if text("token_type").is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err("the token is of another type than Bearer");
    }
    let header = secret_header(&format!("Bearer {token}"))
        .map_err(|_| "the token holds characters that no header may hold")?;
    let seconds = match answer.get("expires_in") {
        Some(Json::Int(seconds)) => u64::try_from(*seconds).ok(),
        // Some servers write the number as text.
        Some(Json::Str(seconds)) => seconds.trim().parse().ok(),
        _ => None,
    };
    let lifetime = seconds.map_or(LIFETIME, Duration::from_secs).min(LIFETIME_MAX);
    Ok(Token {
        header,
        text: token.to_owned(),
        prospect: StdMutex::new(Prospect {
            until: begin + lifetime.saturating_sub(MARGIN.min(lifetime / 4)),
            hopeless: false,
        }),
    })
}

impl Token {
    fn prospect(&self) -> MutexGuard<'_, Prospect> {
        self.prospect.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that the upstream has refused it, and says whether another one is worth a try. `again`: the one
    /// before it was refused by the same call, so it is not the token; the endpoint is then not asked by every call.
    pub fn refused(&self, again: bool) -> bool {
        let now = Instant::now();
        let mut prospect = self.prospect();
        if again && !prospect.hopeless {
            prospect.hopeless = true;
            prospect.until = prospect.until.min(now + PAUSE);
        } else if !prospect.hopeless {
            prospect.until = now;
        }
        !prospect.hopeless
    }

    /// The outcome of a call that carried one of the tokens, without them.
    pub fn scrub(tokens: &[Arc<Self>], outcome: CallOutcome) -> CallOutcome {
        Mask::of(SCRUBBED_BYTES_MIN, tokens.iter().map(|token| &*token.text)).scrub(outcome)
    }
}

/// A header that is not shown where others are, as in the logs of the client.
fn secret_header(text: &str) -> Result<HeaderValue, reqwest::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_bytes(text.as_bytes())?;
    value.set_sensitive(true);
    Ok(value)
}

fn fingerprint(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The call was not made for want of a token. That says nothing about the health of its own upstream.
fn failure(class: &'static str, message: &str, retry_after: Option<Duration>) -> CallFailure {
    CallFailure {
        end: CallEnd::Abandoned,
        retry_after: Some(retry_after.unwrap_or_default().max(PAUSE)),
        ..CallFailure::not_done(class, format!("no token: {message}"))
    }
}

fn unreachable(error: &Unanswered) -> CallFailure {
    if let Some(denied) = EgressDenied::among(error) {
        return failure("egress.denied", &denied.to_string(), None);
    }
    // Asking changes nothing.
    let class = error.ending().meaning(SideEffects::None).class;
    failure(class, &told("request failed", error), None)
}

/// Of a refusal only the code of its reason is told: endpoints repeat what they were sent.
fn refused<B>(answer: &Response<B>, body: &[u8], now: TimeMs) -> CallFailure {
    let status = answer.status();
    let message = match reason(body) {
        Some(reason) => format!("{status}: {reason}"),
        None => status.to_string(),
    };
    // Asking changes nothing.
    let class = Ending::Said(said(status)).meaning(SideEffects::None).class;
    failure(class, &message, retry_after(answer.headers(), now))
}

/// `error` of RFC 6749, 5.2, where it is one.
fn reason(body: &[u8]) -> Option<String> {
    let answer = Json::parse(body, ANSWER_DEPTH_MAX).ok()?;
    let Some(Json::Str(reason)) = answer.get("error") else {
        return None;
    };
    let legal = |c: char| matches!(c, ' ' | '!' | '#'..='[' | ']'..='~');
    let fits = reason.len() <= ERROR_BYTES_MAX && reason.chars().all(legal);
    fits.then(|| reason.to_string())
}
