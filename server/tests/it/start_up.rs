//! A server that is asked to stop while it starts.

use std::{path::Path, process::Stdio, time::Instant};

use milvaion_test_support::{server_env, services::unique, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

/// The message of a server that is stopped before it runs.
const STOPPED: &str = "Stopped during start-up.";

/// Accepts connections and never answers.
struct SilentService {
    listener: TcpListener,
    port: u16,
}

impl SilentService {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        Self { listener, port }
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milvaion"));
    command.arg("run").env_remove("PORT").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// Sends a signal, and checks that the program ends well and says why. Returns the duration in milliseconds.
async fn end(mut server: Child, signal: Signal) -> u128 {
    let since = Instant::now();
    let pid = i32::try_from(server.id().expect("it runs")).expect("a process id");
    kill(Pid::from_raw(pid), signal).expect("the signal is sent");
    let mut text = String::new();
    server.stderr.take().expect("piped").read_to_string(&mut text).await.expect("its output is text");
    let status = server.wait().await.expect("an exit status");
    assert!(status.success() && text.contains(STOPPED), "{status}: {text}");
    since.elapsed().as_millis()
}

#[tokio::test]
async fn signal_ends_the_wait_for_postgresql() {
    let service = SilentService::start().await;
    let config = server_env::config().await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let server = program()
            .env("DATABASE_URL", format!("postgres://milvaion@127.0.0.1:{}/milvaion", service.port))
            .env("REDIS_URL", &config.cache.url)
            .env("AMQP_URL", &config.broker.url)
            .spawn()
            .expect("the program starts");
        let _open = service.listener.accept().await.expect("it connects");
        let took = end(server, signal).await;
        // Without the signal, the start fails after four seconds.
        assert!(took < 2_000, "{took} ms");
    }
}

#[tokio::test]
async fn signal_ends_the_wait_for_rabbitmq() {
    let service = SilentService::start().await;
    let config = server_env::config().await;
    let server = program()
        .env("DATABASE_URL", &config.database.url)
        .env("REDIS_URL", &config.cache.url)
        .env("AMQP_URL", format!("amqp://milvaion@127.0.0.1:{}/%2f", service.port))
        .env("MILVAION_PREFIX", &config.broker.prefix)
        .env("MILVAION_KEY_PREFIX", &config.cache.key_prefix)
        .spawn()
        .expect("the program starts");
    let _open = service.listener.accept().await.expect("it connects");
    let took = end(server, Signal::SIGTERM).await;
    // Without the signal, the start fails after ten seconds.
    assert!(took < 2_000, "{took} ms");
}

/// Returns the command lines of the processes that name a folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("text");
    let command_line = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&text).replace('\0', " "))
    };
    std::fs::read_dir("/proc")
        .expect("processes")
        .filter_map(command_line)
        .filter(|line| line.contains(folder))
        .collect()
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn signal_stops_the_private_services_that_are_starting() {
        let config = server_env::config().await;
        let folder = std::env::temp_dir().join(unique("milvaion-start"));
        let mut server = program()
            .env_remove("DATABASE_URL")
            .env("REDIS_URL", &config.cache.url)
            .env_remove("AMQP_URL")
            .env("MILVAION_DATA", &folder)
            .spawn()
            .expect("the program starts");
        // RabbitMQ starts for several seconds more.
        let mut lines = BufReader::new(server.stderr.take().expect("piped")).lines();
        wait::until("PostgreSQL", async || {
            let line = lines.next_line().await.expect("its output is text").expect("it runs");
            line.contains("PostgreSQL is ready")
        })
        .await;
        let pid = i32::try_from(server.id().expect("it runs")).expect("a process id");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the signal is sent");
        let since = Instant::now();
        let mut rest = Vec::new();
        while let Some(line) = lines.next_line().await.expect("its output is text") {
            if line.contains("Stopping") {
                assert!(since.elapsed().as_millis() < 2_000, "{:?}", since.elapsed());
            }
            rest.push(line);
        }
        let status = server.wait().await.expect("an exit status");
        assert!(status.success(), "{status}: {rest:?}");
        assert!(rest.iter().any(|line| line.contains("Stopping")) && rest.iter().any(|line| line.contains(STOPPED)));
        assert_eq!(processes_in(&folder), Vec::<String>::new(), "its services have ended");
        std::fs::remove_dir_all(&folder).expect("deleted");
    }
}
