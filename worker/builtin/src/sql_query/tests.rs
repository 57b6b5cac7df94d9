//! Tests on a real PostgreSQL (`DATABASE_URL`) and on SQLite files.

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_test_support::services::database_url as url;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tokio::time::{sleep, timeout};

use super::*;
use crate::context::tests::{all_of, test_run};

const SECRETS: &[(&str, &str)] = &[("word", "c4n4ry-word"), ("number", "47114711")];

/// Returns the URL of an empty SQLite file for one test.
fn file(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("milvaion-sql-{name}-{}.db", std::process::id()));
    std::fs::write(&path, "").expect("written");
    format!("sqlite:{}", path.display())
}

fn job(address: &str) -> SqlQuery {
    SqlQuery { databases: BTreeMap::from([("main_eu".to_owned(), address.parse().expect("a database"))]) }
}

async fn ask(address: &str, mut input: Value) -> TestReport {
    input["connection"] = json!("Main-EU");
    test_run(job(address), SECRETS, input).run().await
}

fn result(record: &TestReport) -> Value {
    let end = record.end();
    assert_eq!(end.status, OccurrenceStatus::Completed, "{end:?}");
    serde_json::from_str(end.result.as_deref().expect("a result")).expect("JSON")
}

fn exception(record: &TestReport) -> &str {
    record.end().exception.as_deref().unwrap_or_else(|| panic!("must fail: {record:?}"))
}

async fn own() -> PgConnection {
    PgConnection::connect(&url()).await.expect("PostgreSQL answers")
}

#[tokio::test]
async fn values_round_trip_by_type() {
    let query = "select $1::bool a, $2::int2 b, $3::int8 c, $4::float8 d, $5::numeric e, $6::text f, $7::uuid g, $8::jsonb h, \
        $9::timestamptz i, $10::timestamp j, $11::date k, $12::bytea l, $13::int4[] m, $14::text n, $15::text[] o, \
        interval '1 month 2 days 3.5 seconds' p, 'NaN'::float8 q, '{x,null}'::varchar[] r, 'n'::name s, 12.50 t, 100::numeric u";
    let parameters = json!([
        true, 7, "9223372036854775807", 1.5, "12345678901234567890.123", "it's; drop table x; --",
        "018f8f0e-0000-7000-8000-000000000000", {"a": [1, null]}, "2026-11-21T13:00:00+01:00", "2026-11-21T12:00:00",
        "2026-11-21", "AAEC", [1, null, 3], null, ["a", null]
    ]);
    let result = result(&ask(&url(), json!({"query": query, "parameters": parameters})).await);
    assert_eq!(
        result["rows"],
        json!([[
            true, 7, 9_223_372_036_854_775_807_i64, 1.5, "12345678901234567890.123", "it's; drop table x; --",
            "018f8f0e-0000-7000-8000-000000000000", {"a": [1, null]}, "2026-11-21T12:00:00Z", "2026-11-21T12:00:00",
            "2026-11-21", "AAEC", [1, null, 3], null, ["a", null], "P1M2DT3.500000S", "NaN", ["x", null], "n", "12.5", "100"
        ]])
    );
    assert_eq!(result["columns"][2], json!({"name": "c", "type": "int8"}));
    assert_eq!((&result["rowCount"], &result["truncated"]), (&json!(1), &json!(false)));
}

#[tokio::test]
async fn unsupported_values_are_reported() {
    for (query, parameters, message) in [
        ("select $1::int4", json!(["x"]), "`parameters[0]` cannot be bound as int4: it is not a number"),
        ("select $1::int4", json!([3_000_000_000_i64]), "cannot be bound as int4"),
        ("select $1::text, $2::text", json!(["a", 5]), "`parameters[1]` cannot be bound as text: it is not a string"),
        ("select $1::timestamptz", json!(["yesterday"]), "not a time with an offset"),
        ("select $1::point", json!(["(1,2)"]), "cannot be bound as point: this type is not supported"),
        ("select $1::int4", json!([]), "1 parameters and `parameters` has 0 entries"),
        ("select point(1, 2) as p", json!([]), "the column \"p\" has the type point, which is not supported"),
        ("select 1; select 2", json!([]), "multiple commands"),
        ("selec 1", json!([]), "42601"),
        (" ", json!([]), "`query` is empty"),
    ] {
        let record = ask(&url(), json!({"query": query, "parameters": parameters})).await;
        assert!(exception(&record).contains(message), "{query}: {record:?}");
    }
    let record = test_run(job(&url()), SECRETS, json!({"connection": "other", "query": "select 1"})).run().await;
    assert!(exception(&record).contains("give one of main_eu"), "{record:?}");
}

