//! Rows and pages of the audit log: filters, cursors, counted refusals, names and reasons.

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditResult, AuditRow},
    page::ListPage,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::Clock,
    store::{Store, audit::AuditEntry, jobs::AuditStamp},
};
use milvaion_test_support::{database::TestConnection, jobs, runs};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{open, start, time};
use crate::users::harness::UserHarness;

const ANA: &str = "ana@example.org";
const BO: &str = "bo@example.org";

/// Inserts the row `number`.
async fn add(store: &Store, at: DateTime<Utc>, who: &str, action: &'static str, object: &str, number: i64) {
    let entry = AuditEntry::new(at, who, action, object).change(None, Some(json!({ "number": number })));
    store.audit(&entry).await.expect("the row is stored");
}

fn numbers(rows: &[AuditRow]) -> Vec<i64> {
    let number = |row: &AuditRow| row.after.as_ref()?.get("number")?.as_i64();
    rows.iter().map(|row| number(row).expect("a row of this test")).collect()
}

/// Reads all pages. A new row arrives after each page.
async fn read_all(store: &Store, read: impl AsyncFn(Option<AuditCursor>) -> ListPage<AuditRow>) -> Vec<i64> {
    let (mut found, mut before) = (Vec::new(), None);
    for page_number in 0.. {
        let page = read(before).await;
        found.extend(numbers(&page.rows));
        add(store, start() + TimeDelta::hours(1), ANA, "job.pause", "user:ana", 1_000 + page_number).await;
        match page.next {
            Some(next) => before = Some(next.parse().expect("a cursor")),
            None => break,
        }
    }
    found
}

#[tokio::test]
async fn pages_neither_repeat_nor_skip_rows_while_new_ones_arrive() {
    for filter in [
        Some(AuditFilter::default()),
        Some(AuditFilter { action: "job.".into(), ..AuditFilter::default() }),
        // The rows by a user or about a user.
        None,
    ] {
        let (store, _) = open().await;
        for number in 0..25 {
            // Four rows have the same time, so that pages of three rows end between them.
            let at = start() + TimeDelta::seconds(number / 4);
            let who = if number % 2 == 0 { ANA } else { BO };
            let object = if number % 2 == 1 || number % 3 == 0 { "user:ana" } else { "user:bo" };
            let action = if number % 5 < 3 { "job.pause" } else { "job.run" };
            add(&store, at, who, action, object, number).await;
        }
        let found = read_all(&store, async |before| {
            let page = match &filter {
                Some(filter) => store.audit_page(&AuditFilter { before, ..filter.clone() }, 3).await,
                None => store.audit_of_user(ANA, "user:ana", None, before, 3).await,
            };
            page.expect("the query succeeds")
        })
        .await;
        assert_eq!(found, (0..25).rev().collect::<Vec<_>>(), "{filter:?}");
    }
}

