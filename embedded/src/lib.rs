//! Private services for a start on one machine.
//!
//! A user who tries the product on a laptop should not have to install, configure and secure three servers first. For
//! each service without a URL, this module therefore starts a private one as a child process. It has a data folder
//! below `.milvaion/`, listens on loopback only, keeps its port from one start to the next, and has a random password.
//! The rest of the server gets ordinary URLs and works the same way with private and with external services. No other
//! module knows how a service is started.
//!
//! The module guarantees:
//! - **No orphans.** The kernel signals every child when the server dies, whatever the cause. A start first terminates
//!   the processes that an earlier server may have left (`orphans`).
//! - **One server per data folder.** A lock on the folder makes a second server fail with a clear message.
//! - **Two clones do not collide.** Ports, passwords, sockets and node names belong to one data folder.
//! - **Data survives.** Writes are synced and the stop is orderly. Data written by another PostgreSQL version is
//!   refused and not modified.
//! - **Errors name the cause, the remedy and the log to read.**
//!
//! A child leads its own process group, so Ctrl-C in a terminal reaches only the server. The server stops the services
//! once it no longer needs them. If the server runs as root, each service runs as the Debian user created for it.

pub mod child;
pub mod worker;

mod data_dir;
mod error;
mod log_file;
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
use data_dir::{DataDir, DebianService, POSTGRES};
pub use error::EmbeddedError;

/// The longest time for an orderly stop before the process group is killed. RabbitMQ is the slowest, at about one
/// second.
const STOP_WITHIN: Duration = Duration::from_secs(9);

/// The time between two probes of a starting service. It is short compared with the fastest start (Redis, about 50 ms).
const PROBE_EVERY: Duration = Duration::from_millis(25);

/// The services that have no URL and are started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceSelection {
    /// True if a private PostgreSQL is started.
    pub postgres: bool,
    /// True if a private Redis is started.
    pub redis: bool,
    /// True if a private RabbitMQ is started.
    pub rabbitmq: bool,
}

impl ServiceSelection {
    /// All three services, for tests.
    pub const ALL: Self = Self { postgres: true, redis: true, rabbitmq: true };

    /// Returns true if no service is selected.
    #[must_use]
    pub fn is_empty(self) -> bool {
        !(self.postgres || self.redis || self.rabbitmq)
    }
}

/// The running private services. Call [`EmbeddedServices::stop`] at the end; dropping the value sends the stop signals
/// but does not wait.
#[derive(Debug)]
pub struct EmbeddedServices {
    /// The URL of the private PostgreSQL, if it was selected.
    pub database_url: Option<String>,
    /// The URL of the private Redis, if it was selected.
    pub redis_url: Option<String>,
    /// The URL of the private RabbitMQ, if it was selected.
    pub amqp_url: Option<String>,
    /// The folder with the data of the services, for messages to the user. `None` if no service was started.
    pub folder: Option<PathBuf>,
    children: Vec<Arc<ChildProcess>>,
    /// The lock on the data folder, held until the last child has ended.
    _data_dir: Option<DataDir>,
}

/// Starts the selected services in parallel and returns when all of them respond. `progress` is called with one
/// readable line per step.
///
/// # Errors
/// Returns [`EmbeddedError`] if one of them does not start. The services started by then have been stopped.
pub async fn start(
    data_dir: &Path,
    wanted: ServiceSelection,
    progress: impl Fn(&str) + Send + Sync,
) -> Result<EmbeddedServices, EmbeddedError> {
    start_until(data_dir, wanted, progress, std::future::pending()).await
}

/// Starts services like [`start`], unless `stop` resolves before all of them respond.
///
/// # Errors
/// Returns [`EmbeddedError::Stopped`] if `stop` resolved, and [`EmbeddedError`] if a service does not start. The services
/// started by then have been stopped.
pub async fn start_until(
    data_dir: &Path,
    wanted: ServiceSelection,
    progress: impl Fn(&str) + Send + Sync,
    stop: impl Future<Output = ()>,
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
    tokio::pin!(stop);
    let data_dir = DataDir::claim(data_dir, wanted)?;
    if let Some(reason) = data_dir.moved() {
        progress(&reason);
    }
    // Before the ports are chosen, because an orphan still occupies its port.
    tokio::select! {
        () = terminate_orphans(&data_dir) => {}
        () = &mut stop => return Err(EmbeddedError::Stopped),
    }
    let ports = ports::choose(&data_dir.ports_file())?;
    let start = StartContext { data_dir: &data_dir, progress: &progress, children: Mutex::new(Vec::new()) };

    let starting = async {
        tokio::try_join!(
            when(wanted.postgres, || postgres::start(&start, ports.postgres)),
            when(wanted.redis, || redis::start(&start, ports.redis)),
            when(wanted.rabbitmq, || rabbitmq::start(&start, ports.rabbitmq, ports.distribution)),
        )
    };
    let urls = tokio::select! {
        urls = starting => urls,
        () = stop => Err(EmbeddedError::Stopped),
    };
    let children = start.children.into_inner().unwrap_or_else(PoisonError::into_inner);
    match urls {
        Ok((database_url, redis_url, amqp_url)) => Ok(EmbeddedServices {
            database_url,
            redis_url,
            amqp_url,
            folder: Some(data_dir.services().to_owned()),
            children,
            _data_dir: Some(data_dir),
        }),
        Err(error) => {
            stop_all(&children).await;
            Err(error)
        }
    }
}

