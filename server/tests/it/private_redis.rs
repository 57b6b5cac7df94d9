//! A Redis of one test.

use std::process::Stdio;

use milvaion_server::{cache::Cache, config::cache::CacheConfig};
use milvaion_test_support::{net::free_port, wait};
use tokio::process::{Child, Command};

/// A plain Redis that can be killed and started again. It starts in 0.1 s, much faster than a
/// [`milvaion_test_support::private_service::PrivateService`].
pub(crate) struct PrivateRedis {
    port: u16,
    child: Option<Child>,
}

impl PrivateRedis {
    pub(crate) async fn start() -> Self {
        let mut redis = Self { port: free_port().expect("a free port"), child: None };
        redis.restart().await;
        redis
    }

    pub(crate) async fn restart(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("redis-server can be started");
        self.child = Some(child);
        let cache = self.cache();
        wait::eventually("Redis", || async { cache.check().await.ok() }).await;
    }

    pub(crate) async fn kill(&mut self) {
        self.child.take().expect("it is running").kill().await.expect("it is killed");
    }

    /// Returns how often it has run a command.
    pub(crate) async fn calls(&self, command: &str) -> u64 {
        let mut info = redis::cmd("INFO");
        info.arg("commandstats");
        let stats: String = info.query_async(&mut self.connection().await).await.expect("Redis responds");
        let start = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    /// Returns the value of a key.
    pub(crate) async fn value(&self, key: &str) -> Option<String> {
        redis::cmd("GET").arg(key).query_async(&mut self.connection().await).await.expect("Redis responds")
    }

    /// Sets a key.
    pub(crate) async fn set(&self, key: &str, value: &str) {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value);
        set.query_async::<()>(&mut self.connection().await).await.expect("Redis responds");
    }

    /// Makes it a replica of another Redis, so that it accepts no changes.
    pub(crate) async fn replicate(&self, host: &str, port: u16) {
        let mut replicate = redis::cmd("REPLICAOF");
        replicate.arg(host).arg(port);
        replicate.query_async::<()>(&mut self.connection().await).await.expect("Redis responds");
    }

    async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("a valid URL");
        client.get_multiplexed_async_connection().await.expect("Redis responds")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn cache(&self) -> Cache {
        let url = self.url();
        Cache::new(&CacheConfig { url, key_prefix: "t:".into() }).expect("a valid URL")
    }
}
