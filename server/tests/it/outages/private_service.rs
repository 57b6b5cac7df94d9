//! One private service that a test may mistreat: stopped, killed, emptied, or set back to an older copy of its data.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use milvaion_server::embedded::{self, EmbeddedServices, ServiceSelection};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use milvaion_test_support::{self as common, stack};

const NO_SERVICES: ServiceSelection = ServiceSelection { postgres: false, redis: false, rabbitmq: false };

/// A service with a data folder below the system's temporary folder; deleted by [`PrivateService::close`].
pub(crate) struct PrivateService {
    /// Where it listens, whenever it runs.
    pub(crate) url: String,
    wanted: ServiceSelection,
    data_dir: PathBuf,
    running: Option<EmbeddedServices>,
    services: PathBuf,
}

impl PrivateService {
    pub(crate) async fn postgres() -> Self {
        Self::open(ServiceSelection { postgres: true, ..NO_SERVICES }).await
    }

    pub(crate) async fn redis() -> Self {
        Self::open(ServiceSelection { redis: true, ..NO_SERVICES }).await
    }

    pub(crate) async fn rabbitmq() -> Self {
        Self::open(ServiceSelection { rabbitmq: true, ..NO_SERVICES }).await
    }

    async fn open(wanted: ServiceSelection) -> Self {
        let data_dir = std::env::temp_dir().join(common::unique("milvaion-outage"));
        let mut this = Self { url: String::new(), wanted, services: data_dir.clone(), data_dir, running: None };
        this.start().await;
        this
    }

    /// Starts it, again on the same port, with the same password and whatever data there is.
    pub(crate) async fn start(&mut self) {
        let running = embedded::start(&self.data_dir, self.wanted, |_| {}).await.expect("the service starts");
        let url = [&running.database_url, &running.redis_url, &running.amqp_url].into_iter().flatten().next();
        let url = url.expect("one service was wanted").clone();
        assert!(self.url.is_empty() || self.url == url, "somebody took the service's port while it was away");
        self.url = url;
        self.services = running.folder.clone().expect("something was started");
        self.running = Some(running);
    }

    /// Ends it in an orderly way.
    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
    }

    /// Ends it as a crash would: SIGKILL, or for PostgreSQL the signal that means "stop at once, recover later", because
    /// a killed postmaster leaves its children alive.
    pub(crate) async fn kill(&mut self) {
        if self.wanted.postgres {
            let text = fs::read_to_string(self.folder().join("data/postmaster.pid")).expect("PostgreSQL runs");
            let pid = text.lines().next().and_then(|line| line.parse().ok()).expect("the first line is the pid");
            kill(Pid::from_raw(pid), Signal::SIGQUIT).expect("PostgreSQL is ours to end");
        } else {
            let pid = self.pid_by_folder().expect("the service runs in its folder");
            kill(Pid::from_raw(pid), Signal::SIGKILL).expect("the service is ours to kill");
        }
        let running = self.running.as_mut().expect("it was running");
        tokio::time::timeout(Duration::from_secs(20), running.failed()).await.expect("it ends at once");
        // Nothing is left to stop; this lets go of the folder's lock.
        self.stop().await;
    }

    /// The service's own folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.services.join(match self.wanted {
            ServiceSelection { postgres: true, .. } => "postgres",
            ServiceSelection { redis: true, .. } => "redis",
            _ => "rabbitmq",
        })
    }

    /// Copies the service's folder, owners included. Returns the copy.
    pub(crate) fn copy(&self) -> PathBuf {
        let copy = self.data_dir.join("copy");
        run(Command::new("cp").arg("-a").arg(self.folder()).arg(&copy));
        copy
    }

    /// Puts a copy in the place of the service's folder. The service must not be running.
    pub(crate) fn restore(&self, copy: &Path) {
        assert!(self.running.is_none(), "a running service would not notice");
        fs::remove_dir_all(self.folder()).expect("the folder is ours");
        run(Command::new("cp").arg("-a").arg(copy).arg(self.folder()));
    }

    /// Throws away what a folder below the service's own holds. The service must not be running.
    pub(crate) fn wipe(&self, below: &str) {
        assert!(self.running.is_none(), "a running service would not notice");
        fs::remove_dir_all(self.folder().join(below)).expect("the folder is ours");
    }

    /// Tells RabbitMQ from which share of the machine's memory on it takes no messages. By a call from an Erlang node beside
    /// it, because its own tool wants the daemon that tells ports, which a private broker does without.
    pub(crate) async fn memory_limit(&self, share: f64) {
        let ports = fs::read_to_string(self.data_dir.join("ports")).expect("the ports are remembered");
        let port = ports.lines().find_map(|line| line.strip_prefix("distribution ")).expect("it has one");
        let call = format!(
            "ok = rpc:call(milvaion@localhost, vm_memory_monitor, set_vm_memory_high_watermark, [{share}]), halt()."
        );
        let output = tokio::process::Command::new("erl")
            .args(["-noshell", "-sname", "outage@localhost", "-start_epmd", "false", "-dist_listen", "false"])
            .args(["-erl_epmd_port", port, "-eval", &call])
            .env("HOME", self.folder())
            .env("ERL_INETRC", self.folder().join("inetrc"))
            .env("ERL_CRASH_DUMP_SECONDS", "0")
            .output()
            .await
            .expect("Erlang is there, for RabbitMQ is");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    /// Stops it and deletes everything it left.
    pub(crate) async fn close(mut self) {
        self.stop().await;
        embedded::erase(&self.data_dir).await.expect("the folder is ours");
        let _ = fs::remove_dir_all(&self.data_dir);
    }

    fn pid_by_folder(&self) -> Option<i32> {
        let folder = self.folder().canonicalize().ok()?;
        let program = if self.wanted.redis { "redis-server" } else { "beam.smp" };
        fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let is_it = name.trim() == program && fs::read_link(entry.path().join("cwd")).ok()? == folder;
            is_it.then_some(pid)
        })
    }
}

/// Waits until the service takes connections on its port.
pub(crate) async fn answers(service: &PrivateService) {
    let (_, rest) = service.url.rsplit_once('@').expect("user and host");
    let host = rest.split('/').next().expect("a host").to_owned();
    stack::eventually("an open port", || async { tokio::net::TcpStream::connect(&host).await.ok() }).await;
}

fn run(command: &mut Command) {
    let status = command.status().expect("the program is there");
    assert!(status.success(), "{command:?} failed");
}
