//! The settings of the built-in jobs, in addition to those of every worker ([`WorkerConfig`]).
//!
//! Every variable is read once, at the start. All invalid ones are reported together, without repeating a password.

use std::{collections::BTreeMap, path::PathBuf};

use milvaion_worker::WorkerConfig;
use reqwest::Proxy;

use crate::{
    guard::{EgressRule, ProtectedBackend},
    send_email::account::SmtpAccount,
    sql_query::database::SqlDatabase,
};

/// The prefixes of variables that hold passwords.
const PASSWORD_VARIABLE_PREFIXES: [&str; 3] = ["MILVAION_SQL_", "MILVAION_SMTP_", "MILVAION_SECRET"];
/// Maximum number of entries of `MILVAION_HTTP_ALLOW`, and of `MILVAION_HTTP_DENY`.
const MAX_EGRESS_RULES: usize = 1_000;

/// The settings of the built-in jobs.
///
/// Two variables are read by `main`:
///
/// `MILVAION_CONFIG`: TOML file of at most 64 KiB with the settings that every worker has, whose names are written in
/// lower case and without `MILVAION_`. An environment variable takes precedence over the file. Default none.
///
/// `RUST_LOG`: filter of the log on standard error, such as `info,milvaion_worker=debug`. Default `info`.
#[derive(Default)]
pub(crate) struct BuiltinSettings {
    /// `MILVAION_HTTP_ALLOW`: destinations that `http-request` can reach in addition to public addresses, separated by
    /// commas, such as `metrics.internal:9090`, `10.0.0.7:8080`, `[fd00::7]:8080`, `10.0.0.0/8`. At most 1,000 entries.
    /// Default none.
    pub(crate) http_allow: Vec<EgressRule>,
    /// `MILVAION_HTTP_DENY`: destinations that `http-request` cannot reach, written as in `MILVAION_HTTP_ALLOW`, over
    /// which it takes precedence. At most 1,000 entries. Default none.
    pub(crate) http_deny: Vec<EgressRule>,
    /// `MILVAION_HTTP_PROXY`: URL of the proxy that `http-request` uses, such as `http://host:3128`. `HTTP_PROXY` and
    /// similar variables are ignored. Default none.
    pub(crate) http_proxy: Option<Proxy>,
    /// `MILVAION_SQL_…`: URL of a database for `sql-query`, such as `postgres://user:password@host:5432/database` or
    /// `sqlite:/path/to/file.db`. The rest of the name is the alias that jobs use: 1 to 50 letters, digits and `_`.
    /// Default none: `sql-query` is not offered.
    ///
    /// The keys are the aliases in lower case.
    pub(crate) databases: BTreeMap<String, SqlDatabase>,
    /// `MILVAION_SMTP_…`: URL of a mail server for `send-email`, such as `smtps://user:password@host:465` or
    /// `smtp://user:password@host:587?tls=required`; its parameter `from=` is the sender of messages that name none.
    /// The rest of the name is the alias that jobs use: 1 to 50 letters, digits and `_`. Default none: `send-email` is
    /// not offered.
    ///
    /// The keys are the aliases in lower case.
    pub(crate) accounts: BTreeMap<String, SmtpAccount>,
    /// `MILVAION_SHELL`: offers the job type `shell-command` if `1`. Default `0`.
    pub(crate) shell: bool,
    /// `MILVAION_SHELL_ENV`: environment variables of the worker that programs of `shell-command` inherit in addition
    /// to `PATH`, `HOME`, `USER`, `LOGNAME`, `LANG`, `LC_ALL`, `TZ` and `TMPDIR`, separated by commas. Variables that
    /// hold a password of the worker are refused. Default none.
    pub(crate) shell_env: Vec<String>,
    /// `MILVAION_SECRET_…`: value of a [secret](crate::context::secrets). The rest of the name is the name of the secret in
    /// capitals, with `_` in place of `-` and `.`. From 4 bytes to 64 KiB. Default none.
    ///
    /// `MILVAION_SECRETS_DIR`: directory with one file for each secret, which is read if the secret has no variable.
    /// The file has the name of the secret. From 4 bytes to 64 KiB each. Default none.
    pub(crate) secrets_dir: Option<PathBuf>,
}

