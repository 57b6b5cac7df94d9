//! A PostgreSQL, a Redis or a RabbitMQ of our own that is stopped, killed, emptied and started again.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use milvaion_server::embedded::{self, EmbeddedServices, ServiceSelection};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const NO_SERVICES: ServiceSelection = ServiceSelection { postgres: false, redis: false, rabbitmq: false };

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceKind {
    Postgres,
    Redis,
    RabbitMq,
}

impl ServiceKind {
    /// What faults call it; also its folder.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::RabbitMq => "rabbitmq",
        }
    }

    fn wanted(self) -> ServiceSelection {
        match self {
            Self::Postgres => ServiceSelection { postgres: true, ..NO_SERVICES },
            Self::Redis => ServiceSelection { redis: true, ..NO_SERVICES },
            Self::RabbitMq => ServiceSelection { rabbitmq: true, ..NO_SERVICES },
        }
    }

    /// The process that is the service, as the kernel names it.
    fn program(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis-server",
            Self::RabbitMq => "beam.smp",
        }
    }
}

/// One service with a data folder of its own.
#[derive(Debug)]
pub(crate) struct ChaosService {
    kind: ServiceKind,
    url: String,
    data_dir: PathBuf,
    services: PathBuf,
    running: Option<EmbeddedServices>,
}

impl ChaosService {
    /// Deletes what an earlier run left. For all services before the first is started: a program that is being started
    /// has for an instant every open file of ours, locks included.
    pub(crate) async fn clear(kind: ServiceKind, folder: &Path) -> anyhow::Result<()> {
        Ok(embedded::erase(&folder.join(kind.name())).await?)
    }

    /// Starts one.
    pub(crate) async fn open(kind: ServiceKind, folder: &Path) -> anyhow::Result<Self> {
        let data_dir = folder.join(kind.name());
        let mut service = Self { kind, url: String::new(), services: data_dir.clone(), data_dir, running: None };
        service.start().await?;
        Ok(service)
    }

    /// Whether it was started and not taken away.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Where it listens, whenever it runs.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The same through a proxy on another port.
    pub(crate) fn url_through(&self, port: u16) -> anyhow::Result<String> {
        let address = self.address()?;
        Ok(self.url.replacen(&format!("127.0.0.1:{}", address.port()), &format!("127.0.0.1:{port}"), 1))
    }

    /// Where a proxy connects to.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        let (_, rest) = self.url.rsplit_once('@').context("the URL names no user")?;
        let host = rest.split('/').next().unwrap_or_default();
        host.parse().with_context(|| format!("{host} is no address"))
    }

    /// Starts it again, on the same port and with whatever data there is. Returns when it answers.
    pub(crate) async fn start(&mut self) -> anyhow::Result<()> {
        let running = embedded::start(&self.data_dir, self.kind.wanted(), |_| {}).await?;
        let url = [&running.database_url, &running.redis_url, &running.amqp_url].into_iter().flatten().next();
        let url = url.context("nothing was started")?.clone();
        ensure!(self.url.is_empty() || self.url == url, "somebody took the port of {} meanwhile", self.kind.name());
        self.url = url;
        self.services = running.folder.clone().context("nothing was started")?;
        self.running = Some(running);
        Ok(())
    }

    /// Ends it in an orderly way.
    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    /// Kills it and all its children, with the signal that leaves no time for anything.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        let pid = self.pid().with_context(|| format!("no {} runs in its folder", self.kind.name()))?;
        // Children first looked up, then killed last: a postmaster that sees one die would begin to recover.
        let children = children(pid);
        for pid in std::iter::once(pid).chain(children) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Some(running) = self.running.as_mut() {
            tokio::time::timeout(Duration::from_secs(20), running.failed()).await.context("it outlives SIGKILL")?;
        }
        // Nothing is left to stop; this lets go of the folder's lock.
        self.stop().await;
        Ok(())
    }

    /// Throws away what it knows. It must not be running.
    pub(crate) fn wipe(&self) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "a running service would not notice");
        let folder = self.folder().join(match self.kind {
            ServiceKind::Postgres => "data",
            ServiceKind::Redis => "appendonlydir",
            ServiceKind::RabbitMq => "mnesia",
        });
        fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be deleted", folder.display()))
    }

    /// Stops it and deletes all it left.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        self.stop().await;
        embedded::erase(&self.data_dir).await?;
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.services.join(self.kind.name())
    }

    fn pid(&self) -> Option<i32> {
        if self.kind == ServiceKind::Postgres {
            let text = fs::read_to_string(self.folder().join("data/postmaster.pid")).ok()?;
            return text.lines().next()?.parse().ok();
        }
        let folder = self.folder().canonicalize().ok()?;
        processes().find(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == self.kind.program()
                && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder)
        })
    }
}

fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes that this one has started.
fn children(of: i32) -> Vec<i32> {
    let parent = |pid: &i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name stands in parentheses and may hold anything; behind it come state and parent.
        text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    processes().filter(|pid| parent(pid) == Some(of)).collect()
}
