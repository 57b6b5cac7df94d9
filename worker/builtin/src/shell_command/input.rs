//! What can be asked of `shell-command`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::context::BuiltinError;

/// The most arguments, and the most variables.
const MAX_ARGUMENTS: usize = 200;
const MAX_VARIABLES: usize = 100;
/// The most bytes of what the program reads, secrets filled in.
const MAX_STDIN_BYTES: usize = 1024 * 1024;

/// What to run.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Shell command")]
pub(crate) struct ShellCommandInput {
    /// The program and its arguments, one for each entry; no shell reads them, so a wildcard is plain text. Give this or
    /// a script.
    #[serde(default)]
    #[schemars(title = "Command", length(max = MAX_ARGUMENTS), example = ["ls", "-l", "/tmp"])]
    pub(super) argv: Vec<String>,
    /// A script for /bin/sh, in place of a command.
    #[serde(default)]
    #[schemars(title = "Script", extend("format" = "multiline"))]
    pub(super) script: Option<String>,
    /// Where it runs. None given: where the worker runs.
    #[serde(default)]
    #[schemars(title = "Working directory", length(max = 4096), example = "/tmp")]
    pub(super) working_directory: Option<String>,
    /// Variables it sees, beside PATH, HOME and a few like them. The place for secrets: arguments are seen by everybody
    /// on the machine.
    #[serde(default)]
    #[schemars(title = "Environment", extend("maxProperties" = MAX_VARIABLES))]
    pub(super) environment: BTreeMap<String, String>,
    /// What it reads from standard input.
    #[serde(default)]
    #[schemars(title = "Standard input", extend("format" = "multiline"))]
    pub(super) stdin: Option<String>,
    /// The exit codes that count as success.
    #[serde(default = "zero")]
    #[schemars(title = "Success codes", length(max = 50))]
    pub(super) success_codes: Vec<u8>,
    /// The exit codes after which another attempt is of no use.
    #[serde(default)]
    #[schemars(title = "Permanent codes", length(max = 50), example = [64, 78])]
    pub(super) permanent_codes: Vec<u8>,
    /// How many seconds it has between being asked to end (SIGTERM) and being killed, from 0 to 30.
    #[serde(default = "five")]
    #[schemars(title = "Grace in seconds", range(min = 0, max = 30))]
    pub(super) grace_seconds: u32,
    /// After how many seconds it is ended, from 1 to 86400.
    #[serde(default = "an_hour")]
    #[schemars(title = "Timeout in seconds", range(min = 1, max = 86_400))]
    pub(super) timeout_seconds: u32,
}

fn zero() -> Vec<u8> {
    vec![0]
}

const fn five() -> u32 {
    5
}

const fn an_hour() -> u32 {
    3_600
}

impl ShellCommandInput {
    /// The program and its arguments.
    ///
    /// # Errors
    /// A permanent failure that names the field that is wrong.
    pub(super) fn command(&self) -> Result<Vec<String>, BuiltinError> {
        let script = self.script.as_deref().filter(|script| !script.trim().is_empty());
        let argv = match (self.argv.as_slice(), script) {
            ([], Some(script)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()],
            (argv, None) if argv.first().is_some_and(|program| !program.is_empty()) => argv.to_vec(),
            (_, None) => {
                return Err(BuiltinError::permanent(
                    "`argv` names no program; its first entry must, or give a `script`",
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
                "`argv`, `script` or `environment` holds a NUL character; no program can be given one",
            ));
        }
        if let Some(name) = self.environment.keys().find(|name| name.is_empty() || name.contains('=')) {
            return Err(BuiltinError::permanent(format!(
                "`environment` holds the name {name:?}; a name is not empty and has no '='"
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
