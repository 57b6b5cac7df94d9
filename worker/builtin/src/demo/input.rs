//! The input of `demo` and its checks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::context::BuiltinError;

/// Maximum number of steps.
const MAX_STEPS: u32 = 100;
/// Maximum duration, in seconds.
const MAX_DURATION_SECONDS: u32 = 3600;
/// Maximum length of the message, in characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// The length of a sample run, and the probability that it fails.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Sample run")]
pub(crate) struct DemoInput {
    /// Number of steps, each with a progress report and log lines, from 1 to 100; 5 by default.
    #[serde(default = "default_steps")]
    #[schemars(title = "Steps", range(min = 1, max = MAX_STEPS))]
    pub(super) steps: u32,
    /// Duration of all steps together in seconds, from 0 to 3600; 10 by default.
    #[serde(default = "default_duration_seconds")]
    #[schemars(title = "Duration (seconds)", range(min = 0, max = MAX_DURATION_SECONDS))]
    pub(super) duration_seconds: u32,
    /// Probability that an attempt fails, from 0 (never) to 1 (always); 0 by default.
    #[serde(default)]
    #[schemars(title = "Failure rate", range(min = 0, max = 1))]
    pub(super) failure_rate: f64,
    /// Text of the first log line and of the result, up to 200 characters; "Sample run" by default.
    #[serde(default = "default_message")]
    #[schemars(title = "Message", length(max = MAX_MESSAGE_CHARS))]
    pub(super) message: String,
}

const fn default_steps() -> u32 {
    5
}

const fn default_duration_seconds() -> u32 {
    10
}

fn default_message() -> String {
    "Sample run".to_owned()
}

impl DemoInput {
    /// Checks the bounds of the fields.
    ///
    /// # Errors
    /// Returns a permanent error that names the invalid field.
    pub(super) fn check(&self) -> Result<(), BuiltinError> {
        if !(1..=MAX_STEPS).contains(&self.steps) {
            return Err(BuiltinError::permanent(format!("`steps` is {}; give 1 to {MAX_STEPS}", self.steps)));
        }
        if self.duration_seconds > MAX_DURATION_SECONDS {
            return Err(BuiltinError::permanent(format!(
                "`durationSeconds` is {}; give 0 to {MAX_DURATION_SECONDS}",
                self.duration_seconds
            )));
        }
        if !(0.0..=1.0).contains(&self.failure_rate) {
            return Err(BuiltinError::permanent(format!("`failureRate` is {}; give 0 to 1", self.failure_rate)));
        }
        if self.message.chars().count() > MAX_MESSAGE_CHARS {
            return Err(BuiltinError::permanent(format!("`message` has more than {MAX_MESSAGE_CHARS} characters")));
        }
        Ok(())
    }
}
