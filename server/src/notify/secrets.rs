//! The values of secrets that channels name.
//!
//! A channel has the name of a secret, and each server looks up the value when it sends: in the variable
//! `ALERT_SECRET_<NAME>`, else in the file `<NAME>` of `ALERT_SECRETS_DIR`. Docker, Kubernetes and systemd provide secrets
//! as such files. The file is read at each message, so a changed one needs no restart.

use std::{
    fmt,
    io::{ErrorKind, Read},
    path::PathBuf,
};

use milvaion_api::alerts::{ALERT_SECRET_VARIABLE, MAX_SECRET_NAME_CHARS};

use super::SendError;
use crate::config::secret_text::SecretText;

/// The largest secret.
const MAX_SECRET_BYTES: usize = 64 * 1024;

type VariableLookup = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The secrets of this server.
pub struct AlertSecrets {
    variables: VariableLookup,
    folder: Option<PathBuf>,
}

impl AlertSecrets {
    /// Returns the secrets in the environment of this process and in the files of `folder`.
    #[must_use]
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self::from_variables(|name| std::env::var(name).ok(), folder)
    }

    /// Returns the secrets in variables that a function reads, and in the files of `folder`.
    fn from_variables(
        variables: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        folder: Option<PathBuf>,
    ) -> Self {
        Self { variables: Box::new(variables), folder }
    }

    /// Returns true if there is a secret of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        is_name(name) && (self.variable(name).is_some() || self.file(name).is_some_and(|path| path.is_file()))
    }

    /// Reads a secret.
    ///
    /// # Errors
    ///
    /// Returns a retryable error with the remedy if there is none, or if it cannot be used: an operator can set it while
    /// the message waits for its next attempt.
    pub(super) async fn read(&self, name: &str) -> Result<SecretText, SendError> {
        if !is_name(name) {
            let reason =
                "the channel names a secret with an invalid name; write capital letters, digits and underscores";
            return Err(SendError::permanent(reason));
        }
        let value = match (self.variable(name), self.file(name)) {
            (Some(value), _) => Some(value),
            (None, None) => None,
            (None, Some(path)) => {
                let reading = tokio::task::spawn_blocking(move || read_file(&path)).await;
                let found = reading.unwrap_or_else(|error| Err(error.to_string()));
                found.map_err(|reason| {
                    SendError::retry(format!("the file of the secret {name} in ALERT_SECRETS_DIR {reason}"))
                })?
            }
        };
        match value {
            Some(value) if value.len() > MAX_SECRET_BYTES => {
                Err(SendError::retry(format!("the secret {name} has more than {MAX_SECRET_BYTES} bytes; shorten it")))
            }
            Some(value) if !value.is_empty() => Ok(SecretText::new(value)),
            _ => Err(SendError::retry(format!(
                "the server has no secret {name}; set {ALERT_SECRET_VARIABLE}{name} in its environment, or add a file of that name to its ALERT_SECRETS_DIR"
            ))),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(&format!("{ALERT_SECRET_VARIABLE}{name}")).filter(|value| !value.is_empty())
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(name))
    }
}

impl fmt::Debug for AlertSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AlertSecrets").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Returns true if a channel may name this secret. Such a name is never a path.
fn is_name(name: &str) -> bool {
    (1..=MAX_SECRET_NAME_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Reads a file without the line break at its end; `None` if there is none.
///
/// # Errors
///
/// Returns the end of a sentence that says why the file cannot be read.
fn read_file(path: &PathBuf) -> Result<Option<String>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}; let the user of the server read it");
    // Symbolic links are followed, because Kubernetes makes each secret one. Only a regular file is read: a pipe might
    // never end.
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // A value of the largest size may end in two more bytes, and a longer one must show.
    file.take(MAX_SECRET_BYTES as u64 + 3).read_to_end(&mut bytes).map_err(unreadable)?;
    let mut text = String::from_utf8(bytes).map_err(|_| "is not UTF-8 text; write the secret as text".to_owned())?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("milvaion-alert-secrets-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder can be created");
        path
    }

    fn write(folder: &std::path::Path, name: &str, value: &[u8]) {
        std::fs::write(folder.join(name), value).expect("the file can be written");
    }

    async fn value(secrets: &AlertSecrets, name: &str) -> Result<String, String> {
        secrets.read(name).await.map(|value| value.expose().to_owned()).map_err(|error| error.reason)
    }

    #[tokio::test]
    async fn variable_precedes_the_file_of_the_same_name() {
        let folder = folder("order");
        write(&folder, "HOOK", b"from the file\r\n");
        write(&folder, "OTHER", b"from the file");
        let variables = |name: &str| (name == "ALERT_SECRET_HOOK").then(|| "from the variable".to_owned());
        let secrets = AlertSecrets::from_variables(variables, Some(folder.clone()));
        assert_eq!(value(&secrets, "HOOK").await.as_deref(), Ok("from the variable"));
        assert_eq!(value(&secrets, "OTHER").await.as_deref(), Ok("from the file"));
        let secrets = AlertSecrets::from_variables(|_| None, Some(folder.clone()));
        assert_eq!(value(&secrets, "HOOK").await.as_deref(), Ok("from the file"), "without its line break");
        // A changed file counts at once.
        write(&folder, "HOOK", b"a new value");
        assert_eq!(value(&secrets, "HOOK").await.as_deref(), Ok("a new value"));
        std::fs::remove_dir_all(folder).expect("the folder can be removed");
    }

    #[tokio::test]
    async fn unusable_secret_is_named_with_its_remedy() {
        let folder = folder("unusable");
        write(&folder, "LONG", &vec![b'c'; MAX_SECRET_BYTES + 10]);
        write(&folder, "BINARY", &[0xff, 0xfe]);
        write(&folder, "EMPTY", b"\n");
        std::fs::create_dir_all(folder.join("FOLDER")).expect("the folder can be created");
        let secrets = AlertSecrets::from_variables(|_| None, Some(folder.clone()));
        for (name, remedy) in [
            ("NONE", "set ALERT_SECRET_NONE in its environment"),
            ("EMPTY", "set ALERT_SECRET_EMPTY"),
            ("FOLDER", "set ALERT_SECRET_FOLDER"),
            ("LONG", "shorten it"),
            ("BINARY", "write the secret as text"),
        ] {
            let error = secrets.read(name).await.expect_err(name);
            assert!(!error.is_permanent && error.reason.contains(remedy), "{error}");
            assert!(!error.reason.contains("ccc"), "{error}");
        }
        for name in ["", "../ETC", "a", "A B"] {
            assert!(secrets.read(name).await.is_err_and(|error| error.is_permanent), "{name}");
        }
        std::fs::remove_dir_all(folder).expect("the folder can be removed");
    }

    #[test]
    fn presence_of_a_secret_is_known_without_its_value() {
        let folder = folder("presence");
        write(&folder, "HOOK", b"x");
        let variables = |name: &str| (name == "ALERT_SECRET_SLACK").then(|| "x".to_owned());
        let secrets = AlertSecrets::from_variables(variables, Some(folder.clone()));
        assert!(secrets.has("HOOK") && secrets.has("SLACK"));
        for name in ["OTHER", "", "../HOOK", "."] {
            assert!(!secrets.has(name), "{name}");
        }
        assert!(!AlertSecrets::from_variables(|_| None, None).has("HOOK"));
        std::fs::remove_dir_all(folder).expect("the folder can be removed");
    }
}
