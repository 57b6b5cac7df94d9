//! What this program can be told from outside, beside what every worker can ([`WorkerConfig`]).
//!
//! | Variable | What it says |
//! |---|---|
//! | `MILVAION_HTTP_ALLOW`, `MILVAION_HTTP_DENY` | where `http-request` may go beside public addresses, and where it never may |
//! | `MILVAION_HTTP_PROXY` | the proxy it goes through |
//! | `MILVAION_SQL_<ALIAS>` | a database of `sql-query` |
//! | `MILVAION_SMTP_<ALIAS>` | a mail server of `send-email` |
//! | `MILVAION_SHELL`, `MILVAION_SHELL_ENV` | whether `shell-command` is offered, and which of our variables its programs see |
//! | `MILVAION_SECRET_<NAME>`, `MILVAION_SECRETS_DIR` | the secrets inputs can refer to |
//!
//! Everything is read once, at the start; what is wrong is told in one go, without repeating a password.

use std::{collections::BTreeMap, path::PathBuf};

use milvaion_worker::WorkerConfig;
use reqwest::Proxy;

use crate::{
    guard::{EgressRule, ProtectedBackend},
    send_email::SmtpAccount,
    sql_query::SqlDatabase,
};

/// The beginnings of the variables that hold passwords.
const PASSWORD_VARIABLE_PREFIXES: [&str; 3] = ["MILVAION_SQL_", "MILVAION_SMTP_", "MILVAION_SECRET"];
/// The longest list of rules.
const MAX_EGRESS_RULES: usize = 1_000;

/// What was told.
#[derive(Default)]
pub(crate) struct BuiltinSettings {
    pub(crate) http_allow: Vec<EgressRule>,
    pub(crate) http_deny: Vec<EgressRule>,
    pub(crate) http_proxy: Option<Proxy>,
    /// By alias, in lower case.
    pub(crate) databases: BTreeMap<String, SqlDatabase>,
    /// By alias, in lower case.
    pub(crate) accounts: BTreeMap<String, SmtpAccount>,
    pub(crate) shell: bool,
    /// The names of variables a program sees beside the usual ones.
    pub(crate) shell_env: Vec<String>,
    pub(crate) secrets_dir: Option<PathBuf>,
}

