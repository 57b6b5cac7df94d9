//! What a scrape shows, who may scrape, and what a scrape costs.

use std::time::{Duration, Instant};

use http::{StatusCode, header};
use milvaion_api::{permissions::Role, requests::JobForm};
use milvaion_app::backend::TriggerInput;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::lifecycle::Server;
use milvaion_test_support::{database::TestConnection, jobs, runs, server_env, wait, worker_env};
use serde_json::Value;

use super::harness::{config, scrape, scrape_as, value};
use crate::rest::harness::{ApiHarness, echo};

/// The time between two scrapes. A scrape takes the time of a processor, and some figures change every few seconds only.
const SCRAPE_PAUSE: Duration = Duration::from_millis(100);

/// Waits until a scrape shows a value of a series that `is_expected`.
async fn until_shown(server: &Server, series: &str, is_expected: impl Fn(f64) -> bool) {
    wait::until(series, async || {
        let is_shown = value(&scrape(server).await, series).is_some_and(&is_expected);
        if !is_shown {
            tokio::time::sleep(SCRAPE_PAUSE).await;
        }
        is_shown
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_is_counted_from_its_due_time_to_its_end() {
    let mut config = config().await;
    config.metrics.job_labels = true;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let form =
        JobForm { kind: "cron".into(), cron: "* * * * * *".into(), zone: "UTC".into(), ..jobs::form("Say \"hello\"") };
    server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    // The figures of services are kept for some seconds, so the first scrape should find the worker and the run.
    wait::until("a completed run", async || !runs::all(&server, Some(OccurrenceStatus::Completed)).await.is_empty())
        .await;
    let delays =
        ["created_after_due", "created_before_due", "confirmed_after_due", "started_after_due", "stored_after_end"];
    for delay in delays {
        until_shown(&server, &format!("milvaion_{delay}_seconds_count"), |count| count >= 1.0).await;
    }
    let text = scrape(&server).await;
    for status in ["queued", "running", "completed"] {
        let series = format!(r#"milvaion_occurrences_total{{worker="w",job_type="echo",status="{status}"}}"#);
        assert!(value(&text, &series).is_some_and(|count| count >= 1.0), "{series}\n{text}");
        let series = format!(r#"milvaion_job_occurrences_total{{job_name="Say \"hello\"",status="{status}"}}"#);
        assert!(value(&text, &series).is_some_and(|count| count >= 1.0), "{series}\n{text}");
    }
    assert!(text.contains("# {trace_id=\""), "a delay has an exemplar");
    assert!(text.ends_with("# EOF\n"));
    for (series, expected) in [
        ("milvaion_leader", 1.0),
        (r#"milvaion_jobs{state="active"}"#, 1.0),
        (r#"milvaion_service_healthy{service="dispatcher"}"#, 1.0),
        (r#"milvaion_health_state{part="postgresql"}"#, 0.0),
        ("milvaion_cluster_paused", 0.0),
        (r#"milvaion_failures_total{cause="permanent"}"#, 0.0),
        (r#"milvaion_scrape_error{part="queues"}"#, 0.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    until_shown(&server, r#"milvaion_instances{worker="w"}"#, |count| count == 1.0).await;
    until_shown(&server, r#"milvaion_job_type_instances{worker="w",job_type="echo"}"#, |count| count == 1.0).await;
    until_shown(&server, r#"milvaion_job_queue_consumers{worker="w",job_type="echo"}"#, |count| count == 1.0).await;
    until_shown(&server, r#"milvaion_statement_seconds_count{statement="finish_runs"}"#, |count| count >= 1.0).await;
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_is_counted_by_its_cause() {
    let config = config().await;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let form = JobForm { input_json: r#"{"say": "fail"}"#.into(), ..jobs::form("Fails") };
    let job = server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    let run = server.jobs.run_now(&jobs::admin(), job, TriggerInput::default()).await.expect("created");
    assert_eq!(runs::ended(&server, run).await.row.status, OccurrenceStatus::Failed);
    until_shown(&server, r#"milvaion_failures_total{cause="permanent"}"#, |count| count == 1.0).await;
    until_shown(&server, "milvaion_failures_open", |count| count == 1.0).await;
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn main_address_needs_a_token_of_any_role() {
    let harness = ApiHarness::new().await;
    assert_eq!(harness.server.metrics_address, None);
    let url = format!("http://{}/metrics", harness.server.address);
    let client = reqwest::Client::new();
    let refused = client.get(&url).send().await.expect("a response");
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(!refused.text().await.expect("text").contains("milvaion_build_info"));
    let viewer = harness.user("vera", Role::Viewer).await;
    let token = harness.token(&viewer).await;
    let shown = client.get(&url).bearer_auth(&token).send().await.expect("a response");
    assert_eq!(shown.status(), StatusCode::OK);
    assert_eq!(shown.headers()[header::CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    assert!(shown.text().await.expect("text").contains("milvaion_build_info{version="));
    let open_metrics = client.get(&url).bearer_auth(&token).header("accept", "application/openmetrics-text");
    let shown = open_metrics.send().await.expect("a response");
    assert_eq!(shown.headers()[header::CONTENT_TYPE], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    // The metrics name job types of all tags.
    let limited = harness.create_token(&viewer, |new| new.tag = Some("billing".into())).await.secret;
    let refused = client.get(&url).bearer_auth(&limited).send().await.expect("a response");
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_up_paths_are_one_series() {
    let harness =
        ApiHarness::with(|config| config.metrics.address = Some("127.0.0.1:0".parse().expect("an address"))).await;
    let token = harness.token(&harness.admin).await;
    let client = reqwest::Client::new();
    for n in 0..40 {
        let url = format!("http://{}/made-up/{n}", harness.server.address);
        client.get(&url).send().await.expect("a response");
        harness.call(&token, "GET", &format!("/jobs/{}", uuid_like(n)), Value::Null).await;
        harness.call(&token, "GET", &format!("/nothing/{n}"), Value::Null).await;
    }
    let text = scrape(&harness.server).await;
    let routes: Vec<&str> = text.lines().filter(|line| line.starts_with("milvaion_http_requests_total")).collect();
    let of = |route: &str, status: &str| {
        value(&text, &format!(r#"milvaion_http_requests_total{{route="{route}",method="GET",status="{status}"}}"#))
    };
    assert_eq!(of("none", "4xx"), Some(40.0), "{routes:#?}");
    assert_eq!(of("/api/v1/jobs/{id}", "4xx"), Some(40.0), "{routes:#?}");
    assert_eq!(of("/api/v1/{*path}", "4xx"), Some(40.0), "{routes:#?}");
    assert!(routes.len() < 10, "{routes:#?}");
    // The address of the metrics serves nothing else.
    let open = harness.server.metrics_address.expect("an address");
    let other = client.get(format!("http://{open}/api/v1/jobs")).send().await.expect("a response");
    assert_eq!(other.status(), StatusCode::NOT_FOUND);
    let written = client.post(format!("http://{open}/metrics")).send().await.expect("a response");
    assert_eq!(written.status(), StatusCode::METHOD_NOT_ALLOWED);
    harness.server.stop().await;
}

/// Returns an id of a job that does not exist.
fn uuid_like(n: u32) -> String {
    format!("00000000-0000-7000-8000-{n:012}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_stream_is_shown_with_its_bytes() {
    let harness =
        ApiHarness::with(|config| config.metrics.address = Some("127.0.0.1:0".parse().expect("an address"))).await;
    let token = harness.token(&harness.admin).await;
    let mut stream = harness.request("GET", "/events").bearer_auth(&token).send().await.expect("a response");
    stream.chunk().await.expect("readable").expect("a first frame");
    let listeners = r#"milvaion_stream_listeners{route="/api/v1/events"}"#;
    until_shown(&harness.server, listeners, |count| count == 1.0).await;
    // The first frame has eight bytes, and the next ping comes after fifteen seconds.
    harness.job(&token, echo("Streamed")).await;
    until_shown(&harness.server, r#"milvaion_stream_bytes_total{route="/api/v1/events"}"#, |bytes| bytes > 10.0).await;
    drop(stream);
    until_shown(&harness.server, listeners, |count| count == 0.0).await;
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_scrapes_are_few_statements() {
    scrape_at_once(20).await;
}

/// Scrapes a server `count` times at once, and checks that few of the scrapes read PostgreSQL.
async fn scrape_at_once(count: usize) {
    let config = config().await;
    let server = server_env::start(&config).await;
    let scrapes = (0..count).map(|_| scrape_as(&server, "text/plain"));
    futures::future::join_all(scrapes).await;
    let read =
        value(&scrape(&server).await, r#"milvaion_statement_seconds_count{statement="select worker_job_types"}"#);
    assert!(read.is_some_and(|count| count <= 5.0), "{read:?}");
    server.stop().await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fifty_scrapes_are_few_statements() {
        scrape_at_once(50).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn part_that_cannot_be_read_is_marked_and_missing() {
        let config = config().await;
        let server = server_env::start(&config).await;
        until_shown(&server, "milvaion_runs_unsent", |count| count == 0.0).await;
        let mut lock = TestConnection::open(&config.database.url).await;
        lock.execute("BEGIN").await;
        lock.execute("LOCK TABLE failed_occurrences IN ACCESS EXCLUSIVE MODE").await;
        wait::until("the error is shown", async || {
            let since = Instant::now();
            let text = scrape(&server).await;
            assert!(since.elapsed() < Duration::from_secs(10), "Prometheus would give up");
            let is_marked = value(&text, r#"milvaion_scrape_error{part="schedule"}"#) == Some(1.0);
            is_marked
                && value(&text, "milvaion_failures_open").is_none()
                && value(&text, "milvaion_leader") == Some(1.0)
        })
        .await;
        lock.execute("ROLLBACK").await;
        until_shown(&server, r#"milvaion_scrape_error{part="schedule"}"#, |error| error == 0.0).await;
        server.stop().await;
    }
}
