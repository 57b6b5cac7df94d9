//! The declaration of a singleton loop in code.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

#[cfg(feature = "cron")]
use crate::singleton::pace::{CronPace, LoopMisfire};
use crate::{
    JobError, Tick, WorkerBuilder,
    singleton::{SingletonLoop, options::LoopOptions, pace::LoopPace},
};

/// A singleton loop that has a name and needs a rhythm. Created by [`WorkerBuilder::singleton`].
#[must_use = "a loop is declared by `run`"]
pub struct NewLoop {
    pub(crate) worker: WorkerBuilder,
    pub(crate) name: String,
}

/// A singleton loop with its rhythm. [`run`](Self::run) declares it.
#[must_use = "a loop is declared by `run`"]
pub struct LoopBuilder<R = PeriodicRhythm> {
    worker: WorkerBuilder,
    name: String,
    rhythm: DeclaredRhythm,
    options: LoopOptions,
    kind: PhantomData<R>,
}

/// Marks a [`LoopBuilder`] of a loop with a period.
pub enum PeriodicRhythm {}

/// Marks a [`LoopBuilder`] of a loop with a cron expression.
#[cfg(feature = "cron")]
pub enum CronRhythm {}

/// A rhythm as it was declared, which is checked by [`LoopBuilder::run`].
enum DeclaredRhythm {
    Periodic(LoopPace),
    #[cfg(feature = "cron")]
    Cron {
        expression: String,
        zone: String,
        misfire: LoopMisfire,
    },
}

impl fmt::Debug for NewLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewLoop").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for LoopBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopBuilder").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

impl DeclaredRhythm {
    fn check(self, name: &str) -> Result<LoopPace, String> {
        let _ = name;
        match self {
            Self::Periodic(pace) => Ok(pace),
            #[cfg(feature = "cron")]
            Self::Cron { expression, zone, misfire } => {
                CronPace::parse(name, &expression, &zone, misfire).map(LoopPace::Cron)
            }
        }
    }
}

impl NewLoop {
    /// Starts each run this long after the end of the run before it, so that there is always a pause of this length.
    /// A new leader counts from the end of the last run that its predecessor published, and without one starts at once.
    /// From 10 milliseconds to 366 days.
    pub fn every(self, interval: Duration) -> LoopBuilder {
        self.with(DeclaredRhythm::Periodic(LoopPace::Interval(interval)))
    }

    /// Starts runs on a fixed grid: the multiples of `period` since 1970, which are the same for every leader. A tick during
    /// a run is dropped and counted. From 10 milliseconds to 366 days.
    pub fn fixed_rate(self, period: Duration) -> LoopBuilder {
        self.with(DeclaredRhythm::Periodic(LoopPace::FixedRate(period)))
    }

    /// Starts runs at the due times of a cron expression with five fields, or six with seconds in front. The time zone is
    /// UTC unless [`zone`](LoopBuilder::zone) sets another. Due times at which no instance leads do not run later.
    #[cfg(feature = "cron")]
    pub fn cron(self, expression: impl Into<String>) -> LoopBuilder<CronRhythm> {
        self.with(DeclaredRhythm::Cron {
            expression: expression.into(),
            zone: "UTC".to_owned(),
            misfire: LoopMisfire::default(),
        })
    }

    fn with<R>(self, rhythm: DeclaredRhythm) -> LoopBuilder<R> {
        LoopBuilder { worker: self.worker, name: self.name, rhythm, options: LoopOptions::default(), kind: PhantomData }
    }
}

#[cfg(feature = "cron")]
impl LoopBuilder<CronRhythm> {
    /// Sets the IANA time zone of the expression, such as `Europe/Berlin`. Default `UTC`.
    pub fn zone(mut self, name: impl Into<String>) -> Self {
        if let DeclaredRhythm::Cron { zone, .. } = &mut self.rhythm {
            *zone = name.into();
        }
        self
    }

    /// Sets what happens to due times that were missed while this instance led, because a run took too long or the process
    /// was suspended. Default [`LoopMisfire::Skip`].
    pub fn misfire(mut self, policy: LoopMisfire) -> Self {
        if let DeclaredRhythm::Cron { misfire, .. } = &mut self.rhythm {
            *misfire = policy;
        }
        self
    }
}

impl<R> LoopBuilder<R> {
    /// Sets whether this process takes part in the election. A process that does not sends nothing to Redis for the loop.
    /// Users disable a loop for the whole fleet in the dashboard instead. Default true.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.options.enabled = enabled;
        self
    }

    /// Sets the maximum random delay of each due time, so that loops with the same period do not start at one instant.
    /// Less than the period; at most one hour for cron loops. Default zero.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.options.jitter = jitter;
        self
    }

    /// Sets the lease: the time after which another instance takes over from a leader that was killed. A run ends at the
    /// latest five sixths of the lease after Redis could last be reached. From 500 milliseconds to 2 minutes. Default 10
    /// seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets the time between two heartbeats, at which the leader renews its lease and the others look whether it is free.
    /// From 100 milliseconds to a third of the lease. Default three tenths of the lease, which is 3 seconds for the default
    /// lease.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.options.heartbeat = Some(heartbeat);
        self
    }

    /// Sets the maximum duration of a run, which is then dropped and counted as an error. From 1 millisecond to 7 days.
    /// Default none: a run may take as long as it needs, and the lease is renewed meanwhile.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets whether a run is cancelled when this instance stops leading. If it is not, it continues to its end beside the
    /// runs of the next leader. A run is always cancelled when the process stops. Default true.
    pub fn cancel_on_lost_leadership(mut self, cancel: bool) -> Self {
        self.options.cancel_on_lost_leadership = cancel;
        self
    }

    /// Sets whether a run that takes longer than the period of its grid, or than 80 % of the lease, is logged as a warning, at
    /// most once a minute. Default true.
    pub fn warn_on_long_runs(mut self, warn: bool) -> Self {
        self.options.warn_on_long_runs = warn;
        self
    }

    /// Declares the loop with its code. An error, a panic or a timeout of a run is counted and logged, and the loop goes
    /// on; there are no retries. The kinds of [`JobError`] make no difference here.
    pub fn run<F, Fut>(self, body: F) -> WorkerBuilder
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), JobError>> + Send + 'static,
    {
        let Self { worker, name, rhythm, options, kind: _ } = self;
        match rhythm.check(&name) {
            Ok(pace) => worker.add_singleton(SingletonLoop {
                name: name.into(),
                pace,
                options,
                body: Arc::new(move |tick| Box::pin(body(tick))),
            }),
            Err(error) => worker.add_error(error),
        }
    }
}
