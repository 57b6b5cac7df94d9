//! PostgreSQL is the truth: without it nothing fires, and afterwards each job's misfire policy says what is owed.

use chrono::Duration;
use milvaion_schedule::rules::MisfirePolicy;

use super::{private_service::PrivateService, workload::OutageWorkload};
use milvaion_test_support::stack;

/// How long after PostgreSQL is back dispatching may take to go on. Some seconds are usual; the rest is for a busy machine.
const RECOVERY_LIMIT: Duration = Duration::seconds(20);

const JOB_COUNT: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv05_a_crashed_postgresql_doubles_nothing_and_the_misfire_policy_decides_about_the_time_away() {
    let mut postgres = PrivateService::postgres().await;
    let mut config = stack::config().await;
    config.database.url.clone_from(&postgres.url);
    let mut workload = OutageWorkload::open(config).await;
    let owed = workload.every_second(JOB_COUNT, MisfirePolicy::CatchUp).await;
    let forgiven = workload.every_second(JOB_COUNT, MisfirePolicy::FireOnce).await;
    workload.runs(4 * JOB_COUNT).await;

    let away = workload.server.clock.now();
    postgres.kill().await;
    // As long as an operator's restart takes: time has to pass here, there is nothing else to wait for.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    postgres.start().await;
    let back = workload.server.clock.now();
    workload.records(8 * JOB_COUNT).await;

    let verdict = workload.settle().await;
    verdict.nothing_double_nothing_failed();
    verdict.nothing_lost(&owed);
    let first = verdict.first_made_after(back);
    assert!(first - back <= RECOVERY_LIMIT, "dispatching went on after {} ms", (first - back).num_milliseconds());
    // One occurrence stands for all that was missed, so there are fewer than one for each second away.
    let missed = usize::try_from((back - away).num_seconds()).expect("time goes on");
    let (due_away, most) = (verdict.due_between(&forgiven, away, back), JOB_COUNT * (missed - 1));
    assert!(due_away <= most, "{due_away} fires of the {missed} s away, although one stands for all");
    workload.close().await;
    postgres.close().await;
}
