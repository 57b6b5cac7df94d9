//! Secrets by reference: `{{secret:name}}` in an input is replaced by the value on the worker.
//!
//! A job's input is stored in the database, passes through the broker and is shown in the dashboard. A password must
//! not be in any of them. The input therefore holds a name, and the worker that runs the job looks up the value just
//! before use: in the variable `MILVAION_SECRET_<NAME>`, else in the file `<name>` below `MILVAION_SECRETS_DIR`.
//! Docker, Kubernetes and systemd provide secrets as such files. The value is looked up in each run, so a changed file
//! takes effect with the next run.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::ErrorKind,
    path::PathBuf,
    sync::Arc,
};

use serde_json::Value;
use tokio::io::AsyncReadExt;

use super::BuiltinError;
use crate::redact::Redactor;

/// Start of a reference.
const REFERENCE_START: &str = "{{secret:";
/// End of a reference.
const REFERENCE_END: &str = "}}";
/// Maximum number of references in one input.
const MAX_SECRET_REFERENCES: usize = 50;
/// Maximum size of a secret.
const MAX_SECRET_BYTES: u64 = 64 * 1024;
/// Minimum size of a secret. A shorter one cannot be redacted without making the log unreadable.
const MIN_SECRET_BYTES: usize = 4;
/// Maximum length of a secret's name.
const MAX_SECRET_NAME_CHARS: usize = 100;

type VariableLookup = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The secrets that this worker can resolve.
pub(crate) struct SecretStore {
    variables: VariableLookup,
    folder: Option<PathBuf>,
    /// The redactor of the process's own log. It knows every value that was resolved since the start.
    process_redactor: Arc<Redactor>,
}

impl SecretStore {
    /// Returns a store that reads this process's environment and the files in `folder`.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self::from_variables(|name| std::env::var(name).ok(), folder)
    }

    /// Returns a store that reads variables through a function.
    pub(crate) fn from_variables(
        variables: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        folder: Option<PathBuf>,
    ) -> Self {
        Self { variables: Box::new(variables), folder, process_redactor: Arc::default() }
    }

    /// Returns the redactor of the process's own log.
    pub(crate) fn process_redactor(&self) -> &Arc<Redactor> {
        &self.process_redactor
    }

    /// Replaces the references in every string of `value` by their values, and registers the values with `redactor`.
    /// Names of fields are not changed.
    ///
    /// # Errors
    /// Returns a permanent error that names the secret if it is unknown, too long or too short, or if a reference is
    /// malformed. Returns a retryable error if the secret's file cannot be read.
    pub(crate) async fn resolve_references(
        &self,
        mut value: Value,
        redactor: &Redactor,
    ) -> Result<Value, BuiltinError> {
        let mut names = Vec::new();
        gather(&value, &mut names)?;
        if names.is_empty() {
            return Ok(value);
        }
        let mut values = BTreeMap::new();
        for name in names {
            if let Entry::Vacant(entry) = values.entry(name) {
                let secret = self.look_up(entry.key()).await?;
                let shown = format!("{REFERENCE_START}{}{REFERENCE_END}", entry.key());
                redactor.add_secret(&secret, &shown);
                self.process_redactor.add_secret(&secret, &shown);
                entry.insert(secret);
            }
        }
        replace_references(&mut value, &values);
        Ok(value)
    }

    async fn look_up(&self, name: &str) -> Result<String, BuiltinError> {
        let variable = variable(name);
        let value = match (self.variables)(&variable) {
            Some(value) => Some(value),
            None => self.read_file(name).await?,
        };
        let Some(value) = value else {
            return Err(BuiltinError::permanent(format!(
                "the secret {name:?} is unknown to this worker; set {variable} in its environment, or add a file of that name to its MILVAION_SECRETS_DIR"
            )));
        };
        if value.len() as u64 > MAX_SECRET_BYTES {
            return Err(BuiltinError::permanent(format!("the secret {name:?} has more than {MAX_SECRET_BYTES} bytes")));
        }
        if value.len() < MIN_SECRET_BYTES {
            return Err(BuiltinError::permanent(format!(
                "the secret {name:?} has fewer than {MIN_SECRET_BYTES} bytes, too few to redact it from logs"
            )));
        }
        Ok(value)
    }

    async fn read_file(&self, name: &str) -> Result<Option<String>, BuiltinError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let path = folder.join(name);
        // Symbolic links are followed, because Kubernetes makes each secret one. Only a regular file is read: a pipe
        // might never end.
        match tokio::fs::metadata(&path).await {
            Ok(found) if found.is_file() => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(name, &error)),
        }
        let mut bytes = Vec::new();
        let file = tokio::fs::File::open(&path).await.map_err(|error| unreadable(name, &error))?;
        file.take(MAX_SECRET_BYTES + 2).read_to_end(&mut bytes).await.map_err(|error| unreadable(name, &error))?;
        let mut text = String::from_utf8(bytes)
            .map_err(|_| BuiltinError::permanent(format!("the file of the secret {name:?} is not UTF-8 text")))?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(Some(text))
    }
}

