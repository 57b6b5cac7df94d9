//! Occurrences: the list and single occurrences.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{
    duplicates,
    page::{self, ListPage, OccurrenceFilter},
    report_notes,
    views::{OccurrenceRow, OccurrenceView, StatusChange},
};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, trace::trace_id_text};
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::{Result, Store, StoreError};

/// A row of lists and pages as PostgreSQL returns it. It has no input, which would cost a look-up for each row.
#[derive(Debug, sqlx::FromRow)]
pub struct RunRow {
    pub(super) id: Uuid,
    pub(super) job_id: Uuid,
    pub(super) job_name: String,
    pub(super) status: String,
    pub(super) version: i32,
    pub(super) trigger: String,
    pub(super) attempt: i32,
    pub(super) scheduled_for: DateTime<Utc>,
    pub(super) started_at: Option<DateTime<Utc>>,
    pub(super) ended_at: Option<DateTime<Utc>>,
    pub(super) duration_ms: Option<i64>,
    pub(super) instance_id: Option<String>,
    pub(super) progress: Option<Value>,
    pub(super) note: Option<String>,
    pub(super) waits_until: Option<DateTime<Utc>>,
    pub(super) cancel_requested_at: Option<DateTime<Utc>>,
}

/// Converts a row of a statement, with the columns of [`ROW_COLUMNS`], to a list row, or returns an error from the function
/// around it. It is a macro because every checked statement has its own row type.
macro_rules! occurrence_row {
    ($row:expr) => {
        milvaion_api::views::OccurrenceRow {
            id: milvaion_protocol::id::OccurrenceId($row.id),
            job_id: milvaion_protocol::id::JobId($row.job_id),
            job_name: $row.job_name,
            status: $crate::store::occurrences::status(&$row.status)?,
            version: $row.version,
            // The trigger of a newer server is display only, and must not keep a run from ending.
            trigger: milvaion_api::views::TriggerSource::parse(&$row.trigger)
                .unwrap_or(milvaion_api::views::TriggerSource::Api),
            attempt: $row.attempt,
            scheduled_for: $row.scheduled_for,
            started_at: $row.started_at,
            ended_at: $row.ended_at,
            duration_ms: $row.duration_ms,
            instance_id: $row.instance_id,
            progress: $row.progress.and_then(|value| serde_json::from_value(value).ok()),
            note: $row.note,
            waits_until: $row.waits_until,
            cancel_requested_at: $row.cancel_requested_at,
        }
    };
}
pub(super) use occurrence_row;

impl TryFrom<RunRow> for OccurrenceRow {
    type Error = StoreError;

    fn try_from(row: RunRow) -> Result<Self> {
        Ok(occurrence_row!(row))
    }
}

/// An open occurrence that has just changed or ended.
#[derive(Clone, Debug)]
pub struct ChangedRun {
    /// Its row, as it is now.
    pub row: OccurrenceRow,
    /// Its worker.
    pub worker_id: String,
    /// Its job type.
    pub job_type: String,
    /// Position in the trace that it continues; none for a trace of its own.
    pub traceparent: Option<String>,
    /// True if the row named another instance for this attempt before.
    pub was_elsewhere: bool,
    /// True if its status is another than before.
    pub has_new_status: bool,
    /// True if the start of the attempt was not known before.
    pub has_new_start: bool,
    /// True if it ended and counted against a concurrency limit.
    pub frees_slot: bool,
    /// True if it ended and its job counts its pause from the end of a run.
    pub starts_pause: bool,
    /// The cause, if it failed.
    pub failure_cause: Option<String>,
}

impl ChangedRun {
    /// Returns the id of its trace.
    pub(super) fn trace_id(&self) -> String {
        trace_id_text(self.row.id, self.traceparent.as_deref())
    }
}

/// Converts a row of advance.sql or finish.sql to a [`ChangedRun`], as [`occurrence_row`].
macro_rules! changed_run {
    ($row:expr) => {
        $crate::store::occurrences::ChangedRun {
            worker_id: $row.worker_id,
            job_type: $row.job_type,
            traceparent: $row.traceparent,
            was_elsewhere: $row.was_elsewhere,
            has_new_status: $row.has_new_status,
            has_new_start: $row.has_new_start,
            frees_slot: $row.frees_slot,
            starts_pause: $row.starts_pause,
            failure_cause: $row.failure_cause,
            row: $crate::store::occurrences::occurrence_row!($row),
        }
    };
}
pub(super) use changed_run;

