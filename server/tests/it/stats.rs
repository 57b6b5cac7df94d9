//! Counts of reached statuses: what a page reads does not depend on what was folded.

use milvaion_server::store::retention::ExpiringTable;
use milvaion_test_support::database::{self, TestConnection};

/// Folds `deltas` deltas on two servers at once. Their minutes and statuses repeat after 360 of them.
async fn fold(deltas: i64) {
    let url = database::create().await;
    let store = database::open(&url).await;
    let mut connection = TestConnection::open(&url).await;
    let read = "SELECT coalesce(sum(count * 1000 + hashtext(status::text)), 0)::bigint FROM stats_minute";
    let append = format!(
        "INSERT INTO stats_deltas (minute, status, count, duration_ms)
         SELECT date_trunc('minute', now()) - (n % 90) * interval '1 minute', (enum_range(NULL::run_status))[1 + n % 8], 1 + n % 3, n
           FROM generate_series(1, {deltas}) n"
    );
    connection.execute(append.as_str()).await;
    let counts = connection.count("SELECT sum(count)::bigint FROM stats_minute").await;
    let rows = connection.count(read).await;

    // Two servers at once, as while no server leads.
    let fold_all = async || {
        let mut folded = 0;
        loop {
            match store.fold_stats().await.expect("the statement succeeds") {
                0 => return folded,
                some => folded += some,
            }
        }
    };
    let (first, second) = tokio::join!(fold_all(), fold_all());
    assert_eq!(first + second, deltas, "{first} and {second}");
    assert_eq!(connection.count("SELECT count(*) FROM stats_deltas").await, 0);
    assert_eq!(connection.count("SELECT sum(count)::bigint FROM stats_minute").await, counts);
    assert_eq!(connection.count(read).await, rows);

    connection.execute(append.as_str()).await;
    assert_eq!(connection.count("SELECT sum(count)::bigint FROM stats_minute").await, 2 * counts);
    // 90 minutes and 8 statuses have 360 pairs in common.
    let tomorrow = milvaion_server::clock::machine_now() + chrono::TimeDelta::days(1);
    assert_eq!(store.delete_expired(ExpiringTable::StatsFolded, tomorrow).await.expect("deleted"), 360);
    assert_eq!(connection.count("SELECT sum(count)::bigint FROM stats_minute").await, counts, "deltas are not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folding_changes_no_count_and_takes_each_delta_once() {
    fold(3_600).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_counts_are_merged_by_quarter_of_an_hour() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let mut connection = TestConnection::open(&url).await;
    let insert =
        "INSERT INTO stats_folded SELECT timestamptz '2026-11-01 00:00Z' + n * interval '1 minute', 'completed', n, n
                    FROM generate_series(0, 29) n";
    connection.execute(insert).await;
    let before = "2026-11-01T00:15:00Z".parse().expect("a time");
    assert_eq!(store.merge_old_stats(before).await.expect("merged"), 14, "the first minute is the quarter");
    let quarter = "SELECT count FROM stats_minute WHERE minute = '2026-11-01 00:00Z'";
    assert_eq!(connection.count(quarter).await, (0..15).sum::<i64>());
    assert_eq!(connection.count("SELECT count(*) FROM stats_minute").await, 1 + 15, "later minutes are left");

    // The report of an old run has arrived.
    connection.execute("INSERT INTO stats_deltas VALUES ('2026-11-01 00:07Z', 'completed', 1000)").await;
    assert_eq!(store.fold_stats().await.expect("folded"), 1);
    assert_eq!(store.merge_old_stats(before).await.expect("merged"), 1);
    assert_eq!(connection.count(quarter).await, (0..15).sum::<i64>() + 1_000);
    assert_eq!(store.merge_old_stats(before).await.expect("merged"), 0);
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn more_deltas_than_one_statement_folds_are_taken_once() {
        fold(45_000).await;
    }
}
