//! Outages of PostgreSQL, the source of truth: without it no occurrence is created, and afterwards each job's misfire
//! policy decides about the due times that passed.

use chrono::Duration;
use milvaion_schedule::rules::MisfirePolicy;
use milvaion_test_support::{private_service::PrivateService, server_env};

use super::workload::OutageWorkload;

/// The maximum time between PostgreSQL's return and the next occurrence. Some seconds are usual; the rest is for a busy
/// machine.
const RECOVERY_LIMIT: Duration = Duration::seconds(20);

const JOB_COUNT: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_crash_duplicates_nothing() {
    let mut postgres = PrivateService::postgres().await.expect("PostgreSQL starts");
    let mut config = server_env::config().await;
    config.database.url = postgres.url().to_owned();
    let mut workload = OutageWorkload::open(config).await;
    let catching_up = workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    let firing_once = workload.every_second(JOB_COUNT, MisfirePolicy::FireOnce).await;
    workload.wait_for_runs(4 * JOB_COUNT).await;

    let away = workload.server.clock.now();
    postgres.kill().await.expect("PostgreSQL is killed");
    // The duration of an operator's restart: there is no condition to wait for.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    postgres.start().await.expect("PostgreSQL starts");
    let back = workload.server.clock.now();
    workload.wait_for_occurrences(8 * JOB_COUNT).await;

    let verdict = workload.finish().await;
    verdict.check_no_duplicates_or_failures();
    verdict.check_nothing_lost(&catching_up);
    let first = verdict.first_created_after(back);
    assert!(first - back <= RECOVERY_LIMIT, "dispatching resumed after {} ms", (first - back).num_milliseconds());
    // One occurrence replaces all missed due times, so there are fewer than one for each second of the outage.
    let missed = usize::try_from((back - away).num_seconds()).expect("a positive duration");
    let (due_away, most) = (verdict.due_between(&firing_once, away, back), JOB_COUNT * (missed - 1));
    assert!(due_away <= most, "{due_away} occurrences for an outage of {missed} s, although one replaces all");
    workload.close().await;
    postgres.close().await.expect("PostgreSQL is stopped");
}
