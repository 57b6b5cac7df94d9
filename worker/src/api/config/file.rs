//! The configuration file of a worker.

use std::{collections::BTreeMap, path::Path};

use toml::{Table, Value};

use crate::api::error::{ConfigFileError, WorkerError};

/// All variables that a worker reads. The keys of the file are these names in lower case without `MILVAION_`.
const VARIABLE_NAMES: [&str; 16] = [
    "AMQP_URL",
    "REDIS_URL",
    "MILVAION_WORKER_ID",
    "MILVAION_PREFIX",
    "MILVAION_KEY_PREFIX",
    "MILVAION_CAPACITY",
    "MILVAION_CRITICAL_SLOTS",
    "MILVAION_CONCURRENCY",
    "MILVAION_SHUTDOWN_GRACE_SECONDS",
    "MILVAION_OUTBOX",
    "MILVAION_OUTBOX_LINES",
    "MILVAION_OUTBOX_MEGABYTES",
    "MILVAION_LOG_LINES",
    "MILVAION_LOG_MEGABYTES",
    "MILVAION_HEALTH",
    "MILVAION_SINGLETONS",
];
/// Maximum size of the file.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The values of a file, by variable name.
pub(super) struct ConfigFile(BTreeMap<&'static str, String>);

impl ConfigFile {
    /// Returns the value of a variable.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}

/// Reads and checks a file.
///
/// # Errors
/// Returns [`WorkerError::File`] if the file cannot be read, is too large or contains a wrong key or value.
pub(super) fn read(path: &Path) -> Result<ConfigFile, WorkerError> {
    read_text(path).and_then(|text| parse(&text)).map_err(|source| WorkerError::File { path: path.to_owned(), source })
}

fn read_text(path: &Path) -> Result<String, ConfigFileError> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(ConfigFileError::TooLarge { bytes, maximum: MAX_FILE_BYTES });
    }
    Ok(std::fs::read_to_string(path)?)
}

fn key(name: &str) -> String {
    name.trim_start_matches("MILVAION_").to_ascii_lowercase()
}

fn parse(text: &str) -> Result<ConfigFile, ConfigFileError> {
    let table: Table = text.parse()?;
    let mut values = BTreeMap::new();
    for (given, value) in table {
        let Some(name) = VARIABLE_NAMES.into_iter().find(|name| key(name) == given) else {
            return Err(ConfigFileError::UnknownKey { key: given, known: VARIABLE_NAMES.map(key).join(", ") });
        };
        let text = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Table(table) if name == "MILVAION_CONCURRENCY" => {
                let mut parts = Vec::new();
                for (job_type, value) in table {
                    let Some(number) = value.as_integer() else {
                        let found = value.type_str();
                        return Err(ConfigFileError::ConcurrencyType { key: given, job_type, found });
                    };
                    parts.push(format!("{job_type}={number}"));
                }
                parts.join(",")
            }
            Value::Table(table) if name == "MILVAION_SINGLETONS" => singletons(table)?,
            other => return Err(ConfigFileError::WrongType { key: given, found: other.type_str() }),
        };
        values.insert(name, text);
    }
    Ok(ConfigFile(values))
}

/// Writes the table of singleton loops as the text of its variable.
fn singletons(table: Table) -> Result<String, ConfigFileError> {
    let mut parts = Vec::new();
    for (singleton, value) in table {
        let options = match value {
            Value::Table(options) => options,
            other => {
                let found = other.type_str();
                return Err(ConfigFileError::LoopOptionType { singleton, option: String::new(), found });
            }
        };
        for (option, value) in options {
            let text = match value {
                Value::String(text) => text,
                Value::Integer(number) => number.to_string(),
                Value::Boolean(flag) => flag.to_string(),
                other => {
                    let found = other.type_str();
                    return Err(ConfigFileError::LoopOptionType { singleton, option, found });
                }
            };
            parts.push(format!("{singleton}.{option}={text}"));
        }
    }
    Ok(parts.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_variables_and_concurrency_can_be_a_table() {
        let file =
            parse("worker_id = 'mail'\ncapacity = 20\n[concurrency]\nhttp-request = 200\nsend-mail = 5").expect("read");
        assert_eq!(file.get("MILVAION_WORKER_ID").as_deref(), Some("mail"));
        assert_eq!(file.get("MILVAION_CAPACITY").as_deref(), Some("20"));
        assert_eq!(file.get("MILVAION_CONCURRENCY").as_deref(), Some("http-request=200,send-mail=5"));
        assert_eq!(file.get("REDIS_URL"), None);
    }

    #[test]
    fn options_of_singleton_loops_are_tables() {
        let file = parse("[singletons.price-feed]\nperiod = '250ms'\nenabled = false").expect("read");
        let text = file.get("MILVAION_SINGLETONS").expect("present");
        assert_eq!(text.split(';').collect::<std::collections::BTreeSet<_>>().len(), 2, "{text}");
        assert!(text.contains("price-feed.period=250ms") && text.contains("price-feed.enabled=false"), "{text}");
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused() {
        for (text, part) in [
            ("capacty = 20", "use one of amqp_url, redis_url, worker_id"),
            ("capacity = true", "\"capacity\" is of type boolean"),
            ("[concurrency]\nsend-mail = 'many'", "\"concurrency\" of job type \"send-mail\" is of type string"),
            ("[singletons.price-feed]\nperiod = []", "\"period\" of singleton loop \"price-feed\" is of type array"),
            ("capacity = ", "TOML parse error"),
        ] {
            let error = parse(text).err().expect("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
