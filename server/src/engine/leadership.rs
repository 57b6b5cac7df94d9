//! The lease as its holder sees it: its fencing token, and how long it is valid.
//!
//! Code that works in a role carries this value. It never waits and sends no request;
//! [`background::lease`](crate::background::lease) acquires, renews and ends leases.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::leases::FencingToken;

/// A lease held by this server.
#[derive(Clone, Debug)]
pub struct HeldLease {
    fence: FencingToken,
    valid_until: Arc<Mutex<Instant>>,
    ended: CancellationToken,
}

impl HeldLease {
    pub(crate) fn new(fence: FencingToken, valid_until: Instant) -> Self {
        Self { fence, valid_until: Arc::new(Mutex::new(valid_until)), ended: CancellationToken::new() }
    }

    /// Returns the fencing token that writes under this lease carry.
    #[must_use]
    pub const fn fence(&self) -> FencingToken {
        self.fence
    }

    /// Returns the epoch of this lease.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.fence.epoch
    }

    /// Returns the token that is cancelled when the lease ends. Work in the role runs under a child of it.
    #[must_use]
    pub const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Returns true if this server still holds the role. The check is cheap and belongs before each piece of work: a
    /// process that was frozen processes the end of its lease only when its timers run again.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.ended.is_cancelled() && Instant::now() < self.valid_until()
    }

    /// Returns the instant at which the lease ends unless it is renewed.
    pub(crate) fn valid_until(&self) -> Instant {
        self.valid_until.lock().map_or_else(|poisoned| *poisoned.into_inner(), |until| *until)
    }

    /// Extends the lease after a renewal.
    pub(crate) fn extend_until(&self, until: Instant) {
        if let Ok(mut valid_until) = self.valid_until.lock() {
            *valid_until = until;
        }
    }
}

/// The state of this server in a role.
#[derive(Clone, Debug)]
pub enum Leadership {
    /// This server holds the role.
    Leader(HeldLease),
    /// Another server holds the role, or the holder is not known yet.
    Follower,
    /// No server can hold the role, because Redis is down. Every server does its work from PostgreSQL.
    Leaderless,
}

impl Leadership {
    /// Returns the lease if this server holds the role and the lease is valid.
    #[must_use]
    pub fn held_lease(&self) -> Option<&HeldLease> {
        match self {
            Self::Leader(held) if held.is_valid() => Some(held),
            _ => None,
        }
    }

    /// Returns the fencing token for writes in the role: the lease's token, or `Some(None)` while no server can lead
    /// and every server writes without one. Returns `None` if this server must not write, for example after its lease
    /// expired.
    #[must_use]
    pub fn write_fence(&self) -> Option<Option<FencingToken>> {
        match self {
            Self::Leaderless => Some(None),
            _ => self.held_lease().map(|held| Some(held.fence())),
        }
    }

    /// Returns true if this server does the role's work, either as the leader or because no server can lead.
    #[must_use]
    pub fn may_work(&self) -> bool {
        matches!(self, Self::Leaderless) || self.held_lease().is_some()
    }
}
