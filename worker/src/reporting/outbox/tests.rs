//! Tests of the journal on a real file, without a broker.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine, StatusReport, first_log_seq},
    status::OccurrenceStatus::{self, Cancelled, Completed, Queued, Running, Unknown},
};
use tokio::time::{Duration, Instant, timeout};

use super::{
    OpenOutbox, Outbox, OutboxError, OutboxJournal, OutboxSystem, OutboxWarning, RecoveredReports, WriteGate,
    corruption::CorruptFiles,
    entry::{EntryKind, OutboxEntry, OutboxWrite},
    location, open,
    store::OutboxStore,
    unsent_of_other_systems,
};
use crate::delivery::claim::AttemptKey;

/// A folder that is deleted with the test.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("milvaion-outbox-{:016x}", rand::random::<u64>())))
    }

    fn outbox(&self) -> Outbox {
        Outbox::Folder(self.0.clone())
    }

    fn file(&self, n: u32) -> PathBuf {
        self.0.join(format!("w-{}-{n}.sqlite", system("production").hash()))
    }

    async fn open(&self) -> OpenOutbox {
        self.open_for("production").await
    }

    async fn open_for(&self, host: &str) -> OpenOutbox {
        open(&self.outbox(), "w", &system(host)).await.expect("opened")
    }

    /// Returns the number of entries of a kind in the file, which may be open elsewhere.
    async fn holds(&self, kind: EntryKind) -> usize {
        let mut store = OutboxStore::open(&self.file(0), &system("production")).await.expect("opened");
        store.stored_entries().await.expect("read").entries.iter().filter(|entry| entry.kind == kind).count()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the system of the broker on a host.
fn system(host: &str) -> OutboxSystem {
    OutboxSystem::new(&format!("amqp://{host}").parse().expect("valid"), "milvaion")
}

fn occurrence(n: u8) -> OccurrenceId {
    OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [n; 10])
}

fn report(n: u8, status: OccurrenceStatus) -> StatusReport {
    StatusReport::new(occurrence(n), 1, "w-00000000", status, chrono::DateTime::UNIX_EPOCH)
}

fn text<T: serde::Serialize>(value: &T) -> Arc<str> {
    serde_json::to_string(value).expect("plain data").into()
}

fn record(journal: &mut OutboxJournal, n: u8, status: OccurrenceStatus, now: Instant) -> i64 {
    let report = report(n, status);
    journal.report(&report, &text(&report), now)
}

fn record_line(journal: &mut OutboxJournal, n: u8, index: i64, now: Instant) -> i64 {
    let line = LogLine {
        seq: first_log_seq(1) + index,
        at: chrono::DateTime::UNIX_EPOCH,
        level: LogLevel::Info,
        message: format!("line {index}"),
        data: None,
    };
    journal.line(occurrence(n), &text(&line), now)
}

/// Writes all entries, as if the broker were unavailable. Returns the attempts whose ends are stored.
async fn write(journal: &mut OutboxJournal, now: Instant) -> Vec<AttemptKey> {
    journal.begin(now, true);
    timeout(Duration::from_secs(10), journal.write_finished()).await.expect("written")
}

fn reported(recovered: &RecoveredReports) -> Vec<(OccurrenceId, OccurrenceStatus)> {
    recovered.reports.iter().map(|(_, report, _)| (report.occurrence_id, report.status)).collect()
}

fn interrupted(recovered: &RecoveredReports) -> Vec<OccurrenceId> {
    recovered.interrupted.iter().map(|(_, report)| report.occurrence_id).collect()
}

#[tokio::test]
async fn short_run_on_a_healthy_broker_costs_no_write() {
    let folder = TempFolder::new();
    let mut journal = folder.open().await.journal;
    let begun = Instant::now();
    let at = |ms| begun + Duration::from_millis(ms);
    let start = record(&mut journal, 1, Running, at(0));
    let line = record_line(&mut journal, 1, 0, at(1));
    journal.started(start, (occurrence(1), 1), at(3));
    let end = record(&mut journal, 1, Completed, at(4));
    assert_eq!(journal.due(false), Some(at(50)));
    journal.begin(at(49), false);
    assert!(timeout(Duration::from_millis(1), journal.write_finished()).await.is_err(), "a write was made");
    journal.erase(line, at(6));
    journal.erase(end, at(6));
    assert_eq!(journal.due(false), None);
}