#[tokio::test]
async fn result_rows_are_bounded() {
    let result_of = |record| result(&record);
    let few = result_of(ask(&url(), json!({"query": "select generate_series(1, 100000) n", "maxRows": 3})).await);
    assert_eq!((&few["rows"], &few["truncated"]), (&json!([[1], [2], [3]]), &json!(true)));
    let wide = "select repeat('x', 1000), n from generate_series(1, 100) n";
    let record = ask(&url(), json!({"query": wide})).await;
    assert!(record.end().result.as_deref().is_some_and(|text| text.len() <= crate::context::MAX_RESULT_BYTES));
    let wide = result_of(record);
    let kept = wide["rows"].as_array().map_or(0, Vec::len);
    assert!((50..100).contains(&kept), "{kept}");
    // A statement that writes is read to its end, so all rows are written and counted.
    let mut connection = own().await;
    let table = format!("sql_query_{}", std::process::id());
    connection.execute(sqlx::AssertSqlSafe(format!("create table {table} (n int)"))).await.expect("created");
    let insert = format!("insert into {table} select generate_series(1, 5000) returning n");
    let input = json!({"query": insert, "readOnly": false, "maxRows": 2});
    let written = result_of(ask(&url(), input).await);
    assert_eq!(
        (&written["rowCount"], &written["rowsAffected"], &written["truncated"]),
        (&json!(5000), &json!(5000), &json!(true))
    );
    let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from {table}")))
        .fetch_one(&mut connection)
        .await
        .expect("counted");
    assert_eq!(count, 5000);
    // By default no statement writes, in whatever form.
    for query in [
        format!("delete from {table}"),
        format!("do $$ begin delete from {table}; end $$"),
        format!("do $$ begin commit; set transaction read write; delete from {table}; end $$"),
        format!("with gone as (delete from {table} returning 1) select count(*) from gone"),
    ] {
        let record = ask(&url(), json!({"query": query})).await;
        let text = exception(&record);
        assert!(text.contains("readOnly") || text.contains("invalid transaction termination"), "{query}: {text}");
    }
    let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from {table}")))
        .fetch_one(&mut connection)
        .await
        .expect("counted");
    assert_eq!(count, 5000);
    // A statement that must not be in a transaction can run.
    let record = ask(&url(), json!({"query": format!("vacuum {table}"), "readOnly": false})).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
    connection.execute(sqlx::AssertSqlSafe(format!("drop table {table}"))).await.expect("dropped");
}

/// Returns the number of sessions that run a statement with `mark` in it.
async fn running(connection: &mut PgConnection, mark: &str) -> i64 {
    sqlx::query_scalar("select count(*) from pg_stat_activity where query like '%' || $1 || '%' and state = 'active' and pid <> pg_backend_pid()")
        .bind(mark)
        .fetch_one(connection)
        .await
        .expect("counted")
}

async fn wait_until_running(connection: &mut PgConnection, mark: &str, count: i64) {
    let polling = async {
        while running(connection, mark).await != count {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), polling).await.expect("the expected number of sessions");
}

#[tokio::test]
async fn cancelled_statement_ends_on_the_server() {
    let mut connection = own().await;
    let mark = format!("cancelled-{}", std::process::id());
    let token = CancellationToken::new();
    let input = json!({"connection": "main_eu", "query": format!("select pg_sleep(60) /* {mark} */")});
    let test_run = test_run(job(&url()), SECRETS, input).cancelled_by(token.clone(), "by ann");
    let (record, ()) = tokio::join!(test_run.run(), async {
        wait_until_running(&mut connection, &mark, 1).await;
        token.cancel();
    });
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
    // The statement ends long before its sleep is over.
    wait_until_running(&mut own().await, &mark, 0).await;
}

#[tokio::test]
async fn server_cancels_a_statement_at_its_timeout() {
    let record = ask(&url(), json!({"query": "select pg_sleep(60)", "timeoutSeconds": 1})).await;
    assert!(exception(&record).contains("57014"), "{record:?}");
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
}

#[tokio::test]
async fn deadlock_is_retryable_and_constraint_is_not() {
    let mut connection = own().await;
    let mut fail = async |sql: &'static str| {
        let error = connection.execute(sql).await.expect_err(sql);
        error_class::classify_error(error)
    };
    for (sql, is_permanent) in [
        ("do $$ begin raise exception using errcode = '40001'; end $$", false),
        ("do $$ begin raise exception using errcode = '40P01'; end $$", false),
        ("do $$ begin raise exception using errcode = '23505'; end $$", true),
        ("select * from no_such_table", true),
        ("select 1/0", true),
    ] {
        assert_eq!(fail(sql).await.is_permanent(), is_permanent, "{sql}");
    }
    // The server ended the session. Another attempt opens another one.
    let lost = fail("select pg_terminate_backend(pg_backend_pid())").await;
    assert!(!lost.is_permanent(), "{lost}");
    let unreachable = "postgres://u:p@127.0.0.1:1/x".parse().expect("a database");
    let SqlDatabase::Postgres { options, .. } = unreachable else { panic!("the URL is one of PostgreSQL") };
    assert!(!error_class::classify_error(options.connect().await.expect_err("no server listens")).is_permanent());
}

