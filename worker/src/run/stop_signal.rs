//! What ends one run from outside.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Ends one run from outside.
#[derive(Clone, Default)]
pub(crate) struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<String>>,
}

impl StopSignal {
    /// A sign that is also raised when `interrupt` fires, without a reason then.
    pub(crate) fn child_of(interrupt: &CancellationToken) -> Self {
        Self { token: interrupt.child_token(), reason: Arc::default() }
    }

    /// Asks the run to end. The first reason counts.
    pub(crate) fn cancel(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
        self.token.cancel();
    }

    /// Fires when the run is to end.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Why somebody asked for it, if somebody did.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}
