//! A private Redis on loopback, with a password, an append-only file and no snapshots.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::child::{ChildProcess, LaunchSpec};
use super::data_dir::{self, REDIS};
use super::{EmbeddedError, ProbeResult, StartContext, until_healthy};

/// The longest time until Redis is healthy. An empty Redis responds in 50 ms; the rest is for reading a long
/// append-only file after a crash.
const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

/// Starts Redis on `port` and returns the URL once it responds.
pub(super) async fn start(start: &StartContext<'_>, port: u16) -> Result<String, EmbeddedError> {
    let program = data_dir::program("redis-server", "Redis", REDIS.package)?;
    let home = start.data_dir.home(&REDIS)?;
    let password = start.data_dir.secret(REDIS.folder)?;
    let config = home.file("redis.conf", &config(port, &password))?;

    let launch = LaunchSpec::new(program)
        .arg(config)
        .clean_env()
        .folder(&home.folder)
        .account(home.account)
        .stop_signal(REDIS.stop_signal);
    let child = start.register(ChildProcess::spawn("Redis", launch, &start.data_dir.log(REDIS.folder)).await?);
    let took = until_healthy(&child, port, HEALTHY_WITHIN, async || probe(start, port, &password).await).await?;
    start.report(&format!("Redis is ready on port {port} ({} ms)", took.as_millis()));
    Ok(format!("redis://:{password}@{}:{port}/0", Ipv4Addr::LOCALHOST))
}

/// Returns the configuration file. The working folder is the data folder of Redis, so that no path needs quotes.
fn config(port: u16, password: &str) -> String {
    format!(
        "bind 127.0.0.1\n\
         port {port}\n\
         requirepass {password}\n\
         daemonize no\n\
         dir ./\n\
         # The append-only file is synced every second. Snapshots would only write all data twice.\n\
         appendonly yes\n\
         appendfsync everysec\n\
         save \"\"\n\
         # A refused write is better than a schedule that loses entries without an error.\n\
         maxmemory-policy noeviction\n"
    )
}

async fn probe(start: &StartContext<'_>, port: u16, password: &str) -> ProbeResult {
    match ping(port, password).await {
        Ok(response) if response == "+OK\r\n+PONG\r\n" => ProbeResult::Healthy,
        Ok(response) if response.starts_with("-WRONGPASS") => ProbeResult::Hopeless(EmbeddedError::Password {
            service: "Redis",
            secret: start.data_dir.secret_file(REDIS.folder),
            folder: start.data_dir.services().join(REDIS.folder),
        }),
        // Redis does not listen yet, or still reads its file ("-LOADING").
        _ => ProbeResult::NotYet,
    }
}

/// Authenticates, pings and returns the responses.
async fn ping(port: u16, password: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(format!("AUTH {password}\r\nPING\r\nQUIT\r\n").as_bytes()).await?;
    let mut response = String::new();
    // A healthy Redis sends 17 bytes. Another program on this port must not be able to fill our memory.
    stream.take(1024).read_to_string(&mut response).await?;
    Ok(response.trim_end_matches("+OK\r\n").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_private_and_durable() {
        let text = config(20_001, "secret");
        for line in ["bind 127.0.0.1", "port 20001", "requirepass secret", "appendonly yes", "save \"\""] {
            assert!(text.lines().any(|it| it == line), "{line} is missing in {text}");
        }
    }
}
