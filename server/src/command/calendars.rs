//! Calendars: save and delete, and what that means for the jobs that keep to them.

use milvaion_api::{events::LiveEvent, views::CurrentUser};
use milvaion_app::error::AppError;
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;

use super::jobs::JobCommands;
use crate::store::{calendars::StoredCalendar, jobs::AuditStamp};
use milvaion_schedule::due::EffectiveSchedule;

/// How many jobs are looked at in one go.
const RESCHEDULE_PAGE: i64 = 500;
/// How many of the jobs that keep a calendar from being deleted are named.
const MAX_NAMED_JOBS: i64 = 5;

impl JobCommands {
    /// Every calendar by name.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn calendars(&self) -> Result<Vec<StoredCalendar>, AppError> {
        Ok(self.store.calendars().await?)
    }

    /// Makes a calendar (`id` none), or changes the one that is still at `version`. Jobs that keep to it are due anew
    /// from now.
    ///
    /// # Errors
    ///
    /// `Fields`, or `Conflict` when somebody else changed it meanwhile.
    pub async fn save_calendar(
        &self,
        me: &CurrentUser,
        id: Option<(CalendarId, i32)>,
        calendar: &Calendar,
    ) -> Result<CalendarId, AppError> {
        let mut calendar = calendar.clone();
        calendar.name = calendar.name.trim().to_owned();
        calendar.dates.sort_unstable();
        calendar.dates.dedup();
        calendar.check().map_err(AppError::Fields)?;
        let now = self.clock.now();
        let (key, version) = match id {
            Some((id, version)) => (id, Some(version)),
            None => (self.clock.calendar_id(), None),
        };
        let saved = self.store.save_calendar(key, version, &calendar, AuditStamp { by: &me.email, at: now }).await;
        match saved {
            Ok(Some(_)) => {}
            Ok(None) => {
                return Err(AppError::Conflict(
                    "Somebody else changed this calendar meanwhile. Load the page again and repeat your change.".into(),
                ));
            }
            Err(error) if error.constraint() == Some("calendars_name_key") => {
                return Err(AppError::field("name", "another calendar has this name: choose another"));
            }
            Err(error) => return Err(error.into()),
        }
        self.reschedule(key).await?;
        Ok(key)
    }

    /// Deletes a calendar that no job keeps to, and answers its name.
    ///
    /// # Errors
    ///
    /// `Conflict` with the names of the jobs that do; `NotFound` when the calendar is gone.
    pub async fn delete_calendar(&self, me: &CurrentUser, id: CalendarId) -> Result<String, AppError> {
        let stored = self.store.calendar(id).await?.ok_or_else(gone)?;
        if self.store.delete_calendar(id, AuditStamp { by: &me.email, at: self.clock.now() }).await? {
            return Ok(stored.calendar.name);
        }
        // Counted anew: what kept it from being deleted may have come since it was read.
        let total = self.store.calendar(id).await?.ok_or_else(gone)?.jobs;
        let named = self.store.calendar_job_names(id, MAX_NAMED_JOBS).await?;
        Err(AppError::Conflict(kept_by(&stored.calendar.name, &named, total)))
    }

    /// Works out anew when the jobs that keep to a calendar are due. A job that is fired or edited meanwhile is left
    /// alone: whoever did that has read the new calendar, or the dispatcher will.
    async fn reschedule(&self, id: CalendarId) -> Result<(), AppError> {
        let mut after = JobId::default();
        loop {
            let slice = self.store.jobs_with_calendar(id, after, RESCHEDULE_PAGE).await?;
            let Some(last) = slice.last() else { return Ok(()) };
            after = *last;
            for job in slice {
                let Some(job) = self.store.job(job).await? else { continue };
                let calendars = self.calendars_of(&job.definition).await?;
                let kept: Vec<&Calendar> = calendars.values().collect();
                let definition = &job.definition;
                let now = self.clock.now();
                if definition.schedule.delay_after_end().is_some() && job.next_fire_at.is_none() {
                    continue;
                }
                // What is due already waits for the dispatcher, which judges it by the new calendar and the misfire rule.
                if job.next_fire_at.is_some_and(|due| due <= now) {
                    continue;
                }
                let table = EffectiveSchedule::new(job.id, &definition.schedule, &definition.rules, &kept);
                let next = table.first(job.last_fire_at, now);
                if next != job.next_fire_at && self.store.move_due(job.id, job.version, job.next_fire_at, next).await? {
                    self.publish_change(job.id, next, LiveEvent::Job { id: job.id }).await;
                }
            }
        }
    }
}

pub(crate) fn gone() -> AppError {
    AppError::NotFound("This calendar does not exist, or no longer.".into())
}

/// Why a calendar stays: the jobs by name, as far as there is room for them.
fn kept_by(calendar: &str, named: &[(JobId, String)], total: i64) -> String {
    let names: Vec<_> = named.iter().map(|(_, name)| name.as_str()).collect();
    let others = total - i64::try_from(named.len()).unwrap_or(i64::MAX);
    let and = if others > 0 { format!(" and {others} more") } else { String::new() };
    let verb = if total == 1 { "keeps" } else { "keep" };
    format!("{}{and} still {verb} to {calendar}: take it out there first.", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_jobs_that_stand_in_the_way() {
        let named = ["Backup", "Report"].map(|name| (JobId::default(), name.to_owned()));
        assert_eq!(kept_by("Holidays", &named[..1], 1), "Backup still keeps to Holidays: take it out there first.");
        assert_eq!(
            kept_by("Holidays", &named, 7),
            "Backup, Report and 5 more still keep to Holidays: take it out there first."
        );
    }
}
