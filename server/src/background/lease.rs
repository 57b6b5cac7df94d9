//! Leader election: a lease on a role that one server holds at a time.
//!
//! ```text
//!              key acquired in Redis               epoch raised in PostgreSQL
//!  Follower ────────────────────────► (key held) ─────────────────────────────► Leader
//!     ▲  │                                                                         │
//!     │  └─ Redis down, and every lease has expired ─► Leaderless ◄── Redis down ──┤
//!     │                                                    past the lease's expiry │
//!     └── held by another server · PostgreSQL down for 3 s · newer epoch · stop ───┘
//! ```
//!
//! A key in Redis decides which server tries to lead. Its time to live is ten seconds, and the holder renews it every
//! three. The holder counts the validity of its lease on its own monotonic clock, from *before* the request was sent,
//! so that the lease ends here before it ends in Redis. An epoch in PostgreSQL, the fencing token, decides whose writes
//! count: a server that was frozen past the end of its lease writes with an epoch that is no longer the newest, and its
//! statements change no row.
//!
//! While Redis is down for longer than a lease lives, there is no leader and none is needed. Every server then does the
//! leader's work from PostgreSQL, and each of its statements is safe to run on many servers at once. A leader saves
//! work; correctness never depends on it.
//!
//! The lease runs on a thread of its own, with connections of its own, so that nothing that blocks the other services
//! delays a renewal. It is renewed only while the dispatcher ticks: otherwise it is given back, if another server lives
//! to take it, and not again for five minutes, because what hinders one server may hinder all. No other service counts,
//! since one that fails because of the data would fail on every server.
//!
//! A server that stops releases its lease and notifies the others, so that a restart costs milliseconds. After a crash,
//! failover takes at most the ten seconds of the lease.

mod acquire;
mod hand_backs;

use std::{sync::Arc, time::Duration};

use milvaion_protocol::backoff::Backoff;
use milvaion_telemetry::SPANS;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use acquire::listen;
use hand_backs::HandBacks;

use crate::{
    cache::{
        Cache,
        lease::{LeaseAnswer, LeaseStatus},
    },
    clock::Clock,
    config::ServerConfig,
    engine::{
        dispatch_pulse::DispatchPulse,
        leadership::{HeldLease, Leadership},
        thread::on_own_thread,
    },
    error::chain,
    store::{PoolUse, Store},
};

/// The role of the server that dispatches, rebuilds the due index, detects lost runs and messages, and cleans up. SQL
/// statements contain the name literally.
pub const LEADER_ROLE: &str = "dispatcher";
/// The timeout of a single-row query to PostgreSQL. Long enough for a new connection, if the last one was lost.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time before a server that does not hold the role tries to acquire it again.
const MAX_RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The durations of a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// The time between two renewals.
    pub renew_interval: Duration,
    /// The time to live of a lease that is not renewed.
    pub ttl: Duration,
    /// The PostgreSQL outage after which the holder releases the lease.
    pub database_grace: Duration,
    /// The time without a tick of the dispatcher, counted from the expected one, after which the holder gives the lease
    /// back.
    pub dispatch_limit: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            renew_interval: Duration::from_secs(3),
            ttl: Duration::from_secs(10),
            database_grace: Duration::from_secs(3),
            dispatch_limit: Duration::from_secs(20),
        }
    }
}

/// The loop that acquires and renews the lease on one role.
#[derive(Clone, Debug)]
pub struct Lease {
    role: &'static str,
    holder: String,
    cache: Cache,
    store: Store,
    clock: Clock,
    times: LeaseTimes,
    activate_due_index: Arc<Notify>,
    recheck: Arc<Notify>,
    state: watch::Sender<Leadership>,
    pulse: DispatchPulse,
    hand_backs: HandBacks,
    /// The instant until which other servers go first.
    yields_until: Option<Instant>,
    /// The expiry of the last lease seen that another server holds.
    taken_until: Option<Instant>,
    /// Redis's run id, which changes when Redis restarts.
    run_id: Option<String>,
    /// The run id that is recorded in Redis.
    noted_run_id: Option<String>,
    /// True if Redis failed at the last renewal.
    redis_is_down: bool,
    /// The start of the current PostgreSQL outage.
    database_down_since: Option<Instant>,
    backoff: Backoff,
}

impl Lease {
    /// Creates a lease on `role` for `holder`. No other server may use the same holder name; see [`holder_name`].
    /// `activate_due_index` is notified when the contents of Redis may be outdated.
    #[must_use]
    pub fn new(
        role: &'static str,
        holder: String,
        cache: Cache,
        store: Store,
        clock: Clock,
        activate_due_index: Arc<Notify>,
    ) -> Self {
        Self {
            role,
            holder,
            cache,
            store,
            clock,
            times: LeaseTimes::default(),
            activate_due_index,
            recheck: Arc::default(),
            state: watch::Sender::new(Leadership::Follower),
            pulse: DispatchPulse::default(),
            hand_backs: HandBacks::default(),
            yields_until: None,
            taken_until: None,
            run_id: None,
            noted_run_id: None,
            redis_is_down: false,
            database_down_since: None,
            backoff: Backoff::default(),
        }
    }

