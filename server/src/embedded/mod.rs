//! Private services for a one-machine start.
//!
//! Whoever tries the product on a laptop should not have to install, configure and secure three servers first.
//! So for each service that was not given by a URL, this room starts one of its own as a child process: a data
//! folder below `.milvaion/`, loopback only, a free port that is remembered, a random password. The rest of the
//! server receives ordinary URLs and cannot tell the difference; nothing outside this room knows how a service
//! is started.
//!
//! What is promised:
//! - **Nobody is left behind.** Every child asks the kernel for a signal when the server dies, whatever killed it,
//!   and a start first sees off what an earlier one may have left (`orphans`).
//! - **One at a time.** A lock on the data folder refuses a second server with a sentence instead of a mess.
//! - **Two clones do not meet.** Ports, passwords, sockets and node names belong to one data folder.
//! - **Data survives.** Writes are synced, the stop is orderly, and data written by another PostgreSQL version is
//!   refused, never touched.
//! - **Errors are sentences.** Each names the cause and the remedy, and the log to read.
//!
//! A child is its own process group, so Ctrl-C in a terminal reaches the server alone, which then stops its
//! services after it has finished with them. Started by root, a service runs as the Debian user made for it.

pub mod child;
pub mod worker;

mod data_dir;
mod error;
mod orphans;
mod ports;
mod postgres;
mod programs;
mod rabbitmq;
mod redis;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{join_all, select_all};

use child::ChildProcess;
use data_dir::DataDir;
pub use error::EmbeddedError;

/// How long an orderly stop may take before the process group is killed. RabbitMQ is the slowest, at about one second.
const STOP_WITHIN: Duration = Duration::from_secs(9);

/// Pause between two looks at a service that is starting: short beside the fastest start (Redis, about 50 ms).
const PROBE_EVERY: Duration = Duration::from_millis(25);

/// Which services have no URL and are to be started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceSelection {
    /// Start a PostgreSQL of our own.
    pub postgres: bool,
    /// Start a Redis of our own.
    pub redis: bool,
    /// Start a RabbitMQ of our own.
    pub rabbitmq: bool,
}

impl ServiceSelection {
    /// All three, as tests want them.
    pub const ALL: Self = Self { postgres: true, redis: true, rabbitmq: true };

    /// Whether there is nothing to start.
    #[must_use]
    pub fn is_empty(self) -> bool {
        !(self.postgres || self.redis || self.rabbitmq)
    }
}

/// The running private services. Call [`EmbeddedServices::stop`] at the end; a mere drop asks them to stop but does not wait.
#[derive(Debug)]
pub struct EmbeddedServices {
    /// Where the private PostgreSQL listens; `None` when it was not wanted.
    pub database_url: Option<String>,
    /// Where the private Redis listens; `None` when it was not wanted.
    pub redis_url: Option<String>,
    /// Where the private RabbitMQ listens; `None` when it was not wanted.
    pub amqp_url: Option<String>,
    /// Where the services keep their data, to tell people; `None` when nothing was started.
    pub folder: Option<PathBuf>,
    children: Vec<Arc<ChildProcess>>,
    /// Holds the lock on the data folder until the last child is gone.
    _data_dir: Option<DataDir>,
}

/// Starts the wanted services, all at once, and returns when each answers. `progress` hears one readable line per step.
///
/// # Errors
/// One sentence with cause and remedy; what had been started by then has been stopped.
pub async fn start(
    data_dir: &Path,
    wanted: ServiceSelection,
    progress: impl Fn(&str) + Send + Sync,
) -> Result<EmbeddedServices, EmbeddedError> {
    let none = EmbeddedServices {
        database_url: None,
        redis_url: None,
        amqp_url: None,
        folder: None,
        children: Vec::new(),
        _data_dir: None,
    };
    if wanted.is_empty() {
        return Ok(none);
    }

    let place = DataDir::claim(data_dir, wanted)?;
    if let Some(reason) = place.moved() {
        progress(&reason);
    }
    // Before the ports are chosen: a leftover still sits on its own.
    settle_all(&place).await;
    let ports = ports::choose(&place.ports_file())?;
    let start = StartContext { data_dir: &place, progress: &progress, children: Mutex::new(Vec::new()) };

    let urls = tokio::try_join!(
        when(wanted.postgres, || postgres::start(&start, ports.postgres)),
        when(wanted.redis, || redis::start(&start, ports.redis)),
        when(wanted.rabbitmq, || rabbitmq::start(&start, ports.rabbitmq, ports.distribution)),
    );
    let children = start.children.into_inner().unwrap_or_else(PoisonError::into_inner);
    match urls {
        Ok((database_url, redis_url, amqp_url)) => Ok(EmbeddedServices {
            database_url,
            redis_url,
            amqp_url,
            folder: Some(place.services().to_owned()),
            children,
            _data_dir: Some(place),
        }),
        Err(error) => {
            stop_all(&children).await;
            Err(error)
        }
    }
}

