//! The signal that ends one run from outside.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// The reason why a run should end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The timeout of the run has expired.
    Timeout {
        /// The timeout.
        after: Duration,
    },
    /// A user or a rule of the job, such as the overlap policy *replace*, has cancelled the run.
    Cancelled {
        /// The user and the reason, as the pages show them.
        reason: String,
    },
    /// Another instance gets the run, or has begun a later attempt of it, because this instance could not be reached for a
    /// while. Reports of this attempt no longer count.
    Revoked,
    /// The worker stops. The attempt is handed back and does not count as a failure.
    Shutdown,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { after } => write!(f, "the timeout of {} s has expired", after.as_secs()),
            Self::Cancelled { reason } => f.write_str(reason),
            Self::Revoked => f.write_str("the server gives the attempt to another instance"),
            Self::Shutdown => f.write_str("the worker stops"),
        }
    }
}

/// A token that ends one run, with the reason if it has one of its own.
#[derive(Clone, Default)]
pub(crate) struct StopSignal {
    token: CancellationToken,
    /// A timeout or a cancellation.
    reason: Arc<OnceLock<StopReason>>,
    revoked: Arc<OnceLock<()>>,
}

impl StopSignal {
    /// Creates a signal that also fires, without a reason of its own, when `interrupt` does.
    pub(crate) fn child_of(interrupt: &CancellationToken) -> Self {
        Self { token: interrupt.child_token(), ..Self::default() }
    }

    /// Requests the end of the run. The first reason is kept.
    pub(crate) fn cancel(&self, reason: &str) {
        let _ = self.reason.set(StopReason::Cancelled { reason: reason.to_owned() });
        self.token.cancel();
    }

    /// Ends the run, because its timeout has expired.
    pub(crate) fn time_out(&self, after: Duration) {
        let _ = self.reason.set(StopReason::Timeout { after });
        self.token.cancel();
    }

    /// Interrupts the run, because another instance gets it or has begun a later attempt of it.
    pub(crate) fn revoke(&self) {
        let _ = self.revoked.set(());
        self.token.cancel();
    }

    /// Returns true if the run was revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.get().is_some()
    }

    /// Returns the token that fires when the run must end.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Returns the reason for which the run must end; `None` while it may continue.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        match self.reason.get() {
            Some(reason) => Some(reason.clone()),
            None if self.is_revoked() => Some(StopReason::Revoked),
            None => self.token.is_cancelled().then_some(StopReason::Shutdown),
        }
    }

    /// Returns the reason of the cancellation. `None` if the run was not cancelled.
    pub(crate) fn cancel_reason(&self) -> Option<&str> {
        match self.reason.get() {
            Some(StopReason::Cancelled { reason }) => Some(reason),
            _ => None,
        }
    }
}
