//! Downloads of the audit log and of the team.

use http::{StatusCode, header};
use milvaion_api::{audit::AuditRow, permissions::Role, views::CurrentUser};
use milvaion_app::backend::{RequestUser, TeamBackend};
use milvaion_server::{config::ServerConfig, lifecycle::Server};
use milvaion_test_support::{database::TestConnection, server_env};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::event_stream::{admin, cookie, join};

/// The number of rows that [`ExportHarness::seed`] inserts: more than two batches of a download.
const SEEDED_ROWS: usize = 2_500;

/// A server with an Admin.
struct ExportHarness {
    config: ServerConfig,
    server: Server,
    ana: CurrentUser,
    cookie: String,
}

impl ExportHarness {
    async fn new() -> Self {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        let ana = admin(&server).await;
        let cookie = cookie(&server, &ana).await;
        Self { config, server, ana, cookie }
    }

    fn by_ana(&self) -> RequestUser {
        RequestUser { user: self.ana.clone(), address: None }
    }

    /// Inserts rows, three of each second. Returns their numbers in the order of the log.
    async fn seed(&self) -> Vec<i64> {
        let statement = format!(
            "INSERT INTO audit_log (at, who, action, object, after)
             SELECT date_trunc('second', now()) - (n / 3) * interval '1 second',
                    CASE n % 2 WHEN 0 THEN 'even@example.org' ELSE 'odd@example.org' END, 'seed.row', 'seed:' || n,
                    jsonb_build_object('number', n, 'reason', '=1+1, \"two\"' || chr(10) || 'lines')
               FROM generate_series(1, {SEEDED_ROWS}) n"
        );
        TestConnection::open(&self.config.database.url).await.execute(statement).await;
        let mut connection = PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL responds");
        sqlx::query_scalar(
            "SELECT (after ->> 'number')::bigint FROM audit_log WHERE action = 'seed.row' ORDER BY at DESC, id DESC",
        )
        .fetch_all(&mut connection)
        .await
        .expect("the query succeeds")
    }

    async fn get_as(&self, cookie: Option<&str>, path: &str) -> reqwest::Response {
        let address = format!("http://127.0.0.1:{}{path}", self.server.address.port());
        let mut request = reqwest::Client::new().get(address);
        if let Some(cookie) = cookie {
            request = request.header(header::COOKIE, cookie);
        }
        request.send().await.expect("a response")
    }

    /// Downloads a file as the Admin. Checks its name and its type.
    async fn download(&self, path: &str, name: &str, extension: &str, media_type: &str) -> String {
        let response = self.get_as(Some(&self.cookie), path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let text = |name: header::HeaderName| response.headers()[name].to_str().expect("ASCII").to_owned();
        let today = self.server.clock.now().date_naive();
        assert_eq!(
            text(header::CONTENT_DISPOSITION),
            format!("attachment; filename=\"milvaion-{name}-{today}.{extension}\"")
        );
        assert_eq!(text(header::CONTENT_TYPE), media_type);
        assert_eq!(text(header::CACHE_CONTROL), "no-store");
        response.text().await.expect("the whole file")
    }

    async fn audit_csv(&self, query: &str) -> Vec<csv::StringRecord> {
        let path = format!("/export/audit.csv{query}");
        records(&self.download(&path, "audit", "csv", "text/csv; charset=utf-8").await)
    }

    /// Returns the rows of the log about an object.
    async fn audited(&self, object: &str) -> Vec<AuditRow> {
        self.server.store.audit_entries(Some(object), 50).await.expect("the query succeeds")
    }
}

/// Returns the lines of a CSV file, the first with the names of the columns.
fn records(text: &str) -> Vec<csv::StringRecord> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    reader.records().map(|record| record.expect("valid CSV with equally long lines")).collect()
}

