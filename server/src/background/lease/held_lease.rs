//! A term: the time in which this server has a role, and how long it may believe so.
//!
//! This is what those who work in the role hold in their hands. It waits for nothing and asks nobody; how a term is won,
//! prolonged and lost is told one level up.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::leases::FencingToken;

/// The time in which this server has a role.
#[derive(Clone, Debug)]
pub struct HeldLease {
    fence: FencingToken,
    trust: Arc<Mutex<Instant>>,
    ended: CancellationToken,
}

impl HeldLease {
    pub(super) fn new(fence: FencingToken, valid_until: Instant) -> Self {
        Self { fence, trust: Arc::new(Mutex::new(valid_until)), ended: CancellationToken::new() }
    }

    /// What writes in this term carry.
    #[must_use]
    pub const fn fence(&self) -> FencingToken {
        self.fence
    }

    /// The number of this term.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.fence.epoch
    }

    /// Cancelled when the term is over. Work of the term runs below a child of this.
    #[must_use]
    pub const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Whether the role may still be believed to be ours. Cheap: ask before each piece of work, for a process that was
    /// frozen learns of its term's end only when its timers run again.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.ended.is_cancelled() && Instant::now() < self.valid_until()
    }

    /// Until when it is believed, if nothing is heard.
    pub(super) fn valid_until(&self) -> Instant {
        self.trust.lock().map_or_else(|poisoned| *poisoned.into_inner(), |until| *until)
    }

    /// Believes in it until then.
    pub(super) fn extend_until(&self, until: Instant) {
        if let Ok(mut trust) = self.trust.lock() {
            *trust = until;
        }
    }
}

/// Where this server stands with a role.
#[derive(Clone, Debug)]
pub enum Leadership {
    /// It has the role.
    Leader(HeldLease),
    /// Another server has it, or nothing is known yet.
    Follower,
    /// Nobody can have it, because Redis is away: everybody does the work, from PostgreSQL.
    Leaderless,
}

impl Leadership {
    /// The term, if this server has the role and may still believe so.
    #[must_use]
    pub fn held_lease(&self) -> Option<&HeldLease> {
        match self {
            Self::Leader(term) if term.is_valid() => Some(term),
            _ => None,
        }
    }

    /// What writes in the role carry: the fence of the term, or nothing while there can be no leader and every server
    /// writes without one. None when this server is not to write at all, as when it was frozen beyond its term.
    #[must_use]
    pub fn write_fence(&self) -> Option<Option<FencingToken>> {
        match self {
            Self::Leaderless => Some(None),
            _ => self.held_lease().map(|term| Some(term.fence())),
        }
    }

    /// Whether this server does the role's work: as the leader, or because there can be none.
    #[must_use]
    pub fn may_work(&self) -> bool {
        matches!(self, Self::Leaderless) || self.held_lease().is_some()
    }
}
