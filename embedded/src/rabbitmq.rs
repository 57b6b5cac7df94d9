//! A private RabbitMQ: one node on loopback, with its own user, without plugins and without `epmd`.
//!
//! Erlang nodes usually find each other through a daemon, `epmd`. The first node starts it, and it then runs forever. A
//! single node does not need it: the name of the node and the port of its distribution are given on the command line,
//! so the node makes no lookup, and two clones can even have the same name. RabbitMQ still tries to start `epmd` every
//! minute, through another Erlang process. `ERL_FLAGS` applies to that process too and prevents it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use tokio::net::TcpStream;

use super::child::{ChildProcess, LaunchSpec};
use super::data_dir::RABBITMQ;
use super::{EmbeddedError, ProbeResult, StartContext, programs, until_healthy};

/// The user name at the broker.
const ACCOUNT: &str = "milvaion";

/// The name of the node. It is constant because it is part of the name of the database folder: with a changed host name
/// the queues would be lost.
const NODE: &str = "milvaion@localhost";

/// The configuration of Erlang's resolver. It holds the only name that the node needs, so that no name server is
/// queried, which may be slow or unreachable.
const INETRC: &str = "{lookup, [file]}.\n{host, {127,0,0,1}, [\"localhost\"]}.\n";

/// The longest time until RabbitMQ is healthy. It takes about 5 s on two idle cores, and several times that on a busy
/// machine or if many messages are recovered.
const HEALTHY_WITHIN: Duration = Duration::from_secs(120);

/// Starts RabbitMQ on `port`, and its Erlang distribution on `distribution`. Returns the URL once RabbitMQ accepts a
/// connection.
pub(super) async fn start(start: &StartContext<'_>, port: u16, distribution: u16) -> Result<String, EmbeddedError> {
    let program = server_program()?;
    let home = start.data_dir.home(&RABBITMQ)?;
    let password = start.data_dir.secret(RABBITMQ.folder)?;
    // Erlang requires that no other user can read the cookie, because the cookie gives full control of the broker.
    home.file(".erlang.cookie", &start.data_dir.secret("erlang-cookie")?)?;
    home.file("rabbitmq.conf", &config(port, &password))?;
    home.file("enabled_plugins", "[].\n")?;
    home.file("inetrc", INETRC)?;
    home.sub_folder("conf.d")?;
    home.sub_folder("mnesia")?;
    home.sub_folder("log")?;

    let mut launch = LaunchSpec::new(program)
        .clean_env()
        .folder(&home.folder)
        .account(home.account)
        .stop_signal(RABBITMQ.stop_signal);
    for (name, value) in environment(&home.folder, distribution) {
        launch = launch.env(name, value);
    }
    let child = start.register(ChildProcess::spawn("RabbitMQ", launch, &start.data_dir.log(RABBITMQ.folder)).await?);
    let url = format!("amqp://{ACCOUNT}:{password}@{}:{port}/%2f", Ipv4Addr::LOCALHOST);
    let took = until_healthy(&child, port, HEALTHY_WITHIN, async || probe(start, port, &url).await).await?;
    start.report(&format!("RabbitMQ is ready on port {port} ({} ms)", took.as_millis()));
    Ok(url)
}

/// Returns the start script of RabbitMQ. Debian's wrapper in `PATH` accepts only two users, so the script that it wraps
/// is preferred.
fn server_program() -> Result<PathBuf, EmbeddedError> {
    let mut folders = vec![PathBuf::from("/usr/lib/rabbitmq/bin")];
    folders.extend(programs::search_path());
    programs::find("rabbitmq-server", &folders)
        .ok_or(EmbeddedError::Missing { what: "RabbitMQ (rabbitmq-server)".into(), package: RABBITMQ.package })
}

fn config(port: u16, password: &str) -> String {
    format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\n\
         default_user = {ACCOUNT}\n\
         default_pass = {password}\n\
         # RabbitMQ blocks publishers below this free disk space or above this share of memory, until it recovers.\n\
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
        // Without these variables, the files would be read from /etc/rabbitmq, which belongs to the broker of the
        // system.
        ("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf")),
        ("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")),
        ("RABBITMQ_CONFIG_FILES", at("conf.d")),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config")),
        ("RABBITMQ_LOG", "-color".to_owned()),
        // Makes the script replace itself with the node; otherwise a shell would stay as its parent.
        ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
        ("ERL_INETRC", at("inetrc")),
        ("ERL_FLAGS", "-start_epmd false".to_owned()),
        // A port without a listener, so that the node does not register with an `epmd` of the system.
        ("ERL_EPMD_PORT", "1".to_owned()),
        // Without `epmd`, the other Erlang process mentioned above fails every minute. This avoids a crash dump each
        // time.
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
    // RabbitMQ opens the listener last, so most probes end here.
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
            secret: start.data_dir.secret_file(RABBITMQ.folder),
            folder: start.data_dir.services().join(RABBITMQ.folder),
        }),
        Err(_) => ProbeResult::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_belongs_to_the_broker_of_the_system() {
        for (name, value) in environment(Path::new("/data/rabbitmq"), 20_003) {
            assert!(!value.contains("/etc/") && !value.contains("/var/"), "{name}={value}");
        }
        assert!(config(20_002, "secret").contains("listeners.tcp.1 = 127.0.0.1:20002\n"));
    }
}