#[tokio::test]
async fn each_stage_of_a_run_survives_the_process() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    let later = now + Duration::from_millis(50);
    // The broker has confirmed runs 1 and 2, and 2 has ended. It has not confirmed 3 and 4, and 4 has ended. 5 has
    // ended and is confirmed.
    let starts = [1, 2, 3, 4, 5].map(|n| record(&mut journal, n, Running, now));
    for n in [1, 2, 5] {
        journal.started(starts[usize::from(n) - 1], (occurrence(n), 1), now);
    }
    journal.begin(later, false);
    journal.write_finished().await;
    let ends = [2, 4, 5].map(|n| record(&mut journal, n, Completed, later));
    let lines = [1, 1, 3, 4].map(|n| record_line(&mut journal, n, 0, later));
    for n in [1, 3] {
        journal.lines_dropped(occurrence(n), Some((7, first_log_seq(1) + 6)), later);
    }
    let stored = write(&mut journal, later).await;
    assert_eq!(stored, [2, 4, 5].map(|n| (occurrence(n), 1)), "these runs may be marked as ended");
    journal.erase(ends[2], later);
    journal.erase(lines[0], later);
    write(&mut journal, later + Duration::from_millis(50)).await;
    assert_eq!(folder.holds(EntryKind::Begun).await, 1);
    assert_eq!(folder.holds(EntryKind::Report).await, 4);
    drop(journal);

    let mut next = folder.open().await;
    let recovered = std::mem::take(&mut next.recovered);
    assert_eq!(
        reported(&recovered),
        [(occurrence(4), Running), (occurrence(2), Completed), (occurrence(4), Completed)]
    );
    assert_eq!(interrupted(&recovered), [occurrence(1)]);
    // The instance that receives the message of the unconfirmed attempt reports it as lost. Only this file has its lines.
    assert_eq!(
        recovered.lines.iter().map(|line| line.1).collect::<Vec<_>>(),
        [occurrence(1), occurrence(3), occurrence(4)]
    );
    assert_eq!(recovered.obsolete, [starts[2]]);
    let count = Some((7, first_log_seq(1) + 6));
    assert_eq!(recovered.dropped_lines, [(occurrence(1), count), (occurrence(3), count)]);

    let (begun, interruption) = &recovered.interrupted[0];
    assert_eq!((interruption.status, interruption.retry_after_ms), (Unknown, None));
    assert!(interruption.exception.as_deref().is_some_and(|text| text.starts_with("interrupted: ")));
    // If the process is killed again before a confirmation, the next one recovers the same.
    next.journal.interruption(*begun, interruption, &text(interruption), now);
    write(&mut next.journal, now).await;
    drop(next);
    let recovered = folder.open().await.recovered;
    assert_eq!(reported(&recovered).last(), Some(&(occurrence(1), Unknown)));
    assert!(interrupted(&recovered).is_empty());
}

#[tokio::test]
async fn unconfirmed_attempt_that_was_handed_back_is_discarded() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    for n in 1..=2 {
        record(&mut journal, n, Running, now);
        record_line(&mut journal, n, 0, now);
        journal.lines_dropped(occurrence(n), Some((7, first_log_seq(1) + 6)), now);
        record(&mut journal, n, if n == 1 { Queued } else { Cancelled }, now);
    }
    journal.close().await;
    let recovered = folder.open().await.recovered;
    assert_eq!(reported(&recovered), [(occurrence(2), Running), (occurrence(2), Cancelled)]);
    // Another instance starts the first attempt again, and its lines have the same numbers.
    assert_eq!(recovered.lines.iter().map(|line| line.1).collect::<Vec<_>>(), [occurrence(2)]);
    assert_eq!(recovered.dropped_lines, [(occurrence(1), None), (occurrence(2), Some((7, first_log_seq(1) + 6)))]);
}

#[tokio::test]
async fn unconfirmed_attempt_that_snoozes_is_sent_with_its_lines() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    record(&mut journal, 1, Running, now);
    record_line(&mut journal, 1, 0, now);
    let snooze = StatusReport { retry_after_ms: Some(60_000), ..report(1, Queued) };
    journal.report(&snooze, &text(&snooze), now);
    journal.close().await;
    let recovered = folder.open().await.recovered;
    assert_eq!(reported(&recovered), [(occurrence(1), Running), (occurrence(1), Queued)]);
    assert_eq!(recovered.lines.len(), 1);
    assert!(recovered.obsolete.is_empty() && recovered.interrupted.is_empty());
}

