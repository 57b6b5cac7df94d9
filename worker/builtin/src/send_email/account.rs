//! The mail servers of the configuration.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use lettre::{AsyncSmtpTransport, Tokio1Executor, message::Mailbox};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::context::{BuiltinContext, BuiltinError};

/// Timeout of each reply of the server.
const SMTP_TIMEOUT: Duration = Duration::from_secs(30);

/// A mail server, configured by a URL: `smtps://user:password@host:465?from=Jobs%20<jobs@example.org>`. `smtp://` with
/// `tls=required` starts without encryption and switches to TLS. `smtp://` alone stays unencrypted, and with
/// `tls=opportunistic` it does so if no offer of TLS arrives, which an attacker in the network can cause. Both take a
/// password only for a server on this machine.
#[derive(Clone)]
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

impl fmt::Debug for SmtpAccount {
    /// Writes the server and the sender, without the user and the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmtpAccount")
            .field("host", &self.url.host_str())
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

/// Returns true if the host is this machine, so that nothing passes a network.
fn is_loopback(url: &Url) -> bool {
    match url.host_str().unwrap_or_default() {
        "localhost" => true,
        host => host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
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
        let is_encrypted =
            url.scheme() == "smtps" || (!others.is_empty() && others.iter().all(|(_, tls)| tls == "required"));
        if url.password().is_some() && !is_encrypted && !is_loopback(&url) {
            return Err("it would send its password unencrypted; use smtps://, or add tls=required".to_owned());
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
        for text in [
            "smtp://u:p@localhost",
            "smtp://u:p@127.0.0.1:25",
            "smtp://u:p@[::1]",
            "smtp://u:p@h?tls=required",
            "smtp://u:p@localhost?tls=opportunistic",
            "smtp://mail.test:587?tls=opportunistic",
            "smtp://mail.test:587?tls=required&from=a@b.test",
        ] {
            assert!(text.parse::<SmtpAccount>().is_ok(), "{text}");
        }
        for text in [
            "mail.test",
            "http://mail.test",
            "smtp://",
            "smtp://h?tls=maybe",
            "smtps://h?x=1",
            "smtps://h?from=ann",
            "smtps://u@h",
            "smtp://u:p@mail.test:587",
            "smtp://u:p@10.0.0.1",
            "smtp://u:p@mail.test:587?tls=opportunistic",
        ] {
            assert!(text.parse::<SmtpAccount>().is_err(), "{text}");
        }
    }
}
