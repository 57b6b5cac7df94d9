//! Settings for auto-disable and for alerts.

use std::path::{Path, PathBuf};

use lettre::{AsyncSmtpTransport, Tokio1Executor, message::Mailbox};
use milvaion_address_guard::EgressRule;
use milvaion_schedule::rules::{AutoDisable, MAX_AUTO_DISABLE_THRESHOLD, MAX_CATCH_UP_WINDOW_SECONDS};
use url::Url;

use super::{EnvReader, secret_text::SecretText};

/// The most entries of `ALERT_HTTP_ALLOW`, and of `ALERT_HTTP_DENY`.
const MAX_EGRESS_RULES: usize = 1_000;

/// The default auto-disable rule, and the settings with which the messages about alerts are sent.
///
/// The address of a webhook and the recipients of an e-mail belong to the channels that Admins define. The settings here
/// are what only an operator may decide: the mail server, the values of secrets, and what the server may reach.
#[derive(Clone, Debug, Default)]
pub struct AlertsConfig {
    /// The auto-disable rule for jobs without a rule of their own; none means that they are never disabled
    /// automatically.
    ///
    /// `AUTO_DISABLE_THRESHOLD`: number of consecutive failures after which a job is disabled. From 0 to 100. Default
    /// 0: never.
    ///
    /// `AUTO_DISABLE_WINDOW_SECONDS`: window, in seconds, within which these failures must have ended. From 1 to
    /// 2,592,000. Default 3,600.
    ///
    /// `AUTO_DISABLE_COOL_DOWN_SECONDS`: time, in seconds, after which a disabled job is enabled again. From 0 to
    /// 2,592,000. Default 0: only a user enables it.
    pub auto_disable: Option<AutoDisable>,
    /// `ALERT_SMTP_URL`: address of the mail server for alerts, as in `smtps://user:password@host:465`, or
    /// `smtp://user:password@host:587?tls=required` for a connection that switches to TLS. `smtp://host:25` stays
    /// unencrypted and takes no password. Default none: no e-mails.
    pub smtp_url: Option<SecretText>,
    /// `ALERT_SMTP_FROM`: sender of these e-mails, as in `Milvaion <alerts@example.org>`; required with
    /// `ALERT_SMTP_URL`. Default none.
    pub smtp_from: Option<Mailbox>,
    /// `ALERT_SECRET_…`: value of a secret that a channel names, read at each message. The rest of the variable's name is
    /// the name of the secret. At most 64 KiB. Default none.
    ///
    /// `ALERT_SECRETS_DIR`: folder with one file for each secret, which is read, at each message, if the secret has no
    /// variable. The file has the name of the secret. At most 64 KiB each. Default none.
    pub secrets_dir: Option<PathBuf>,
    /// `ALERT_HTTP_ALLOW`: destinations that webhooks can reach in addition to public addresses, separated by commas,
    /// such as `hooks.internal:8080`, `10.0.0.7:8080`, `[fd00::7]:8080`, `10.0.0.0/8`. At most 1,000 entries. Default
    /// none.
    pub http_allow: Vec<EgressRule>,
    /// `ALERT_HTTP_DENY`: destinations that webhooks cannot reach, written as in `ALERT_HTTP_ALLOW`, over which it takes
    /// precedence. At most 1,000 entries. Default none.
    pub http_deny: Vec<EgressRule>,
    /// `HEARTBEAT_URL`: address that the leader requests with GET each minute while its dispatcher works, for a watcher
    /// outside that raises an alarm if the requests stop. Starts with `http://` or `https://`. Default none.
    pub heartbeat_url: Option<SecretText>,
}

impl AlertsConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let threshold = read.number("AUTO_DISABLE_THRESHOLD", 0, 0, MAX_AUTO_DISABLE_THRESHOLD);
        let window_seconds = read.number("AUTO_DISABLE_WINDOW_SECONDS", 3_600, 1, MAX_CATCH_UP_WINDOW_SECONDS);
        let cool_down = read.number("AUTO_DISABLE_COOL_DOWN_SECONDS", 0, 0, MAX_CATCH_UP_WINDOW_SECONDS);
        let cool_down_seconds = Some(cool_down).filter(|seconds| *seconds > 0);
        let url = read.text("ALERT_SMTP_URL");
        let smtp_url = checked(read, "ALERT_SMTP_URL", url, smtp_url);
        let from = read.text("ALERT_SMTP_FROM");
        let is_missing = smtp_url.is_some() && from.is_none();
        if is_missing {
            read.add_error("ALERT_SMTP_FROM", "ALERT_SMTP_URL needs a sender, such as Milvaion <alerts@example.org>");
        }
        let smtp_from = checked(read, "ALERT_SMTP_FROM", from, sender);
        let folder = read.text("ALERT_SECRETS_DIR");
        let secrets_dir = checked(read, "ALERT_SECRETS_DIR", folder, secrets_dir);
        let allow = read.text("ALERT_HTTP_ALLOW");
        let http_allow = checked(read, "ALERT_HTTP_ALLOW", allow, egress_rules).unwrap_or_default();
        let deny = read.text("ALERT_HTTP_DENY");
        let http_deny = checked(read, "ALERT_HTTP_DENY", deny, egress_rules).unwrap_or_default();
        let heartbeat = read.text("HEARTBEAT_URL");
        let heartbeat_url = checked(read, "HEARTBEAT_URL", heartbeat, heartbeat_url);
        Self {
            auto_disable: (threshold > 0).then_some(AutoDisable { threshold, window_seconds, cool_down_seconds }),
            smtp_url,
            smtp_from,
            secrets_dir,
            http_allow,
            http_deny,
            heartbeat_url,
        }
    }
}