#[tokio::test]
async fn filters_apply_alone_and_together() {
    let (store, _) = open().await;
    let rows: [(&str, &str, &'static str, &str); 8] = [
        ("2026-11-20T23:59:59.999999Z", ANA, "job.pause", "job:1"),
        ("2026-11-21T00:00:00Z", ANA, "job.run", "job:2"),
        ("2026-11-21T12:00:00Z", BO, "job.pause", "job:1"),
        ("2026-11-21T23:59:59.999999Z", "system", "job.auto_disable", "job:2"),
        ("2026-11-22T00:00:00Z", "unknown", "sign-in.refuse", "account:unknown"),
        ("2026-11-22T10:00:00Z", BO, "refuse", "user:2"),
        // The actions before and after those of jobs, in the order of characters.
        ("2026-11-22T11:00:00Z", ANA, "job-group.edit", "group:1"),
        ("2026-11-22T12:00:00Z", ANA, "jobs.edit", "job:1"),
    ];
    for (number, (at, who, action, object)) in (0..).zip(rows) {
        if action.ends_with("refuse") {
            let entry = AuditEntry::new(time(at), who, action, object).change(None, Some(json!({ "number": number })));
            store.audit_refusal(&entry, action).await.expect("the row is stored");
        } else {
            add(&store, time(at), who, action, object, number).await;
        }
    }
    let day = |text: &str| Some(text.parse().expect("a day"));
    let all = AuditFilter::default;
    for (filter, expected) in [
        (all(), vec![7, 6, 5, 4, 3, 2, 1, 0]),
        (AuditFilter { who: ANA.into(), ..all() }, vec![7, 6, 1, 0]),
        (AuditFilter { who: "system".into(), ..all() }, vec![3]),
        (AuditFilter { who: "ana".into(), ..all() }, vec![]),
        (AuditFilter { action: "job.pause".into(), ..all() }, vec![2, 0]),
        (AuditFilter { action: "job.".into(), ..all() }, vec![3, 2, 1, 0]),
        (AuditFilter { action: "job".into(), ..all() }, vec![]),
        (AuditFilter { action: "calendar.".into(), ..all() }, vec![]),
        (AuditFilter { object: "job:1".into(), ..all() }, vec![7, 2, 0]),
        (AuditFilter { result: Some(AuditResult::Refused), ..all() }, vec![5, 4]),
        (AuditFilter { result: Some(AuditResult::Done), ..all() }, vec![7, 6, 3, 2, 1, 0]),
        (AuditFilter { since: day("2026-11-21"), ..all() }, vec![7, 6, 5, 4, 3, 2, 1]),
        (AuditFilter { until: day("2026-11-21"), ..all() }, vec![3, 2, 1, 0]),
        (AuditFilter { since: day("2026-11-21"), until: day("2026-11-21"), ..all() }, vec![3, 2, 1]),
        (AuditFilter { who: BO.into(), result: Some(AuditResult::Refused), ..all() }, vec![5]),
        (AuditFilter { action: "job.".into(), result: Some(AuditResult::Refused), ..all() }, vec![]),
        (AuditFilter { action: "job.".into(), until: day("2026-11-20"), ..all() }, vec![0]),
        (AuditFilter { who: ANA.into(), action: "job.".into(), since: day("2026-11-21"), ..all() }, vec![1]),
        (
            AuditFilter {
                who: BO.into(),
                action: "job.".into(),
                object: "job:1".into(),
                result: Some(AuditResult::Done),
                since: day("2026-11-21"),
                until: day("2026-11-21"),
                before: None,
            },
            vec![2],
        ),
    ] {
        let page = store.audit_page(&filter, 50).await.expect("the query succeeds");
        assert_eq!(numbers(&page.rows), expected, "{filter:?}");
        assert_eq!(page.next, None, "{filter:?}");
    }
}

fn failed_sign_in(after_seconds: i64, address: &str) -> AuditEntry {
    AuditEntry::new(start() + TimeDelta::seconds(after_seconds), "unknown", "sign-in.refuse", "account:unknown")
        .change(None, Some(json!({ "reason": "wrong passphrase" })))
        .from(Some(address.to_owned()))
}

#[tokio::test]
async fn refusals_of_an_hour_are_one_row() {
    let (store, _) = open().await;
    let refuse = async |seconds: i64, address: &str, key: &str| {
        store.audit_refusal(&failed_sign_in(seconds, address), key).await.expect("it is stored");
        store.audit_entries(None, 10).await.expect("the query succeeds")
    };
    let rows = refuse(0, "192.0.2.1", "one").await;
    assert_eq!((rows[0].repeats, rows[0].last_at, rows[0].result), (1, None, AuditResult::Refused));
    let rows = refuse(1, "192.0.2.1", "one").await;
    assert!(!rows[0].has_other_addresses);
    for second in 2..100 {
        refuse(second, "192.0.2.2", "one").await;
    }
    let rows = store.audit_entries(None, 10).await.expect("the query succeeds");
    let [row] = rows.as_slice() else { panic!("one row: {rows:?}") };
    assert_eq!((row.repeats, row.at(), row.last_at), (100, start(), Some(start() + TimeDelta::seconds(99))));
    assert_eq!(row.address.as_deref(), Some("192.0.2.1"));
    assert!(row.has_other_addresses);
    assert_eq!((row.reason.as_deref(), &row.after), (Some("wrong passphrase"), &None));

    assert_eq!(refuse(100, "192.0.2.1", "two").await.len(), 2, "another key is another row");
    assert_eq!(refuse(3_599, "192.0.2.1", "one").await.len(), 2);
    let rows = refuse(3_600, "192.0.2.3", "one").await;
    let counts: Vec<_> = rows.iter().map(|row| (row.repeats, row.has_other_addresses)).collect();
    assert_eq!(counts, [(1, false), (1, false), (101, true)], "an hour after the first one, a new row begins");
}

#[tokio::test]
async fn concurrent_first_refusals_are_one_row() {
    let (store, _) = open().await;
    let refusals = (0..20).map(|n| {
        let store = &store;
        async move { store.audit_refusal(&failed_sign_in(0, &format!("192.0.2.{n}")), "one").await }
    });
    for result in join_all(refusals).await {
        result.expect("it is stored");
    }
    let rows = store.audit_entries(None, 10).await.expect("the query succeeds");
    assert_eq!(rows.iter().map(|row| row.repeats).collect::<Vec<_>>(), [20]);
}

#[tokio::test]
async fn rows_cannot_be_changed_or_deleted() {
    let (store, url) = open().await;
    for second in 0..3 {
        store.audit_refusal(&failed_sign_in(second, "192.0.2.1"), "one").await.expect("it is stored");
    }
    add(&store, start(), ANA, "job.pause", "job:1", 1).await;
    let before = store.audit_entries(None, 10).await.expect("the query succeeds");
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
    let mut refused = async |statement: String| {
        let error = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut connection).await.err();
        let message = error.unwrap_or_else(|| panic!("{statement} succeeds")).to_string();
        assert!(message.contains("the audit log is only ever added to"), "{statement}: {message}");
    };
    for change in [
        "id = id + 100",
        "at = at + interval '1 second'",
        "who = 'x'",
        "token = 'x'",
        "action = 'x'",
        "object = 'x'",
        "result = 'done'",
        "before = '{}'",
        "after = '{}'",
        "address = 'x'",
        "repeat_key = 'x'",
    ] {
        refused(format!("UPDATE audit_log SET {change} WHERE repeat_key = 'one'")).await;
        refused(format!("UPDATE audit_log SET {change}, repeats = repeats + 1 WHERE repeat_key = 'one'")).await;
    }
    for change in ["repeats = repeats - 1", "repeats = repeats", "last_at = now()", "has_other_addresses = true"] {
        refused(format!("UPDATE audit_log SET {change} WHERE repeat_key = 'one'")).await;
    }
    refused("UPDATE audit_log SET repeats = 2 WHERE repeat_key IS NULL".into()).await;
    refused("UPDATE audit_log_202611 SET who = 'x'".into()).await;
    refused("DELETE FROM audit_log".into()).await;
    refused("DELETE FROM audit_log_202611 WHERE repeat_key = 'one'".into()).await;
    refused("TRUNCATE audit_log".into()).await;
    refused("TRUNCATE audit_log_202611".into()).await;
    assert_eq!(store.audit_entries(None, 10).await.expect("the query succeeds"), before);
    assert_eq!(before.iter().map(|row| row.repeats).sum::<u32>(), 4);
}

