//! Runs a singleton loop in a test, without Redis.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use milvaion_protocol::singleton::{LoopOutcome, LoopState};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    WorkerBuilder,
    control::metrics::WorkerMetrics,
    net::redis::RedisUnavailable,
    singleton::{
        SingletonLoop,
        lease_store::{ElectionPosition, HeartbeatAnswer, LeaseStore, LoopHeartbeat},
        loop_clock::LoopClock,
        loop_runner::{LoopRunner, LoopRunnerContext},
        loop_timer::LoopTimer,
        options,
    },
};

/// A singleton loop under test, which this process leads.
///
/// The loop is declared as for a worker. With a paused clock, hours pass in milliseconds:
///
/// ```
/// # async fn test() {
/// use std::time::Duration;
///
/// use milvaion_worker::{Worker, testing::TestLoop};
///
/// // In a test: #[tokio::test(start_paused = true)], with the feature `test-util` of tokio.
/// let worker = Worker::builder()
///     .singleton("price-feed")
///     .fixed_rate(Duration::from_millis(100))
///     .run(|_| async { Ok(()) });
/// let report = TestLoop::new(worker, "price-feed").run_for(Duration::from_secs(1)).await;
/// assert_eq!(report.runs.len(), 10);
/// # }
/// ```
pub struct TestLoop {
    spec: SingletonLoop,
    start: DateTime<Utc>,
    cut_off: Range<Duration>,
    loses: Option<Duration>,
    restarts: Option<Duration>,
}

/// The runs of a loop under test.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TestLoopReport {
    /// The runs that ended, in order.
    pub runs: Vec<TestLoopRun>,
    /// The number of due ticks: those that ran and those that were dropped.
    pub ticks: u64,
    /// The number of ticks that were dropped.
    pub dropped: u64,
}

/// One run of a loop under test.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TestLoopRun {
    /// The time at which it was due.
    pub due: DateTime<Utc>,
    /// The time from due to start.
    pub late: Duration,
    /// The duration.
    pub took: Duration,
    /// The text of its error, panic or timeout.
    pub error: Option<String>,
    /// True if it was cancelled.
    pub is_cancelled: bool,
}

impl fmt::Debug for TestLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestLoop").field("name", &self.spec.name).field("start", &self.start).finish_non_exhaustive()
    }
}

impl TestLoop {
    /// Takes a loop from the declaration of a worker.
    ///
    /// # Panics
    /// Panics if the worker has no loop of this name, or if an option is outside its bounds.
    #[must_use]
    pub fn new(worker: WorkerBuilder, name: &str) -> Self {
        let mut errors = crate::ConfigErrors::default();
        let spec = worker.loops().into_iter().find(|spec| &*spec.name == name);
        let spec = spec.expect("the worker has no singleton loop of this name");
        options::check(std::slice::from_ref(&spec), &mut errors);
        assert!(errors.messages().is_empty(), "{errors}");
        Self { spec, start: DateTime::UNIX_EPOCH, cut_off: Duration::MAX..Duration::MAX, loses: None, restarts: None }
    }

    /// Sets the wall clock time at which the test begins, for cron expressions and grids. Default the beginning of 1970.
    #[must_use]
    pub fn start_at(mut self, start: DateTime<Utc>) -> Self {
        self.start = start;
        self
    }

    /// Makes Redis unreachable after some time, like a network partition.
    #[must_use]
    pub fn cut_off_after(mut self, time: Duration) -> Self {
        self.cut_off = time..Duration::MAX;
        self
    }

    /// Makes Redis unreachable between two times.
    #[must_use]
    pub fn cut_off_between(mut self, from: Duration, until: Duration) -> Self {
        self.cut_off = from..until;
        self
    }

    /// Gives the lease to another instance after some time, as a Redis does that lost its data. This instance notices it
    /// with its next heartbeat.
    #[must_use]
    pub fn lose_leadership_after(mut self, time: Duration) -> Self {
        self.loses = Some(time);
        self
    }

