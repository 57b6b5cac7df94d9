//! Calendars: save and delete.

use milvaion_api::{events::LiveEvent, requests::FieldError};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;

use super::jobs::JobCommands;
use crate::{
    error::chain,
    store::{calendars::StoredCalendar, jobs::AuditStamp},
};

/// The most jobs that a refused deletion names.
const MAX_NAMED_JOBS: i64 = 5;

impl JobCommands {
    /// Returns all calendars, ordered by name.
    pub async fn calendars(&self) -> Result<Vec<StoredCalendar>, AppError> {
        Ok(self.store.calendars().await?)
    }

    /// Creates a calendar if `id` is `None`, or changes the one that still has the given version. Computes the due times
    /// of the first jobs that use it; see [`apply_calendar_edit`](Self::apply_calendar_edit).
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields, and `Conflict` if the calendar was changed in the meantime.
    pub async fn save_calendar(
        &self,
        me: &RequestUser,
        id: Option<(CalendarId, i32)>,
        calendar: &Calendar,
    ) -> Result<CalendarId, AppError> {
        let calendar = checked_calendar(calendar).map_err(AppError::Fields)?;
        let now = self.clock.now();
        let (key, version) = match id {
            Some((id, version)) => (id, Some(version)),
            None => (self.clock.calendar_id(), None),
        };
        let saved = self
            .store
            .save_calendar(key, version, &calendar, AuditStamp { by: &me.email, at: now, address: me.address })
            .await;
        match saved {
            Ok(Some(_)) => {}
            Ok(None) => {
                return Err(AppError::Conflict(
                    "This calendar was changed in the meantime. Reload the page and repeat your change.".into(),
                ));
            }
            Err(error) if error.constraint() == Some("calendars_name_key") => {
                return Err(AppError::field("name", "another calendar has this name: choose a different one"));
            }
            Err(error) => return Err(error.into()),
        }
        self.hub.publish(now, vec![LiveEvent::Calendar { id: key }]);
        // The calendar is saved. What this request does not come to, the background task does.
        if let Err(error) = self.apply_calendar_edit().await {
            tracing::warn!(error = chain(error.as_ref()), "the due times of a calendar's jobs are computed later");
        }
        Ok(key)
    }

    /// Deletes a calendar that no job uses. Returns its name.
    ///
    /// # Errors
    ///
    /// Returns `Conflict` with the names of the jobs that use it, and `NotFound` if the calendar does not exist.
    pub async fn delete_calendar(&self, me: &RequestUser, id: CalendarId) -> Result<String, AppError> {
        let stored = self.store.calendar(id).await?.ok_or_else(not_found)?;
        if self
            .store
            .delete_calendar(id, AuditStamp { by: &me.email, at: self.clock.now(), address: me.address })
            .await?
        {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Calendar { id }]);
            return Ok(stored.name);
        }
        // Counted again, because the job that prevents the deletion may be newer than the first count.
        let total = self.store.calendar(id).await?.ok_or_else(not_found)?.jobs;
        let named = self.store.calendar_job_names(id, MAX_NAMED_JOBS).await?;
        Err(AppError::Conflict(still_used_by(&stored.name, &named, total)))
    }
}

/// Checks a calendar completely and returns it as it is stored.
pub(super) fn checked_calendar(calendar: &Calendar) -> Result<Calendar, Vec<FieldError>> {
    let mut calendar = calendar.clone();
    calendar.name = calendar.name.trim().to_owned();
    calendar.dates.sort_unstable();
    calendar.dates.dedup();
    calendar.check()?;
    Ok(calendar)
}

pub(crate) fn not_found() -> AppError {
    AppError::NotFound("This calendar does not exist or was deleted.".into())
}

/// Formats the refusal to delete a calendar, with the names of some of the jobs that use it.
fn still_used_by(calendar: &str, named: &[(JobId, String)], total: i64) -> String {
    let names: Vec<_> = named.iter().map(|(_, name)| name.as_str()).collect();
    let others = total - i64::try_from(named.len()).unwrap_or(i64::MAX);
    let and = if others > 0 { format!(" and {others} more") } else { String::new() };
    let (verb, jobs) = if total == 1 { ("uses", "this job") } else { ("use", "these jobs") };
    format!("{}{and} still {verb} {calendar}. Remove it from {jobs} first.", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_deletion_names_the_jobs() {
        let named = ["Backup", "Report"].map(|name| (JobId::default(), name.to_owned()));
        assert_eq!(
            still_used_by("Holidays", &named[..1], 1),
            "Backup still uses Holidays. Remove it from this job first."
        );
        assert_eq!(
            still_used_by("Holidays", &named, 7),
            "Backup, Report and 5 more still use Holidays. Remove it from these jobs first."
        );
    }
}
