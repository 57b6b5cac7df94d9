//! The rows of the jobs page, kept current by events, refreshes and the due times on the page.
//!
//! The strip of a row holds statuses without versions. A read that began before an event arrived may lack its change, so
//! the events that arrive during a read are applied again to its answer. The same holds for a job that this user pauses
//! or resumes. Rows do not move or leave while the user works in the table; a changed order waits until the user has
//! left it or requests it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    page::{JobFilter, ListPage},
    views::{JobRow, OccurrenceRow},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

use crate::{
    api::jobs::jobs,
    browser,
    components::{due_refresh::use_due_refresh, time::use_page_clock},
    live::{LiveUpdates, ThrottledRefresh, live_page},
    pages::job::shown_state::{ShownState, ShownStates},
};

/// The table's id, used to detect whether the user works in it.
pub(super) const JOB_TABLE_ID: &str = "job-rows";
/// The number of recent occurrences in a job's row.
const RECENT_OCCURRENCES: usize = 10;
/// The maximum number of statuses that are kept during a read. The answer of a read that takes longer is replaced by the
/// next one.
const MAX_STATUSES_DURING_READ: usize = 1_000;

/// The entries of the table: the rows with the ids of their jobs.
type JobEntries = Vec<(JobId, ArcRwSignal<JobRow>)>;

/// The rows on the page. Each row is its own signal, so that a change redraws only that row.
#[derive(Clone, Copy)]
pub(super) struct JobList {
    /// The rows with the ids of their jobs.
    pub(super) rows: RwSignal<JobEntries>,
    /// The cursor of the next page; none on the last page.
    pub(super) next: RwSignal<Option<String>>,
    /// The rows of a read whose order waits until the user has left the table.
    waiting: RwSignal<Option<JobEntries>>,
    /// The statuses that arrived since the last read began.
    since_read: StoredValue<Vec<(JobId, OccurrenceId, OccurrenceStatus)>>,
    /// The states that the actions on the rows show.
    states: ShownStates,
    refresh: StoredValue<Option<ThrottledRefresh>>,
}

impl JobList {
    /// Creates the list from the page that was read.
    pub(super) fn new(found: ListPage<JobRow>) -> Self {
        let rows = found.rows.into_iter().map(|row| (row.id, ArcRwSignal::new(row))).collect();
        Self {
            rows: RwSignal::new(rows),
            next: RwSignal::new(found.next),
            waiting: RwSignal::new(None),
            since_read: StoredValue::new(Vec::new()),
            states: ShownStates::new(),
            refresh: StoredValue::new(None),
        }
    }

    /// Follows the events: patches the status of an occurrence into its row, and reads the page again for other events
    /// and for due times that have passed.
    pub(super) fn keep_current(self, filter: JobFilter) {
        let read = move || {
            self.begin_read();
            let filter = filter.clone();
            async move { jobs(filter).await }
        };
        let on_event = move |envelope: &EventEnvelope| match &envelope.event {
            LiveEvent::Occurrences { rows } => self.apply(rows),
            event => matches!(
                event,
                LiveEvent::Job { .. } | LiveEvent::JobDeleted { .. } | LiveEvent::Workers | LiveEvent::Cluster
            ),
        };
        let apply = move |found| self.reread(found, browser::is_busy_in(JOB_TABLE_ID));
        let refresh = live_page(Duration::from_secs(1), read, on_event, apply);
        self.refresh.set_value(Some(refresh.clone()));
        use_due_refresh(move |now| self.latest_due_before(now), refresh.clone());
        self.follow_user(use_context::<LiveUpdates>(), refresh);
    }

    /// Shows the state that an action on a job leads to. After the answer the page is read again.
    pub(super) fn show_state(self, job: JobId, state: ShownState) {
        self.states.record(job, state);
        let row = |rows: &JobEntries| rows.iter().find(|(id, _)| *id == job).map(|(_, row)| row.clone());
        if let Some(row) = self.rows.with_untracked(row) {
            row.update(|row| row.is_active = state.is_active);
        }
        if state.is_answered
            && let Some(refresh) = self.refresh.get_value()
        {
            refresh.request_own();
        }
    }

    /// Returns true if a changed order waits until the user has left the table.
    pub(super) fn has_waiting(self) -> bool {
        self.waiting.with(Option::is_some)
    }

    /// Shows the order that waits.
    pub(super) fn show_waiting(self) {
        if let Some(rows) = self.waiting.try_update(Option::take).flatten() {
            self.rows.set(rows);
        }
    }

