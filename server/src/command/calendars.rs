//! Calendars: save and delete, and what that means for the jobs that keep to them.

use app::error::AppError;
use protocol::{
    calendar::Calendar,
    event::Event,
    id::{CalendarId, JobId},
    view::Me,
};

use super::jobs::Jobs;
use crate::{
    domain::due::Timetable,
    store::{calendars::StoredCalendar, jobs::Edit},
};

/// How many jobs are looked at in one go.
const SLICE: i64 = 500;

impl Jobs {
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
        me: &Me,
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
        let saved = self.store.save_calendar(key, version, &calendar, Edit { by: &me.email, at: now }).await;
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

    /// Deletes a calendar that no job keeps to.
    ///
    /// # Errors
    ///
    /// `Conflict` when a job does, or when the calendar is gone.
    pub async fn delete_calendar(&self, me: &Me, id: CalendarId) -> Result<(), AppError> {
        if self.store.delete_calendar(id, Edit { by: &me.email, at: self.clock.now() }).await? {
            return Ok(());
        }
        Err(AppError::Conflict(
            "Jobs still keep to this calendar, or it is gone: take it out of those jobs first.".into(),
        ))
    }

    /// Works out anew when the jobs that keep to a calendar are due. A job that is fired or edited meanwhile is left
    /// alone: whoever did that has read the new calendar, or the dispatcher will.
    async fn reschedule(&self, id: CalendarId) -> Result<(), AppError> {
        let mut after = JobId::default();
        loop {
            let slice = self.store.jobs_with_calendar(id, after, SLICE).await?;
            let Some(last) = slice.last() else { return Ok(()) };
            after = *last;
            for job in slice {
                let Some(job) = self.store.job(job).await? else { continue };
                let calendars = self.calendars_of(&job.definition).await?;
                let kept: Vec<&Calendar> = calendars.values().collect();
                let definition = &job.definition;
                let now = self.clock.now();
                if definition.schedule.pause_after_end().is_some() && job.next_fire_at.is_none() {
                    continue;
                }
                let next = Timetable::new(job.id, &definition.schedule, &definition.rules, &kept).first(now);
                if next != job.next_fire_at && self.store.move_due(job.id, job.version, job.next_fire_at, next).await? {
                    self.told(job.id, next, Event::Job { id: job.id }).await;
                }
            }
        }
    }
}
