//! The steps of a tick that do not need each other.
//!
//! A step that fails, such as one on a table that a user has locked, does not stop the others. The tick then fails at its
//! end with the names of the failed steps.

use crate::error::chain;

/// The steps of a tick under way.
#[derive(Debug)]
pub(super) struct Steps {
    /// The name of the background task.
    task: &'static str,
    /// The names of the steps that failed.
    failed: Vec<&'static str>,
}

impl Steps {
    /// Begins the steps of a tick of `task`.
    pub(super) const fn new(task: &'static str) -> Self {
        Self { task, failed: Vec::new() }
    }

    /// Returns the result of a step, or `None` if it failed.
    pub(super) fn result<T>(&mut self, step: &'static str, result: Result<T, impl Into<anyhow::Error>>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let error: anyhow::Error = error.into();
                tracing::warn!(
                    task = self.task,
                    step,
                    error = chain(error.as_ref()),
                    "step {step} of the background task {} failed",
                    self.task
                );
                self.failed.push(step);
                None
            }
        }
    }

    /// Returns the report of the tick.
    ///
    /// # Errors
    ///
    /// Returns an error with the names of the steps that failed.
    pub(super) fn end<R>(self, report: R) -> anyhow::Result<R> {
        anyhow::ensure!(self.failed.is_empty(), "steps failed (the log has their errors): {}", self.failed.join(", "));
        Ok(report)
    }
}
