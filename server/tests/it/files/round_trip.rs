//! Export and apply, over generated definitions: nothing changes, and another installation gets the same.

use std::collections::BTreeMap;

use milvaion_test_support::database::TestConnection;
use serde_json::Value;

use super::{Files, cli::shell, generated::Generator};

/// The number of generated calendars.
const CALENDARS: u64 = 6;

/// Counts the jobs of which a column that statements read differs from the stored rules.
const DIFFERING_COLUMNS: &str = "SELECT count(*) FROM jobs
     WHERE (start_at, end_at, calendars, (ARRAY['skip', 'queue', 'allow', 'replace'])[overlap_policy + 1], max_concurrent,
            concurrency_key, concurrency_key_limit, max_retries, heartbeat_timeout_seconds, unreachable_timeout_seconds,
            on_lost, auto_disable, start_within_seconds)
           IS DISTINCT FROM
           ((rules ->> 'startAt')::timestamptz, (rules ->> 'endAt')::timestamptz,
            ARRAY(SELECT jsonb_array_elements_text(rules -> 'calendars')::uuid), coalesce(rules ->> 'overlap', 'allow'),
            (rules ->> 'maxConcurrent')::int, rules -> 'keyLimit' ->> 'key', (rules -> 'keyLimit' ->> 'limit')::int,
            coalesce((rules ->> 'maxRetries')::int, 0), (rules ->> 'heartbeatTimeoutSeconds')::int,
            (rules ->> 'unreachableTimeoutSeconds')::int, coalesce(rules ->> 'onLost', 'requeue'),
            coalesce(rules -> 'autoDisable', '{}'), (rules ->> 'startWithinSeconds')::int)";

async fn create(files: &Files, seed: u64, jobs: u64) {
    let mut generator = Generator::new(seed);
    let mut calendars = Vec::new();
    for number in 0..CALENDARS {
        let calendar = files.harness.call(&files.token, "POST", "/calendars", generator.calendar(number)).await.ok();
        calendars.push(calendar["id"].clone());
    }
    for number in 0..jobs {
        files.harness.job(&files.token, generator.job(number, &calendars)).await;
    }
}

/// Returns the versions of all jobs.
async fn versions(files: &Files) -> Vec<i32> {
    let page = files.harness.call(&files.token, "GET", "/jobs?limit=200", Value::Null).await.ok();
    let mut versions = Vec::new();
    for job in page["items"].as_array().expect("a list") {
        let id = job["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        versions.push(files.harness.server.store.job(id).await.expect("read").expect("stored").version);
    }
    versions
}

async fn delete_all(files: &Files) {
    for path in ["jobs", "calendars"] {
        let page = files
            .harness
            .call(
                &files.token,
                "GET",
                &format!("/{path}{}", if path == "jobs" { "?limit=200" } else { "" }),
                Value::Null,
            )
            .await
            .ok();
        for item in page["items"].as_array().expect("a list") {
            let id = item["id"].as_str().expect("an id");
            files.harness.call(&files.token, "DELETE", &format!("/{path}/{id}"), Value::Null).await.ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn export_and_apply_change_nothing() {
    check_round_trip(1, 6).await;
}

/// Exports, compares and applies generated jobs, once for each seed.
async fn check_round_trip(seeds: u64, jobs: u64) {
    let files = Files::new().await;
    let mut connection = TestConnection::open(&files.harness.config.database.url).await;
    let folder = tempfile();
    let path = folder.join("all.yaml");
    let path = path.to_str().expect("UTF-8");
    let shell = shell(&files);
    for seed in 1..=seeds {
        create(&files, seed, jobs).await;
        assert_eq!(connection.count(DIFFERING_COLUMNS).await, 0, "seed {seed}");
        let exported = shell.ok(&["export"]).await;
        std::fs::write(path, &exported).expect("written");
        let compared = shell.run(&["diff", "-f", path]).await;
        let (text, errors) = (String::from_utf8_lossy(&compared.stdout), String::from_utf8_lossy(&compared.stderr));
        assert_eq!(compared.status.code(), Some(0), "seed {seed}: {text} {errors}");
        shell.ok(&["apply", "-f", path]).await;
        assert!(versions(&files).await.iter().all(|version| *version == 1), "seed {seed}: a job was changed");
        let adopted = shell.ok(&["export"]).await;
        assert_eq!(adopted.lines().filter(|line| line.starts_with("id: ")).count(), 0, "each job has a key now");

        // Another installation, whose ids differ.
        let documents = by_name(&shell.ok(&["export", "-o", "json"]).await);
        delete_all(&files).await;
        std::fs::write(path, &adopted).expect("written");
        shell.ok(&["apply", "-f", path]).await;
        let again = by_name(&shell.ok(&["export", "-o", "json"]).await);
        assert_eq!(again.keys().collect::<Vec<_>>(), documents.keys().collect::<Vec<_>>());
        for (name, document) in documents {
            assert_eq!(again[&name], document, "seed {seed}");
        }
        delete_all(&files).await;
    }
    std::fs::remove_dir_all(folder).expect("deleted");
    files.stop().await;
}

/// Returns exported documents by what identifies them.
fn by_name(exported: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_json::from_str(exported).expect("JSON");
    let name = |document: &Value| format!("{} {}", document["key"], document["name"]);
    documents.into_iter().map(|document| (name(&document), document)).collect()
}

/// Returns a new folder.
fn tempfile() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("milvaion-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("created");
    folder
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn export_and_apply_of_many_jobs_change_nothing() {
        check_round_trip(2, 120).await;
    }
}
