//! A private PostgreSQL, Redis or RabbitMQ that a test may stop, kill, wipe, or restore from a copy of its data.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use milvaion_server::embedded::{self, EmbeddedServices, ServiceSelection};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{services, wait};

const NO_SERVICES: ServiceSelection = ServiceSelection { postgres: false, redis: false, rabbitmq: false };

/// The time RabbitMQ has to raise or to clear an alarm; it looks at the disk every ten seconds.
const ALARM_TIMEOUT: Duration = Duration::from_secs(30);
/// The time a killed service has to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// A kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// RabbitMQ.
    RabbitMq,
}

impl ServiceKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::Redis, Self::RabbitMq];

    /// Returns its name in reports, which is also the name of its folder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::RabbitMq => "rabbitmq",
        }
    }

    fn selection(self) -> ServiceSelection {
        match self {
            Self::Postgres => ServiceSelection { postgres: true, ..NO_SERVICES },
            Self::Redis => ServiceSelection { redis: true, ..NO_SERVICES },
            Self::RabbitMq => ServiceSelection { rabbitmq: true, ..NO_SERVICES },
        }
    }

    /// Returns the name of its main process in `/proc/<pid>/comm`.
    fn process_name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis-server",
            Self::RabbitMq => "beam.smp",
        }
    }

    /// Returns the folder with its data, below its own folder.
    fn data_folder(self) -> &'static str {
        match self {
            Self::Postgres => "data",
            Self::Redis => "appendonlydir",
            Self::RabbitMq => "mnesia",
        }
    }
}

/// A reason for which RabbitMQ accepts no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerAlarm {
    /// It uses more memory than it may.
    Memory,
    /// The disk has less free space than it must have.
    Disk,
}

/// A service with a data folder of its own.
#[derive(Debug)]
pub struct PrivateService {
    kind: ServiceKind,
    url: String,
    data_dir: PathBuf,
    /// The folder below which all services have theirs; the data folder, unless that cannot be used by their accounts.
    services: PathBuf,
    running: Option<EmbeddedServices>,
    /// True if [`PrivateService::close`] also deletes the logs.
    is_temporary: bool,
}

impl PrivateService {
    /// Starts a PostgreSQL below the system's temporary folder.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL is not installed or does not start.
    pub async fn postgres() -> anyhow::Result<Self> {
        Self::temporary(ServiceKind::Postgres).await
    }

    /// Starts a Redis below the system's temporary folder.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis is not installed or does not start.
    pub async fn redis() -> anyhow::Result<Self> {
        Self::temporary(ServiceKind::Redis).await
    }

    /// Starts a RabbitMQ below the system's temporary folder, which takes ten seconds.
    ///
    /// # Errors
    ///
    /// Returns an error if RabbitMQ is not installed or does not start.
    pub async fn rabbitmq() -> anyhow::Result<Self> {
        Self::temporary(ServiceKind::RabbitMq).await
    }

    async fn temporary(kind: ServiceKind) -> anyhow::Result<Self> {
        let data_dir = std::env::temp_dir().join(services::unique("milvaion-outage"));
        Ok(Self { is_temporary: true, ..Self::open_at(kind, data_dir).await? })
    }

    /// Deletes the data of an earlier run. Call it for all services before the first one is started: between fork and
    /// exec, a child process holds every file that we have open, with its locks.
    ///
    /// # Errors
    ///
    /// Returns an error if the service is running or its files cannot be deleted.
    pub async fn clear(kind: ServiceKind, folder: &Path) -> anyhow::Result<()> {
        Ok(embedded::erase(&folder.join(kind.name())).await?)
    }

    /// Starts a service with its data below `folder`.
    ///
    /// # Errors
    ///
    /// Returns an error if the service is not installed or does not start.
    pub async fn open(kind: ServiceKind, folder: &Path) -> anyhow::Result<Self> {
        Self::open_at(kind, folder.join(kind.name())).await
    }

    async fn open_at(kind: ServiceKind, data_dir: PathBuf) -> anyhow::Result<Self> {
        let (services, url) = (data_dir.clone(), String::new());
        let mut service = Self { kind, url, services, data_dir, running: None, is_temporary: false };
        service.start().await?;
        Ok(service)
    }

    /// Returns true if it was started and neither stopped nor killed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns its URL, which stays the same over restarts.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns its URL with another port, for a proxy.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL contains no address.
    pub fn url_through(&self, port: u16) -> anyhow::Result<String> {
        let address = self.address()?;
        Ok(self.url.replacen(&format!("127.0.0.1:{}", address.port()), &format!("127.0.0.1:{port}"), 1))
    }

