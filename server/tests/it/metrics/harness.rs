//! A server whose metrics are served on an address of their own, and the programs that read them.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Output, Stdio},
    sync::LazyLock,
};

use milvaion_server::{config::ServerConfig, lifecycle::Server};
use milvaion_test_support::{paths, server_env};
use tokio::{io::AsyncWriteExt, process::Command};

/// The client of all scrapes, because each new client reads the certificates of the machine. It keeps no connection open,
/// so that the runtimes of several tests can use it.
static CLIENT: LazyLock<reqwest::Client> =
    LazyLock::new(|| reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client"));

/// Returns the configuration of a server that serves its metrics without authentication.
pub(crate) async fn config() -> ServerConfig {
    let mut config = server_env::config().await;
    config.metrics.address = Some("127.0.0.1:0".parse().expect("an address"));
    config
}

/// Scrapes a server without authentication, as Prometheus does.
pub(crate) async fn scrape(server: &Server) -> String {
    let accept =
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1";
    scrape_as(server, accept).await
}

/// Scrapes a server with a header `Accept`.
pub(crate) async fn scrape_as(server: &Server, accept: &str) -> String {
    let address = server.metrics_address.expect("the metrics have an address");
    let request = CLIENT.get(format!("http://{address}/metrics")).header("accept", accept);
    let response = request.send().await.expect("a response");
    assert!(response.status().is_success(), "{}", response.status());
    response.text().await.expect("text")
}

/// Returns the value of a series; none if it does not exist.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(series).filter(|rest| rest.starts_with(' ')))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the names of all series in a scrape, without labels.
pub(crate) fn series_names(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

/// Returns a path in `docs/monitoring`.
pub(crate) fn document(name: &str) -> PathBuf {
    paths::repository_root().join("docs/monitoring").join(name)
}

/// Runs Debian's `promtool` with an input, and returns what it printed.
pub(crate) async fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("promtool is installed: see xtask/install.sh test");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).await.expect("promtool reads its input");
    drop(stdin);
    child.wait_with_output().await.expect("promtool ends")
}

/// Returns what a program printed, for the message of a failed test.
pub(crate) fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