impl BuiltinSettings {
    /// Reads the environment.
    ///
    /// # Errors
    /// One sentence for each mistake.
    pub(crate) fn from_env() -> Result<Self, Vec<String>> {
        Self::from_variables(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    fn from_variables(variables: impl Iterator<Item = (String, String)>) -> Result<Self, Vec<String>> {
        let (mut settings, mut mistakes) = (Self::default(), Vec::new());
        // In order of their names, so that mistakes come in the same order each time.
        for (name, value) in variables.collect::<BTreeMap<_, _>>() {
            if !value.is_empty() {
                settings.read(&name, &value, &mut mistakes);
            }
        }
        if mistakes.is_empty() { Ok(settings) } else { Err(mistakes) }
    }

    fn read(&mut self, name: &str, value: &str, mistakes: &mut Vec<String>) {
        match name {
            "MILVAION_HTTP_ALLOW" => self.http_allow = rules(name, value, mistakes),
            "MILVAION_HTTP_DENY" => self.http_deny = rules(name, value, mistakes),
            "MILVAION_HTTP_PROXY" => match Proxy::all(value) {
                Ok(proxy) => self.http_proxy = Some(proxy),
                Err(_) => mistakes.push(format!("{name} cannot be read: write http://host:3128.")),
            },
            "MILVAION_SHELL" => match value {
                "0" | "1" => self.shell = value == "1",
                _ => mistakes.push(format!("{name} is {value:?}: give 1 to offer shell-command, 0 or nothing not to.")),
            },
            "MILVAION_SHELL_ENV" => {
                for variable in value.split(',').map(str::trim).filter(|variable| !variable.is_empty()) {
                    if PASSWORD_VARIABLE_PREFIXES.iter().any(|start| variable.starts_with(start))
                        || ["AMQP_URL", "REDIS_URL"].contains(&variable)
                    {
                        mistakes.push(format!(
                            "{name} names {variable}, which holds a password of the worker: hand programs what they need as a secret in the job's `environment`."
                        ));
                    }
                    self.shell_env.push(variable.to_owned());
                }
            }
            "MILVAION_SECRETS_DIR" => {
                let folder = PathBuf::from(value);
                if !folder.is_dir() {
                    mistakes.push(format!(
                        "{name} is {value:?}, which is no directory: give the one that holds a file for each secret."
                    ));
                }
                self.secrets_dir = Some(folder);
            }
            _ => self.read_alias(name, value, mistakes),
        }
    }

    fn read_alias(&mut self, name: &str, value: &str, mistakes: &mut Vec<String>) {
        if let Some(alias) = name.strip_prefix("MILVAION_SQL_") {
            match value.parse() {
                Ok(database) => put(&mut self.databases, alias, database, name, mistakes),
                Err(reason) => mistakes.push(format!("{name} cannot be read: {reason}.")),
            }
        } else if let Some(alias) = name.strip_prefix("MILVAION_SMTP_") {
            match value.parse() {
                Ok(account) => put(&mut self.accounts, alias, account, name, mistakes),
                Err(reason) => mistakes.push(format!("{name} cannot be read: {reason}.")),
            }
        }
    }

    /// The services no job may call: what this worker itself lives on.
    pub(crate) fn backends(&self, config: &WorkerConfig) -> Vec<ProtectedBackend> {
        let amqp = if config.amqp_url.starts_with("amqps") { 5671 } else { 5672 };
        let own =
            [ProtectedBackend::from_url(&config.amqp_url, amqp), ProtectedBackend::from_url(&config.redis_url, 6379)];
        own.into_iter().flatten().chain(self.databases.values().filter_map(SqlDatabase::backend)).collect()
    }

    /// What is on and what is off, a sentence each. Names only.
    pub(crate) fn summary(&self) -> Vec<String> {
        let names = |aliases: Vec<&String>| aliases.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let beside = match self.http_allow.len() {
            0 => "to public addresses only; MILVAION_HTTP_ALLOW opens others".to_owned(),
            count => format!("to public addresses and to what the {count} entries of MILVAION_HTTP_ALLOW name"),
        };
        vec![
            format!("http-request is on, {beside}"),
            match self.databases.is_empty() {
                true => "sql-query is off: no MILVAION_SQL_<ALIAS> names a database".to_owned(),
                false => format!("sql-query is on, with the connections {}", names(self.databases.keys().collect())),
            },
            match self.accounts.is_empty() {
                true => "send-email is off: no MILVAION_SMTP_<ALIAS> names a mail server".to_owned(),
                false => format!("send-email is on, with the accounts {}", names(self.accounts.keys().collect())),
            },
            match self.shell {
                false => "shell-command is off: whoever defines jobs could run any program on this machine; MILVAION_SHELL=1 allows it".to_owned(),
                true => "shell-command is on: whoever defines jobs can run any program on this machine with the worker's rights".to_owned(),
            },
        ]
    }
}

fn rules(name: &str, value: &str, mistakes: &mut Vec<String>) -> Vec<EgressRule> {
    let mut rules = Vec::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse() {
            Ok(rule) => rules.push(rule),
            Err(reason) => mistakes.push(format!("{name} has {reason}.")),
        }
    }
    if rules.len() > MAX_EGRESS_RULES {
        mistakes.push(format!("{name} has more than {MAX_EGRESS_RULES} entries: name networks."));
    }
    rules
}

fn put<T>(map: &mut BTreeMap<String, T>, alias: &str, value: T, name: &str, mistakes: &mut Vec<String>) {
    let is_alias = (1..=50).contains(&alias.len()) && alias.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_alias {
        mistakes.push(format!("{name} is no alias: give 1 to 50 letters, digits and '_' at its end."));
    } else if map.insert(alias_key(alias), value).is_some() {
        mistakes
            .push(format!("{name} is there twice, in large and in small letters: give each alias a name of its own."));
    }
}

/// An alias as it is compared: `Main-EU` is `MILVAION_SQL_MAIN_EU`.
pub(crate) fn alias_key(alias: &str) -> String {
    alias.to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<BuiltinSettings, Vec<String>> {
        BuiltinSettings::from_variables(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn nothing_said_means_the_public_web_and_nothing_else() {
        let settings = from(&[("MILVAION_SHELL", ""), ("OTHER", "x")]).unwrap_or_default();
        assert!(!settings.shell && settings.http_allow.is_empty() && settings.databases.is_empty());
        let told = settings.summary().join("\n");
        for sentence in [
            "http-request is on, to public addresses only",
            "sql-query is off",
            "send-email is off",
            "shell-command is off",
        ] {
            assert!(told.contains(sentence), "{told}");
        }
    }

    #[test]
    fn aliases_are_told_by_name_and_without_their_passwords() {
        let settings = from(&[
            ("MILVAION_SQL_REPORTING", "postgres://u:c4n4ry@db.test/x"),
            ("MILVAION_SQL_LOCAL_1", "sqlite:/tmp/x.db"),
            ("MILVAION_SMTP_NEWS", "smtps://u:c4n4ry@mail.test"),
            ("MILVAION_SHELL", "1"),
        ])
        .unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
        let told = settings.summary().join("\n");
        assert!(told.contains("connections local_1, reporting\n") && told.contains("accounts news\n"), "{told}");
        assert!(told.contains("shell-command is on") && !told.contains("c4n4ry"), "{told}");
        let backends = settings.backends(&WorkerConfig::default());
        assert_eq!(backends.iter().map(|backend| backend.port).collect::<Vec<_>>(), [5672, 6379, 5432]);
    }

    #[test]
    fn all_mistakes_are_told_at_once_without_a_password() {
        let wrong = [
            ("MILVAION_HTTP_ALLOW", "10.0.0.0/8,localhost"),
            ("MILVAION_HTTP_PROXY", "http://u:c4n4ry@ho st"),
            ("MILVAION_SECRETS_DIR", "/no/such/place"),
            ("MILVAION_SHELL", "yes"),
            ("MILVAION_SHELL_ENV", "LANG,AMQP_URL"),
            ("MILVAION_SMTP_X", "http://u:c4n4ry@host"),
            ("MILVAION_SQL_A-B", "sqlite:/tmp/x.db"),
            ("MILVAION_SQL_X", "mysql://u:c4n4ry@host/x"),
            ("MILVAION_SQL_Y", "sqlite:/tmp/x.db"),
            ("MILVAION_SQL_y", "sqlite:/tmp/x.db"),
        ];
        let Err(mistakes) = from(&wrong) else { panic!("must be refused") };
        assert_eq!(mistakes.len(), 9, "{mistakes:#?}");
        for mistake in &mistakes {
            assert!(mistake.starts_with("MILVAION_") && !mistake.contains("c4n4ry"), "{mistake}");
        }
    }
}
