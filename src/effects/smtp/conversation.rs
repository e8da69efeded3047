//! What is said to a mail server for one message, and how long each part may take.
//!
//! The parts have the times of RFC 5321, 4.5.3.2, at most what is left of the call.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use lettre::transport::smtp::response::Response;
use tokio::time::Instant;

use super::message::Letter;
use super::{Server, causes, not_sent};
use crate::effects::certainty::{Ending, SideEffects};
use crate::effects::egress::EgressDenied;
use crate::effects::network::Network;
use crate::effects::provider::{CallFailure, Certainty};
use crate::kernel::definition::effect::SmtpSecurity;

/// The greeting, and each command before the message.
const COMMAND: Duration = Duration::from_mins(5);
/// The answer to `DATA`.
const DATA: Duration = Duration::from_mins(2);
/// One block of the message.
const BLOCK: Duration = Duration::from_mins(3);
/// The answer to the end of the message.
const END: Duration = Duration::from_mins(10);
/// Size of a block, in bytes.
const BLOCK_BYTES: usize = 65_536;

pub struct Conversation<'a> {
    pub server: &'a Server,
    pub network: Network,
    pub connect: Duration,
    pub hello: ClientId,
    pub begun: Instant,
    pub limit: Duration,
}

/// Why a message that was sent, or a part of it, was not accepted.
pub enum Failed {
    /// The server has seen it and says no.
    Refused(Error),
    Ended(CallFailure),
}

/// How long the parts before the message may take.
#[derive(Clone, Copy)]
struct Prelude {
    until: Instant,
    whole: Duration,
}

impl Prelude {
    /// One part of it.
    async fn part<T>(
        self,
        most: Duration,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallFailure> {
        let until = self.until.min(Instant::now() + most);
        match tokio::time::timeout_at(until, answer).await {
            Ok(answer) => answer.map_err(|error| not_sent(&error)),
            Err(_) if until < self.until => Err(CallFailure::of(
                Ending::LateUnsent,
                SideEffects::Possible,
                format!("no answer within {} s", most.as_secs()),
            )),
            Err(_) => Err(self.late()),
        }
    }

    fn late(self) -> CallFailure {
        let ms = self.whole.as_millis();
        let message = format!("the server was not ready for the message within {ms} ms");
        CallFailure::of(Ending::LateUnsent, SideEffects::Possible, message)
    }
}

impl Conversation<'_> {
    /// Connects and says who writes to whom, up to the point where the server waits for the message. Two thirds of the
    /// call are kept for the message, at most its ten minutes.
    pub async fn prepare(
        &self,
        letter: &Letter,
        credentials: Option<Credentials>,
    ) -> Result<AsyncSmtpConnection, CallFailure> {
        let whole = self.limit.saturating_sub(END.min(self.limit * 2 / 3));
        let prelude = Prelude {
            until: self.begun + whole,
            whole,
        };
        let server = self.server;
        let found = self.network.lookup(&server.host, server.port);
        let found = tokio::time::timeout_at(prelude.until, found).await;
        let addresses =
            found
                .map_err(|_| prelude.late())?
                .map_err(|error| match EgressDenied::among(&*error) {
                    Some(denied) => CallFailure::of(
                        Ending::Unsendable("egress.denied"),
                        SideEffects::Possible,
                        denied.to_string(),
                    ),
                    None => CallFailure::of(
                        Ending::Unconnected,
                        SideEffects::Possible,
                        format!("{}: {error}", server.host),
                    ),
                })?;
        let tls = server.tls.clone();
        let at_once = tls.clone().filter(|_| server.security == SmtpSecurity::Tls);
        let (wait, hello) = (Some(self.connect), &self.hello);
        let opened = AsyncSmtpConnection::connect_tokio1(&addresses[..], wait, hello, at_once, None);
        let mut connection = prelude.part(COMMAND, opened).await?;
        if let (SmtpSecurity::StartTls, Some(tls)) = (server.security, tls) {
            prelude.part(COMMAND, connection.starttls(tls, hello)).await?;
        }
        if let Some(credentials) = credentials {
            let mechanisms = [Mechanism::Plain, Mechanism::Login];
            let known = connection.auth(&mechanisms, &credentials);
            prelude.part(COMMAND, known).await?;
        }
        let parameters = parameters(letter, &connection)?;
        let sender = Mail::new(letter.envelope.from().cloned(), parameters);
        prelude.part(COMMAND, connection.command(sender)).await?;
        for recipient in letter.envelope.to() {
            let answer = connection.command(Rcpt::new(recipient.clone(), Vec::new()));
            prelude
                .part(COMMAND, answer)
                .await
                .map_err(|failure| match failure.certainty {
                    Certainty::Refused => CallFailure {
                        class: Cow::Borrowed("recipient.refused"),
                        message: format!("{recipient}: {}", failure.message),
                        ..failure
                    },
                    Certainty::NotDone | Certainty::Unknown => failure,
                })?;
        }
        prelude.part(DATA, connection.command(Data)).await?;
        Ok(connection)
    }

