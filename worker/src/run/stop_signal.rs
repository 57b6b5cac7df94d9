//! The signal that ends one run from outside.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// A token that ends one run, with the reason if a user or the server requested it.
#[derive(Clone, Default)]
pub(crate) struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<String>>,
    revoked: Arc<OnceLock<()>>,
}

impl StopSignal {
    /// Creates a signal that also fires, without a reason, when `interrupt` does.
    pub(crate) fn child_of(interrupt: &CancellationToken) -> Self {
        Self { token: interrupt.child_token(), ..Self::default() }
    }

    /// Requests the end of the run. The first reason is kept.
    pub(crate) fn cancel(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.token.cancel();
    }

    /// Interrupts the run, because the server gives it to another instance.
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

    /// Returns the reason of the cancellation. `None` if the run was interrupted or nothing was requested.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}
