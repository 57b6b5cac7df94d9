//! The mail servers of the configuration.

use std::{str::FromStr, time::Duration};

use lettre::{AsyncSmtpTransport, Tokio1Executor, message::Mailbox};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::context::{BuiltinContext, BuiltinError};

/// Timeout of each reply of the server.
const SMTP_TIMEOUT: Duration = Duration::from_secs(30);

/// A mail server, configured by a URL: `smtps://user:password@host:465?from=Jobs%20<jobs@example.org>`. `smtp://` with
/// `tls=required` starts without encryption and switches to TLS. `smtp://` alone stays unencrypted.
#[derive(Clone, Debug)]
pub(crate) struct SmtpAccount {
    url: Url,
    pub(super) from: Option<Mailbox>,
    password: Option<String>,
}

impl SmtpAccount {
    /// Returns a new transport. Each message gets its own, because a kept connection may be dead by the next message.
    ///
    /// # Errors
    /// Returns a permanent error if the URL is invalid.
    pub(super) fn transport(&self) -> Result<AsyncSmtpTransport<Tokio1Executor>, BuiltinError> {
        let builder = AsyncSmtpTransport::<Tokio1Executor>::from_url(self.url.as_str())
            .map_err(|_| BuiltinError::permanent("the worker's URL of this mail server is invalid"))?;
        Ok(builder.timeout(Some(SMTP_TIMEOUT)).build())
    }

    pub(super) fn register_password(&self, context: &BuiltinContext) {
        if let Some(password) = &self.password {
            context.add_secret(password, "{{account password}}");
        }
    }
}

impl FromStr for SmtpAccount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "give smtps://user:password@host:465, or smtp://user:password@host:587?tls=required; add from= and an address if jobs need not name a sender"
                .to_owned()
        };
        let mut url = Url::parse(text).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "smtp" | "smtps") || url.host_str().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        let mut from = None;
        let mut others = Vec::new();
        for (name, value) in url.query_pairs() {
            match (name.as_ref(), value.as_ref()) {
                ("from", address) => {
                    from = Some(address.parse().map_err(|_| "its from= is not an address".to_owned())?)
                }
                ("tls", "required" | "opportunistic") => others.push((name.into_owned(), value.into_owned())),
                _ => return Err(wrong()),
            }
        }
        url.set_query(None);
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(&others);
        }
        let password = url.password().map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        if password.is_none() && !url.username().is_empty() {
            return Err("it has a user name but no password".to_owned());
        }
        let account = Self { url, from, password };
        account.transport().map_err(|_| wrong())?;
        Ok(account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_parsed_from_its_url() {
        let account: SmtpAccount =
            "smtps://u:p%40ss@mail.test?from=Jobs%20%3Cjobs@x.test%3E".parse().expect("an account");
        assert_eq!(account.password.as_deref(), Some("p@ss"));
        assert_eq!(account.from.map(|from| from.to_string()).as_deref(), Some("Jobs <jobs@x.test>"));
        assert!("smtp://mail.test:587?tls=required&from=a@b.test".parse::<SmtpAccount>().is_ok());
        for text in [
            "mail.test",
            "http://mail.test",
            "smtp://",
            "smtp://h?tls=maybe",
            "smtps://h?x=1",
            "smtps://h?from=ann",
            "smtps://u@h",
        ] {
            assert!(text.parse::<SmtpAccount>().is_err(), "{text}");
        }
    }
}