    /// Sends the message. Without its end a server takes nothing, so only from there on an outcome can be unknown.
    pub async fn send(
        &self,
        connection: &mut AsyncSmtpConnection,
        letter: &Letter,
    ) -> Result<Response, Failed> {
        let until = self.begun + self.limit;
        let sent = AtomicUsize::new(0);
        let blocks = letter.bytes.chunks(BLOCK_BYTES);
        let whole = blocks.len() + 1;
        // The end goes out as soon as it is known that there is no other block.
        let counted = blocks.map(Some).chain([None]).map_while(|block| {
            sent.fetch_add(1, Ordering::Relaxed);
            block
        });
        let answer = connection.message_iter(counted);
        tokio::pin!(answer);
        let is_ended = || sent.load(Ordering::Relaxed) == whole;
        loop {
            let before = sent.load(Ordering::Relaxed);
            let part = if is_ended() { END } else { BLOCK };
            let wait = until.min(Instant::now() + part);
            match tokio::time::timeout_at(wait, &mut answer).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) if error.status().is_some() => return Err(Failed::Refused(error)),
                Ok(Err(error)) if is_ended() => {
                    return Err(Failed::Ended(CallFailure::of(
                        Ending::Lost,
                        SideEffects::Possible,
                        causes(&error),
                    )));
                }
                Ok(Err(error)) => return Err(Failed::Ended(not_sent(&error))),
                // Something went out meanwhile, and the next part has a time of its own.
                Err(_) if wait < until && before < sent.load(Ordering::Relaxed) => {}
                Err(_) if is_ended() => {
                    let message = "the server has not said whether it takes the message";
                    return Err(Failed::Ended(CallFailure::of(
                        Ending::Late,
                        SideEffects::Possible,
                        message,
                    )));
                }
                Err(_) => {
                    let message = "the server did not read the message in time";
                    return Err(Failed::Ended(CallFailure::of(
                        Ending::LateUnsent,
                        SideEffects::Possible,
                        message,
                    )));
                }
            }
        }
    }
}

/// What the server has to be told about the message. Its text is in ASCII always; only addresses may not be.
fn parameters(letter: &Letter, connection: &AsyncSmtpConnection) -> Result<Vec<MailParameter>, CallFailure> {
    if letter.is_ascii() {
        return Ok(Vec::new());
    }
    let server = connection.server_info();
    if !server.supports_feature(Extension::SmtpUtfEight) {
        let message = "an address is not in ASCII before its @, and the server does not offer SMTPUTF8";
        return Err(CallFailure::of(
            Ending::Unsendable("address.illegal"),
            SideEffects::Possible,
            message,
        ));
    }
    let mut parameters = vec![MailParameter::SmtpUtfEight];
    if server.supports_feature(Extension::EightBitMime) {
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    Ok(parameters)
}
