//! Plans outlive the size of a table they were made for; a day begins empty.

use milvaion_protocol::{message::StatusReport, status::OccurrenceStatus};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::{BackgroundTask, partition_analyze::AnalyzePartitions},
    clock::Clock,
    config::database::DatabaseConfig,
    domain::transition::fold,
    store::{Store, manual_runs::NewManualRun, partitions::DailyTable},
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use milvaion_test_support as common;

/// Writes two thousand queued occurrences of today, about eighty blocks.
async fn fill(connection: &mut PgConnection, clock: &Clock) {
    sqlx::query(
        "INSERT INTO occurrences (id, created_at, job_id, job_name, job_version, worker_id, job_type, job_data,
                                  scheduled_for, trigger, status, priority)
         SELECT gen_random_uuid(), $1, gen_random_uuid(), 'Many', 1, 'w', 't', '{}', $1, 'schedule', 0, 3
           FROM generate_series(1, 2000)",
    )
    .bind(clock.now())
    .execute(connection)
    .await
    .expect("written");
}

/// How the prepared `look` for something of now is carried out, as PostgreSQL tells it.
async fn plan(connection: &mut PgConnection, clock: &Clock) -> String {
    let statement = format!("EXPLAIN (COSTS off) EXECUTE look (gen_random_uuid(), '{}')", clock.now().to_rfc3339());
    let told: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(statement)).persistent(false).fetch_all(connection).await.expect("explained");
    told.join("\n")
}

#[tokio::test]
async fn a_day_that_was_measured_while_empty_is_measured_again_when_it_has_grown_and_plans_follow() {
    let url = common::database_url().await;
    let store = common::open(&url).await;
    let clock = Clock::manual(milvaion_server::clock::machine_now());
    let today = DailyTable::Occurrences.partition(clock.now().date_naive());
    let mut growth = AnalyzePartitions { store, clock: clock.clone() };
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL answers");
    for statement in [
        "VACUUM ANALYZE occurrences",
        // It would be another that measures it.
        &format!("ALTER TABLE {today} SET (autovacuum_enabled = false)"),
        "SET plan_cache_mode = force_generic_plan",
        "PREPARE look (uuid, timestamptz) AS SELECT status FROM occurrences WHERE id = $1 AND created_at = $2",
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.expect("done");
    }
    assert_eq!(growth.tick().await.expect("answered").analyzed, Vec::<String>::new(), "it is empty");
    let all = format!("Seq Scan on {today} ");
    assert!(plan(&mut connection, &clock).await.contains(&all), "nothing is read at no cost");

    fill(&mut PgConnection::connect(&url).await.expect("PostgreSQL answers"), &clock).await;
    assert!(plan(&mut connection, &clock).await.contains(&all), "the plan outlives the size it was made for");

    assert_eq!(growth.tick().await.expect("answered").analyzed, std::slice::from_ref(&today));
    let plan = plan(&mut connection, &clock).await;
    assert!(plan.contains("Index Scan") && !plan.contains("Seq Scan"), "{plan}");
    assert_eq!(growth.tick().await.expect("answered").analyzed, Vec::<String>::new(), "it has not grown since");
}

#[tokio::test]
async fn reports_and_confirmations_find_their_rows_by_index_on_a_day_that_was_empty_when_their_plan_was_made() {
    let url = common::database_url().await;
    common::open(&url).await.close().await;
    // One connection, and so one plan for each statement.
    let config = DatabaseConfig { url: url.clone(), max_connections: 1 };
    let store = Store::connect(&config).await.expect("the database can be used");
    let clock = Clock::manual(milvaion_server::clock::machine_now());
    let job = common::insert(&store, &clock, Schedule::Manual, None).await;
    let run_one = async || {
        let id = clock.occurrence_id();
        let asked = NewManualRun { id, job_id: job, by: "test".into(), ..NewManualRun::default() };
        store.insert_manual_run(&asked, clock.now()).await.expect("answered").into_created().expect("made");
        assert_eq!(store.mark_published(&[(id, 1)], clock.now()).await.expect("answered"), 1);
        let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, clock.now());
        assert_eq!(store.apply(&fold(vec![report]), clock.now()).await.expect("answered").rows.len(), 1);
    };
    run_one().await;
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL answers");
    fill(&mut connection, &clock).await;
    for _ in 0..5 {
        run_one().await;
    }
    // A connection tells what it has read when it ends, at the latest.
    store.close().await;
    let today = DailyTable::Occurrences.partition(clock.now().date_naive());
    let read = common::stack::eventually("the connections' counts", async || {
        let counts = "SELECT n_tup_upd, seq_tup_read FROM pg_stat_user_tables WHERE relname = $1";
        let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL answers");
        let (updated, read): (i64, i64) =
            sqlx::query_as(counts).bind(&today).fetch_one(&mut connection).await.expect("answered");
        (updated >= 12).then_some(read)
    })
    .await;
    assert!(read < 2_000, "{read} rows were read to find ten");
}