#[tokio::test]
async fn outbox_of_another_system_is_not_touched() {
    let folder = TempFolder::new();
    let (mut staging, now) = (folder.open_for("staging").await.journal, Instant::now());
    record(&mut staging, 1, Cancelled, now);
    staging.close().await;
    let production = folder.open().await;
    assert!(production.recovered.reports.is_empty(), "{:?}", reported(&production.recovered));
    production.journal.close().await;
    assert_eq!(reported(&folder.open_for("staging").await.recovered), [(occurrence(1), Cancelled)]);

    // The file itself names its system, too: this one was renamed.
    let other = folder.0.join(format!("w-{}-0.sqlite", system("staging").hash()));
    fs::rename(&other, folder.file(0)).expect("renamed");
    let production = folder.open().await;
    assert!(production.recovered.reports.is_empty(), "{:?}", reported(&production.recovered));
    assert!(folder.file(1).exists(), "the next number is used");
    production.journal.close().await;
    let refused = open(&Outbox::File(folder.file(0)), "w", &system("production")).await.err().expect("refused");
    assert!(matches!(&refused, OutboxError::OtherSystem { found, .. } if found.contains("staging")), "{refused:?}");
}

#[tokio::test]
async fn empty_file_of_another_system_is_taken_over() {
    let folder = TempFolder::new();
    let file = Outbox::File(folder.file(0));
    // The broker gets another address.
    open(&file, "w", &system("former")).await.expect("opened").journal.close().await;
    let mut journal = open(&file, "w", &system("production")).await.expect("taken over").journal;
    record(&mut journal, 1, Cancelled, Instant::now());
    journal.close().await;
    let refused = open(&file, "w", &system("former")).await.err().expect("refused");
    assert!(matches!(&refused, OutboxError::OtherSystem { found, .. } if found.contains("production")), "{refused:?}");
}

#[tokio::test]
async fn unsent_entries_of_other_systems_are_found() {
    let folder = TempFolder::new();
    let unsent = async || unsent_of_other_systems(&folder.outbox(), "w", &system("production")).await;
    let (mut former, mut own, now) = (folder.open_for("former").await, folder.open().await, Instant::now());
    folder.open_for("empty").await.journal.close().await;
    record(&mut former.journal, 1, Cancelled, now);
    record_line(&mut former.journal, 1, 0, now);
    record(&mut own.journal, 2, Cancelled, now);
    write(&mut former.journal, now).await;
    assert!(unsent().await.is_empty(), "its process runs");
    // Its process is killed.
    drop(former);
    own.journal.close().await;
    let path = folder.0.join(format!("w-{}-0.sqlite", system("former").hash()));
    assert_eq!(unsent().await, [(path, system("former"), 2)]);
    // Files of other workers and of other programs.
    for name in ["w-x-0.sqlite", "w-2.sqlite", "notes.txt"] {
        fs::write(folder.0.join(name), "no outbox").expect("written");
    }
    fs::write(folder.0.join("w-00000000-0.sqlite"), "no outbox").expect("written");
    assert_eq!(unsent().await.len(), 1);
    assert!(unsent_of_other_systems(&folder.outbox(), "other", &system("production")).await.is_empty());
    // They are unchanged.
    assert_eq!(reported(&folder.open_for("former").await.recovered), [(occurrence(1), Cancelled)]);
}

#[tokio::test]
async fn file_without_a_system_is_taken_by_the_worker_it_is_given_to() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    record(&mut journal, 1, Cancelled, now);
    journal.close().await;
    change(&folder.file(0), "DROP TABLE system; PRAGMA user_version = 1").await;
    let file = Outbox::File(folder.file(0));
    let opened = open(&file, "w", &system("production")).await.expect("opened");
    assert_eq!(reported(&opened.recovered), [(occurrence(1), Cancelled)]);
    opened.journal.close().await;
    assert!(open(&file, "w", &system("staging")).await.is_err(), "it belongs to the first system now");
}