impl BuiltinSettings {
    /// Reads the environment.
    ///
    /// # Errors
    /// Returns one sentence for each invalid variable.
    pub(crate) fn from_env() -> Result<Self, Vec<String>> {
        Self::from_variables(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    fn from_variables(variables: impl Iterator<Item = (String, String)>) -> Result<Self, Vec<String>> {
        let (mut settings, mut errors) = (Self::default(), Vec::new());
        // Sorted by name, so that errors have the same order each time.
        for (name, value) in variables.collect::<BTreeMap<_, _>>() {
            if !value.is_empty() {
                settings.read(&name, &value, &mut errors);
            }
        }
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }

    fn read(&mut self, name: &str, value: &str, errors: &mut Vec<String>) {
        match name {
            "MILVAION_HTTP_ALLOW" => self.http_allow = parse_rules(name, value, errors),
            "MILVAION_HTTP_DENY" => self.http_deny = parse_rules(name, value, errors),
            "MILVAION_HTTP_PROXY" => match Proxy::all(value) {
                Ok(proxy) => self.http_proxy = Some(proxy),
                Err(_) => errors.push(format!("{name} is not a valid proxy URL: give one such as http://host:3128.")),
            },
            "MILVAION_SHELL" => match value {
                "0" | "1" => self.shell = value == "1",
                _ => errors.push(format!("{name} is {value:?}: give 1 to offer shell-command, or 0 not to.")),
            },
            "MILVAION_SHELL_ENV" => {
                for variable in value.split(',').map(str::trim).filter(|variable| !variable.is_empty()) {
                    if PASSWORD_VARIABLE_PREFIXES.iter().any(|start| variable.starts_with(start))
                        || ["AMQP_URL", "REDIS_URL"].contains(&variable)
                    {
                        errors.push(format!(
                            "{name} names {variable}, which holds a password of the worker: give programs what they need as a secret in the job's `environment`."
                        ));
                    }
                    self.shell_env.push(variable.to_owned());
                }
            }
            "MILVAION_SECRETS_DIR" => {
                let folder = PathBuf::from(value);
                if !folder.is_dir() {
                    errors.push(format!(
                        "{name} is {value:?}, which is not a directory: give the directory that holds one file for each secret."
                    ));
                }
                self.secrets_dir = Some(folder);
            }
            _ => self.read_alias(name, value, errors),
        }
    }

    fn read_alias(&mut self, name: &str, value: &str, errors: &mut Vec<String>) {
        if let Some(alias) = name.strip_prefix("MILVAION_SQL_") {
            match value.parse() {
                Ok(database) => insert_alias(&mut self.databases, alias, database, name, errors),
                Err(reason) => errors.push(format!("{name} is not a valid database URL: {reason}.")),
            }
        } else if let Some(alias) = name.strip_prefix("MILVAION_SMTP_") {
            match value.parse() {
                Ok(account) => insert_alias(&mut self.accounts, alias, account, name, errors),
                Err(reason) => errors.push(format!("{name} is not a valid mail server URL: {reason}.")),
            }
        }
    }

    /// Returns the services that no job may call: those that this worker itself depends on.
    pub(crate) fn backends(&self, config: &WorkerConfig) -> Vec<ProtectedBackend> {
        let amqp = if config.amqp_url.starts_with("amqps") { 5671 } else { 5672 };
        let own =
            [ProtectedBackend::from_url(&config.amqp_url, amqp), ProtectedBackend::from_url(&config.redis_url, 6379)];
        own.into_iter().flatten().chain(self.databases.values().filter_map(SqlDatabase::backend)).collect()
    }

    /// Returns one sentence for each job type: on or off, with the names of its aliases and nothing else of them.
    pub(crate) fn summary(&self) -> Vec<String> {
        let names = |aliases: Vec<&String>| aliases.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let destinations = match self.http_allow.len() {
            0 => "for public addresses only; MILVAION_HTTP_ALLOW allows others".to_owned(),
            count => format!("for public addresses and the {count} entries of MILVAION_HTTP_ALLOW"),
        };
        vec![
            "demo is on, for sample runs that reach no other system".to_owned(),
            format!("http-request is on, {destinations}"),
            match self.databases.is_empty() {
                true => "sql-query is off: no MILVAION_SQL_<ALIAS> is set".to_owned(),
                false => format!("sql-query is on, with the connections {}", names(self.databases.keys().collect())),
            },
            match self.accounts.is_empty() {
                true => "send-email is off: no MILVAION_SMTP_<ALIAS> is set".to_owned(),
                false => format!("send-email is on, with the accounts {}", names(self.accounts.keys().collect())),
            },
            match self.shell {
                false => "shell-command is off: with MILVAION_SHELL=1, users who define jobs can run any program on this machine".to_owned(),
                true => "shell-command is on: users who define jobs can run any program on this machine with the worker's rights".to_owned(),
            },
        ]
    }
}

fn parse_rules(name: &str, value: &str, errors: &mut Vec<String>) -> Vec<EgressRule> {
    let mut rules = Vec::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse() {
            Ok(rule) => rules.push(rule),
            Err(reason) => errors.push(format!("{name} has the invalid entry {reason}.")),
        }
    }
    if rules.len() > MAX_EGRESS_RULES {
        errors.push(format!("{name} has more than {MAX_EGRESS_RULES} entries: replace single addresses by networks."));
    }
    rules
}

fn insert_alias<T>(map: &mut BTreeMap<String, T>, alias: &str, value: T, name: &str, errors: &mut Vec<String>) {
    let is_alias = (1..=50).contains(&alias.len()) && alias.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_alias {
        errors.push(format!("{name} has an invalid alias: give 1 to 50 letters, digits and '_' after the prefix."));
    } else if map.insert(alias_key(alias), value).is_some() {
        errors.push(format!("{name} is set twice, in upper and lower case: give each alias a different name."));
    }
}

/// Returns the form in which aliases are compared: `Main-EU` is the alias of `MILVAION_SQL_MAIN_EU`.
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
    fn defaults_allow_public_addresses_only() {
        let settings = from(&[("MILVAION_SHELL", ""), ("OTHER", "x")]).unwrap_or_default();
        assert!(!settings.shell && settings.http_allow.is_empty() && settings.databases.is_empty());
        let summary = settings.summary().join("\n");
        for sentence in [
            "demo is on",
            "http-request is on, for public addresses only",
            "sql-query is off",
            "send-email is off",
            "shell-command is off",
        ] {
            assert!(summary.contains(sentence), "{summary}");
        }
    }

