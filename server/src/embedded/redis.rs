//! A private Redis: password, loopback, append-only file, no snapshots.

use std::net::Ipv4Addr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::child::{ChildProcess, LaunchSpec};
use super::{EmbeddedError, ProbeResult, StartContext, data_dir, until_healthy};

pub(super) const FOLDER: &str = "redis";
pub(super) const PROCESS: &str = "redis-server";
pub(super) const USER: &str = "redis";
pub(super) const PACKAGE: &str = "redis-server";

/// Syncs the append-only file and goes.
pub(super) const STOP_SIGNAL: Signal = Signal::SIGTERM;

/// An empty Redis answers in 50 ms; the rest is for reading a long append-only file after a crash.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

/// Starts Redis on `port` and returns its URL when it answers.
pub(super) async fn start(start: &StartContext<'_>, port: u16) -> Result<String, EmbeddedError> {
    let program = data_dir::program("redis-server", "Redis", PACKAGE)?;
    let home = start.data_dir.home(FOLDER, USER, PACKAGE)?;
    let password = start.data_dir.secret(FOLDER)?;
    let config = home.file("redis.conf", &config(port, &password))?;

    let launch = LaunchSpec::new(program)
        .arg(config)
        .clean_env()
        .folder(&home.folder)
        .account(home.account)
        .stop_signal(STOP_SIGNAL);
    let child = start.register(ChildProcess::spawn("Redis", launch, &start.data_dir.log(FOLDER)).await?);
    let took = until_healthy(&child, port, HEALTHY_WITHIN, async || probe(start, port, &password).await).await?;
    start.say(&format!("Redis is ready on port {port} ({} ms)", took.as_millis()));
    Ok(format!("redis://:{password}@{}:{port}/0", Ipv4Addr::LOCALHOST))
}

/// The whole configuration. The working folder is Redis' data folder, so that no path needs quoting.
fn config(port: u16, password: &str) -> String {
    format!(
        "bind 127.0.0.1\n\
         port {port}\n\
         requirepass {password}\n\
         daemonize no\n\
         dir ./\n\
         # One file of commands, synced each second; snapshots beside it would only write everything twice.\n\
         appendonly yes\n\
         appendfsync everysec\n\
         save \"\"\n\
         # A schedule that silently lost entries would be worse than a refused write.\n\
         maxmemory-policy noeviction\n"
    )
}

async fn probe(start: &StartContext<'_>, port: u16, password: &str) -> ProbeResult {
    match ask(port, password).await {
        Ok(answer) if answer == "+OK\r\n+PONG\r\n" => ProbeResult::Healthy,
        Ok(answer) if answer.starts_with("-WRONGPASS") => ProbeResult::Hopeless(EmbeddedError::Password {
            service: "Redis",
            secret: start.data_dir.secret_file(FOLDER),
            folder: start.data_dir.services().join(FOLDER),
        }),
        // Not listening yet, or still reading its file ("-LOADING").
        _ => ProbeResult::NotYet,
    }
}

async fn ask(port: u16, password: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(format!("AUTH {password}\r\nPING\r\nQUIT\r\n").as_bytes()).await?;
    let mut answer = String::new();
    // A Redis that is well says 17 bytes; whoever else listens there must not be able to fill our memory.
    stream.take(1024).read_to_string(&mut answer).await?;
    Ok(answer.trim_end_matches("+OK\r\n").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_loopback_password_and_append_only() {
        let text = config(20_001, "secret");
        for line in ["bind 127.0.0.1", "port 20001", "requirepass secret", "appendonly yes", "save \"\""] {
            assert!(text.lines().any(|it| it == line), "{line} is missing in {text}");
        }
    }
}
