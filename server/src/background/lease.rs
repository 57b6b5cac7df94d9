//! One of many: a role that one server has at a time, such as leading.
//!
//! ```text
//!              Redis says it is ours                    its epoch is raised in PostgreSQL
//!  Follower ──────────────────────────► (key taken) ─────────────────────────────────────► Leader
//!     ▲  │                                                                                   │
//!     │  └─ Redis away, and nobody's lease can still hold ─► Leaderless ◄── Redis away too long ──┤
//!     └── another has it · PostgreSQL away for 3 s · a newer epoch · we stop ─────────────────┘
//! ```
//!
//! A key in Redis decides who bothers. It lives ten seconds and is prolonged every three. How long it may be believed is
//! counted here, on a monotonic clock, from *before* the question was asked, so that we stop believing before Redis does.
//! An epoch in PostgreSQL decides whose writes count: a server that was frozen and does not know that its time is over
//! writes with an epoch that is no longer the newest, and its statements touch nothing.
//!
//! While Redis is away longer than a lease lives there is no leader and none is needed: every server does the leader's
//! work from PostgreSQL, each statement of which is safe for many at once. A leader saves effort; it is never what makes
//! an answer right.
//!
//! A role is given back in good order when the server stops, and the others are told, so that a restart costs
//! milliseconds. A server that is killed costs its lease's ten seconds at most.

mod held_lease;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

pub use held_lease::{HeldLease, Leadership};

use crate::{
    backoff::ReconnectBackoff,
    cache::{Cache, lease::LeaseStatus},
    clock::Clock,
    faults,
    store::Store,
};

/// The role of the server that dispatches; it also releases, repairs and cleans up. Statements name it as it is written
/// here.
pub const LEADER_ROLE: &str = "dispatcher";
/// How long PostgreSQL may take to answer a question of one row.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest a server that does not hold the role waits before it looks again.
const MAX_RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// How often a lease is prolonged.
    pub renew_interval: Duration,
    /// How long it lives without that.
    pub ttl: Duration,
    /// How long its holder may be without PostgreSQL.
    pub database_grace: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            renew_interval: Duration::from_secs(3),
            ttl: Duration::from_secs(10),
            database_grace: Duration::from_secs(3),
        }
    }
}

/// Strives for one role, for ever.
#[derive(Debug)]
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
    /// Until when the last holder we saw may have the role.
    taken_until: Option<Instant>,
    /// Which start of Redis we know.
    run_id: Option<String>,
    /// Whether Redis did not answer when the lease was last to be prolonged.
    redis_away: bool,
    /// Since when PostgreSQL does not answer.
    database_away: Option<Instant>,
    backoff: ReconnectBackoff,
}

