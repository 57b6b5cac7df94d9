//! The follower's side of the lease: to notice that the role is free, and to acquire it.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use milvaion_protocol::backoff::Backoff;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{DATABASE_TIMEOUT, Lease, MAX_RECHECK_INTERVAL, jittered};
use crate::{
    cache::{Cache, lease::LeaseStatus},
    engine::leadership::{HeldLease, Leadership},
    faults,
};

impl Lease {
    /// Tries to acquire the lease.
    pub(super) async fn try_acquire(&mut self) -> Duration {
        if self.yields_until.is_some_and(|until| Instant::now() < until) {
            return self.pause();
        }
        // A server without PostgreSQL could not use the role, and must not take it from a server that can.
        if !matches!(timeout(DATABASE_TIMEOUT, self.store.lease_epoch(self.role)).await, Ok(Ok(_))) {
            self.database_down_since.get_or_insert_with(Instant::now);
            return self.pause();
        }
        self.database_down_since = None;
        let before = Instant::now();
        match self.cache.acquire_or_renew_lease(self.role, &self.holder, self.times.ttl).await {
            Ok(answer) => {
                self.note_redis_run(&answer).await;
                match answer.status {
                    LeaseStatus::Acquired | LeaseStatus::Renewed => self.begin_lease(before).await,
                    LeaseStatus::HeldElsewhere { left } => self.wait_for_expiry(left),
                }
            }
            Err(error) => {
                // The last holder may still lead until its lease has expired.
                if self.taken_until.is_none_or(|until| Instant::now() >= until) {
                    if !matches!(*self.state.borrow(), Leadership::Leaderless) {
                        tracing::warn!(role = self.role, error = %error, "Redis is down, so no server leads; every server works from PostgreSQL");
                    }
                    self.set_state(Leadership::Leaderless);
                }
                self.pause()
            }
        }
    }

    /// Raises the epoch after the key was acquired, and begins the lease if enough of it is left.
    pub(super) async fn begin_lease(&mut self, before: Instant) -> Duration {
        let valid_until = before + self.times.ttl;
        faults::crash_point("lease.before_epoch");
        let raising = self.store.take_lease(self.role, &self.holder, self.clock.now());
        let fence = match timeout(2 * DATABASE_TIMEOUT, raising).await {
            Ok(Ok(fence)) if Instant::now() < valid_until => fence,
            _ => {
                tracing::warn!(role = self.role, "the lease was not taken, because PostgreSQL did not answer in time");
                let _ = self.cache.release_lease(self.role, &self.holder).await;
                self.set_state(Leadership::Follower);
                return self.pause();
            }
        };
        faults::crash_point("lease.after_epoch");
        tracing::info!(
            role = self.role,
            lease.epoch = fence.epoch,
            lease.holder = self.holder,
            "this server leads with epoch {}",
            fence.epoch
        );
        self.taken_until = None;
        self.redis_is_down = false;
        self.backoff.reset();
        self.pulse.expect_within(Duration::ZERO);
        self.state.send_replace(Leadership::Leader(HeldLease::new(fence, valid_until)));
        // The former leader may have left the due index half written.
        self.activate_due_index.notify_one();
        jittered(self.times.renew_interval)
    }

    /// Returns the wait until shortly after the other server's lease expires, in `left` from now.
    pub(super) fn wait_for_expiry(&mut self, left: Duration) -> Duration {
        self.taken_until = Some(Instant::now() + left);
        self.backoff.reset();
        self.set_state(Leadership::Follower);
        // The jitter keeps the servers from trying at the same moment.
        let after_expiry = left + Duration::from_millis(20) + Duration::from_millis(300).mul_f64(rand::random());
        after_expiry.min(jittered(MAX_RECHECK_INTERVAL))
    }
}

/// Notifies `recheck` when the role is released. A release during a lost connection is found at the next step.
pub(super) async fn listen(cache: Cache, role: &'static str, recheck: Arc<Notify>) {
    let mut backoff = Backoff::default();
    loop {
        if let Ok(mut releases) = cache.lease_releases(role).await {
            backoff.reset();
            recheck.notify_one();
            while releases.next().await.is_some() {
                recheck.notify_one();
            }
        }
        tokio::time::sleep(backoff.next_delay(rand::random())).await;
    }
}