    #[test]
    fn summary_lists_aliases_without_passwords() {
        let settings = from(&[
            ("MILVAION_SQL_REPORTING", "postgres://u:c4n4ry@db.test/x"),
            ("MILVAION_SQL_LOCAL_1", "sqlite:/tmp/x.db"),
            ("MILVAION_SMTP_NEWS", "smtps://u:c4n4ry@mail.test"),
            ("MILVAION_SHELL", "1"),
        ])
        .unwrap_or_else(|errors| panic!("{errors:?}"));
        let summary = settings.summary().join("\n");
        assert!(
            summary.contains("connections local_1, reporting\n") && summary.contains("accounts news\n"),
            "{summary}"
        );
        assert!(summary.contains("shell-command is on") && !summary.contains("c4n4ry"), "{summary}");
        let backends = settings.backends(&WorkerConfig::default());
        assert_eq!(backends.iter().map(|backend| backend.port).collect::<Vec<_>>(), [5672, 6379, 5432]);
    }

    #[test]
    fn all_errors_are_reported_without_passwords() {
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
        let Err(errors) = from(&wrong) else { panic!("must be refused") };
        assert_eq!(errors.len(), 9, "{errors:#?}");
        for error in &errors {
            assert!(error.starts_with("MILVAION_") && !error.contains("c4n4ry"), "{error}");
        }
    }
}