impl Lease {
    /// A lease on `role`, held in the name of `holder`, which no other server may use: see [`holder_name`]. `activate_due_index` is
    /// woken when what is in Redis is not to be believed any more.
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
            taken_until: None,
            run_id: None,
            redis_away: false,
            database_away: None,
            backoff: ReconnectBackoff::default(),
        }
    }

    /// With other times than the usual ones.
    #[must_use]
    pub fn with_times(mut self, times: LeaseTimes) -> Self {
        self.times = times;
        self
    }

    /// Where this server stands, now and from now on.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.state.subscribe()
    }

    /// Strives for the role until `stop`, then gives it back.
    pub async fn run(mut self, stop: CancellationToken) {
        let listening = listen(self.cache.clone(), self.role, self.recheck.clone());
        tokio::pin!(listening);
        while !stop.is_cancelled() {
            let pause = tokio::select! {
                pause = self.step() => pause,
                // Never ends.
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
            self.release("this server stops").await;
        } else {
            // The key may be ours without a term: we may have been stopped between the two.
            let _ = self.cache.release_lease(self.role, &self.holder).await;
        }
    }

    /// One look, bounded by what is left of our trust. Returns how long to wait before the next.
    async fn step(&mut self) -> Duration {
        let Some(term) = self.held_lease() else { return self.strive().await };
        let valid_until = term.valid_until();
        match tokio::time::timeout_at(valid_until, self.prolong(&term)).await {
            // Also when we were frozen: the time is over whatever the answer was.
            Ok(pause) if Instant::now() < term.valid_until() || term.ended().is_cancelled() => pause,
            // Redis was asked in vain, so it may be away for everybody.
            _ if self.redis_away => {
                self.end("it could not be prolonged in time", Leadership::Leaderless);
                self.pause()
            }
            // We did not even ask: we were frozen, and somebody else leads by now. Working without a leader would be
            // harmless, because of the compare-and-swap, but what a leader of yesterday does would count.
            _ => {
                self.end("its time was over before it could be prolonged", Leadership::Follower);
                Duration::ZERO
            }
        }
    }

    /// As the holder: prolongs the lease, and makes sure that PostgreSQL sees it the same way.
    async fn prolong(&mut self, term: &HeldLease) -> Duration {
        let before = Instant::now();
        let answer = self.cache.acquire_or_renew_lease(self.role, &self.holder, self.times.ttl).await;
        self.redis_away = answer.is_err();
        match answer {
            Ok(answer) => {
                self.note_run(answer.run_id);
                match answer.status {
                    LeaseStatus::Renewed => term.extend_until(before + self.times.ttl),
                    LeaseStatus::Acquired => {
                        // The key was gone, so another may have had it meanwhile: this is a new term.
                        self.activate_due_index.notify_one();
                        self.end("its key had vanished from Redis", Leadership::Follower);
                        return self.begin(before).await;
                    }
                    LeaseStatus::HeldElsewhere { left } => {
                        self.end("another server took it", Leadership::Follower);
                        return self.wait_for(left);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(role = self.role, error = %error, "a lease could not be prolonged yet");
                let left = term.valid_until().saturating_duration_since(Instant::now());
                return self.pause().min(left);
            }
        }
        match timeout(DATABASE_TIMEOUT, self.store.lease_epoch(self.role)).await {
            Ok(Ok(epoch)) if epoch != term.epoch() => {
                self.release("a newer term has begun").await;
                self.pause()
            }
            Ok(Ok(_)) => {
                self.database_away = None;
                self.backoff = ReconnectBackoff::default();
                jittered(self.times.renew_interval)
            }
            _ => {
                let since = *self.database_away.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.times.database_grace {
                    self.release("PostgreSQL does not answer this server").await;
                    return self.pause();
                }
                self.pause().min(self.times.database_grace / 4)
            }
        }
    }

    /// Without the role: looks whether it is free.
    async fn strive(&mut self) -> Duration {
        // Who cannot reach PostgreSQL could not use the role, and must not take it from who can.
        if !matches!(timeout(DATABASE_TIMEOUT, self.store.lease_epoch(self.role)).await, Ok(Ok(_))) {
            self.database_away.get_or_insert_with(Instant::now);
            return self.pause();
        }
        self.database_away = None;
        let before = Instant::now();
        match self.cache.acquire_or_renew_lease(self.role, &self.holder, self.times.ttl).await {
            Ok(answer) => {
                self.note_run(answer.run_id);
                match answer.status {
                    LeaseStatus::Acquired | LeaseStatus::Renewed => self.begin(before).await,
                    LeaseStatus::HeldElsewhere { left } => self.wait_for(left),
                }
            }
            Err(error) => {
                // As long as the last holder may have it, there is one.
                if self.taken_until.is_none_or(|until| Instant::now() >= until) {
                    if !matches!(*self.state.borrow(), Leadership::Leaderless) {
                        tracing::warn!(role = self.role, error = %error, "Redis is away, so nobody leads; every server works from PostgreSQL");
                    }
                    self.tell(Leadership::Leaderless);
                }
                self.pause()
            }
        }
    }

    /// The key is ours: raises the epoch, and begins the term if there is time left for it.
    async fn begin(&mut self, before: Instant) -> Duration {
        let valid_until = before + self.times.ttl;
        faults::point("lease.before_epoch");
        let taking = self.store.take_lease(self.role, &self.holder, self.clock.now());
        let fence = match timeout(2 * DATABASE_TIMEOUT, taking).await {
            Ok(Ok(fence)) if Instant::now() < valid_until => fence,
            _ => {
                tracing::warn!(role = self.role, "a term could not begin, for PostgreSQL did not answer in time");
                let _ = self.cache.release_lease(self.role, &self.holder).await;
                self.tell(Leadership::Follower);
                return self.pause();
            }
        };
        faults::point("lease.after_epoch");
        tracing::info!(role = self.role, lease.epoch = fence.epoch, lease.holder = self.holder, "this server leads");
        self.taken_until = None;
        self.redis_away = false;
        self.backoff = ReconnectBackoff::default();
        self.state.send_replace(Leadership::Leader(HeldLease::new(fence, valid_until)));
        // Whoever led before may have left the index half written.
        self.activate_due_index.notify_one();
        jittered(self.times.renew_interval)
    }

    fn wait_for(&mut self, left: Duration) -> Duration {
        self.taken_until = Some(Instant::now() + left);
        self.backoff = ReconnectBackoff::default();
        self.tell(Leadership::Follower);
        // Just after its end, and not all of us at once.
        let after_its_end = left + Duration::from_millis(20) + Duration::from_millis(300).mul_f64(rand::random());
        after_its_end.min(jittered(MAX_RECHECK_INTERVAL))
    }

    /// Ends the term and gives the role back, so that another can have it at once.
    async fn release(&mut self, why: &'static str) {
        let Some(term) = self.held_lease() else { return };
        self.end(why, Leadership::Follower);
        let released = self.cache.release_lease(self.role, &self.holder).await;
        let left = timeout(DATABASE_TIMEOUT, self.store.release_lease(term.fence(), self.clock.now())).await;
        if released.is_err() || !matches!(left, Ok(Ok(_))) {
            tracing::debug!(role = self.role, "the lease could not be given back everywhere; it ends by itself");
        }
    }

    fn end(&self, why: &'static str, then: Leadership) {
        if let Some(term) = self.held_lease() {
            tracing::info!(role = self.role, lease.epoch = term.epoch(), why, "this server no longer leads");
            term.ended().cancel();
        }
        self.state.send_replace(then);
    }

    fn held_lease(&self) -> Option<HeldLease> {
        match &*self.state.borrow() {
            Leadership::Leader(term) => Some(term.clone()),
            _ => None,
        }
    }

    /// Tells those who watch, if it is news.
    fn tell(&self, state: Leadership) {
        self.state.send_if_modified(|present| {
            let news = std::mem::discriminant(present) != std::mem::discriminant(&state);
            *present = state;
            news
        });
    }

    fn note_run(&mut self, run_id: String) {
        if self.run_id.as_ref().is_some_and(|known| *known != run_id) {
            tracing::warn!("Redis was started anew; what it holds is written again");
            self.activate_due_index.notify_one();
        }
        self.run_id = Some(run_id);
    }

    fn pause(&mut self) -> Duration {
        self.backoff.pause().min(MAX_RECHECK_INTERVAL)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Whoever throws the lease away without stopping it must not leave a term running.
        if let Leadership::Leader(term) = &*self.state.borrow() {
            term.ended().cancel();
        }
    }
}

/// A name that no other server has: the machine, the process, and a draw.
#[must_use]
pub fn holder_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map_or_else(|| "server".to_owned(), |host| host.trim().to_owned());
    format!("{host}-{}-{:08x}", std::process::id(), rand::random::<u32>())
}

/// Says when the role is given back. What is said while the line is down is found at the next look.
async fn listen(cache: Cache, role: &'static str, recheck: Arc<Notify>) {
    let mut backoff = ReconnectBackoff::default();
    loop {
        if let Ok(mut releases) = cache.lease_releases(role).await {
            backoff = ReconnectBackoff::default();
            recheck.notify_one();
            while releases.next().await.is_some() {
                recheck.notify_one();
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.8 + 0.2 * rand::random::<f64>())
}
