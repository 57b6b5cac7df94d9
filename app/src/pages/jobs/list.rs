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
    components::{
        due_refresh::use_due_refresh,
        live_rows::{LiveRows, when_user_left},
    },
    live::{ThrottledRefresh, live_page},
    pages::job::shown_state::{ShownState, ShownStates},
};

/// The table's id, used to detect whether the user works in it.
pub(super) const JOB_TABLE_ID: &str = "job-rows";
/// The number of recent occurrences in a job's row.
const RECENT_OCCURRENCES: usize = 10;
/// The maximum number of statuses that are kept during a read. The answer of a read that takes longer is replaced by the
/// next one.
const MAX_STATUSES_DURING_READ: usize = 1_000;

/// The rows on the page. Each row is its own signal, so that a change redraws only that row.
#[derive(Clone, Copy)]
pub(super) struct JobList {
    /// The rows by the ids of their jobs. A changed order waits until the user has left the table.
    pub(super) rows: LiveRows<JobRow>,
    /// The statuses that arrived since the last read began.
    since_read: StoredValue<Vec<(JobId, OccurrenceId, OccurrenceStatus)>>,
    /// The states that the actions on the rows show.
    states: ShownStates,
    refresh: StoredValue<Option<ThrottledRefresh>>,
}

impl JobList {
    /// Creates the list from the page that was read.
    pub(super) fn new(found: ListPage<JobRow>) -> Self {
        Self {
            rows: LiveRows::new(found, |row| row.id.to_string()),
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
        use_due_refresh(move |now| self.latest_due_before(now), refresh);
        when_user_left(JOB_TABLE_ID, move || self.rows.is_held(), move || self.rows.show_held());
    }

    /// Shows the state that an action on a job leads to. After the answer the page is read again.
    pub(super) fn show_state(self, job: JobId, state: ShownState) {
        self.states.record(job, state);
        if let Some(row) = self.rows.find(&job.to_string()) {
            row.update(|row| row.is_active = state.is_active);
        }
        if state.is_answered
            && let Some(refresh) = self.refresh.get_value()
        {
            refresh.request_own();
        }
    }

    /// Returns the latest due time on the page that is not after `now`.
    fn latest_due_before(self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let rows = untrack(|| self.rows.shown());
        rows.iter().filter_map(|row| row.read_untracked().next_fire_at).filter(|due| *due <= now).max()
    }

    fn begin_read(self) {
        self.since_read.update_value(Vec::clear);
        self.states.begin_read();
    }

    fn reread(self, mut found: ListPage<JobRow>, is_busy: bool) {
        let since_read = self.since_read.get_value();
        for row in &mut found.rows {
            self.states.correct(row);
            for (_, id, status) in since_read.iter().filter(|(job, ..)| *job == row.id) {
                record_status(&mut row.recent, *id, *status);
            }
        }
        // The answer of an action does not reach a row that has left the page.
        self.states.retain(|job| found.rows.iter().any(|row| row.id == job));
        self.rows.apply(found, is_busy);
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
        for occurrence in occurrences {
            if let Some(row) = self.rows.find(&occurrence.job_id.to_string()) {
                let mut recent = row.read_untracked().recent.clone();
                is_due_passed |= row.read_untracked().next_fire_at.is_some_and(|due| due <= occurrence.scheduled_for);
                if record_status(&mut recent, occurrence.id, occurrence.status) {
                    row.update(|row| row.recent = recent);
                }
            }
        }
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
        untrack(|| list.rows.shown()).iter().map(|row| row.read_untracked().id).collect()
    }

    fn first(list: JobList) -> JobRow {
        untrack(|| list.rows.shown())[0].get_untracked()
    }

    #[test]
    fn older_read_does_not_turn_a_mark_back() {
        use OccurrenceStatus::{Completed, Running};
        Owner::new().with(|| {
            let list = JobList::new(page(vec![job(1, vec![(id(1), Running)])]));
            let recent = || first(list).recent;
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
                let is_shown = || first(list).is_active == is_active;
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
            assert!(untrack(|| list.rows.is_held()));
            list.rows.show_held();
            assert_eq!(order(list), [job_id(3), job_id(2)]);
        });
    }
}
