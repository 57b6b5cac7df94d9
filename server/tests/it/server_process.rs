//! The program `milvaion` as a child process.

use std::process::Stdio;

use milvaion_server::config::ServerConfig;
use milvaion_test_support::budget::{self, CountedEvent};
use tokio::process::{Child, Command};

/// Starts a server on the services and names of a configuration, with another URL of the broker. It is killed when the
/// handle is dropped.
pub(crate) fn server_process(config: &ServerConfig, amqp_url: &str) -> Child {
    budget::count(CountedEvent::Server);
    Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("run")
        .env("DATABASE_URL", &config.database.url)
        .env("REDIS_URL", &config.cache.url)
        .env("AMQP_URL", amqp_url)
        .env("MILVAION_PREFIX", &config.broker.prefix)
        .env("MILVAION_KEY_PREFIX", &config.cache.key_prefix)
        .env("SITE_ROOT", &config.http.site_root)
        .env_remove("PORT")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts")
}
