//! The journal on a real file, without a broker.

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
    OpenOutbox, Outbox, OutboxError, OutboxJournal, OutboxWarning, Recovered, WriteGate,
    corruption::QuarantinedFiles,
    location, open,
    store::{EntryKind, OutboxEntry, OutboxStore, OutboxWrite},
};

/// A folder that goes with the test.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("milvaion-outbox-{:016x}", rand::random::<u64>())))
    }

    fn outbox(&self) -> Outbox {
        Outbox::Folder(self.0.clone())
    }

    fn file(&self, n: u32) -> PathBuf {
        self.0.join(format!("w-{n}.sqlite"))
    }

    async fn open(&self) -> OpenOutbox {
        open(&self.outbox(), "w").await.expect("opened")
    }

    /// How many entries of a kind a file holds; it may be open elsewhere.
    async fn holds(&self, kind: EntryKind) -> usize {
        let mut store = OutboxStore::open(&self.file(0)).await.expect("opened");
        store.stored_entries().await.expect("read").entries.iter().filter(|entry| entry.kind == kind).count()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
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

fn tell(journal: &mut OutboxJournal, n: u8, status: OccurrenceStatus, now: Instant) -> i64 {
    let report = report(n, status);
    journal.report(&report, &text(&report), now)
}

fn write_line(journal: &mut OutboxJournal, n: u8, place: i64, now: Instant) -> i64 {
    let line = LogLine {
        seq: first_log_seq(1) + place,
        at: chrono::DateTime::UNIX_EPOCH,
        level: LogLevel::Info,
        message: format!("line {place}"),
        data: None,
    };
    journal.line(occurrence(n), &text(&line), now)
}

/// Writes everything there is, as while the broker is away.
async fn write(journal: &mut OutboxJournal, now: Instant) {
    journal.begin(now, true);
    timeout(Duration::from_secs(10), journal.write_finished()).await.expect("written");
}

fn told(recovered: &Recovered) -> Vec<(OccurrenceId, OccurrenceStatus)> {
    recovered.reports.iter().map(|(_, report, _)| (report.occurrence_id, report.status)).collect()
}

fn cut_off(recovered: &Recovered) -> Vec<OccurrenceId> {
    recovered.interrupted.iter().map(|(_, report)| report.occurrence_id).collect()
}

#[tokio::test]
async fn a_short_run_on_a_healthy_broker_costs_no_write() {
    let folder = TempFolder::new();
    let mut journal = folder.open().await.journal;
    let begun = Instant::now();
    let at = |ms| begun + Duration::from_millis(ms);
    let start = tell(&mut journal, 1, Running, at(0));
    let line = write_line(&mut journal, 1, 0, at(1));
    journal.started(start, (occurrence(1), 1), at(3));
    let end = tell(&mut journal, 1, Completed, at(4));
    assert_eq!(journal.due(false), Some(at(50)));
    journal.begin(at(49), false);
    assert!(timeout(Duration::from_millis(1), journal.write_finished()).await.is_err(), "something was written");
    journal.erase(line, at(6));
    journal.erase(end, at(6));
    assert_eq!(journal.due(false), None);
}

#[tokio::test]
async fn each_stage_of_a_run_survives_the_process() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    let later = now + Duration::from_millis(50);
    // Runs 1 and 2 are known to the broker, 2 has ended; 3 and 4 are not, 4 has ended; 5 has come and gone.
    let starts = [1, 2, 3, 4, 5].map(|n| tell(&mut journal, n, Running, now));
    for n in [1, 2, 5] {
        journal.started(starts[usize::from(n) - 1], (occurrence(n), 1), now);
    }
    journal.begin(later, false);
    journal.write_finished().await;
    let ends = [2, 4, 5].map(|n| tell(&mut journal, n, Completed, later));
    let lines = [1, 1, 3, 4].map(|n| write_line(&mut journal, n, 0, later));
    for n in [1, 3] {
        journal.given_up(occurrence(n), Some((7, first_log_seq(1) + 6)), later);
    }
    write(&mut journal, later).await;
    journal.erase(ends[2], later);
    journal.erase(lines[0], later);
    write(&mut journal, later + Duration::from_millis(50)).await;
    assert_eq!(folder.holds(EntryKind::Begun).await, 1);
    assert_eq!(folder.holds(EntryKind::Report).await, 4);
    drop(journal);

    let mut next = folder.open().await;
    let recovered = std::mem::take(&mut next.recovered);
    assert_eq!(told(&recovered), [(occurrence(4), Running), (occurrence(2), Completed), (occurrence(4), Completed)]);
    assert_eq!(cut_off(&recovered), [occurrence(1)]);
    // The attempt the broker has not heard of begins again elsewhere, under the same number.
    assert_eq!(recovered.lines.iter().map(|line| line.1).collect::<Vec<_>>(), [occurrence(1), occurrence(4)]);
    assert_eq!(recovered.obsolete, [starts[2], lines[2]]);
    assert_eq!(recovered.given_up, [(occurrence(1), Some((7, first_log_seq(1) + 6))), (occurrence(3), None)]);

    let (begun, interruption) = &recovered.interrupted[0];
    assert_eq!((interruption.status, interruption.retry_after_ms), (Unknown, None));
    assert!(interruption.exception.as_deref().is_some_and(|text| text.starts_with("interrupted: ")));
    // Killed again, before anything was confirmed: once more the same.
    next.journal.interruption(*begun, interruption, &text(interruption), now);
    write(&mut next.journal, now).await;
    drop(next);
    let recovered = folder.open().await.recovered;
    assert_eq!(told(&recovered).last(), Some(&(occurrence(1), Unknown)));
    assert!(cut_off(&recovered).is_empty());
}

