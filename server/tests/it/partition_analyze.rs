//! Partitions are analyzed after they have grown: cached plans outlive the table size they were made for, and the partition
//! of a day starts empty.

use milvaion_protocol::{message::StatusReport, status::OccurrenceStatus};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::partition_analyze::PartitionAnalyzer,
    clock::Clock,
    config::database::DatabaseConfig,
    engine::Service,
    store::{Store, partitions::DailyTable},
};
use milvaion_test_support::{database, jobs, runs, wait};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// Inserts two thousand queued occurrences of today, about eighty blocks.
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
    .expect("the statement succeeds");
}

/// Returns PostgreSQL's plan of the prepared statement `look` for an occurrence of today.
async fn plan(connection: &mut PgConnection, clock: &Clock) -> String {
    let statement = format!("EXPLAIN (COSTS off) EXECUTE look (gen_random_uuid(), '{}')", clock.now().to_rfc3339());
    let lines = sqlx::query_scalar::<_, String>(AssertSqlSafe(statement)).persistent(false).fetch_all(connection).await;
    lines.expect("the query succeeds").join("\n")
}

#[tokio::test]
async fn grown_partition_is_analyzed_and_plans_change() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let clock = Clock::manual(milvaion_server::clock::machine_now());
    let today = DailyTable::Occurrences.partition(clock.now().date_naive());
    let mut task = PartitionAnalyzer { store, clock: clock.clone() };
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
    for statement in [
        "VACUUM ANALYZE occurrences",
        // Autovacuum would analyze it too.
        &format!("ALTER TABLE {today} SET (autovacuum_enabled = false)"),
        "SET plan_cache_mode = force_generic_plan",
        "PREPARE look (uuid, timestamptz) AS SELECT status FROM occurrences WHERE id = $1 AND created_at = $2",
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut connection)
            .await
            .expect("the statement succeeds");
    }
    assert_eq!(task.tick().await.expect("the tick succeeds").analyzed, Vec::<String>::new(), "it is empty");
    let full_scan = format!("Seq Scan on {today} ");
    assert!(plan(&mut connection, &clock).await.contains(&full_scan), "a scan of an empty table costs nothing");

    fill(&mut PgConnection::connect(&url).await.expect("PostgreSQL responds"), &clock).await;
    assert!(
        plan(&mut connection, &clock).await.contains(&full_scan),
        "the plan outlives the table size it was made for"
    );

    assert_eq!(task.tick().await.expect("the tick succeeds").analyzed, std::slice::from_ref(&today));
    let plan = plan(&mut connection, &clock).await;
    assert!(plan.contains("Index Scan") && !plan.contains("Seq Scan"), "{plan}");
    assert_eq!(task.tick().await.expect("the tick succeeds").analyzed, Vec::<String>::new(), "it has not grown since");
}

#[tokio::test]
async fn plans_made_on_an_empty_partition_use_the_index() {
    let url = database::create().await;
    database::open(&url).await.close().await;
    // With one connection, each statement has one plan.
    let config = DatabaseConfig { url: url.clone(), max_connections: 1 };
    let store = Store::connect(&config).await.expect("the database can be migrated");
    let clock = Clock::manual(milvaion_server::clock::machine_now());
    let job = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let run_one = async || {
        let id = runs::insert_manual(&store, &clock, job).await;
        assert_eq!(store.mark_published(&[(id, 1)], clock.now()).await.expect("the query succeeds"), 1);
        let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, clock.now());
        assert_eq!(runs::report(&store, &clock, vec![report]).await, 1);
    };
    run_one().await;
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
    fill(&mut connection, &clock).await;
    for _ in 0..5 {
        run_one().await;
    }
    // A connection publishes its statistics when it is closed, at the latest.
    store.close().await;
    let today = DailyTable::Occurrences.partition(clock.now().date_naive());
    let read = wait::eventually("the table's statistics", async || {
        let counts = "SELECT n_tup_upd, seq_tup_read FROM pg_stat_user_tables WHERE relname = $1";
        let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
        let (updated, read): (i64, i64) =
            sqlx::query_as(counts).bind(&today).fetch_one(&mut connection).await.expect("the query succeeds");
        (updated >= 12).then_some(read)
    })
    .await;
    assert!(read < 2_000, "{read} rows were read to find ten");
}