/// Returns the variable of a secret: `mail.api-key` → `MILVAION_SECRET_MAIL_API_KEY`.
fn variable(name: &str) -> String {
    format!("MILVAION_SECRET_{}", name.to_uppercase().replace(['-', '.'], "_"))
}

// Retryable, because the file may exist or be readable a moment later.
fn unreadable(name: &str, error: &std::io::Error) -> BuiltinError {
    BuiltinError::retry(format!("the file of the secret {name:?} cannot be read: {error}"))
}

/// Returns true if `text` contains a reference to a secret.
pub(crate) fn has_reference(text: &str) -> bool {
    text.contains(REFERENCE_START)
}

/// Collects the names in every string of `value`.
fn gather(value: &Value, names: &mut Vec<String>) -> Result<(), BuiltinError> {
    match value {
        Value::String(text) => {
            for piece in text.split(REFERENCE_START).skip(1) {
                let name = piece.split_once(REFERENCE_END).map(|(name, _)| name).filter(|name| is_name(name));
                let Some(name) = name else {
                    return Err(BuiltinError::permanent(format!(
                        "the input has a malformed reference to a secret; write {REFERENCE_START}name{REFERENCE_END}, with a name of 1 to {MAX_SECRET_NAME_CHARS} letters, digits, '-', '_' and '.' that starts with a letter, a digit or '_'"
                    )));
                };
                names.push(name.to_owned());
                if names.len() > MAX_SECRET_REFERENCES {
                    return Err(BuiltinError::permanent(format!(
                        "the input refers to secrets more than {MAX_SECRET_REFERENCES} times"
                    )));
                }
            }
        }
        Value::Array(items) => items.iter().try_for_each(|item| gather(item, names))?,
        Value::Object(fields) => fields.values().try_for_each(|field| gather(field, names))?,
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// Returns true if `name` is within its bounds and is neither a path nor a hidden file.
fn is_name(name: &str) -> bool {
    (1..=MAX_SECRET_NAME_CHARS).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn replace_references(value: &mut Value, values: &BTreeMap<String, String>) {
    match value {
        Value::String(text) if has_reference(text) => {
            let mut pieces = text.split(REFERENCE_START);
            let mut filled = pieces.next().unwrap_or_default().to_owned();
            // One pass, so that a value that looks like a reference is not resolved in turn.
            for piece in pieces {
                let (name, rest) = piece.split_once(REFERENCE_END).unwrap_or((piece, ""));
                filled.push_str(values.get(name).map_or("", String::as_str));
                filled.push_str(rest);
            }
            *text = filled;
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_references(item, values)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace_references(field, values)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret_store(folder: Option<PathBuf>) -> SecretStore {
        let variables = |name: &str| match name {
            "MILVAION_SECRET_API_KEY" => Some("k3y-of-the-api".to_owned()),
            "MILVAION_SECRET_NESTED" => Some("{{secret:api.key}}".to_owned()),
            "MILVAION_SECRET_PIN" => Some("123".to_owned()),
            _ => None,
        };
        SecretStore::from_variables(variables, folder)
    }

    async fn refusal(value: Value, folder: Option<PathBuf>) -> BuiltinError {
        secret_store(folder).resolve_references(value, &Redactor::default()).await.expect_err("must be refused")
    }

    #[tokio::test]
    async fn references_in_strings_are_resolved_and_redacted() {
        let (secret_store, redactor) = (secret_store(None), Redactor::default());
        let filled = secret_store
            .resolve_references(
                json!({"a": ["x{{secret:api.key}}y{{secret:API-KEY}}"], "n": 1, "{{secret:api.key}}": null}),
                &redactor,
            )
            .await
            .expect("known");
        assert_eq!(filled, json!({"a": ["xk3y-of-the-apiyk3y-of-the-api"], "n": 1, "{{secret:api.key}}": null}));
        assert_eq!(redactor.redact("k3y-of-the-api"), "{{secret:api.key}}");
        assert_eq!(secret_store.process_redactor().redact("k3y-of-the-api"), "{{secret:api.key}}");
    }

    #[tokio::test]
    async fn value_like_a_reference_is_not_resolved() {
        let filled = secret_store(None)
            .resolve_references(json!("{{secret:nested}}"), &Redactor::default())
            .await
            .expect("known");
        assert_eq!(filled, json!("{{secret:api.key}}"));
    }

    #[tokio::test]
    async fn unresolvable_reference_is_a_permanent_error() {
        for (text, message) in [
            ("{{secret:missing}}", "\"missing\" is unknown to this worker; set MILVAION_SECRET_MISSING"),
            ("{{secret:pin}}", "\"pin\" has fewer than 4 bytes"),
            ("{{secret:}}", "malformed reference"),
            ("{{secret:../../etc/passwd}}", "malformed reference"),
            ("{{secret:..}}", "malformed reference"),
            ("{{secret:a b}}", "malformed reference"),
            ("{{secret:open", "malformed reference"),
        ] {
            let failure = refusal(json!(text), None).await;
            assert!(failure.is_permanent(), "{text}");
            assert!(failure.to_string().contains(message), "{text}: {failure}");
        }
        let many = json!(vec!["{{secret:api.key}}"; MAX_SECRET_REFERENCES + 1]);
        assert!(refusal(many, None).await.to_string().contains("more than 50 times"));
    }

    #[tokio::test]
    async fn files_lose_their_last_line_break_and_are_bounded() {
        let folder = std::env::temp_dir().join(format!("milvaion-secrets-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("directory")).expect("a folder");
        std::fs::write(folder.join("real"), "two\nlines\r\n").expect("written");
        std::os::unix::fs::symlink("real", folder.join("linked"))
            .or_else(|error| match error.kind() {
                ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            })
            .expect("linked");
        std::fs::write(folder.join("large"), "x".repeat(MAX_SECRET_BYTES as usize + 1)).expect("written");
        std::fs::write(folder.join("binary"), [0xff, 0xfe, 0xfd, 0xfc]).expect("written");
        let secret_store = secret_store(Some(folder.clone()));
        let filled =
            secret_store.resolve_references(json!("{{secret:linked}}"), &Redactor::default()).await.expect("there");
        assert_eq!(filled, json!("two\nlines"));
        for (name, message) in [("large", "more than 65536 bytes"), ("binary", "not UTF-8"), ("directory", "unknown")] {
            let failure = refusal(json!(format!("{{{{secret:{name}}}}}")), Some(folder.clone())).await;
            assert!(failure.to_string().contains(message), "{name}: {failure}");
        }
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