/// Returns the status for a stored word.
pub(super) fn status(word: &str) -> Result<OccurrenceStatus> {
    OccurrenceStatus::from_slug(word).ok_or_else(|| StoreError::Corrupt {
        table: "occurrences",
        column: "status",
        detail: word.to_owned(),
    })
}

/// Reads a stored status history.
pub(super) fn status_history(stored: Value) -> Result<Vec<StatusChange>> {
    serde_json::from_value(stored).map_err(|error| StoreError::Corrupt {
        table: "occurrences",
        column: "status_changes",
        detail: error.to_string(),
    })
}

/// Returns the instant before which an occurrence was certainly not filed, so that a look-up by id reads no older
/// partition. The hour allows for clocks that differ.
pub(super) fn filed_since(id: OccurrenceId) -> DateTime<Utc> {
    id.created_at() - Duration::hours(1)
}

/// Columns of a list row, for statements that are built at run time.
const ROW_COLUMNS: &str = "id, job_id, job_name, status::text AS status, version, trigger, attempt, scheduled_for, \
                   started_at, ended_at, duration_ms, instance_id, progress, note, not_before AS waits_until, \
                   cancel_requested_at";

/// Maximum number of enqueued occurrences on the page of the one that enqueued them.
const MAX_SHOWN_CHILDREN: u32 = 50;
/// The age beyond which an ended occurrence is found by the index `history_slow_end`, which repeats it.
const SLOW_END: Duration = Duration::minutes(10);
/// The time by which a worker's clock, which dates an end, may be ahead of the server's, which files it.
const FILED_TOLERANCE: Duration = Duration::hours(1);

/// Starts a query for rows, after the text `before`.
fn select_rows(before: &str) -> QueryBuilder<Postgres> {
    QueryBuilder::new(format!("{before}SELECT {ROW_COLUMNS} FROM occurrences WHERE true"))
}

/// Appends the conditions of a filter, except the one on the end.
fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &OccurrenceFilter) {
    if let Some(job) = filter.job_id {
        query.push(" AND job_id = ").push_bind(job.0);
    }
    if let Some(status) = filter.status {
        // A literal, because the planner uses a partial index only if it can see the status. An open occurrence is filed
        // at infinity, and the planner then leaves out the history.
        query.push(format!(" AND status = '{}'", status.slug()));
        query.push(if status.is_final() { " AND filed_at < 'infinity'" } else { " AND filed_at = 'infinity'" });
    }
    if filter.delayed {
        query.push(" AND not_before IS NOT NULL AND filed_at = 'infinity'");
    }
    if let Some(parent) = filter.parent_id {
        query.push(" AND parent_id = ").push_bind(parent.0);
        query.push(" AND filed_at >= ").push_bind(filed_since(parent));
    }
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(before.0);
    }
    if let Some(since) = filter.since {
        query.push(" AND id >= ").push_bind(OccurrenceId::from_parts(since, [0; 10]).0);
        query.push(" AND filed_at >= ").push_bind(since - FILED_TOLERANCE);
    }
}