    /// Makes Redis lose its data once after some time. This instance takes the lease again with its next heartbeat, with a
    /// higher epoch.
    #[must_use]
    pub fn restart_redis_after(mut self, time: Duration) -> Self {
        self.restarts = Some(time);
        self
    }

    /// Runs the loop for some time, stops it like a worker that receives SIGTERM, and waits for its end.
    pub async fn run_for(self, time: Duration) -> TestLoopReport {
        let begin = Instant::now();
        let store = TestLeaseStore {
            begin,
            cut_off: self.cut_off,
            loses: self.loses,
            restarts: self.restarts,
            last_state: Arc::new(Mutex::new(LoopState::default())),
        };
        let (stop, last_state) = (CancellationToken::new(), store.last_state.clone());
        let (observer, mut runs) = mpsc::unbounded_channel();
        let runner = LoopRunner::new(
            self.spec.clone(),
            LoopRunnerContext {
                store: Box::new(store),
                clock: LoopClock::From { instant: begin, wall: self.start },
                timer: LoopTimer::of_the_runtime(),
                program: Handle::current(),
                metrics: WorkerMetrics::default().singleton(&self.spec.name),
                wake: Arc::new(Notify::new()),
                stop: stop.clone(),
                worker_id: "test".to_owned(),
                host: String::new(),
                observer: Some(observer),
            },
        );
        let stopping = async {
            sleep(time).await;
            stop.cancel();
        };
        tokio::join!(runner.run(), stopping);
        let mut report = TestLoopReport::default();
        while let Ok(run) = runs.try_recv() {
            report.runs.push(TestLoopRun {
                due: run.due,
                late: run.late,
                took: run.took,
                is_cancelled: run.outcome == LoopOutcome::Cancelled,
                error: run.error,
            });
        }
        let state = last_state.lock().unwrap_or_else(PoisonError::into_inner);
        (report.ticks, report.dropped) = (state.ticks, state.dropped);
        report
    }
}

/// A lease that no other instance competes for, unless the test says so.
struct TestLeaseStore {
    begin: Instant,
    cut_off: Range<Duration>,
    loses: Option<Duration>,
    restarts: Option<Duration>,
    last_state: Arc<Mutex<LoopState>>,
}

impl TestLeaseStore {
    fn record(&self, state: LoopState) {
        *self.last_state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl LeaseStore for TestLeaseStore {
    fn heartbeat(&self, heartbeat: LoopHeartbeat) -> BoxFuture<'static, Result<HeartbeatAnswer, RedisUnavailable>> {
        let is_cut_off = self.cut_off.contains(&self.begin.elapsed());
        let is_lost = self.loses.is_some_and(|time| self.begin.elapsed() >= time);
        // The first epoch is lost with the data, and no later one is.
        let is_forgotten = heartbeat.held == Some(1) && self.restarts.is_some_and(|time| self.begin.elapsed() >= time);
        let position = match heartbeat.held {
            _ if is_forgotten => ElectionPosition::Elected,
            _ if is_lost => ElectionPosition::Follower,
            Some(_) => ElectionPosition::Leader,
            None if heartbeat.takes => ElectionPosition::Elected,
            None => ElectionPosition::Follower,
        };
        if !is_cut_off && position == ElectionPosition::Leader {
            self.record(heartbeat.state);
        }
        let epoch =
            if is_lost || is_forgotten { heartbeat.seen + 1 } else { heartbeat.held.unwrap_or(heartbeat.seen + 1) };
        Box::pin(async move {
            if is_cut_off {
                return Err(RedisUnavailable::Timeout);
            }
            let holder = if is_lost { "other" } else { "test" }.to_owned();
            let since_last_end = None;
            Ok(HeartbeatAnswer { position, epoch, holder, is_disabled: false, yields: false, since_last_end })
        })
    }

    fn release(
        &self,
        _: Option<u64>,
        _: bool,
        state: Option<LoopState>,
    ) -> BoxFuture<'static, Result<(), RedisUnavailable>> {
        if let Some(state) = state {
            self.record(state);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
