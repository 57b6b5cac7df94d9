//! Due times that a user has skipped ahead: what keeps such a skip, and what ends it.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::id::{JobId, OccurrenceId};
use milvaion_schedule::due::MAX_AHEAD;
use sqlx::PgExecutor;

use super::StoredJob;
use crate::store::{Result, Store};

/// The time by which an instant must be after now to come from a clock that was ahead.
pub const MIN_AHEAD: Duration = Duration::minutes(1);

impl Store {
    /// Returns true if a job has an occurrence for a due time at which the schedule created it. One that a user has
    /// skipped ahead does not count.
    pub async fn has_scheduled_run(&self, id: JobId, due: DateTime<Utc>) -> Result<bool> {
        has_scheduled_run(self.pool(), id, due, due).await
    }

    /// Returns true if a user has skipped a due time of a job that is after `now`. Returns false if a clock that was ahead
    /// has dispatched it, or was ahead when the user skipped it.
    pub async fn is_skipped(&self, id: JobId, due: DateTime<Utc>, now: DateTime<Utc>) -> Result<bool> {
        is_skipped(self.pool(), id, due, now).await
    }
}

impl StoredJob {
    /// Returns the instant from which an edit to `after` at `now` computes the next due time again: now, or the last due
    /// time of the same schedule if a user has skipped that ahead. Jitter moves all due times, so it counts as another
    /// schedule.
    #[must_use]
    pub fn computed_from(&self, after: &JobInput, now: DateTime<Utc>) -> DateTime<Utc> {
        let before = &self.definition;
        let is_skip = before.schedule == after.schedule
            && before.rules.jitter_seconds == after.rules.jitter_seconds
            && self.last_fire_at < self.next_fire_at;
        self.last_fire_at.filter(|_| is_skip).map_or(now, |last| last.max(now))
    }

    /// Returns the last due time if it is ahead, and if an edit or a resume to `after` has computed the next one, `next`,
    /// from `now` and not from it.
    fn last_left_ahead(
        &self,
        after: &JobInput,
        next: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let is_kept = self.definition.is_active && next == self.next_fire_at;
        let is_left = after.is_active && !is_kept && self.computed_from(after, now) == now;
        self.last_fire_at.filter(|last| is_left && *last >= now + MAX_AHEAD)
    }
}

/// Returns the last due time that a job must forget when an edit or a resume to `after` makes it due at `next`, because that
/// ends the skip of it. One that a clock that was ahead has dispatched is not forgotten, or the dispatcher would repeat
/// the due times before it.
pub(in crate::store) async fn ended_skip(
    executor: impl PgExecutor<'_>,
    before: &StoredJob,
    after: &JobInput,
    next: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>> {
    let Some(last) = before.last_left_ahead(after, next, now) else { return Ok(None) };
    Ok(is_skipped(executor, before.id, last, now).await?.then_some(last))
}

async fn is_skipped(executor: impl PgExecutor<'_>, id: JobId, due: DateTime<Utc>, now: DateTime<Utc>) -> Result<bool> {
    // An occurrence for a due time that is ahead was created before now if a user has skipped it, and after now if a clock
    // was ahead.
    Ok(!has_scheduled_run(executor, id, due, due.min(now + MIN_AHEAD)).await?)
}

/// Returns true if a job has an occurrence of the schedule for a due time that was created at `since` or later.
async fn has_scheduled_run(
    executor: impl PgExecutor<'_>,
    id: JobId,
    due: DateTime<Utc>,
    since: DateTime<Utc>,
) -> Result<bool> {
    // A due time may be dispatched ahead.
    let first = OccurrenceId::from_parts(since - MAX_AHEAD, [0; 10]);
    Ok(sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT 1 FROM occurrences WHERE job_id = $1 AND id >= $2 AND scheduled_for = $3
                             AND trigger = 'schedule') AS "exists!""#,
        id.0,
        first.0,
        due
    )
    .fetch_one(executor)
    .await?)
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::{rules::Rules, schedule::Schedule};

    use super::{super::StoredSource, *};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a valid instant")
    }

    /// Returns a job that is due every hour, with its last and its next due time. It is active if it has a next one.
    fn hourly(last: DateTime<Utc>, next: Option<DateTime<Utc>>) -> StoredJob {
        let definition =
            JobInput { is_active: next.is_some(), ..JobInput::schedule_only(Schedule::every(3_600), Rules::default()) };
        StoredJob {
            id: JobId::default(),
            key: None,
            definition,
            unreadable: None,
            next_fire_at: next,
            last_fire_at: Some(last),
            paused_reason: None,
            auto_disabled_at: None,
            source: StoredSource::default(),
            version: 1,
            created_at: last,
            created_by: String::new(),
            modified_at: last,
            modified_by: String::new(),
        }
    }

    #[test]
    fn edit_of_the_same_schedule_keeps_a_skip_and_others_end_it() {
        let (now, nine, ten) = (at("2026-01-01T08:20:00Z"), at("2026-01-01T09:00:00Z"), at("2026-01-01T10:00:00Z"));
        let (early, later) = (now + Duration::milliseconds(500), at("2026-01-01T09:20:00Z"));
        let same = hourly(nine, Some(ten)).definition;
        let ended = JobInput { rules: Rules { end_at: Some(ten), ..Rules::default() }, ..same.clone() };
        let other = JobInput { schedule: Schedule::every(7_200), ..same.clone() };
        let jitter = JobInput { rules: Rules { jitter_seconds: 60, ..Rules::default() }, ..same.clone() };
        let paused = JobInput { is_active: false, ..same.clone() };
        let skipped = || hourly(nine, Some(ten));
        for (case, before, after, next, from, left) in [
            ("another name", skipped(), &same, Some(ten), nine, None),
            ("an end before the next one", skipped(), &ended, None, nine, None),
            ("another schedule", skipped(), &other, Some(later), now, Some(nine)),
            ("another jitter", skipped(), &jitter, Some(later), now, Some(nine)),
            ("a pause", skipped(), &paused, None, nine, None),
            ("a resume", hourly(nine, None), &same, Some(later), now, Some(nine)),
            ("a resume without a due time", hourly(nine, None), &same, None, now, Some(nine)),
            ("a last one that has passed", hourly(now, Some(nine)), &ended, Some(later), now, None),
            ("a last one dispatched early", hourly(early, Some(ten)), &ended, Some(nine), early, None),
            ("a resume after that", hourly(early, None), &same, Some(later), now, None),
            ("a clock that was ahead", hourly(ten, Some(nine)), &ended, Some(later), now, Some(ten)),
        ] {
            assert_eq!(before.computed_from(after, now), from, "{case}");
            assert_eq!(before.last_left_ahead(after, next, now), left, "{case}");
        }
    }
}
