//! The dashboard, the alert rules and the table of metrics agree with a live scrape.

use std::{collections::BTreeSet, fs};

use milvaion_api::requests::JobForm;
use milvaion_app::backend::TriggerInput;
use milvaion_test_support::{jobs, paths, singletons::LoopInstance, wait, worker_env};
use serde_json::Value;

use super::harness::{config, document, printed, promtool, scrape, scrape_as, series_names};
use crate::rest::harness::ApiHarness;

/// Returns a server that shows every metric: it has run a job, has a singleton loop, has an occurrence that no worker takes, an open stream and
/// requests.
async fn busy_server() -> (ApiHarness, worker_env::RunningWorker, reqwest::Response) {
    let addressed = config().await.metrics.address;
    let harness = ApiHarness::with(|config| {
        config.metrics.address = addressed;
        config.metrics.job_labels = true;
    })
    .await;
    let worker = worker_env::start_with_slots(&harness.config, 1);
    let server = &harness.server;
    let scheduled =
        JobForm { kind: "cron".into(), cron: "* * * * * *".into(), zone: "UTC".into(), ..jobs::form("Every second") };
    server.jobs.save(&jobs::admin(), &scheduled).await.expect("saved");
    let unserved = JobForm { target: "nobody/echo".into(), ..jobs::form("Without a worker") };
    let unserved = server.jobs.save(&jobs::admin(), &unserved).await.expect("saved");
    server.jobs.run_now(&jobs::admin(), unserved, TriggerInput::default()).await.expect("created");
    LoopInstance::connect(&harness.config.cache.url, server.cache.keys(), "host:1:a").await.take("price-feed").await;
    let token = harness.token(&harness.admin).await;
    let stream = harness.request("GET", "/events").bearer_auth(&token).send().await.expect("a response");
    wait::until("every kind of metric is shown", async || {
        let text = scrape(server).await;
        ["milvaion_stored_after_end_seconds_count 0", "milvaion_confirmed_after_due_seconds_count 0"]
            .iter()
            .all(|missing| !text.lines().any(|line| line == *missing))
            && [
                "milvaion_runs_queued{",
                "milvaion_job_queue_messages{",
                "milvaion_critical_queue_messages{",
                "milvaion_job_last_success",
                "milvaion_permits{",
                "milvaion_singleton_loop_leader{",
            ]
            .iter()
            .all(|wanted| text.lines().any(|line| line.starts_with(wanted)))
    })
    .await;
    (harness, worker, stream)
}

/// Returns the names that begin with `milvaion_` or `process_` in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| {
        (word.starts_with("milvaion_") && !word.starts_with("milvaion_worker_")) || word.starts_with("process_")
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Returns every PromQL expression of a dashboard.
fn expressions(panel: &Value, found: &mut Vec<String>) {
    match panel {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if ["expr", "query", "definition"].contains(&name.as_str()) => {
                        found.push(text.clone());
                    }
                    other => expressions(other, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_name_the_metrics_of_a_live_scrape() {
    let (harness, worker, stream) = busy_server().await;
    let text = scrape(&harness.server).await;
    let series = series_names(&text);

    let dashboard = fs::read_to_string(document("grafana-dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let mut queries = Vec::new();
    expressions(&dashboard, &mut queries);
    assert!(queries.len() > 30, "{queries:?}");
    let rules = fs::read_to_string(document("prometheus-rules.yaml")).expect("the rules");
    for used in names_in(&queries.join("\n")).iter().chain(&names_in(&rules)) {
        assert!(series.contains(used), "{used} is used and not in a scrape");
    }

    let readme = fs::read_to_string(document("README.md")).expect("the table");
    let rows = readme.lines().filter(|line| line.starts_with("| `milvaion_") || line.starts_with("| `process_"));
    let documented: BTreeSet<String> =
        rows.filter_map(|row| Some(row.split('`').nth(1)?.split('{').next()?.to_owned())).collect();
    let suffixes = ["_bucket", "_count", "_sum"];
    let histograms: BTreeSet<&str> = series.iter().filter_map(|name| name.strip_suffix("_bucket")).collect();
    let live: BTreeSet<String> = series
        .iter()
        .map(|name| {
            let stem = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            stem.filter(|stem| histograms.contains(stem)).unwrap_or(name).to_owned()
        })
        .collect();
    assert_eq!(documented, live, "the table in docs/monitoring/README.md and a live scrape");
    drop(stream);
    worker.stop().await;
    harness.server.stop().await;
}

#[test]
fn every_alert_is_tested_and_has_a_remedy() {
    let read = |name: &str| fs::read_to_string(document(name)).expect("the file");
    let (rules, tests) = (read("prometheus-rules.yaml"), read("prometheus-rules.test.yaml"));
    let troubleshooting = paths::repository_root().join("docs/troubleshooting.md");
    let troubleshooting = fs::read_to_string(troubleshooting).expect("the page");
    let field =
        |line: &str, name: &str| line.trim().strip_prefix(name).map(|value| value.trim().trim_matches('"').to_owned());
    let alerts: Vec<String> = rules.lines().filter_map(|line| field(line, "- alert:")).collect();
    let runbooks: Vec<String> = rules.lines().filter_map(|line| field(line, "runbook:")).collect();
    assert!(alerts.len() >= 15 && alerts.len() == runbooks.len(), "{alerts:?} {runbooks:?}");
    for (alert, runbook) in alerts.iter().zip(runbooks) {
        assert!(tests.contains(&format!("alertname: {alert}")), "{alert} has no test");
        assert_eq!(runbook, "docs/troubleshooting.md#alerts-of-prometheus", "{alert}");
        assert!(troubleshooting.contains(&format!("\n| `{alert}` |")), "{alert} has no line");
    }
    assert!(troubleshooting.contains("\n## Alerts of Prometheus\n"));
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promtool_accepts_a_live_scrape() {
        let (harness, worker, stream) = busy_server().await;
        let text = scrape_as(&harness.server, "text/plain").await;
        let output = promtool(&["check", "metrics"], &text).await;
        assert!(output.status.success() && printed(&output).is_empty(), "{}", printed(&output));
        drop(stream);
        worker.stop().await;
        harness.server.stop().await;
    }

    #[tokio::test]
    async fn promtool_accepts_the_alert_rules_and_their_tests() {
        let path = |name: &str| document(name).display().to_string();
        let checked = promtool(&["check", "rules", &path("prometheus-rules.yaml")], "").await;
        assert!(checked.status.success(), "{}", printed(&checked));
        let tested = promtool(&["test", "rules", &path("prometheus-rules.test.yaml")], "").await;
        assert!(tested.status.success(), "{}", printed(&tested));
    }
}