    /// Replaces the default durations.
    #[must_use]
    pub fn with_times(mut self, times: LeaseTimes) -> Self {
        self.times = times;
        self
    }

    /// Returns a receiver of the leadership state.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.state.subscribe()
    }

    /// Returns the pulse that the dispatcher of this server keeps.
    #[must_use]
    pub fn pulse(&self) -> DispatchPulse {
        self.pulse.clone()
    }

    /// Runs the lease until `stop` on a thread of its own, with connections of its own. Ends early if PostgreSQL or the
    /// thread cannot be had; the supervisor then starts it again.
    pub async fn run_on_own_thread(mut self, config: Arc<ServerConfig>, stop: CancellationToken) {
        // The thread ends with this future, also if it is dropped: a server without a dispatcher must not lead.
        let stop = stop.child_token();
        let _ends_thread = stop.clone().drop_guard();
        let ended = on_own_thread("lease", move || async move {
            let connected = async {
                let cache = Cache::new(&config.cache)?;
                anyhow::Ok((self.store.with_connections_for(PoolUse::Own, &config.database).await?, cache))
            };
            match stop.run_until_cancelled(connected).await {
                None => {}
                Some(Ok((store, cache))) => {
                    (self.store, self.cache) = (store.clone(), cache);
                    self.run(stop).await;
                    store.close().await;
                }
                Some(Err(error)) => {
                    tracing::warn!(error = chain(error.as_ref()), "the lease has no connections of its own yet");
                }
            }
        });
        if let Err(error) = ended.await {
            tracing::error!(error = %error, "the thread of the lease cannot be started");
        }
    }

    /// Acquires and renews the lease until `stop`, then releases it.
    pub async fn run(mut self, stop: CancellationToken) {
        let listening = listen(self.cache.clone(), self.role, self.recheck.clone());
        tokio::pin!(listening);
        while !stop.is_cancelled() {
            let tick = tracing::info_span!(target: SPANS, "tick", otel.name = "tick lease");
            let pause = tokio::select! {
                pause = self.step().instrument(tick) => pause,
                // The listener never returns.
                () = &mut listening => return,
                () = stop.cancelled() => break,
            };
            let recheck = self.recheck.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = recheck.notified() => {}
                () = &mut listening => return,
                () = stop.cancelled() => break,
            }
        }
        if self.held_lease().is_some() {
            self.release("the server is stopping").await;
        } else {
            // The key may be held without an epoch, if the stop came between the two steps.
            let _ = self.cache.release_lease(self.role, &self.holder).await;
        }
    }

    /// Runs one step, bounded by the remaining validity of the lease. Returns the wait before the next step.
    async fn step(&mut self) -> Duration {
        let Some(held) = self.held_lease() else { return self.try_acquire().await };
        let valid_until = held.valid_until();
        match tokio::time::timeout_at(valid_until, self.renew(&held)).await {
            // The second check covers a process that was frozen: the lease has expired then, whatever Redis answered.
            Ok(pause) if Instant::now() < held.valid_until() || held.ended().is_cancelled() => pause,
            // The renewal failed because of Redis, which may be down for every server.
            _ if self.redis_is_down => {
                self.end_lease("it was not renewed in time because Redis is down", Leadership::Leaderless);
                self.pause()
            }
            // No renewal was sent: this process was frozen, and another server may lead by now. Working without a lease
            // would be harmless for dispatching, because of the compare-and-swap, but other writes of a former leader
            // would take effect.
            _ => {
                self.end_lease("it expired before it was renewed", Leadership::Follower);
                Duration::ZERO
            }
        }
    }

    /// Renews the held lease and checks that its epoch is still the newest in PostgreSQL.
    async fn renew(&mut self, held: &HeldLease) -> Duration {
        if self.pulse.is_overdue(self.times.dispatch_limit)
            && self.hand_backs.is_allowed()
            && self.has_successor().await
        {
            self.hand_backs.record();
            self.release("the dispatcher of this server does not tick").await;
            self.yields_until = Some(Instant::now() + self.times.ttl);
            return self.pause();
        }
        let before = Instant::now();
        let answer = self.cache.acquire_or_renew_lease(self.role, &self.holder, self.times.ttl).await;
        self.redis_is_down = answer.is_err();
        match answer {
            Ok(answer) => {
                self.note_redis_run(&answer).await;
                match answer.status {
                    LeaseStatus::Renewed => held.extend_until(before + self.times.ttl),
                    LeaseStatus::Acquired => {
                        // The key was gone, so another server may have held it meanwhile: a new epoch is needed.
                        self.activate_due_index.notify_one();
                        self.end_lease("its key was missing in Redis", Leadership::Follower);
                        return self.begin_lease(before).await;
                    }
                    LeaseStatus::HeldElsewhere { left } => {
                        self.end_lease("another server holds it", Leadership::Follower);
                        return self.wait_for_expiry(left);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(role = self.role, error = %error, "the lease could not be renewed yet");
                let left = held.valid_until().saturating_duration_since(Instant::now());
                return self.pause().min(left);
            }
        }
        match timeout(DATABASE_TIMEOUT, self.store.lease_epoch(self.role)).await {
            Ok(Ok(epoch)) if epoch != held.epoch() => {
                self.release("PostgreSQL has a newer epoch").await;
                self.pause()
            }
            Ok(Ok(_)) => {
                self.database_down_since = None;
                self.backoff.reset();
                jittered(self.times.renew_interval)
            }
            _ => {
                let since = *self.database_down_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.times.database_grace {
                    self.release("PostgreSQL does not answer this server").await;
                    return self.pause();
                }
                self.pause().min(self.times.database_grace / 4)
            }
        }
    }

    /// Returns true if another server waits for the role.
    async fn has_successor(&self) -> bool {
        self.cache.lease_listeners(self.role).await.is_ok_and(|listeners| listeners > 1)
    }

    /// Ends the lease and releases it in Redis and PostgreSQL, so that another server can acquire it at once.
    async fn release(&mut self, why: &'static str) {
        let Some(held) = self.held_lease() else { return };
        self.end_lease(why, Leadership::Follower);
        let in_redis = self.cache.release_lease(self.role, &self.holder).await;
        let in_database = timeout(DATABASE_TIMEOUT, self.store.release_lease(held.fence(), self.clock.now())).await;
        if in_redis.is_err() || !matches!(in_database, Ok(Ok(_))) {
            tracing::debug!(role = self.role, "the lease could not be released everywhere; it expires by itself");
        }
    }

    fn end_lease(&self, why: &'static str, then: Leadership) {
        if let Some(held) = self.held_lease() {
            let epoch = held.epoch();
            tracing::info!(role = self.role, lease.epoch = epoch, why, "the lease with epoch {epoch} ended: {why}");
            held.ended().cancel();
        }
        self.state.send_replace(then);
    }

    fn held_lease(&self) -> Option<HeldLease> {
        match &*self.state.borrow() {
            Leadership::Leader(held) => Some(held.clone()),
            _ => None,
        }
    }

    /// Sets the leadership state, and notifies the receivers if it changed.
    fn set_state(&self, state: Leadership) {
        self.state.send_if_modified(|present| {
            let has_changed = std::mem::discriminant(present) != std::mem::discriminant(&state);
            *present = state;
            has_changed
        });
    }

    /// Records Redis's run id. If Redis was restarted, requests a rebuild of the due index, and tells the workers that
    /// claims may be lost.
    async fn note_redis_run(&mut self, answer: &LeaseAnswer) {
        let run_id = &answer.run_id;
        if self.run_id.as_ref().is_some_and(|known| known != run_id) {
            tracing::warn!("Redis was restarted; the due index is rebuilt");
            self.activate_due_index.notify_one();
        }
        // A Redis without the lease may have been emptied, and the id with it.
        if answer.status == LeaseStatus::Acquired {
            self.noted_run_id = None;
        }
        // A server that starts together with Redis has seen no other id, but an older copy of the data has it. After a failure
        // the next renewal tries again.
        if self.noted_run_id.as_ref() != Some(run_id) {
            match self.cache.note_redis_run(run_id).await {
                Ok(()) => self.noted_run_id = Some(run_id.clone()),
                Err(error) => {
                    tracing::debug!(role = self.role, error = %error, "the run id of Redis could not be recorded yet")
                }
            }
        }
        self.run_id = Some(run_id.clone());
    }

    fn pause(&mut self) -> Duration {
        self.backoff.next_delay(rand::random()).min(MAX_RECHECK_INTERVAL)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If the loop ends without `stop`, the work under the lease must end too. The loop that the supervisor starts
        // then continues as a follower, and acquires the lease anew.
        if self.held_lease().is_some() {
            self.end_lease("its loop ended", Leadership::Follower);
        }
    }
}

/// Returns a name that no other server has: the host name, the process id and a random number.
#[must_use]
pub fn holder_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map_or_else(|| "server".to_owned(), |host| host.trim().to_owned());
    format!("{host}-{}-{:08x}", std::process::id(), rand::random::<u32>())
}

fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.8 + 0.2 * rand::random::<f64>())
}
