//! The input of `shell-command` and its checks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::context::BuiltinError;

/// Maximum number of arguments.
const MAX_ARGUMENTS: usize = 200;
/// Maximum number of environment variables.
const MAX_VARIABLES: usize = 100;
/// Maximum size of the standard input with its secrets.
const MAX_STDIN_BYTES: usize = 1024 * 1024;

/// A program to run, and the meaning of its exit codes.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Shell command")]
pub(crate) struct ShellCommandInput {
    /// Program and its arguments, up to 200; no shell interprets them. Give either a command or a script.
    #[serde(default)]
    #[schemars(title = "Command", length(max = MAX_ARGUMENTS), example = ["ls", "-l", "/tmp"])]
    pub(super) argv: Vec<String>,
    /// Script for /bin/sh, in place of a command.
    #[serde(default)]
    #[schemars(title = "Script", extend("format" = "multiline"))]
    pub(super) script: Option<String>,
    /// Directory in which the program runs, up to 4,096 characters; the worker's own directory by default.
    #[serde(default)]
    #[schemars(title = "Working directory", length(max = 4096), example = "/tmp")]
    pub(super) working_directory: Option<String>,
    /// Environment variables of the program, up to 100, besides PATH, HOME and a few others. Put secrets here, because
    /// all users of the machine can see arguments.
    #[serde(default)]
    #[schemars(title = "Environment", extend("maxProperties" = MAX_VARIABLES))]
    pub(super) environment: BTreeMap<String, String>,
    /// Text for standard input, up to 1 MiB with its secrets; none by default.
    #[serde(default)]
    #[schemars(title = "Standard input", extend("format" = "multiline"))]
    pub(super) stdin: Option<String>,
    /// Exit codes that count as success, up to 50; 0 by default.
    #[serde(default = "default_success_codes")]
    #[schemars(title = "Success exit codes", length(max = 50))]
    pub(super) success_codes: Vec<u8>,
    /// Exit codes after which the run is not retried, up to 50; none by default.
    #[serde(default)]
    #[schemars(title = "Permanent exit codes", length(max = 50), example = [64, 78])]
    pub(super) permanent_codes: Vec<u8>,
    /// Grace period between SIGTERM and SIGKILL in seconds, from 0 to 30; 5 by default.
    #[serde(default = "default_grace_seconds")]
    #[schemars(title = "Grace period (seconds)", range(min = 0, max = 30))]
    pub(super) grace_seconds: u32,
    /// Time in seconds after which the program is terminated, from 1 to 86400; 3600 by default.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(title = "Program timeout (seconds)", range(min = 1, max = 86_400))]
    pub(super) timeout_seconds: u32,
}

fn default_success_codes() -> Vec<u8> {
    vec![0]
}

const fn default_grace_seconds() -> u32 {
    5
}

const fn default_timeout_seconds() -> u32 {
    3_600
}

impl ShellCommandInput {
    /// Returns the program and its arguments.
    ///
    /// # Errors
    /// Returns a permanent error that names the invalid field.
    pub(super) fn command(&self) -> Result<Vec<String>, BuiltinError> {
        let script = self.script.as_deref().filter(|script| !script.trim().is_empty());
        let argv = match (self.argv.as_slice(), script) {
            // The shell would take the CR of a line break of Windows as a part of the command before it.
            ([], Some(script)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), script.replace("\r\n", "\n")],
            (argv, None) if argv.first().is_some_and(|program| !program.is_empty()) => argv.to_vec(),
            (_, None) => {
                return Err(BuiltinError::permanent(
                    "`argv` names no program; give the program as its first entry, or give a `script`",
                ));
            }
            (_, Some(_)) => {
                return Err(BuiltinError::permanent("`argv` and `script` are both given; give one of them"));
            }
        };
        if argv.len() > MAX_ARGUMENTS {
            return Err(BuiltinError::permanent(format!("`argv` has more than {MAX_ARGUMENTS} entries")));
        }
        if self.environment.len() > MAX_VARIABLES {
            return Err(BuiltinError::permanent(format!("`environment` has more than {MAX_VARIABLES} entries")));
        }
        if argv.iter().chain(self.environment.keys()).chain(self.environment.values()).any(|text| text.contains('\0')) {
            return Err(BuiltinError::permanent(
                "`argv`, `script` or `environment` contains a NUL character, which a program cannot receive",
            ));
        }
        if let Some(name) = self.environment.keys().find(|name| name.is_empty() || name.contains('=')) {
            return Err(BuiltinError::permanent(format!(
                "`environment` contains the name {name:?}; a name must not be empty or contain '='"
            )));
        }
        if self.stdin.as_ref().is_some_and(|text| text.len() > MAX_STDIN_BYTES) {
            return Err(BuiltinError::permanent(format!("`stdin` has more than {MAX_STDIN_BYTES} bytes")));
        }
        if self.grace_seconds > 30 {
            return Err(BuiltinError::permanent(format!("`graceSeconds` is {}; give 0 to 30", self.grace_seconds)));
        }
        if !(1..=86_400).contains(&self.timeout_seconds) {
            return Err(BuiltinError::permanent(format!(
                "`timeoutSeconds` is {}; give 1 to 86400",
                self.timeout_seconds
            )));
        }
        Ok(argv)
    }
}