    /// Shows the order that waits once the user has left the table. The clock checks, because no event reports that a
    /// selection has ended.
    fn follow_user(self, live: Option<LiveUpdates>, refresh: ThrottledRefresh) {
        let clock = use_page_clock();
        Effect::new(move |_| {
            if clock.now().is_some()
                && self.waiting.with_untracked(Option::is_some)
                && !live.is_some_and(LiveUpdates::is_paused)
                && !browser::is_busy_in(JOB_TABLE_ID)
            {
                self.show_waiting();
                // New rows received no events while they waited.
                refresh.request();
            }
        });
    }

    /// Returns the latest due time on the page that is not after `now`.
    fn latest_due_before(self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.rows.with_untracked(|rows| {
            rows.iter().filter_map(|(_, row)| row.read_untracked().next_fire_at).filter(|due| *due <= now).max()
        })
    }

    fn begin_read(self) {
        self.since_read.update_value(Vec::clear);
        self.states.begin_read();
    }

    fn reread(self, found: ListPage<JobRow>, is_busy: bool) {
        let known = self.rows.get_untracked();
        let since_read = self.since_read.get_value();
        let rows: JobEntries = found
            .rows
            .into_iter()
            .map(|mut row| {
                self.states.correct(&mut row);
                for (_, id, status) in since_read.iter().filter(|(job, ..)| *job == row.id) {
                    record_status(&mut row.recent, *id, *status);
                }
                match known.iter().find(|(id, _)| *id == row.id) {
                    Some((id, signal)) => {
                        if *signal.read_untracked() != row {
                            signal.set(row);
                        }
                        (*id, signal.clone())
                    }
                    None => (row.id, ArcRwSignal::new(row)),
                }
            })
            .collect();
        // The answer of an action does not reach a row that has left the page.
        self.states.retain(|job| rows.iter().any(|(id, _)| *id == job));
        let is_same = known.len() == rows.len() && known.iter().zip(&rows).all(|(a, b)| a.0 == b.0);
        let waiting = (!is_same && is_busy).then(|| rows.clone());
        if waiting.is_some() || self.waiting.with_untracked(Option::is_some) {
            self.waiting.set(waiting);
        }
        if !is_same && !is_busy {
            self.rows.set(rows);
        }
        if self.next.with_untracked(|next| *next != found.next) {
            self.next.set(found.next);
        }
    }

    /// Patches the statuses into the rows. Returns true if an occurrence shows that the next due time of its row has
    /// passed, so that the page must be read again.
    fn apply(self, occurrences: &[OccurrenceRow]) -> bool {
        let mut is_due_passed = false;
        self.since_read.update_value(|since| {
            since.extend(occurrences.iter().map(|occurrence| (occurrence.job_id, occurrence.id, occurrence.status)));
            let excess = since.len().saturating_sub(MAX_STATUSES_DURING_READ);
            since.drain(..excess);
        });
        self.rows.with_untracked(|rows| {
            for occurrence in occurrences {
                if let Some((_, row)) = rows.iter().find(|(id, _)| *id == occurrence.job_id) {
                    let mut recent = row.read_untracked().recent.clone();
                    is_due_passed |=
                        row.read_untracked().next_fire_at.is_some_and(|due| due <= occurrence.scheduled_for);
                    if record_status(&mut recent, occurrence.id, occurrence.status) {
                        row.update(|row| row.recent = recent);
                    }
                }
            }
        });
        is_due_passed
    }
}

