//! `send-email`: one message through a mail server the worker knows.
//!
//! The message's id is made of the occurrence's, the same for every attempt: a server that has taken it and a worker that
//! has not heard so send it twice, and whoever receives it can tell.

mod account;
mod input;
mod message;

use std::{collections::BTreeMap, time::Duration};

use lettre::{
    AsyncTransport,
    transport::smtp::{self, response::Response},
};
use milvaion_worker::JobError;
use serde::Serialize;

pub(crate) use self::account::SmtpAccount;
use self::input::SendEmailInput;
use crate::{
    context::{BuiltinContext, BuiltinError, BuiltinJob},
    settings::alias_key,
};

/// The job type, and the mail servers it knows by alias.
pub(crate) struct SendEmail {
    pub(crate) accounts: BTreeMap<String, SmtpAccount>,
}

/// What the server said.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SendEmailOutput {
    message_id: String,
    recipients: usize,
    bytes: usize,
    response: String,
}

impl BuiltinJob for SendEmail {
    const TYPE: &'static str = "send-email";
    const DESCRIPTION: &'static str = "Sends a message through a mail server the worker knows.";
    const CONCURRENCY: u16 = 5;
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(300));
    type Input = SendEmailInput;
    type Output = SendEmailOutput;

    async fn run(&self, context: &BuiltinContext, input: SendEmailInput) -> Result<SendEmailOutput, BuiltinError> {
        let Some(account) = self.accounts.get(&alias_key(&input.account)) else {
            let known = self.accounts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(BuiltinError::permanent(format!(
                "`account` is {:?}, which this worker does not know; give one of {known}",
                input.account
            )));
        };
        account.register_password(context);
        let (message, message_id) = message::compose(&input, account, &context.occurrence_id())?;
        let recipients = message.envelope().to().len();
        let bytes = message.formatted().len();
        context.info(format!("sending {bytes} bytes to {recipients} recipients as {message_id}"));
        let transport = account.transport()?;
        let sending = async { transport.send(message).await.map_err(classify_smtp_error) };
        let response = context.unless_cancelled("the message", sending).await?;
        let response = context.redactor().redact(&told(&response)).into_owned();
        context.info(&response);
        Ok(SendEmailOutput { message_id, recipients, bytes, response })
    }
}

fn told(response: &Response) -> String {
    let text = response.message().collect::<Vec<_>>().join(" ");
    format!("{} {}", response.code(), &text[..text.floor_char_boundary(1_000)])
}

/// A server that says 5xx means it; everything else may pass: 4xx, silence, a broken line, a certificate.
fn classify_smtp_error(error: smtp::Error) -> BuiltinError {
    let (is_permanent, code) = (error.is_permanent() || error.is_client(), error.status());
    let said =
        if code.is_some() { "the mail server refused the message" } else { "the message could not be handed over" };
    let text = format!("{said}: {}", JobError::from(error));
    if is_permanent { BuiltinError::permanent(text) } else { BuiltinError::retry(text) }
}

#[cfg(test)]
mod tests;