/// Returns the number in the column `after`.
fn number(record: &csv::StringRecord) -> i64 {
    let after: Value = serde_json::from_str(&record[11]).expect("JSON");
    after["number"].as_i64().expect("a seeded row")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_has_all_rows_of_the_filter_in_order() {
    let harness = ExportHarness::new().await;
    let seeded = harness.seed().await;
    assert_eq!(seeded.len(), SEEDED_ROWS);

    let file = harness.audit_csv("?action=seed.").await;
    let head: Vec<&str> = file[0].iter().collect();
    assert_eq!(
        head.join(" "),
        "at last_at repeats who action object object_name result reason address before after token"
    );
    assert_eq!(file[1..].iter().map(number).collect::<Vec<_>>(), seeded);
    let first = &file[1];
    assert_eq!((&first[2], &first[4], &first[7], &first[9]), ("1", "seed.row", "done", ""));
    assert_eq!(&first[8], "'=1+1, \"two\"\nlines", "a spreadsheet must not run the cell");
    assert_eq!(first[5], format!("seed:{}", seeded[0]));

    let text = harness.download("/export/audit.ndjson", "audit", "ndjson", "application/x-ndjson").await;
    let rows: Vec<AuditRow> =
        text.lines().map(|line| serde_json::from_str(line).expect("a row in each line")).collect();
    assert!(text.ends_with('\n'));
    assert_eq!(rows[0].action, "audit.export", "the log contains the download itself");
    assert!(rows.iter().any(|row| row.action == "setup"), "without a filter, the file has all rows");
    let rows: Vec<&AuditRow> = rows.iter().filter(|row| row.action == "seed.row").collect();
    let numbers: Vec<_> = rows.iter().filter_map(|row| row.after.as_ref()?["number"].as_i64()).collect();
    assert_eq!(numbers, seeded);
    assert_eq!(rows[0].reason.as_deref(), Some("=1+1, \"two\"\nlines"), "JSON holds the text as it is");

    let file = harness.audit_csv("?who=even%40example.org&action=seed.row&result=done").await;
    let even: Vec<_> = seeded.iter().copied().filter(|number| number % 2 == 0).collect();
    assert_eq!(file[1..].iter().map(number).collect::<Vec<_>>(), even);
    assert_eq!(harness.audit_csv("?action=seed.row&result=refused").await.len(), 1, "only the names of the columns");

    let downloads = harness.audited("audit:all").await;
    let filters: Vec<_> =
        downloads.iter().rev().map(|row| row.after.as_ref().expect("a filter")["filter"].clone()).collect();
    let words: Vec<_> = filters.iter().map(|filter| (filter["who"].clone(), filter["action"].clone())).collect();
    assert_eq!(
        words,
        [
            (json!(""), json!("seed.")),
            (json!(""), json!("")),
            (json!("even@example.org"), json!("seed.row")),
            (json!(""), json!("seed.row"))
        ]
    );
    for row in downloads {
        assert_eq!((row.action.as_str(), row.who.as_str()), ("audit.export", "ana@example.org"));
        assert_eq!(row.address.as_deref(), Some("127.0.0.1"));
    }
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_admin_may_download() {
    let harness = ExportHarness::new().await;
    let mut cookies = vec![(None, StatusCode::UNAUTHORIZED)];
    for (name, role) in [("bob", Role::Operator), ("eve", Role::Viewer)] {
        let user = join(&harness.server, &harness.by_ana(), name, role).await;
        cookies.push((Some(cookie(&harness.server, &user).await), StatusCode::FORBIDDEN));
    }
    for path in ["/export/audit.csv", "/export/audit.ndjson", "/export/team.csv", "/export/audit.xlsx"] {
        for (cookie, status) in &cookies {
            let response = harness.get_as(cookie.as_deref(), path).await;
            assert_eq!(response.status(), *status, "{path} {cookie:?}");
            let text = response.text().await.expect("a text");
            assert!(!text.contains("example.org"), "{path} {cookie:?}: {text}");
        }
    }
    assert_eq!(harness.audited("audit:all").await, []);
    assert_eq!(harness.audited("team:all").await, []);
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_parameter_is_named_and_nothing_is_downloaded() {
    let harness = ExportHarness::new().await;
    let long = format!("/export/team.csv?q={}", "x".repeat(101));
    for (path, names) in [
        ("/export/audit.csv?result=maybe", vec!["result: "]),
        ("/export/audit.ndjson?since=2026-02-30", vec!["since: "]),
        ("/export/audit.csv?since=2026-02-02&until=2026-02-01", vec!["until: "]),
        ("/export/audit.csv?action=Job&object=job", vec!["action: ", "object: "]),
        ("/export/audit.csv?who=a&who=b", vec!["who: "]),
        ("/export/team.csv?role=boss", vec!["role: "]),
        ("/export/team.csv?state=gone", vec!["state: "]),
        (&long, vec!["q: "]),
    ] {
        let response = harness.get_as(Some(&harness.cookie), path).await;
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        let text = response.text().await.expect("a text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), names.len(), "{path}: {text}");
        for (line, name) in lines.iter().zip(names) {
            assert!(line.starts_with(name) && line.len() > name.len(), "{path}: {text}");
        }
    }
    let response = harness.get_as(Some(&harness.cookie), "/export/audit.xlsx").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert!(response.text().await.expect("a text").contains("audit.ndjson"), "it names the files that exist");
    assert_eq!(harness.audited("audit:all").await, []);
    assert_eq!(harness.audited("team:all").await, []);
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn team_file_has_the_rows_of_the_team_page() {
    let harness = ExportHarness::new().await;
    join(&harness.server, &harness.by_ana(), "bob", Role::Operator).await;
    harness.server.backend.invite_user(&harness.by_ana(), "=Eve", Role::Viewer).await.expect("invited");
    let download = async |query: &str| {
        let path = format!("/export/team.csv{query}");
        records(&harness.download(&path, "team", "csv", "text/csv; charset=utf-8").await)
    };
    let file = download("").await;
    let cells: Vec<Vec<&str>> = file.iter().map(|record| record.iter().collect()).collect();
    assert_eq!(
        cells[0].join(" "),
        "name email role state last_seen_at sessions created_at invited_by invite_expires_at"
    );
    let words: Vec<_> = cells[1..].iter().map(|cells| (&cells[..4], cells[5])).collect();
    assert_eq!(
        words,
        [
            (["'=Eve", "", "viewer", "invited"].as_slice(), "0"),
            (["ana", "ana@example.org", "admin", "active"].as_slice(), "1"),
            (["bob", "bob@example.org", "operator", "active"].as_slice(), "0"),
        ]
    );
    assert!(cells[1][7].starts_with("ana") && !cells[1][8].is_empty(), "{:?}", cells[1]);
    assert_eq!(cells[2][7..], ["", ""]);

    let operators = download("?role=operator").await;
    assert_eq!(operators[1..].iter().map(|record| &record[0]).collect::<Vec<_>>(), ["bob"]);
    let rows = harness.audited("team:all").await;
    let counts: Vec<_> = rows.iter().map(|row| row.after.as_ref().expect("a count")["rows"].clone()).collect();
    assert_eq!(counts, [json!(1), json!(3)]);
    for row in rows {
        assert_eq!((row.action.as_str(), row.who.as_str()), ("team.export", "ana@example.org"));
    }
    harness.server.stop().await;
}

/// Demotes a user who downloads `rows` rows.
async fn demote_during_a_download(rows: u32) {
    let harness = ExportHarness::new().await;
    let bob = join(&harness.server, &harness.by_ana(), "bob", Role::Admin).await;
    // More than the buffers of the connection hold, so the server still reads rows after the first part was received.
    TestConnection::open(&harness.config.database.url)
        .await
        .execute(format!(
            "INSERT INTO audit_log (at, who, action, object, after)
             SELECT now() - n * interval '1 second', 'ana@example.org', 'seed.row', 'seed:' || n,
                    jsonb_build_object('text', repeat('x', 1000))
               FROM generate_series(1, {rows}) n"
        ))
        .await;
    let mut response = harness.get_as(Some(&harness.cookie), "/export/audit.ndjson?action=seed.").await;
    assert!(response.chunk().await.expect("the first part").is_some());

    let by_bob = RequestUser { user: bob, address: None };
    harness.server.backend.change_role(&by_bob, harness.ana.id, Role::Operator, false).await.expect("changed");
    let end = loop {
        match response.chunk().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(end.is_err(), "a browser must not take the part for the whole file");
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_fails_once_its_user_may_no_longer_download() {
    demote_during_a_download(15_000).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_download_fails_once_its_user_may_no_longer_download() {
        demote_during_a_download(40_000).await;
    }
}
