//! A worker's settings from a file.

use std::{collections::BTreeMap, path::Path};

use toml::{Table, Value};

use crate::api::error::WorkerError;

/// Every variable a worker reads. The file's keys are these, in lower case and without `MILVAION_`.
const VARIABLE_NAMES: [&str; 12] = [
    "AMQP_URL",
    "REDIS_URL",
    "MILVAION_WORKER_ID",
    "MILVAION_PREFIX",
    "MILVAION_KEY_PREFIX",
    "MILVAION_CAPACITY",
    "MILVAION_CONCURRENCY",
    "MILVAION_SHUTDOWN_GRACE_SECONDS",
    "MILVAION_OUTBOX",
    "MILVAION_OUTBOX_LINES",
    "MILVAION_OUTBOX_MEGABYTES",
    "MILVAION_HEALTH",
];
/// The most bytes of a file.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// What a file says, by variable.
pub(super) struct ConfigFile(BTreeMap<&'static str, String>);

impl ConfigFile {
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<ConfigFile, WorkerError> {
    let failed = |reason: String| WorkerError::File { path: path.to_owned(), reason };
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed(format!("it has {size} bytes; {MAX_FILE_BYTES} are the most")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    parse(&text).map_err(failed)
}

fn key(name: &str) -> String {
    name.trim_start_matches("MILVAION_").to_ascii_lowercase()
}

fn parse(text: &str) -> Result<ConfigFile, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let mut values = BTreeMap::new();
    for (given, value) in table {
        let Some(name) = VARIABLE_NAMES.into_iter().find(|name| key(name) == given) else {
            return Err(format!("{given:?} means nothing: give one of {}", VARIABLE_NAMES.map(key).join(", ")));
        };
        let text = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Table(table) if name == "MILVAION_CONCURRENCY" => {
                let mut parts = Vec::new();
                for (job_type, value) in &table {
                    let number = value.as_integer().ok_or_else(|| {
                        format!("{given:?} gives {job_type:?} a {}: give a whole number", value.type_str())
                    })?;
                    parts.push(format!("{job_type}={number}"));
                }
                parts.join(",")
            }
            other => return Err(format!("{given:?} is a {}: give a text or a whole number", other.type_str())),
        };
        values.insert(name, text);
    }
    Ok(ConfigFile(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_variables_and_concurrency_may_be_a_table() {
        let file =
            parse("worker_id = 'mail'\ncapacity = 20\n[concurrency]\nhttp-request = 200\nsend-mail = 5").expect("read");
        assert_eq!(file.get("MILVAION_WORKER_ID").as_deref(), Some("mail"));
        assert_eq!(file.get("MILVAION_CAPACITY").as_deref(), Some("20"));
        assert_eq!(file.get("MILVAION_CONCURRENCY").as_deref(), Some("http-request=200,send-mail=5"));
        assert_eq!(file.get("REDIS_URL"), None);
    }

    #[test]
    fn what_means_nothing_is_refused_with_what_does() {
        for (text, part) in [
            ("capacty = 20", "give one of amqp_url, redis_url, worker_id"),
            ("capacity = true", "\"capacity\" is a boolean"),
            ("capacity = ", "TOML parse error"),
        ] {
            let error = parse(text).err().expect("refused");
            assert!(error.contains(part), "{error}");
        }
    }
}