#[tokio::test]
async fn reason_is_no_part_of_the_change() {
    let (store, _) = open().await;
    let changes = [
        (None, Some(json!({ "reason": "disk full" }))),
        (None, Some(json!({ "reason": "urgent", "forced": true }))),
        (Some(json!({ "reason": "disk full", "by": BO })), None),
        (Some(json!({ "role": "admin" })), Some(json!({ "role": "viewer" }))),
        (None, Some(json!({ "reason": null }))),
    ];
    for (before, after) in changes {
        let entry = AuditEntry::new(start(), ANA, "job.pause", "job:1").change(before, after);
        store.audit(&entry).await.expect("it is stored");
    }
    let rows = store.audit_entries(None, 10).await.expect("the query succeeds");
    let read: Vec<_> =
        rows.iter().rev().map(|row| (row.reason.as_deref(), row.before.clone(), row.after.clone())).collect();
    assert_eq!(
        read,
        [
            (Some("disk full"), None, None),
            (Some("urgent"), None, Some(json!({ "forced": true }))),
            (Some("disk full"), Some(json!({ "by": BO })), None),
            (None, Some(json!({ "role": "admin" })), Some(json!({ "role": "viewer" }))),
            (None, None, None),
        ]
    );
}

#[tokio::test]
async fn rows_name_their_objects_even_after_a_deletion() {
    let (store, url) = open().await;
    let clock = Clock::manual(start());
    let stamp = AuditStamp { by: ANA, at: start(), address: None };
    let job = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let occurrence = runs::insert_manual(&store, &clock, job).await;
    store.cancel(&[occurrence], Some("not today"), stamp).await.expect("cancelled");
    let mut connection = TestConnection::open(&url).await;
    connection.execute("UPDATE jobs SET display_name = 'Renamed'").await;
    let names = async |object: String| -> Vec<(String, Option<String>)> {
        let rows = store.audit_entries(Some(&object), 10).await.expect("the query succeeds");
        rows.into_iter().rev().map(|row| (row.action, row.object_name)).collect()
    };
    let named = |action: &str, name: Option<&str>| (action.to_owned(), name.map(str::to_owned));
    let of_job = names(format!("job:{job}")).await;
    assert_eq!(of_job, [named("job.create", Some("Renamed")), named("job.run", Some("Renamed"))]);

    store.delete_job(job, None, stamp).await.expect("deleted");
    // The definition in the row still has the name; a row without a definition has none.
    let of_job = names(format!("job:{job}")).await;
    let expected = [named("job.create", Some("Hello")), named("job.run", None), named("job.delete", Some("Hello"))];
    assert_eq!(of_job, expected);
    let of_occurrence = names(format!("occurrence:{occurrence}")).await;
    assert_eq!(of_occurrence, [named("occurrence.cancel", Some("Hello"))]);
}

#[tokio::test]
async fn rows_about_a_user_have_the_name_of_the_user() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let rows = harness.store.audit_entries(Some(&format!("user:{}", ana.id)), 10).await.expect("the query succeeds");
    assert_eq!(rows.iter().map(|row| row.object_name.as_deref()).collect::<Vec<_>>(), [Some("ana")]);
}
