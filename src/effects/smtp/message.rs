//! From the templates of a definition to the bytes of a message.

use data_encoding::BASE64;
use lettre::Address;
use lettre::address::Envelope;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{
    Attachment as Attached, Mailbox, Mailboxes, Message, MessageBuilder, MultiPart, SinglePart,
};

use crate::effects::provider::CallFailure;
use crate::effects::rendering::Rendering;
use crate::kernel::definition::effect::{Attachment, AttachmentBody, SmtpMail};
use crate::kernel::expr::Template;
use crate::kernel::json::Json;

/// Most recipients of one message.
const RECIPIENTS_MAX: usize = 100;

/// A message ready to be sent.
pub struct Letter {
    pub envelope: Envelope,
    /// With the angle brackets. All attempts have the same one, so that a receiver can tell a repeated message.
    pub message_id: String,
    /// That of the sender, in ASCII.
    pub domain: String,
    pub bytes: Vec<u8>,
}

impl Letter {
    pub fn write(mail: &SmtpMail, key: &str, rendering: &mut Rendering<'_>) -> Result<Self, CallFailure> {
        let from = mailbox("from", &rendering.text("from", &mail.from)?)?;
        let domain = from.email.domain().to_owned();
        let message_id = format!("<{key}@{domain}>");
        let mut builder = Message::builder()
            .from(from)
            .subject(line("subject", rendering.text("subject", &mail.subject)?)?)
            .date_now()
            .message_id(Some(message_id.clone()));
        let mut count = 0;
        for (place, template) in [("to", &mail.to), ("cc", &mail.cc), ("bcc", &mail.bcc)] {
            let Some(template) = template else { continue };
            for mailbox in mailboxes(place, template, rendering)? {
                count += 1;
                builder = match place {
                    "to" => builder.to(mailbox),
                    "cc" => builder.cc(mailbox),
                    _ => builder.bcc(mailbox),
                };
            }
        }
        if count == 0 || count > RECIPIENTS_MAX {
            let message = format!("the message has {count} recipients, allowed are 1 to {RECIPIENTS_MAX}");
            return Err(CallFailure::not_done("address.illegal", message));
        }
        if let Some(reply_to) = &mail.reply_to {
            builder = builder.reply_to(mailbox("reply_to", &rendering.text("reply_to", reply_to)?)?);
        }
        for (name, template) in &mail.headers {
            let value = line(name, rendering.text(name, template)?)?;
            let known = HeaderName::new_from_ascii(name.clone())
                .map_err(|_| CallFailure::not_done("header.illegal", format!("{name} is not a header")))?;
            builder = builder.raw_header(HeaderValue::new(known, value));
        }
        let message = content(builder, mail, rendering)?;
        Ok(Self {
            envelope: message.envelope().clone(),
            bytes: message.formatted(),
            message_id,
            domain,
        })
    }

    /// Whether any server can take it. All but the part of an address before its `@` can be said in ASCII.
    pub fn is_ascii(&self) -> bool {
        let is_ascii = |address: &Address| address.user().is_ascii() && address.domain().is_ascii();
        self.bytes.is_ascii()
            && self.envelope.from().is_none_or(is_ascii)
            && self.envelope.to().iter().all(is_ascii)
    }
}

fn content(
    builder: MessageBuilder,
    mail: &SmtpMail,
    rendering: &mut Rendering<'_>,
) -> Result<Message, CallFailure> {
    let plain = mail
        .text
        .as_ref()
        .map(|text| rendering.text("text", text))
        .transpose()?;
    let html = mail
        .html
        .as_ref()
        .map(|html| rendering.text("html", html))
        .transpose()?;
    let unwritten = |error: lettre::error::Error| CallFailure::not_done("permanent", error.to_string());
    let part = |text: Option<String>, html: Option<String>| match (text, html) {
        (Some(text), None) => SinglePart::plain(text),
        (_, html) => SinglePart::html(html.unwrap_or_default()),
    };
    if mail.attachments.is_empty() {
        return match (plain, html) {
            (Some(plain), Some(html)) => builder.multipart(MultiPart::alternative_plain_html(plain, html)),
            (plain, html) => builder.singlepart(part(plain, html)),
        }
        .map_err(unwritten);
    }
    let mut mixed = match (plain, html) {
        (Some(plain), Some(html)) => {
            MultiPart::mixed().multipart(MultiPart::alternative_plain_html(plain, html))
        }
        (plain, html) => MultiPart::mixed().singlepart(part(plain, html)),
    };
    for attachment in &mail.attachments {
        mixed = mixed.singlepart(attached(attachment, rendering)?);
    }
    builder.multipart(mixed).map_err(unwritten)
}

