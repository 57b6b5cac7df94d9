//! A private RabbitMQ: one node, loopback, its own user, no plugins, and no `epmd`.
//!
//! Erlang nodes usually find each other through a daemon, `epmd`, that the first node starts and nobody stops. A
//! single node needs none: it is given its name and the port of its distribution on the command line, so that the
//! node never asks, and two clones can even share a name. RabbitMQ tries all the same to revive `epmd` every minute,
//! by starting another Erlang; `ERL_FLAGS` reaches that one too and forbids it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use nix::sys::signal::Signal;
use tokio::net::TcpStream;

use super::child::{ChildProcess, LaunchSpec};
use super::{EmbeddedError, ProbeResult, StartContext, programs, until_healthy};

pub(super) const FOLDER: &str = "rabbitmq";
pub(super) const PROCESS: &str = "beam.smp";
pub(super) const USER: &str = "rabbitmq";
pub(super) const PACKAGE: &str = "rabbitmq-server";

/// The node turns it into an orderly stop of its applications.
pub(super) const STOP_SIGNAL: Signal = Signal::SIGTERM;

/// The broker account.
const ACCOUNT: &str = "milvaion";

/// Constant, because the database's folder bears the name: a changed host name must not lose the queues.
const NODE: &str = "milvaion@localhost";

/// Erlang's resolver: the one name the node needs, and no question to a name server, which may be slow or away.
const INETRC: &str = "{lookup, [file]}.\n{host, {127,0,0,1}, [\"localhost\"]}.\n";

/// Some 5 s on two idle cores; busy machines take several times that, and so does recovering many messages.
const HEALTHY_WITHIN: Duration = Duration::from_secs(120);

/// Starts RabbitMQ on `port` (and its Erlang distribution on `distribution`) and returns its URL when it lets us in.
pub(super) async fn start(start: &StartContext<'_>, port: u16, distribution: u16) -> Result<String, EmbeddedError> {
    let program = server_program()?;
    let home = start.data_dir.home(FOLDER, USER, PACKAGE)?;
    let password = start.data_dir.secret(FOLDER)?;
    // Erlang insists that nobody else can read the cookie; anyone who could would own the broker.
    home.file(".erlang.cookie", &start.data_dir.secret("erlang-cookie")?)?;
    home.file("rabbitmq.conf", &config(port, &password))?;
    home.file("enabled_plugins", "[].\n")?;
    home.file("inetrc", INETRC)?;
    home.sub_folder("conf.d")?;
    home.sub_folder("mnesia")?;
    home.sub_folder("log")?;

    let mut launch =
        LaunchSpec::new(program).clean_env().folder(&home.folder).account(home.account).stop_signal(STOP_SIGNAL);
    for (name, value) in environment(&home.folder, distribution) {
        launch = launch.env(name, value);
    }
    let child = start.register(ChildProcess::spawn("RabbitMQ", launch, &start.data_dir.log(FOLDER)).await?);
    let url = format!("amqp://{ACCOUNT}:{password}@{}:{port}/%2f", Ipv4Addr::LOCALHOST);
    let took = until_healthy(&child, port, HEALTHY_WITHIN, async || probe(start, port, &url).await).await?;
    start.say(&format!("RabbitMQ is ready on port {port} ({} ms)", took.as_millis()));
    Ok(url)
}

/// Debian's own start script refuses any user but two, so the one below it is taken.
fn server_program() -> Result<PathBuf, EmbeddedError> {
    let mut folders = vec![PathBuf::from("/usr/lib/rabbitmq/bin")];
    folders.extend(programs::search_path());
    programs::find("rabbitmq-server", &folders)
        .ok_or(EmbeddedError::Missing { what: "RabbitMQ (rabbitmq-server)".into(), package: PACKAGE })
}

fn config(port: u16, password: &str) -> String {
    format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\n\
         default_user = {ACCOUNT}\n\
         default_pass = {password}\n\
         # Publishing stops, and resumes by itself, below this much free disk or above this share of memory.\n\
         disk_free_limit.absolute = 200MB\n\
         vm_memory_high_watermark.relative = 0.4\n\
         log.file = false\n\
         log.console = true\n\
         log.console.level = warning\n"
    )
}

fn environment(folder: &Path, distribution: u16) -> Vec<(&'static str, String)> {
    let at = |name: &str| folder.join(name).display().to_string();
    vec![
        ("HOME", folder.display().to_string()),
        ("RABBITMQ_NODENAME", NODE.to_owned()),
        ("RABBITMQ_DIST_PORT", distribution.to_string()),
        ("RABBITMQ_MNESIA_BASE", at("mnesia")),
        ("RABBITMQ_LOG_BASE", at("log")),
        ("RABBITMQ_PID_FILE", at("pid")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins")),
        // Each of these would otherwise be read from /etc/rabbitmq, which belongs to the system's own broker.
        ("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf")),
        ("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")),
        ("RABBITMQ_CONFIG_FILES", at("conf.d")),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config")),
        ("RABBITMQ_LOG", "-color".to_owned()),
        // Makes the script become the node, instead of a shell that waits for it.
        ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
        ("ERL_INETRC", at("inetrc")),
        ("ERL_FLAGS", "-start_epmd false".to_owned()),
        // Where nobody listens: an `epmd` of the system's is not to hear of this node.
        ("ERL_EPMD_PORT", "1".to_owned()),
        // Without its `epmd` the other Erlang mentioned above fails, every minute; no dump for that.
        ("ERL_CRASH_DUMP_SECONDS", "0".to_owned()),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            format!(
                "-sname {NODE} -erl_epmd_port {distribution} \
                 -kernel inet_dist_use_interface {{127,0,0,1}}"
            ),
        ),
    ]
}

async fn probe(start: &StartContext<'_>, port: u16, url: &str) -> ProbeResult {
    // The listener opens last of all, so most looks end here.
    if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
        return ProbeResult::NotYet;
    }
    match Connection::connect(url, ConnectionProperties::default()).await {
        Ok(connection) => {
            let _ = connection.close(200, "healthy".into()).await;
            ProbeResult::Healthy
        }
        Err(error) if error.to_string().contains("ACCESS_REFUSED") => ProbeResult::Hopeless(EmbeddedError::Password {
            service: "RabbitMQ",
            secret: start.data_dir.secret_file(FOLDER),
            folder: start.data_dir.services().join(FOLDER),
        }),
        Err(_) => ProbeResult::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_from_or_written_to_the_systems_own_broker() {
        for (name, value) in environment(Path::new("/data/rabbitmq"), 20_003) {
            assert!(!value.contains("/etc/") && !value.contains("/var/"), "{name}={value}");
        }
        assert!(config(20_002, "secret").contains("listeners.tcp.1 = 127.0.0.1:20002\n"));
    }
}