/// Returns the query for occurrences that are open or ended at `since` or later.
///
/// Three parts keep it from reading the whole history for a window in which little ended: what was created shortly
/// before the window or in it, by id; what ended in it long after its creation, by the index of slow ends; and what is
/// still open. Each part returns at most the rows of a page.
fn ended_since(filter: &OccurrenceFilter, since: DateTime<Utc>, fetched: i64) -> QueryBuilder<Postgres> {
    let edge = since - SLOW_END;
    let first_id = OccurrenceId::from_parts(edge, [0; 10]);
    let page = |query: &mut QueryBuilder<Postgres>| {
        query.push(" ORDER BY id DESC LIMIT ").push_bind(fetched);
    };
    // OFFSET 0 keeps the order out of the inner query: the planner would otherwise read by id until the page is full.
    let mut query = select_rows("SELECT * FROM ((SELECT * FROM (");
    query.push(" AND ended_at - created_at > interval '10 minutes' AND ended_at >= ").push_bind(since);
    query.push(" AND filed_at < 'infinity' AND filed_at >= ").push_bind(since - FILED_TOLERANCE);
    query.push(" AND id < ").push_bind(first_id.0);
    push_filter(&mut query, filter);
    query.push(" OFFSET 0) AS slow");
    page(&mut query);
    query.push(format!(") UNION ALL (SELECT {ROW_COLUMNS} FROM occurrences WHERE id >= ")).push_bind(first_id.0);
    query.push(" AND filed_at < 'infinity' AND filed_at >= ").push_bind(since - FILED_TOLERANCE);
    query.push(" AND ended_at >= ").push_bind(since);
    push_filter(&mut query, filter);
    page(&mut query);
    query.push(")");
    if filter.status.is_none() {
        query.push(format!(" UNION ALL (SELECT {ROW_COLUMNS} FROM occurrences WHERE filed_at = 'infinity'"));
        push_filter(&mut query, filter);
        page(&mut query);
        query.push(")");
    }
    query.push(") AS listed");
    query
}

impl Store {
    /// Returns the time at which the end of an occurrence was recorded, or `None` if it is open or does not exist.
    pub async fn occurrence_filed_at(&self, id: OccurrenceId) -> Result<Option<DateTime<Utc>>> {
        let filed_at =
            sqlx::query_scalar!("SELECT filed_at FROM history WHERE id = $1 AND filed_at >= $2", id.0, filed_since(id));
        Ok(filed_at.fetch_optional(self.pool()).await?)
    }

    /// Returns a page of occurrences, newest first.
    pub async fn occurrences(&self, filter: &OccurrenceFilter) -> Result<ListPage<OccurrenceRow>> {
        let limit = page::effective_limit(filter.limit);
        let fetched = i64::from(limit) + 1;
        // An open occurrence is in every window.
        let is_open = filter.delayed || filter.status.is_some_and(|status| !status.is_final());
        let mut query = match filter.ended_since.filter(|_| !is_open) {
            Some(since) => ended_since(filter, since, fetched),
            None => {
                let mut query = select_rows("");
                push_filter(&mut query, filter);
                query
            }
        };
        query.push(" ORDER BY id DESC LIMIT ").push_bind(fetched);
        let mut rows: Vec<RunRow> = query.build_query_as().fetch_all(self.pool()).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = if more { rows.last().map(|row| row.id.to_string()) } else { None };
        let rows = rows.into_iter().map(OccurrenceRow::try_from).collect::<Result<_>>()?;
        Ok(ListPage { rows, next })
    }

    /// Returns an occurrence with the newest `lines` lines of its log; `None` if it does not exist.
    pub async fn occurrence(
        &self,
        id: OccurrenceId,
        lines: i64,
        alive_since: DateTime<Utc>,
    ) -> Result<Option<OccurrenceView>> {
        self.occurrence_with_log(id, None, lines, alive_since).await
    }

