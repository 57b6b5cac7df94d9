//! The question before a change that cannot be undone.
//!
//! A user at a terminal is asked. A script cannot answer, and an answer that it happens to read from its input must not
//! count as consent, so without a terminal `--yes` is required.

use super::{CliError, Console, Yes};

/// Asks for consent to a change, such as "Delete the job mail.send?".
///
/// # Errors
///
/// Returns an error unless the user agrees.
pub(super) fn confirm(console: &mut Console, yes: Yes, question: &str) -> Result<(), CliError> {
    if yes.yes {
        return Ok(());
    }
    if !console.is_interactive {
        return Err(CliError::Usage(format!(
            "{question} There is no terminal to answer this question. Repeat the command with --yes."
        )));
    }
    match console.ask(&format!("{question} [y/N]"))?.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::Declined),
    }
}
