//! Builds a message from an input.

use base64::{Engine, prelude::BASE64_STANDARD};
use lettre::{
    Message,
    message::{Attachment as Part, Mailbox, MultiPart, SinglePart, header::ContentType},
};

use super::{
    account::SmtpAccount,
    input::{MAX_ATTACHMENTS, MAX_RECIPIENTS, SendEmailInput},
};
use crate::context::BuiltinError;

/// Maximum size of text and HTML together, and of all attachments together, with their secrets.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Maximum length of the subject, in characters.
const MAX_SUBJECT_CHARS: usize = 500;

/// Builds the message, and returns it with its id.
///
/// # Errors
/// Returns a permanent error that names the invalid field.
pub(super) fn compose(
    input: &SendEmailInput,
    account: &SmtpAccount,
    occurrence: &str,
) -> Result<(Message, String), BuiltinError> {
    let from = match (&input.from, &account.from) {
        (Some(text), _) if !text.is_empty() => mailbox(text, "from")?,
        (_, Some(from)) => from.clone(),
        (_, None) => {
            return Err(BuiltinError::permanent("`from` is empty, and the account has no default sender; give one"));
        }
    };
    if input.to.len() + input.cc.len() + input.bcc.len() > MAX_RECIPIENTS {
        return Err(BuiltinError::permanent(format!(
            "`to`, `cc` and `bcc` have more than {MAX_RECIPIENTS} entries together"
        )));
    }
    if input.to.is_empty() {
        return Err(BuiltinError::permanent("`to` is empty; give at least one recipient"));
    }
    check_single_line(&input.subject, "subject")?;
    if input.subject.is_empty() || input.subject.chars().count() > MAX_SUBJECT_CHARS {
        return Err(BuiltinError::permanent(format!("`subject` must have 1 to {MAX_SUBJECT_CHARS} characters")));
    }
    let message_id = format!("<{occurrence}@{}>", from.email.domain());
    let mut builder = Message::builder().message_id(Some(message_id.clone())).subject(&input.subject).from(from);
    for text in &input.to {
        builder = builder.to(mailbox(text, "to")?);
    }
    for text in &input.cc {
        builder = builder.cc(mailbox(text, "cc")?);
    }
    for text in &input.bcc {
        builder = builder.bcc(mailbox(text, "bcc")?);
    }
    if let Some(text) = input.reply_to.as_deref().filter(|text| !text.is_empty()) {
        builder = builder.reply_to(mailbox(text, "replyTo")?);
    }
    let built = match (body(input)?, attachments(input)?) {
        (MessageBody::Single(part), files) if files.is_empty() => builder.singlepart(part),
        (MessageBody::Multi(parts), files) if files.is_empty() => builder.multipart(parts),
        (body, files) => {
            let mixed = match body {
                MessageBody::Single(part) => MultiPart::mixed().singlepart(part),
                MessageBody::Multi(parts) => MultiPart::mixed().multipart(parts),
            };
            builder.multipart(files.into_iter().fold(mixed, MultiPart::singlepart))
        }
    };
    let message = built.map_err(|error| BuiltinError::permanent(format!("the message cannot be built: {error}")))?;
    Ok((message, message_id))
}

enum MessageBody {
    Single(SinglePart),
    Multi(MultiPart),
}

fn body(input: &SendEmailInput) -> Result<MessageBody, BuiltinError> {
    let text = input.text.as_ref().filter(|text| !text.is_empty());
    let html = input.html.as_ref().filter(|html| !html.is_empty());
    if text.map_or(0, String::len) + html.map_or(0, String::len) > MAX_MESSAGE_BYTES {
        return Err(BuiltinError::permanent(format!(
            "`text` and `html` have more than {MAX_MESSAGE_BYTES} bytes together"
        )));
    }
    Ok(match (text, html) {
        (Some(text), Some(html)) => MessageBody::Multi(MultiPart::alternative_plain_html(text.clone(), html.clone())),
        (Some(text), None) => MessageBody::Single(SinglePart::plain(text.clone())),
        (None, Some(html)) => MessageBody::Single(SinglePart::html(html.clone())),
        (None, None) => return Err(BuiltinError::permanent("`text` and `html` are empty; write at least one of them")),
    })
}

fn attachments(input: &SendEmailInput) -> Result<Vec<SinglePart>, BuiltinError> {
    if input.attachments.len() > MAX_ATTACHMENTS {
        return Err(BuiltinError::permanent(format!("`attachments` has more than {MAX_ATTACHMENTS} entries")));
    }
    let mut bytes = 0;
    let mut parts = Vec::new();
    for (index, attachment) in input.attachments.iter().enumerate() {
        let wrong = |what: &str| BuiltinError::permanent(format!("`attachments[{index}].{what}"));
        check_single_line(&attachment.name, &format!("attachments[{index}].name"))?;
        if attachment.name.is_empty() || attachment.name.len() > 200 {
            return Err(wrong("name` must have 1 to 200 bytes"));
        }
        let kind = ContentType::parse(&attachment.content_type)
            .map_err(|_| wrong("contentType` is not a content type such as text/csv"))?;
        let content = BASE64_STANDARD.decode(attachment.content.trim()).map_err(|_| wrong("content` is not base64"))?;
        bytes += content.len();
        if bytes > MAX_MESSAGE_BYTES {
            return Err(BuiltinError::permanent(format!("`attachments` has more than {MAX_MESSAGE_BYTES} bytes")));
        }
        parts.push(Part::new(attachment.name.clone()).body(content, kind));
    }
    Ok(parts)
}

/// Parses an address. An error does not repeat it, because it may contain a secret.
fn mailbox(text: &str, field: &str) -> Result<Mailbox, BuiltinError> {
    check_single_line(text, field)?;
    text.trim().parse().map_err(|_| {
        BuiltinError::permanent(format!(
            "`{field}` has an invalid address; write ann@example.org or Ann <ann@example.org>"
        ))
    })
}

/// Refuses text that could start another header.
fn check_single_line(text: &str, field: &str) -> Result<(), BuiltinError> {
    if text.chars().any(char::is_control) {
        return Err(BuiltinError::permanent(format!("`{field}` has a line break or another control character")));
    }
    Ok(())
}