fn attached(attachment: &Attachment, rendering: &mut Rendering<'_>) -> Result<SinglePart, CallFailure> {
    let name = line("attachment", rendering.text("name", &attachment.name)?)?;
    let (bytes, usual) = match &attachment.body {
        AttachmentBody::Text(text) => (
            rendering.text("attachment", text)?.into_bytes(),
            "text/plain; charset=utf-8",
        ),
        AttachmentBody::Base64(text) => {
            let text = rendering.text("attachment", text)?;
            let bytes = BASE64.decode(text.as_bytes()).map_err(|error| {
                let message = format!("attachment {name:?} is not base64: {error}");
                CallFailure::not_done("attachment.illegal", message)
            })?;
            (bytes, "application/octet-stream")
        }
    };
    let media_type = match &attachment.media_type {
        Some(template) => rendering.text("type", template)?,
        None => usual.to_owned(),
    };
    let media_type = ContentType::parse(&media_type).map_err(|_| {
        let message = format!("{media_type:?} of attachment {name:?} is not a media type");
        CallFailure::not_done("attachment.illegal", message)
    })?;
    Ok(Attached::new(name).body(bytes, media_type))
}

/// One address, several with commas between them, or a list of such texts.
fn mailboxes(
    place: &str,
    template: &Template,
    rendering: &mut Rendering<'_>,
) -> Result<Vec<Mailbox>, CallFailure> {
    let json = rendering.json(place, template)?;
    let illegal = || {
        let message = format!("{place} is neither an address nor a list of addresses");
        CallFailure::not_done("address.illegal", message)
    };
    let value = Json::parse(&json, 2).map_err(|_| illegal())?;
    let texts: Vec<&str> = match &value {
        Json::Str(text) => vec![text],
        Json::List(items) => items
            .iter()
            .map(|item| match item {
                Json::Str(text) => Ok(&**text),
                _ => Err(illegal()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(illegal()),
    };
    let mut all = Vec::new();
    for text in texts {
        let parsed: Mailboxes = text.parse().map_err(|error| misread(place, error))?;
        for mailbox in parsed {
            all.push(in_ascii(place, mailbox)?);
        }
    }
    Ok(all)
}

fn mailbox(place: &str, text: &str) -> Result<Mailbox, CallFailure> {
    let parsed = text.parse().map_err(|error| misread(place, error))?;
    in_ascii(place, parsed)
}

/// The mailbox with its domain as it is asked for in the DNS (RFC 5891), which every server understands.
fn in_ascii(place: &str, mailbox: Mailbox) -> Result<Mailbox, CallFailure> {
    let domain = mailbox.email.domain();
    if domain.is_ascii() {
        return Ok(mailbox);
    }
    let illegal = || CallFailure::not_done("address.illegal", format!("{place}: the domain is invalid"));
    let domain = idna::domain_to_ascii_strict(domain).map_err(|_| illegal())?;
    let email = Address::new(mailbox.email.user(), domain).map_err(|error| misread(place, error))?;
    Ok(Mailbox::new(mailbox.name, email))
}

fn misread(place: &str, error: lettre::address::AddressError) -> CallFailure {
    CallFailure::not_done("address.illegal", format!("{place}: {error}"))
}

/// A text without line breaks, which would let a value add headers of its own.
fn line(place: &str, text: String) -> Result<String, CallFailure> {
    if text.contains(char::is_control) {
        let message = format!("{place} holds characters that no header may hold");
        return Err(CallFailure::not_done("header.illegal", message));
    }
    Ok(text)
}