/// Returns the URL of the private PostgreSQL that another process runs on `data_dir`. `None` if the folder has never
/// held one.
#[must_use]
pub fn running_postgres(data_dir: &Path) -> Option<String> {
    let port = ports::stored_postgres(&data_dir.join("ports"))?;
    let password = std::fs::read_to_string(data_dir.join("secrets").join(POSTGRES.folder)).ok()?;
    Some(postgres::url(password.trim(), port))
}

impl EmbeddedServices {
    /// Stops all services in parallel and in an orderly way. Returns when they have ended, within about 10 s.
    pub async fn stop(self) {
        stop_all(&self.children).await;
    }

    /// Resolves when a service ends without being stopped. The error names the service, its exit status and the log to
    /// read. Does not resolve while all services run, nor if none was started.
    pub async fn failed(&mut self) -> EmbeddedError {
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
        ended
    }
}

/// Deletes the data, passwords and ports of the services below `data_dir`, so that the next start begins with empty
/// data. Keeps the logs. First waits until the processes left by a killed server have ended. For the services of tests.
///
/// # Errors
/// Returns [`EmbeddedError`] if another server uses the folder, or if it cannot be deleted.
pub async fn erase(data_dir: &Path) -> Result<(), EmbeddedError> {
    if !data_dir.exists() {
        return Ok(());
    }
    let data_dir = DataDir::claim(data_dir, ServiceSelection { postgres: false, redis: false, rabbitmq: false })?;
    terminate_orphans(&data_dir).await;
    data_dir.erase()
}

/// The state that the starts of the three services share: the data folder, the progress callback, and the list of
/// started children, so that a failure of one start can stop the others.
struct StartContext<'a> {
    data_dir: &'a DataDir,
    progress: &'a (dyn Fn(&str) + Send + Sync),
    children: Mutex<Vec<Arc<ChildProcess>>>,
}

impl StartContext<'_> {
    fn report(&self, line: &str) {
        (self.progress)(line);
    }

    /// Adds a child to the list.
    fn register(&self, child: ChildProcess) -> Arc<ChildProcess> {
        let child = Arc::new(child);
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&child));
        child
    }
}

/// The result of one probe of a starting service.
enum ProbeResult {
    Healthy,
    NotYet,
    /// The service will not become healthy.
    Hopeless(EmbeddedError),
}

/// Probes a service until it is healthy, has ended, or `within` has passed. Returns the time it took.
async fn until_healthy(
    child: &ChildProcess,
    port: u16,
    within: Duration,
    probe: impl AsyncFn() -> ProbeResult,
) -> Result<Duration, EmbeddedError> {
    let began = Instant::now();
    let probe_until_healthy = async {
        loop {
            // Limits a probe that hangs, so that the next one can still succeed before the deadline.
            match tokio::time::timeout(Duration::from_secs(5), probe()).await {
                Ok(ProbeResult::Healthy) => return Ok(began.elapsed()),
                Ok(ProbeResult::Hopeless(error)) => return Err(error),
                Ok(ProbeResult::NotYet) | Err(_) => tokio::time::sleep(PROBE_EVERY).await,
            }
        }
    };
    tokio::select! {
        exit = child.wait() => Err(EmbeddedError::ended_at_start(child, exit, port)),
        outcome = probe_until_healthy => outcome,
        () = tokio::time::sleep(within) => Err(EmbeddedError::slow(child, within)),
    }
}

async fn when<F>(wanted: bool, start: impl FnOnce() -> F) -> Result<Option<String>, EmbeddedError>
where
    F: Future<Output = Result<String, EmbeddedError>>,
{
    if wanted { start().await.map(Some) } else { Ok(None) }
}

/// Terminates the processes that a killed server may have left in this data folder.
async fn terminate_orphans(data_dir: &DataDir) {
    join_all(DebianService::ALL.map(|service| async move {
        orphans::terminate(&data_dir.services().join(service.folder), service.process, service.stop_signal).await;
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
    async fn an_empty_selection_writes_nothing() {
        let folder = std::env::temp_dir().join("milvaion-test-nothing-wanted");
        let wanted = ServiceSelection { postgres: false, redis: false, rabbitmq: false };
        let embedded = start(&folder, wanted, |_| {}).await.unwrap();
        assert_eq!((embedded.database_url.as_ref(), embedded.folder.as_ref()), (None, None));
        assert!(!folder.exists());
        embedded.stop().await;
    }
}