impl EmbeddedServices {
    /// Stops every service in an orderly way, all at once, and returns when they are gone: within about 10 s.
    pub async fn stop(self) {
        stop_all(&self.children).await;
    }

    /// Resolves when a service ends although nobody stopped it, with one sentence that names the service, how it
    /// ended and the log to read. Never resolves while all is well, nor when nothing was started.
    pub async fn failed(&mut self) -> String {
        if self.children.is_empty() {
            return std::future::pending().await;
        }
        let (ended, _, _) = select_all(self.children.iter().map(|child| {
            Box::pin(async move {
                let exit = child.wait().await;
                EmbeddedError::ended(child, exit)
            })
        }))
        .await;
        ended.to_string()
    }
}

/// Deletes the services' data, passwords and ports below `data_dir`, so that the next start begins with nothing.
/// Logs stay. For test services; waits for leftovers of a killed run to end first.
///
/// # Errors
/// When another server uses the folder, or it cannot be deleted.
pub async fn erase(data_dir: &Path) -> Result<(), EmbeddedError> {
    if !data_dir.exists() {
        return Ok(());
    }
    let place = DataDir::claim(data_dir, ServiceSelection { postgres: false, redis: false, rabbitmq: false })?;
    settle_all(&place).await;
    place.erase()
}

/// What the three starts share: where they live, whom they tell, and where their child is entered so that a
/// failure of one can stop the others.
struct StartContext<'a> {
    data_dir: &'a DataDir,
    progress: &'a (dyn Fn(&str) + Send + Sync),
    children: Mutex<Vec<Arc<ChildProcess>>>,
}

impl StartContext<'_> {
    fn say(&self, line: &str) {
        (self.progress)(line);
    }

    /// Enters a child into the books.
    fn register(&self, child: ChildProcess) -> Arc<ChildProcess> {
        let child = Arc::new(child);
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&child));
        child
    }
}

/// What one look at a starting service found.
enum ProbeResult {
    Healthy,
    NotYet,
    /// It will never get healthy.
    Hopeless(EmbeddedError),
}

/// Looks at the service again and again until it is healthy, has ended, or `within` is over.
async fn until_healthy(
    child: &ChildProcess,
    port: u16,
    within: Duration,
    probe: impl AsyncFn() -> ProbeResult,
) -> Result<Duration, EmbeddedError> {
    let began = Instant::now();
    let look = async {
        loop {
            // A probe that hangs must not outlive the deadline by much, nor hide that the child has ended.
            match tokio::time::timeout(Duration::from_secs(5), probe()).await {
                Ok(ProbeResult::Healthy) => return Ok(began.elapsed()),
                Ok(ProbeResult::Hopeless(error)) => return Err(error),
                Ok(ProbeResult::NotYet) | Err(_) => tokio::time::sleep(PROBE_EVERY).await,
            }
        }
    };
    tokio::select! {
        exit = child.wait() => Err(EmbeddedError::ended_at_start(child, exit, port)),
        outcome = look => outcome,
        () = tokio::time::sleep(within) => Err(EmbeddedError::slow(child, within)),
    }
}

async fn when<F>(wanted: bool, start: impl FnOnce() -> F) -> Result<Option<String>, EmbeddedError>
where
    F: Future<Output = Result<String, EmbeddedError>>,
{
    if wanted { start().await.map(Some) } else { Ok(None) }
}

/// Sees off what a killed server may have left alive in this data folder.
async fn settle_all(place: &DataDir) {
    let services = [
        (postgres::FOLDER, postgres::PROCESS, postgres::STOP_SIGNAL),
        (redis::FOLDER, redis::PROCESS, redis::STOP_SIGNAL),
        (rabbitmq::FOLDER, rabbitmq::PROCESS, rabbitmq::STOP_SIGNAL),
    ];
    join_all(services.map(|(folder, process, stop_signal)| async move {
        orphans::terminate(&place.services().join(folder), process, stop_signal).await;
    }))
    .await;
}

async fn stop_all(children: &[Arc<ChildProcess>]) {
    join_all(children.iter().map(|child| child.stop(STOP_WITHIN))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_wanted_starts_nothing_and_writes_nothing() {
        let folder = std::env::temp_dir().join("milvaion-test-nothing-wanted");
        let wanted = ServiceSelection { postgres: false, redis: false, rabbitmq: false };
        let embedded = start(&folder, wanted, |_| {}).await.unwrap();
        assert_eq!((embedded.database_url.as_ref(), embedded.folder.as_ref()), (None, None));
        assert!(!folder.exists());
        embedded.stop().await;
    }
}