    /// Returns an occurrence for its page, with the newest `lines` lines of its log after `log_after`; `None` if it does
    /// not exist. An instance without a heartbeat since `alive_since` counts as lost.
    pub async fn occurrence_with_log(
        &self,
        id: OccurrenceId,
        log_after: Option<i64>,
        lines: i64,
        alive_since: DateTime<Utc>,
    ) -> Result<Option<OccurrenceView>> {
        let Some(row) = sqlx::query!(
            r#"SELECT o.id AS "id!", o.job_id AS "job_id!", o.job_name AS "job_name!", o.status::text AS "status!",
                      o.version + (SELECT count(*) FROM late_starts l WHERE l.run_id = o.id AND l.is_after_end)::int
                          AS "version!",
                      o.trigger AS "trigger!", o.attempt AS "attempt!", o.scheduled_for AS "scheduled_for!", o.started_at,
                      o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, o.not_before AS waits_until,
                      o.cancel_requested_at, o.worker_id AS "worker_id!", o.job_type AS "job_type!",
                      o.job_version AS "job_version!", o.job_data, o.triggered_by, o.trigger_token, o.trigger_reason,
                      o.retry_of, o.parent_id, o.published_at, o.is_held AS "is_held!", o.result, o.exception,
                      o.status_changes AS "status_changes!", o.traceparent,
                      EXISTS (SELECT 1 FROM jobs j WHERE j.id = o.job_id) AS "job_exists!",
                      EXISTS (SELECT 1 FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
                               WHERE i.worker_id = o.worker_id AND t.job_type = o.job_type
                                 AND i.stopped_at IS NULL AND i.last_heartbeat_at >= $3) AS "worker_alive!",
                      EXISTS (SELECT 1 FROM worker_instances i
                               WHERE i.id = o.instance_id AND i.stopped_at IS NULL
                                 AND i.last_heartbeat_at >= $3) AS "instance_alive!",
                      EXISTS (SELECT 1 FROM worker_instances i
                               WHERE i.id = o.instance_id AND i.stopped_at IS NULL
                                 AND i.seen_in_redis_at >= $3) AS "instance_unreachable!",
                      EXISTS (SELECT 1 FROM runs r LEFT JOIN worker_job_types t
                                  ON t.worker_id = r.worker_id AND t.job_type = r.job_type
                               WHERE r.id = o.id AND r.status = 'running'
                                 AND r.begun_at + make_interval(secs => coalesce(r.timeout_seconds, t.timeout_seconds) + $4::float8)
                                     < $3) AS "is_overdue!"
                 FROM occurrences o WHERE o.id = $1 AND o.filed_at >= $2"#,
            id.0,
            filed_since(id),
            alive_since,
            crate::domain::lost_run::OVERDUE_MARGIN.as_secs_f64()
        )
        .fetch_optional(self.pool())
        .await?
        else {
            return Ok(None);
        };
        let after = log_after.unwrap_or(i64::MIN);
        let mut log = self.newest_log_lines(id, after, i64::MAX, lines + 1).await?;
        let log_has_earlier = log.len() as i64 > lines;
        if log_has_earlier {
            log.remove(0);
        }
        // Only a page that has lines already shows the number of lines between those and the ones it gets now.
        let log_skipped = match log.first() {
            Some(first) if log_has_earlier && log_after.is_some() => self.count_log_lines(id, after, first.seq).await?,
            _ => 0,
        };
        let mut changes = status_history(row.status_changes)?;
        let end = status(&row.status)?;
        for (attempt, instance, at) in self.late_starts(id).await? {
            let is_duplicate = duplicates::record_duplicate_start(&mut changes, attempt, &instance, at);
            let is_second = !is_duplicate && duplicates::record_second_start(&mut changes, attempt, &instance, at);
            if !is_duplicate && !is_second && end.is_final() {
                duplicates::record_start_after_end(&mut changes, end, attempt, &instance, at);
            }
        }
        for note in self.run_notes(id).await? {
            report_notes::insert_report_note(&mut changes, note.attempt, note.instance_id, note.at, &note.text);
        }
        let enqueued =
            OccurrenceFilter { parent_id: Some(id), limit: MAX_SHOWN_CHILDREN, ..OccurrenceFilter::default() };
        let children = self.occurrences(&enqueued).await?;
        Ok(Some(OccurrenceView {
            row: occurrence_row!(row),
            worker_id: row.worker_id,
            job_type: row.job_type,
            job_version: row.job_version,
            job_data: row.job_data.unwrap_or_default(),
            triggered_by: row.triggered_by,
            trigger_token: row.trigger_token,
            trigger_reason: row.trigger_reason,
            repeats: row.retry_of.map(OccurrenceId),
            parent_id: row.parent_id.map(OccurrenceId),
            has_more_children: children.next.is_some(),
            children: children.rows,
            trace_id: trace_id_text(id, row.traceparent.as_deref()),
            trace_url: None,
            published_at: row.published_at,
            is_held: row.is_held,
            result: row.result,
            exception: row.exception,
            changes,
            log,
            log_has_earlier,
            log_skipped,
            job_exists: row.job_exists,
            worker_alive: row.worker_alive,
            instance_alive: row.instance_alive,
            is_overdue: row.is_overdue,
            instance_unreachable: row.instance_unreachable && !row.instance_alive,
        }))
    }
}