/// Parses the value of the variable `name`, if it is set. Adds the reason if it is invalid.
fn checked<T>(
    read: &mut EnvReader,
    name: &str,
    value: Option<String>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    parse(&value?).map_err(|reason| read.add_error(name, &reason)).ok()
}

/// Checks the address of a mail server. A reason does not repeat it, because it holds a password.
fn smtp_url(text: &str) -> Result<SecretText, String> {
    let wrong = || "give smtps://user:password@host:465 or smtp://user:password@host:587?tls=required".to_owned();
    let url = Url::parse(text).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "smtp" | "smtps") || url.host_str().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    let tls: Vec<_> = url.query_pairs().collect();
    if tls.iter().any(|(name, value)| name != "tls" || !matches!(&**value, "required" | "opportunistic")) {
        return Err(wrong());
    }
    // With `opportunistic`, a connection stays unencrypted if no offer of TLS arrives, which an attacker can cause.
    let uses_tls = url.scheme() == "smtps" || (!tls.is_empty() && tls.iter().all(|(_, value)| value == "required"));
    if url.username().is_empty() != url.password().is_none_or(str::is_empty) {
        return Err("it has a user name without a password, or a password without a user name; give both".to_owned());
    }
    if !uses_tls && url.password().is_some() {
        return Err("it would send the password unencrypted; add ?tls=required, or start it with smtps://".to_owned());
    }
    AsyncSmtpTransport::<Tokio1Executor>::from_url(text).map_err(|_| wrong())?;
    Ok(SecretText::new(text))
}

fn sender(text: &str) -> Result<Mailbox, String> {
    let wrong = |_| format!("give an address such as Milvaion <alerts@example.org>, not {text:?}");
    text.parse().map_err(wrong)
}

fn secrets_dir(text: &str) -> Result<PathBuf, String> {
    let folder = Path::new(text);
    if !folder.is_dir() {
        return Err(format!("{text:?} is no folder; give the folder that has one file for each secret"));
    }
    Ok(folder.to_owned())
}

fn egress_rules(text: &str) -> Result<Vec<EgressRule>, String> {
    let entries = || text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    if entries().count() > MAX_EGRESS_RULES {
        return Err(format!("give at most {MAX_EGRESS_RULES} entries; replace single addresses by networks"));
    }
    entries().map(str::parse).collect()
}

/// Checks the address of a watcher. A reason does not repeat it, because it is all that a feigned heartbeat needs.
fn heartbeat_url(text: &str) -> Result<SecretText, String> {
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    match Url::parse(text) {
        Ok(url) if is_http(&url) => Ok(SecretText::new(text)),
        _ => Err("give an address that starts with https:// or http://".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_server_needs_tls_for_a_password() {
        for text in [
            "smtps://u:p%40ss@mail.test",
            "smtps://u:p@mail.test:465",
            "smtp://u:p@mail.test:587?tls=required",
            "smtp://mail.test?tls=opportunistic",
            "smtp://mail.test:25",
        ] {
            assert!(smtp_url(text).is_ok_and(|url| url.expose() == text), "{text}");
        }
        let wrong = ["mail.test", "https://mail.test", "smtp://", "smtp://h?tls=maybe", "smtps://h?from=a@b.test"];
        for text in wrong {
            assert!(smtp_url(text).is_err_and(|reason| reason.contains("give smtps://")), "{text}");
        }
        for text in ["smtp://u:c4n4ry@h", "smtp://u:c4n4ry@h?tls=opportunistic"] {
            assert!(smtp_url(text).is_err_and(|reason| reason.contains("add ?tls=required")), "{text}");
        }
        for text in ["smtps://u@h", "smtps://:c4n4ry@h", "smtps://u:@h"] {
            assert!(smtp_url(text).is_err_and(|reason| reason.contains("give both")), "{text}");
        }
    }

    #[test]
    fn secrets_are_in_no_error_and_no_debug_output() {
        for reason in [
            smtp_url("smtp://u:c4n4ry@h").err(),
            smtp_url("http://u:c4n4ry@h").err(),
            heartbeat_url("ftp://h/c4n4ry").err(),
        ] {
            assert!(reason.is_some_and(|reason| !reason.contains("c4n4ry")));
        }
        let config = AlertsConfig {
            smtp_url: smtp_url("smtps://u:c4n4ry@h").ok(),
            heartbeat_url: heartbeat_url("https://h/c4n4ry").ok(),
            ..AlertsConfig::default()
        };
        assert!(config.smtp_url.is_some() && config.heartbeat_url.is_some());
        assert!(!format!("{config:?}").contains("c4n4ry"));
    }

    #[test]
    fn an_invalid_value_is_named_with_its_remedy() {
        for (reason, remedy) in [
            (sender("alerts").err(), "give an address such as"),
            (secrets_dir("/no/such/folder").err(), "give the folder"),
            (egress_rules("10.0.0.0/8, hooks").err(), "\"hooks\": give a host name or an address with its port"),
            (egress_rules(&"10.0.0.1,".repeat(1_001)).err(), "replace single addresses by networks"),
            (heartbeat_url("example.org/ping").err(), "starts with https://"),
        ] {
            assert!(reason.as_ref().is_some_and(|reason| reason.contains(remedy)), "{reason:?} {remedy}");
        }
        assert_eq!(egress_rules("hooks.internal:80, 10.0.0.0/8,").map(|rules| rules.len()), Ok(2));
    }
}
