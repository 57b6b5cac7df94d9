//! Debian's Prometheus scrapes a server, with the configuration that the documents give.

use std::{fs, process::Stdio};

use milvaion_test_support::{net::free_address, server_env, services, wait};
use serde_json::Value;
use tokio::process::Command;

use crate::metrics::harness::{config, document, printed, promtool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_the_server_and_loads_the_rules() {
    let config = config().await;
    let server = server_env::start(&config).await;
    let folder = std::env::temp_dir().join(services::unique("milvaion-prometheus"));
    fs::create_dir_all(&folder).expect("a folder");
    let target = server.metrics_address.expect("an address");
    let rules = document("prometheus-rules.yaml");
    // The interval is also the time limit of a scrape, and on a busy machine one takes more than a fraction of a second.
    let settings = format!(
        "global:\n  scrape_interval: 2s\n  evaluation_interval: 200ms\nrule_files: [{}]\nscrape_configs:\n  \
         - job_name: milvaion\n    static_configs: [{{targets: [\"{target}\"]}}]\n",
        rules.display()
    );
    let file = folder.join("prometheus.yml");
    fs::write(&file, settings).expect("written");
    let address = free_address();
    let mut prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .arg("--enable-feature=exemplar-storage")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("Prometheus is installed: see xtask/install.sh test");
    let url = format!("http://{address}");
    let shows = async |query: &str| {
        let output = promtool(&["query", "instant", &url, query], "").await;
        output.status.success() && printed(&output).contains("=> 1 @")
    };
    wait::until("the target is up", async || shows("up{job=\"milvaion\"}").await).await;
    wait::until("the server leads", async || shows("sum(milvaion_leader)").await).await;
    let loaded: Value = read(&format!("{url}/api/v1/rules")).await;
    let groups = loaded["data"]["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).collect();
    assert!(rules.len() >= 15, "{loaded}");
    let evaluated = async || {
        let found: Value = read(&format!("{url}/api/v1/rules")).await;
        !found.to_string().contains(r#""health":"unknown""#)
    };
    wait::until("the rules are evaluated", evaluated).await;
    let found = read(&format!("{url}/api/v1/rules")).await.to_string();
    assert!(!found.contains(r#""health":"err""#), "{found}");
    prometheus.kill().await.expect("it ends");
    server.stop().await;
    fs::remove_dir_all(&folder).expect("removed");
}

async fn read(url: &str) -> Value {
    let text = reqwest::get(url).await.expect("a response").text().await.expect("text");
    serde_json::from_str(&text).expect("JSON")
}