#[tokio::test]
async fn neither_database_shows_a_secret() {
    let input = |query: &str| json!({"query": query, "parameters": ["{{secret:word}}", "{{secret:number}}"]});
    let lite = file("secret");
    for (address, query) in [
        (url(), "select $1::text, $2::int8, encode($1::text::bytea, 'base64')"),
        (url(), "select $1::text, $2::int8, cast('c4n4ry-word' as int)"),
        (lite.clone(), "select ?1, cast(?2 as integer), hex(?1)"),
        (lite.clone(), "select ?1, ?2, json(?1)"),
    ] {
        let record = ask(&address, input(query)).await;
        let all = all_of(&record);
        for trace in ["c4n4ry", "47114711", "YzRuNHJ5", "63346E347279"] {
            assert!(!all.contains(trace), "{query}: {trace} is in {all}");
        }
    }
    // Inserted into the statement, a value could change it.
    let record = ask(&lite, json!({"query": "select '{{secret:word}}'"})).await;
    assert!(exception(&record).contains("bind it instead"), "{record:?}");
}

#[tokio::test]
async fn sqlite_runs_one_bounded_statement() {
    let lite = file("statements");
    let write = async |query: &str| ask(&lite, json!({"query": query, "readOnly": false})).await;
    assert_eq!(
        write("create table t (a integer primary key, b text, c blob)").await.status(),
        OccurrenceStatus::Completed
    );
    let written = result(&write("insert into t values (1, 'x;y', x'000102'), (2, null, null) -- two; rows").await);
    assert_eq!(written["rowsAffected"], 2);
    let input =
        json!({"query": "select a, b, c, 1.5, ?1 from t where a <= ?2 order by a", "parameters": [{"k": [1]}, 2]});
    let read = result(&ask(&lite, input).await);
    assert_eq!(read["rows"], json!([[1, "x;y", "AAEC", 1.5, "{\"k\":[1]}"], [2, null, null, 1.5, "{\"k\":[1]}"]]));
    assert_eq!(read["columns"][0], json!({"name": "a", "type": "integer"}));
    for (query, message) in [
        ("delete from t", "readonly"),
        ("insert into t values (1, '', '')", "readonly"),
        ("select 1; delete from t", "more than one statement"),
        ("attach '/etc/passwd' as p", "ATTACH"),
        ("selec", "syntax"),
    ] {
        let record = ask(&lite, json!({"query": query})).await;
        assert!(exception(&record).contains(message), "{query}: {record:?}");
    }
    assert!(exception(&write("insert into t values (1, '', '')").await).contains("UNIQUE"));
    let few = result(&ask(&lite, json!({"query": "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n", "maxRows": 2})).await);
    assert_eq!((&few["rows"], &few["truncated"]), (&json!([[1], [2]]), &json!(true)));
}

/// Returns true if this process has a thread of this name.
fn has_thread(name: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let name_of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.filter_map(Result::ok).any(|thread| name_of(thread).trim() == name)
}

#[tokio::test]
async fn endless_sqlite_statement_is_interrupted() {
    let Ok(SqlDatabase::Sqlite { options }) = file("endless").parse() else { panic!("the URL is one of SQLite") };
    let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n";
    for (name, is_cancelled) in [("endless-late", false), ("endless-cancel", true)] {
        let options = Box::new(options.clone().thread_name(move |_| name.to_owned()));
        let job = SqlQuery { databases: BTreeMap::from([("main".to_owned(), SqlDatabase::Sqlite { options })]) };
        let input =
            json!({"connection": "main", "query": endless, "timeoutSeconds": if is_cancelled { 60 } else { 1 }});
        let token = CancellationToken::new();
        let test_run = test_run(job, SECRETS, input).cancelled_by(token.clone(), "by ann");
        let (record, ()) = tokio::join!(test_run.run(), async {
            while !has_thread(name) {
                sleep(Duration::from_millis(5)).await;
            }
            if is_cancelled {
                token.cancel();
            }
        });
        if is_cancelled {
            assert_eq!(record.status(), OccurrenceStatus::Cancelled);
        } else {
            assert!(exception(&record).contains("cancelled after 1 s"), "{record:?}");
            assert_eq!(record.status(), OccurrenceStatus::TimedOut);
        }
        let gone = async {
            while has_thread(name) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(5), gone).await.expect("the thread ends");
    }
}

#[tokio::test]
async fn locked_sqlite_is_retryable() {
    let lite = file("locked");
    let database = lite.parse().expect("a database");
    let SqlDatabase::Sqlite { options } = database else { panic!("the URL is one of SQLite") };
    let mut holder = options.connect().await.expect("opened");
    holder.execute("create table t (a)").await.expect("created");
    holder.execute("begin exclusive").await.expect("locked");
    let mut other = options.busy_timeout(Duration::ZERO).connect().await.expect("opened");
    let busy = error_class::classify_error(other.execute("insert into t values (1)").await.expect_err("locked"));
    assert!(!busy.is_permanent(), "{busy}");
}