#[tokio::test]
async fn an_unheard_attempt_that_was_handed_back_is_left_to_whoever_has_its_message() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    for n in 1..=2 {
        tell(&mut journal, n, Running, now);
        tell(&mut journal, n, if n == 1 { Queued } else { Cancelled }, now);
    }
    journal.close().await;
    assert_eq!(told(&folder.open().await.recovered), [(occurrence(2), Running), (occurrence(2), Cancelled)]);
}

#[tokio::test]
async fn an_orderly_end_writes_what_has_not_lingered() {
    let folder = TempFolder::new();
    let (mut journal, now) = (folder.open().await.journal, Instant::now());
    for n in 0..5_000 {
        write_line(&mut journal, 1, n, now);
    }
    let start = tell(&mut journal, 1, Running, now);
    journal.started(start, (occurrence(1), 1), now);
    tell(&mut journal, 1, Completed, now);
    journal.close().await;
    let recovered = folder.open().await.recovered;
    assert_eq!(told(&recovered), [(occurrence(1), Completed)]);
    let places: Vec<i64> = recovered.lines.iter().map(|(_, _, line, _)| line.seq - first_log_seq(1)).collect();
    assert_eq!(places, (0..5_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_a_process_left_that_nobody_follows_is_taken_over() {
    let folder = TempFolder::new();
    let (first, mut second, now) = (folder.open().await, folder.open().await, Instant::now());
    tell(&mut second.journal, 1, Cancelled, now);
    second.journal.close().await;
    // While the first lives, its file is its own.
    let third = folder.open().await;
    assert_eq!(told(&third.recovered), [(occurrence(1), Cancelled)]);
    third.journal.close().await;
    first.journal.close().await;
    let next = folder.open().await;
    assert_eq!(told(&next.recovered), [(occurrence(1), Cancelled)]);
    next.journal.close().await;
    let mut orphan = OutboxStore::open(&folder.file(1)).await.expect("opened");
    assert!(orphan.stored_entries().await.expect("read").entries.is_empty());
}

#[tokio::test]
async fn a_damaged_file_is_put_aside_and_a_new_one_begun() {
    let whole = TempFolder::new();
    let mut journal = whole.open().await.journal;
    for n in 0..200 {
        write_line(&mut journal, 1, n, Instant::now());
    }
    journal.close().await;
    let mut holed = fs::read(whole.file(0)).expect("read");
    let middle = holed.len() / 2 / 4096 * 4096;
    holed[middle..middle + 4096].fill(0xa5);
    for content in [b"this is not a database, however long one looks at it".repeat(100), holed] {
        let folder = TempFolder::new();
        fs::create_dir_all(&folder.0).expect("made");
        fs::write(folder.file(0), &content).expect("written");
        let opened = folder.open().await;
        assert!(opened.recovered.lines.is_empty());
        let said = opened.warning.notice().expect("it is said");
        assert!(said.contains("w-0.sqlite.damaged-"), "{said}");
        opened.journal.close().await;
        let next = folder.open().await;
        assert_eq!(next.warning.notice(), None, "the next process has nothing to warn of");
        next.journal.close().await;
        let names =
            fs::read_dir(&folder.0).expect("read").flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let aside: Vec<_> =
            names.filter(|name| name.starts_with("w-0.sqlite.damaged-") && name.ends_with('Z')).collect();
        assert_eq!(aside.len(), 1, "{aside:?}");
        let put = fs::read(folder.0.join(&aside[0])).expect("read");
        // SQLite may have written its header anew.
        assert!(
            put.len() == content.len() && put[4096..] == content[4096..],
            "what was put aside is not what was there"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_damaged_while_it_is_in_use_is_put_aside_too_and_work_goes_on() {
    let folder = TempFolder::new();
    let OpenOutbox { mut journal, gate, warning, .. } = folder.open().await;
    tell(&mut journal, 1, Running, Instant::now());
    write(&mut journal, Instant::now()).await;
    assert_eq!(warning.notice(), None);
    // Its table is where nothing is.
    let corruption = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 4711 WHERE name = 'entry'; PRAGMA schema_version = 99;";
    change(&folder.file(0), corruption).await;
    let start = tell(&mut journal, 2, Running, Instant::now());
    journal.started(start, (occurrence(2), 1), Instant::now());
    write(&mut journal, Instant::now()).await;
    assert!(gate.is_open());
    let said = warning.notice().expect("it is said");
    assert!(said.contains("w-0.sqlite.damaged-"), "{said}");
    // What was written since then outlives the process.
    drop(journal);
    let next = folder.open().await;
    assert_eq!(cut_off(&next.recovered), [occurrence(2)]);
    assert_eq!(next.warning.notice(), None);
    next.journal.close().await;
}

#[tokio::test]
async fn a_file_that_could_not_be_begun_anew_is_when_the_write_is_made_again() {
    let folder = TempFolder::new();
    folder.open().await.journal.close().await;
    let mut store = OutboxStore::open(&folder.file(0)).await.expect("opened");
    store.lose_file().await;
    let body = text(&report(1, Running));
    let entry = OutboxEntry { id: 1, kind: EntryKind::Begun, occurrence: occurrence(1), body };
    let write = OutboxWrite { entries: vec![entry], ..OutboxWrite::default() };
    store.write_again(&write).await.expect("written");
    store.close().await;
    assert_eq!(folder.holds(EntryKind::Begun).await, 1);
}

#[tokio::test]
async fn a_file_of_something_else_or_of_a_later_version_is_left_alone() {
    let folder = TempFolder::new();
    folder.open().await.journal.close().await;
    let path = folder.file(0);
    let refused = async || OutboxStore::open(&path).await.err().expect("refused");
    change(&path, "PRAGMA user_version = 2").await;
    assert!(matches!(refused().await, OutboxError::NewerVersion { version: 2, .. }));
    change(&path, "PRAGMA application_id = 1").await;
    assert!(matches!(refused().await, OutboxError::Foreign { .. }));
}

#[tokio::test]
async fn a_full_disk_shuts_the_gate_until_there_is_room() {
    let folder = TempFolder::new();
    let place = location::acquire(&folder.outbox(), "w").expect("taken").expect("wanted").own;
    let mut store = OutboxStore::open(&place.path).await.expect("opened");
    // One hundred pages for what is there, and for the probe.
    store.limit(100).await;
    let (shut, gate) = tokio::sync::watch::channel(true);
    let path = place.path.clone();
    let (mut journal, gate, now) = (OutboxJournal::new(store, place, 0, shut), WriteGate(gate), Instant::now());
    let warning = OutboxWarning { gate: gate.clone(), path, quarantined: QuarantinedFiles::default() };
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
    // What it was about to write is made again, and goes on failing; reports and lines are taken nevertheless.
    let again = journal.due(true).expect("it is tried again");
    assert!(again > now);
    let end = tell(&mut journal, 1, Completed, now);
    write(&mut journal, again).await;
    assert!(!open().await);
    let said = warning.notice().expect("it is said");
    assert!(said.starts_with("No new work is taken") && said.contains("w-0.sqlite"), "{said}");
    // An administrator makes room.
    change(&folder.file(0), "DELETE FROM entry WHERE kind = 2").await;
    let again = journal.due(true).expect("it is tried again");
    write(&mut journal, again).await;
    assert!(open().await, "there is room and yet no work is taken");
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
