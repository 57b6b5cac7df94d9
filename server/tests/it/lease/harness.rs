//! A lease on its own.

use std::{sync::Arc, time::Duration};

use milvaion_server::{
    background::lease::{LEADER_ROLE, Lease, LeaseTimes, holder_name},
    cache::Cache,
    clock::Clock,
    config::ServerConfig,
    engine::leadership::{HeldLease, Leadership},
    store::Store,
};
use milvaion_test_support::{database, server_env, wait};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Times that a test can wait for and a busy machine can keep.
pub(super) const LEASE_TIMES: LeaseTimes = LeaseTimes {
    renew_interval: Duration::from_millis(300),
    ttl: Duration::from_secs(3),
    database_grace: Duration::from_secs(1),
    dispatch_limit: Duration::from_secs(3_600),
};

pub(super) struct LeaseHolder {
    pub(super) holder: String,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) rebuild: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl LeaseHolder {
    pub(super) fn start(store: &Store, cache: &Cache, times: LeaseTimes) -> Self {
        let (holder, rebuild) = (holder_name(), Arc::new(Notify::new()));
        let lease =
            Lease::new(LEADER_ROLE, holder.clone(), cache.clone(), store.clone(), Clock::system(), rebuild.clone())
                .with_times(times);
        let (leadership, stop) = (lease.leadership(), CancellationToken::new());
        let task = tokio::spawn(lease.run(stop.clone()));
        Self { holder, leadership, rebuild, stop, task }
    }

    pub(super) fn leads(&self) -> bool {
        self.leadership.borrow().held_lease().is_some()
    }

    pub(super) fn is_leaderless(&self) -> bool {
        matches!(*self.leadership.borrow(), Leadership::Leaderless)
    }

    /// Waits until it leads.
    pub(super) async fn held_lease(&self) -> HeldLease {
        wait::eventually("a held lease", || async { self.leadership.borrow().held_lease().cloned() }).await
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the lease stops");
    }
}

pub(super) async fn harness() -> (Store, Cache) {
    harness_of(&server_env::config().await).await
}

pub(super) async fn harness_of(config: &ServerConfig) -> (Store, Cache) {
    (database::open(&config.database.url).await, Cache::new(&config.cache).expect("a valid URL"))
}

/// Waits until `wanted` servers listen for the release of the role.
pub(super) async fn wait_for_listeners(cache: &Cache, wanted: u64) {
    wait::eventually("servers that listen", || async {
        let listeners = cache.lease_listeners(LEADER_ROLE).await.ok()?;
        (listeners == wanted).then_some(())
    })
    .await;
}