/// Inserts or updates an occurrence among the last ten, which are in order, newest first. Returns true if anything
/// changed. A final status is not overwritten by a late event.
fn record_status(
    recent: &mut Vec<(OccurrenceId, OccurrenceStatus)>,
    id: OccurrenceId,
    status: OccurrenceStatus,
) -> bool {
    let position = recent.partition_point(|(other, _)| *other > id);
    match recent.get_mut(position) {
        Some((known, now)) if *known == id => {
            let changes = *now != status && !now.is_final();
            if changes {
                *now = status;
            }
            changes
        }
        _ if position < RECENT_OCCURRENCES => {
            recent.insert(position, (id, status));
            recent.truncate(RECENT_OCCURRENCES);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(second: i64) -> OccurrenceId {
        OccurrenceId::from_parts(DateTime::from_timestamp(1_795_000_000 + second, 0).expect("in range"), [3; 10])
    }

    #[test]
    fn strip_keeps_the_last_ten_in_order() {
        use OccurrenceStatus::{Completed, Queued, Running};
        let mut recent = Vec::new();
        for second in [2, 1, 3] {
            assert!(record_status(&mut recent, id(second), Queued));
        }
        assert_eq!(recent.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(3), id(2), id(1)]);
        assert!(record_status(&mut recent, id(2), Completed));
        assert!(!record_status(&mut recent, id(2), Running), "a late event must not undo a final status");
        for second in 10..20 {
            record_status(&mut recent, id(second), Queued);
        }
        assert_eq!(recent.len(), RECENT_OCCURRENCES);
        assert!(!record_status(&mut recent, id(0), Completed), "older than the ten shown");
    }

    fn job(number: u8, recent: Vec<(OccurrenceId, OccurrenceStatus)>) -> JobRow {
        JobRow {
            id: job_id(number),
            key: None,
            display_name: format!("job {number}"),
            worker_id: "local".into(),
            job_type: "shell-command".into(),
            schedule_words: "Every minute".into(),
            next_fire_at: DateTime::from_timestamp(1_795_000_060, 0),
            is_active: true,
            tags: vec![],
            recent,
            worker_alive: true,
        }
    }

    fn job_id(number: u8) -> JobId {
        format!("00000000-0000-7000-8000-0000000000{number:02}").parse().expect("an id")
    }

    fn run(second: i64, status: OccurrenceStatus) -> OccurrenceRow {
        OccurrenceRow {
            id: id(second),
            job_id: job_id(1),
            job_name: "job 1".into(),
            status,
            version: 1,
            trigger: milvaion_api::views::TriggerSource::Schedule,
            attempt: 1,
            scheduled_for: id(second).created_at(),
            started_at: None,
            ended_at: None,
            duration_ms: None,
            instance_id: None,
            progress: None,
            note: None,
            waits_until: None,
            cancel_requested_at: None,
        }
    }

    fn page(rows: Vec<JobRow>) -> ListPage<JobRow> {
        ListPage { rows, next: None }
    }

    fn order(list: JobList) -> Vec<JobId> {
        list.rows.with_untracked(|rows| rows.iter().map(|(id, _)| *id).collect())
    }

    #[test]
    fn older_read_does_not_turn_a_mark_back() {
        use OccurrenceStatus::{Completed, Running};
        Owner::new().with(|| {
            let list = JobList::new(page(vec![job(1, vec![(id(1), Running)])]));
            let recent = || list.rows.with_untracked(|rows| rows[0].1.read_untracked().recent.clone());
            list.begin_read();
            list.apply(&[run(1, Completed), run(2, Running)]);
            list.reread(page(vec![job(1, vec![(id(1), Running)])]), false);
            assert_eq!(recent(), [(id(2), Running), (id(1), Completed)]);
            list.begin_read();
            list.reread(page(vec![job(1, vec![(id(1), Completed)])]), false);
            assert_eq!(recent(), [(id(1), Completed)], "a read that began after the events decides");
        });
    }

    #[test]
    fn older_read_does_not_undo_a_pause_or_resume() {
        Owner::new().with(|| {
            for is_active in [false, true] {
                let before = || page(vec![JobRow { is_active: !is_active, ..job(1, vec![]) }]);
                let list = JobList::new(before());
                let is_shown = || list.rows.with_untracked(|rows| rows[0].1.read_untracked().is_active) == is_active;
                let show = |is_answered| list.show_state(job_id(1), ShownState { is_active, is_answered });
                let is_shown_after_read = || {
                    list.reread(before(), false);
                    is_shown()
                };
                list.begin_read();
                show(false);
                assert!(is_shown(), "before the answer");
                assert!(is_shown_after_read(), "a read that began before the action");
                list.begin_read();
                show(true);
                assert!(is_shown_after_read(), "a read that began before the answer");
                list.begin_read();
                assert!(!is_shown_after_read(), "a read that began after the answer decides");
            }
        });
    }

    #[test]
    fn scheduled_run_shows_that_the_due_time_has_passed() {
        use OccurrenceStatus::Queued;
        Owner::new().with(|| {
            let list = JobList::new(page(vec![job(1, vec![])]));
            assert!(!list.apply(&[run(30, Queued)]), "a manual run before the due time");
            assert!(list.apply(&[run(60, Queued)]));
            let due = DateTime::from_timestamp(1_795_000_060, 0).expect("in range");
            assert_eq!(list.latest_due_before(due), Some(due));
            assert_eq!(list.latest_due_before(due - chrono::TimeDelta::seconds(1)), None);
        });
    }

    #[test]
    fn order_waits_while_the_user_is_in_the_table() {
        Owner::new().with(|| {
            let list = JobList::new(page(vec![job(1, vec![]), job(2, vec![])]));
            list.reread(page(vec![job(3, vec![]), job(2, vec![])]), true);
            assert_eq!(order(list), [job_id(1), job_id(2)]);
            assert!(list.waiting.with_untracked(Option::is_some));
            list.show_waiting();
            assert_eq!(order(list), [job_id(3), job_id(2)]);
        });
    }
}