    /// Returns the address it listens on.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL contains no address.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        let (_, rest) = self.url.rsplit_once('@').context("the URL names no user")?;
        let host = rest.split('/').next().unwrap_or_default();
        host.parse().with_context(|| format!("{host} is not an address"))
    }

    /// Starts it on its port, with its password and the data that is there. Returns when it responds.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not start, or if another program has taken its port.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        let running = embedded::start(&self.data_dir, self.kind.selection(), |_| {}).await?;
        let url = [&running.database_url, &running.redis_url, &running.amqp_url].into_iter().flatten().next();
        let url = url.context("no service was started")?.clone();
        ensure!(self.url.is_empty() || self.url == url, "another program has taken the port of {}", self.kind.name());
        self.url = url;
        self.services = running.folder.clone().context("no service was started")?;
        self.running = Some(running);
        Ok(())
    }

    /// Stops it gracefully.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    /// Kills it and its child processes with SIGKILL.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run, or still runs after 20 seconds.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        let pid = self.pid().with_context(|| format!("no {} runs in its folder", self.kind.name()))?;
        // The children are listed before the postmaster is killed, and killed after it: a postmaster that loses a child
        // starts its crash recovery.
        let children = children(pid);
        for pid in std::iter::once(pid).chain(children) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Some(running) = self.running.as_mut() {
            tokio::time::timeout(KILL_TIMEOUT, running.failed()).await.context("it still runs after SIGKILL")?;
        }
        // Nothing is left to stop; this releases the lock on the folder.
        self.stop().await;
        Ok(())
    }

    /// Makes RabbitMQ lack memory or disk, so that it accepts no messages. Returns when it has raised the alarm.
    ///
    /// # Errors
    ///
    /// Returns an error if this is no running RabbitMQ, or if it raises no alarm.
    pub async fn raise_alarm(&self, alarm: BrokerAlarm) -> anyhow::Result<()> {
        self.set_alarm(alarm, true).await
    }

    /// Restores RabbitMQ's limits of memory and disk. Returns when the alarm is over.
    ///
    /// # Errors
    ///
    /// Returns an error if this is no running RabbitMQ, or if the alarm stays.
    pub async fn clear_alarm(&self, alarm: BrokerAlarm) -> anyhow::Result<()> {
        self.set_alarm(alarm, false).await
    }

    /// Creates an account of RabbitMQ with a password and the patterns of its permissions to configure, to write and to read.
    ///
    /// # Errors
    ///
    /// Returns an error if this is no running RabbitMQ, or if it refuses the account.
    pub async fn create_account(&self, name: &str, password: &str, permissions: [&str; 3]) -> anyhow::Result<()> {
        let [configure, write, read] = permissions;
        let binary = |text: &str| format!("<<\"{}\">>", text.replace('\\', "\\\\").replace('"', "\\\""));
        let account = format!("{}, {}, {}", binary(name), binary(password), binary("test"));
        self.call_broker(&format!("rabbit_auth_backend_internal, add_user, [{account}]")).await?;
        let patterns = [name, "/", configure, write, read, "test"].map(binary).join(", ");
        self.call_broker(&format!("rabbit_auth_backend_internal, set_permissions, [{patterns}]")).await.map(drop)
    }

    /// Returns the number of RabbitMQ's queues, and how many of them were declared with the type *classic*.
    ///
    /// # Errors
    ///
    /// Returns an error if this is no running RabbitMQ.
    pub async fn queues_and_classic_ones(&self) -> anyhow::Result<(usize, usize)> {
        let binary =
            |text: &str| format!("<<{}>>", text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(","));
        let queues = self.call_broker("rabbit_amqqueue, info_all, [<<\"/\">>, [arguments]]").await?;
        let classic = format!("{{{},longstr,{}}}", binary("x-queue-type"), binary("classic"));
        Ok((queues.matches("{arguments,").count(), queues.matches(&classic).count()))
    }

    async fn set_alarm(&self, alarm: BrokerAlarm, is_raised: bool) -> anyhow::Result<()> {
        let call = match (alarm, is_raised) {
            (BrokerAlarm::Memory, true) => "vm_memory_monitor, set_vm_memory_high_watermark, [0.0001]",
            (BrokerAlarm::Memory, false) => "vm_memory_monitor, set_vm_memory_high_watermark, [0.4]",
            (BrokerAlarm::Disk, true) => "rabbit_disk_monitor, set_disk_free_limit, [1000000000000000]",
            (BrokerAlarm::Disk, false) => "rabbit_disk_monitor, set_disk_free_limit, [200000000]",
        };
        self.call_broker(call).await?;
        let deadline = tokio::time::Instant::now() + ALARM_TIMEOUT;
        while self.call_broker("rabbit_alarm, get_alarms, []").await?.contains("resource_limit") != is_raised {
            ensure!(tokio::time::Instant::now() < deadline, "RabbitMQ has not changed its alarm within 30 s");
        }
        Ok(())
    }

    /// Calls a function of RabbitMQ, named by its module, its name and its arguments. Returns the answer as text. The node
    /// is found by its port, because there is no `epmd`.
    async fn call_broker(&self, call: &str) -> anyhow::Result<String> {
        let ports = fs::read_to_string(self.data_dir.join("ports")).context("the ports file cannot be read")?;
        let port = ports.lines().find_map(|line| line.strip_prefix("distribution ")).context("no distribution port")?;
        let evaluated = format!("io:format(\"~w\", [rpc:call(milvaion@localhost, {call})]), halt().");
        let output = tokio::process::Command::new("erl")
            .args(["-noshell", "-sname", "outage@localhost", "-start_epmd", "false", "-dist_listen", "false"])
            .args(["-erl_epmd_port", port, "-eval", &evaluated])
            .env("HOME", self.folder())
            .env("ERL_INETRC", self.folder().join("inetrc"))
            .env("ERL_CRASH_DUMP_SECONDS", "0")
            .output()
            .await
            .context("erl cannot be started")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success() && !text.contains("badrpc"), "{call} failed: {text}");
        Ok(text)
    }

    /// Deletes its data. It must not be running.
    ///
    /// # Errors
    ///
    /// Returns an error if it runs or its files cannot be deleted.
    pub fn wipe(&self) -> anyhow::Result<()> {
        self.ensure_stopped()?;
        delete(&self.folder().join(self.kind.data_folder()))
    }

    /// Copies its folder, with the owners of the files. Returns the copy.
    ///
    /// # Errors
    ///
    /// Returns an error if `cp` fails.
    pub fn copy(&self) -> anyhow::Result<PathBuf> {
        let copy = self.data_dir.join("copy");
        run(Command::new("cp").arg("-a").arg(self.folder()).arg(&copy))?;
        Ok(copy)
    }

    /// Replaces its folder by a copy. It must not be running.
    ///
    /// # Errors
    ///
    /// Returns an error if it runs or its files cannot be replaced.
    pub fn restore(&self, copy: &Path) -> anyhow::Result<()> {
        self.ensure_stopped()?;
        delete(&self.folder())?;
        run(Command::new("cp").arg("-a").arg(copy).arg(self.folder()))
    }

    /// Waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL contains no address.
    ///
    /// # Panics
    ///
    /// Panics if it accepts none within [`wait::WAIT_TIMEOUT`].
    pub async fn wait_until_open(&self) -> anyhow::Result<()> {
        let address = self.address()?;
        wait::until("an open port", async || tokio::net::TcpStream::connect(address).await.is_ok()).await;
        Ok(())
    }

    /// Stops it and deletes its data. Its logs stay, unless it is below the system's temporary folder.
    ///
    /// # Errors
    ///
    /// Returns an error if its files cannot be deleted.
    pub async fn close(mut self) -> anyhow::Result<()> {
        self.stop().await;
        embedded::erase(&self.data_dir).await?;
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.data_dir);
        }
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.services.join(self.kind.name())
    }

    fn ensure_stopped(&self) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "{} must be stopped before its files are changed", self.kind.name());
        Ok(())
    }

    fn pid(&self) -> Option<i32> {
        if self.kind == ServiceKind::Postgres {
            let text = fs::read_to_string(self.folder().join("data/postmaster.pid")).ok()?;
            return text.lines().next()?.parse().ok();
        }
        let folder = self.folder().canonicalize().ok()?;
        processes().find(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == self.kind.process_name()
                && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder)
        })
    }
}

fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the child processes of a process.
fn children(of: i32) -> Vec<i32> {
    let parent = |pid: &i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name is in parentheses and may contain anything. The state and the parent follow it.
        text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<i32>().ok()
    };
    processes().filter(|pid| parent(pid) == Some(of)).collect()
}

fn delete(folder: &Path) -> anyhow::Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("{} cannot be deleted", folder.display()))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?} cannot be started"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