#[tokio::test]
async fn close_writes_entries_before_their_delay() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    for n in 0..5_000 {
        record_line(&mut journal, 1, n, now);
    }
    let start = record(&mut journal, 1, Running, now);
    journal.started(start, (occurrence(1), 1), now);
    record(&mut journal, 1, Completed, now);
    journal.close().await;
    let recovered = folder.open().await.recovered;
    assert_eq!(reported(&recovered), [(occurrence(1), Completed)]);
    let indexes: Vec<i64> = recovered.lines.iter().map(|(_, _, line, _)| line.seq - first_log_seq(1)).collect();
    assert_eq!(indexes, (0..5_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn orphaned_outbox_is_adopted() {
    let folder = TempFolder::new();
    let (first, mut second, now) = (folder.open().await, folder.open().await, Instant::now());
    record(&mut second.journal, 1, Cancelled, now);
    second.journal.close().await;
    // While the first process lives, its file is not adopted.
    let third = folder.open().await;
    assert_eq!(reported(&third.recovered), [(occurrence(1), Cancelled)]);
    third.journal.close().await;
    first.journal.close().await;
    let next = folder.open().await;
    assert_eq!(reported(&next.recovered), [(occurrence(1), Cancelled)]);
    next.journal.close().await;
    let mut orphan = OutboxStore::open(&folder.file(1), &system("production")).await.expect("opened");
    assert!(orphan.stored_entries().await.expect("read").entries.is_empty());
}

#[tokio::test]
async fn orphan_is_emptied_only_after_its_entries_are_stored() {
    let folder = TempFolder::new();
    let (first, mut second, now) = (folder.open().await, folder.open().await, Instant::now());
    record(&mut second.journal, 1, Cancelled, now);
    second.journal.close().await;
    first.journal.close().await;
    let protect = "CREATE TRIGGER protect BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'not now'); END";
    change(&folder.file(1), protect).await;
    // The entries cannot be deleted there, so they are in both files; a second adoption does not copy them again.
    for _ in 0..2 {
        let next = folder.open().await;
        assert_eq!(reported(&next.recovered), [(occurrence(1), Cancelled)]);
        next.journal.close().await;
    }
    change(&folder.file(1), "DROP TRIGGER protect").await;
    folder.open().await.journal.close().await;
    let mut orphan = OutboxStore::open(&folder.file(1), &system("production")).await.expect("opened");
    assert!(orphan.stored_entries().await.expect("read").entries.is_empty());
}

#[tokio::test]
async fn last_write_is_retried_while_the_file_is_locked() {
    use sqlx::{ConnectOptions, Connection};
    let folder = TempFolder::new();
    let OpenOutbox { mut journal, gate, .. } = folder.open().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.file(0));
    let mut lock = options.connect().await.expect("opened");
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut lock).await.expect("locked");
    record(&mut journal, 1, Cancelled, Instant::now());
    let unlock = async {
        // The first write has failed.
        while gate.is_open() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        sqlx::raw_sql("ROLLBACK").execute(&mut lock).await.expect("unlocked");
        lock.close().await.expect("closed");
    };
    tokio::join!(journal.close(), timeout(Duration::from_secs(10), unlock)).1.expect("a failed write");
    assert_eq!(reported(&folder.open().await.recovered), [(occurrence(1), Cancelled)]);
}

#[tokio::test]
async fn damaged_file_is_renamed_and_replaced() {
    let whole = TempFolder::new();
    let mut journal = whole.open().await.journal;
    for n in 0..200 {
        record_line(&mut journal, 1, n, Instant::now());
    }
    journal.close().await;
    let mut overwritten = fs::read(whole.file(0)).expect("read");
    let middle = overwritten.len() / 2 / 4096 * 4096;
    overwritten[middle..middle + 4096].fill(0xa5);
    for content in [b"this is not a database, but plain text, repeated again.".repeat(100), overwritten] {
        let folder = TempFolder::new();
        fs::create_dir_all(&folder.0).expect("created");
        fs::write(folder.file(0), &content).expect("written");
        let opened = folder.open().await;
        assert!(opened.recovered.lines.is_empty());
        let notice = opened.warning.notice().expect("a notice");
        assert!(notice.contains("-0.sqlite.damaged-"), "{notice}");
        opened.journal.close().await;
        let next = folder.open().await;
        assert_eq!(next.warning.notice(), None, "the next process has no warning");
        next.journal.close().await;
        let names =
            fs::read_dir(&folder.0).expect("read").flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let renamed: Vec<_> = names.filter(|name| name.contains("-0.sqlite.damaged-") && name.ends_with('Z')).collect();
        assert_eq!(renamed.len(), 1, "{renamed:?}");
        let bytes = fs::read(folder.0.join(&renamed[0])).expect("read");
        // SQLite may have rewritten its header.
        assert!(
            bytes.len() == content.len() && bytes[4096..] == content[4096..],
            "the renamed file has another content"
        );
    }
}

