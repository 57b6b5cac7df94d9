//! The exit codes of the commands. Scripts rely on them: a code is added, never changed.
//!
//! | Code | Meaning |
//! |---|---|
//! | 0 | Success. For `occurrences wait`, `enqueue --wait`, `jobs run --wait` and `--follow`: the occurrence completed. |
//! | 1 | The request failed. The message names the cause. For `diff`: there are differences. |
//! | 2 | The arguments are invalid, or a change needs `--yes`. For `diff`: the files were not compared. |
//! | 3 | Not signed in, or the role or the token does not allow it. |
//! | 4 | There is no such object. |
//! | 5 | The state or the version of the object does not allow it. |
//! | 6 | The server cannot be reached. |
//! | 10 | The occurrence failed. |
//! | 11 | The occurrence exceeded its timeout. |
//! | 12 | The occurrence was cancelled. |
//! | 13 | The occurrence was skipped. |
//! | 14 | The wait ended before the occurrence did. |
//! | 130 | Ctrl-C ended the command. |

use milvaion_api::rest::StatusName;
use milvaion_client::ClientError;

/// Success.
pub const SUCCESS: u8 = 0;
/// The request failed.
pub const FAILED: u8 = 1;
/// For `diff`: there are differences, as for the program of that name.
pub const DIFFERENT: u8 = 1;
/// The arguments are invalid, or a change needs `--yes`. The parser of arguments uses the same code.
pub const USAGE: u8 = 2;
/// Not signed in, or not allowed.
pub const NOT_ALLOWED: u8 = 3;
/// There is no such object.
pub const NOT_FOUND: u8 = 4;
/// The state or the version of the object does not allow it.
pub const CONFLICT: u8 = 5;
/// The server cannot be reached.
pub const UNREACHABLE: u8 = 6;
/// The occurrence failed.
pub const OCCURRENCE_FAILED: u8 = 10;
/// The occurrence exceeded its timeout.
pub const OCCURRENCE_TIMED_OUT: u8 = 11;
/// The occurrence was cancelled.
pub const OCCURRENCE_CANCELLED: u8 = 12;
/// The occurrence was skipped.
pub const OCCURRENCE_SKIPPED: u8 = 13;
/// The wait ended before the occurrence did.
pub const WAIT_TIMED_OUT: u8 = 14;
/// Ctrl-C ended the command: 128 and the number of SIGINT, as in shells.
pub const INTERRUPTED: u8 = 130;

/// Returns the exit code of a failed request.
pub(super) fn of_error(error: &ClientError) -> u8 {
    match error {
        ClientError::InvalidAddress { .. } | ClientError::InvalidName { .. } => USAGE,
        ClientError::InvalidToken => NOT_ALLOWED,
        ClientError::Transport { .. } | ClientError::Timeout { .. } => UNREACHABLE,
        ClientError::Problem(problem) => match problem.status {
            401 | 403 => NOT_ALLOWED,
            404 => NOT_FOUND,
            409 | 412 => CONFLICT,
            _ => FAILED,
        },
        // A proxy answers so if it does not reach the server.
        ClientError::NotTheApi { status, .. } if matches!(status.as_u16(), 502..=504) => UNREACHABLE,
        _ => FAILED,
    }
}

/// Returns the exit code of an occurrence that has ended; none while it is open.
pub(super) const fn of_status(status: StatusName) -> Option<u8> {
    match status {
        StatusName::Completed => Some(SUCCESS),
        StatusName::Failed => Some(OCCURRENCE_FAILED),
        StatusName::TimedOut => Some(OCCURRENCE_TIMED_OUT),
        StatusName::Cancelled => Some(OCCURRENCE_CANCELLED),
        StatusName::Skipped => Some(OCCURRENCE_SKIPPED),
        // An attempt that was lost is requeued, or its worker reports after all.
        StatusName::Queued | StatusName::Running | StatusName::Unknown => None,
    }
}