#[tokio::test]
async fn file_damaged_in_use_is_renamed_and_replaced() {
    let folder = TempFolder::new();
    let OpenOutbox { mut journal, gate, warning, .. } = folder.open().await;
    record(&mut journal, 1, Running, Instant::now());
    write(&mut journal, Instant::now()).await;
    assert_eq!(warning.notice(), None);
    // The root page of the table does not exist.
    let corruption = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 4711 WHERE name = 'entry'; PRAGMA schema_version = 99;";
    change(&folder.file(0), corruption).await;
    let start = record(&mut journal, 2, Running, Instant::now());
    journal.started(start, (occurrence(2), 1), Instant::now());
    write(&mut journal, Instant::now()).await;
    assert!(gate.is_open());
    let notice = warning.notice().expect("a notice");
    assert!(notice.contains("-0.sqlite.damaged-"), "{notice}");
    // Entries that were written since then survive the process.
    drop(journal);
    let next = folder.open().await;
    assert_eq!(interrupted(&next.recovered), [occurrence(2)]);
    assert_eq!(next.warning.notice(), None);
    next.journal.close().await;
}

#[tokio::test]
async fn missing_file_is_created_when_the_write_is_retried() {
    let folder = TempFolder::new();
    folder.open().await.journal.close().await;
    let mut store = OutboxStore::open(&folder.file(0), &system("production")).await.expect("opened");
    store.lose_file().await;
    let body = text(&report(1, Running));
    let entry = OutboxEntry { id: 1, kind: EntryKind::Begun, occurrence: occurrence(1), body };
    let write = OutboxWrite { entries: vec![entry], ..OutboxWrite::default() };
    store.retry_write(&write).await.expect("written");
    store.close().await;
    assert_eq!(folder.holds(EntryKind::Begun).await, 1);
}

#[tokio::test]
async fn foreign_or_newer_file_is_refused() {
    let folder = TempFolder::new();
    folder.open().await.journal.close().await;
    let path = folder.file(0);
    let refused = async || OutboxStore::open(&path, &system("production")).await.err().expect("refused");
    change(&path, "PRAGMA user_version = 3").await;
    assert!(matches!(refused().await, OutboxError::NewerVersion { version: 3, .. }));
    change(&path, "PRAGMA application_id = 1").await;
    assert!(matches!(refused().await, OutboxError::Foreign { .. }));
}

#[tokio::test]
async fn full_disk_closes_the_gate_until_there_is_space() {
    let folder = TempFolder::new();
    let locked =
        location::acquire(&folder.outbox(), "w", &system("production"), 0).expect("locked").expect("not off").own;
    let mut store = OutboxStore::open(&locked.path, &system("production")).await.expect("opened");
    // One hundred pages for the entries and for the probe.
    store.limit(100).await;
    let (sender, gate) = tokio::sync::watch::channel(true);
    let path = locked.path.clone();
    let (mut journal, gate, now) = (OutboxJournal::new(store, locked, 0, sender), WriteGate(gate), Instant::now());
    let warning = OutboxWarning { gate: gate.clone(), path, corrupt_files: CorruptFiles::default() };
    let open = async || timeout(Duration::from_millis(10), gate.open()).await.is_ok();
    assert!(open().await);
    assert_eq!(warning.notice(), None);
    let long = "x".repeat(8 * 1024);
    let mut ids = Vec::new();
    while open().await {
        for _ in 0..10 {
            ids.push(journal.line(occurrence(1), &text(&long), now));
        }
        write(&mut journal, now).await;
        assert!(ids.len() < 1_000, "the disk never fills up");
    }
    assert_eq!(folder.holds(EntryKind::Line).await, ids.len() - 10, "half a write");
    // The failed write is retried and fails again. Reports and lines are accepted nevertheless.
    let retry_at = journal.due(true).expect("a retry");
    assert!(retry_at > now);
    let end = record(&mut journal, 1, Completed, now);
    write(&mut journal, retry_at).await;
    assert!(!open().await);
    let notice = warning.notice().expect("a notice");
    assert!(notice.starts_with("No new work is taken") && notice.contains("-0.sqlite"), "{notice}");
    // An operator frees space.
    change(&folder.file(0), "DELETE FROM entry WHERE kind = 2").await;
    let retry_at = journal.due(true).expect("a retry");
    write(&mut journal, retry_at).await;
    assert!(open().await, "there is space and yet no work is taken");
    assert_eq!(warning.notice(), None);
    write(&mut journal, Instant::now()).await;
    assert_eq!(folder.holds(EntryKind::Report).await, 1);
    journal.erase(end, Instant::now());
}

async fn change(path: &Path, statement: &'static str) {
    use sqlx::{ConnectOptions, Connection};
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = options.connect().await.expect("opened");
    sqlx::raw_sql(statement).execute(&mut connection).await.expect("done");
    connection.close().await.expect("closed");
}
