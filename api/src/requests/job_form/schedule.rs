//! The schedule part of the job form: from a schedule to its fields, and back. Both directions are in one file, so that
//! a shown schedule is parsed as the same one.

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};

use super::{FieldError, JobForm};
use milvaion_schedule::schedule::{self, IntervalAnchor, Schedule};

impl JobForm {
    /// Fills in the fields of `schedule`.
    pub(super) fn show_schedule(&mut self, schedule: &Schedule) {
        match schedule {
            Schedule::Cron { expression, zone } => {
                self.kind = "cron".into();
                self.cron.clone_from(expression);
                self.zone.clone_from(zone);
            }
            Schedule::Every { seconds, from } => {
                self.kind = "every".into();
                self.every_from = from.as_str().into();
                let (n, unit) = match *seconds {
                    s if s % 86_400 == 0 => (s / 86_400, "days"),
                    s if s % 3_600 == 0 => (s / 3_600, "hours"),
                    s if s % 60 == 0 => (s / 60, "minutes"),
                    s => (s, "seconds"),
                };
                self.every = n.to_string();
                self.every_unit = unit.into();
            }
            Schedule::Once { at, zone } => {
                self.kind = "once".into();
                let local = at.with_timezone(&schedule::parse_zone(zone).unwrap_or_default());
                self.once = local.format("%Y-%m-%dT%H:%M:%S").to_string();
                self.zone.clone_from(zone);
            }
            Schedule::Manual => self.kind = "manual".into(),
        }
    }

    /// Parses and checks the schedule alone, for the preview during editing.
    ///
    /// # Errors
    ///
    /// Returns the invalid fields.
    pub fn schedule(&self) -> Result<Schedule, Vec<FieldError>> {
        let schedule = match self.kind.as_str() {
            "cron" => Schedule::Cron { expression: self.cron.trim().to_owned(), zone: self.zone_or_utc() },
            "every" => Schedule::Every { seconds: self.every_seconds()?, from: self.every_from()? },
            "once" => Schedule::Once { at: self.once_at()?, zone: self.zone_or_utc() },
            "manual" => Schedule::Manual,
            _ => {
                return Err(vec![FieldError::new(
                    "kind",
                    "choose a schedule type: cron expression, interval, once or manual only",
                )]);
            }
        };
        schedule.check_new().map_err(|(field, message)| vec![FieldError::new(field, message)])?;
        Ok(schedule)
    }

    fn every_from(&self) -> Result<IntervalAnchor, Vec<FieldError>> {
        match self.every_from.as_str() {
            "" => Ok(IntervalAnchor::default()),
            word => IntervalAnchor::parse(word).ok_or_else(|| {
                vec![FieldError::new("every_from", "choose the previous due time or the end of the previous run")]
            }),
        }
    }

    fn every_seconds(&self) -> Result<u64, Vec<FieldError>> {
        let error = |message: &str| vec![FieldError::new("every", message)];
        let unit = match self.every_unit.as_str() {
            "seconds" | "" => 1,
            "minutes" => 60,
            "hours" => 3_600,
            "days" => 86_400,
            _ => return Err(vec![FieldError::new("every_unit", "choose seconds, minutes, hours or days")]),
        };
        let n: u64 = self.every.trim().parse().map_err(|_| error("enter a whole number of at least 1"))?;
        n.checked_mul(unit).ok_or_else(|| error("the interval must be at most 366 days"))
    }

    fn once_at(&self) -> Result<DateTime<Utc>, Vec<FieldError>> {
        let zone = schedule::parse_zone(&self.zone_or_utc()).map_err(|m| vec![FieldError::new("zone", m)])?;
        let text = self.once.trim();
        let local = NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S")
            .or_else(|_| NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M"))
            .map_err(|_| vec![FieldError::new("once", "choose a date and a time, for example 2026-11-21T09:00")])?;
        zone.from_local_datetime(&local).earliest().map(|at| at.with_timezone(&Utc)).ok_or_else(|| {
            let message =
                format!("{text} does not exist in {zone}, because the clock is set forward then: enter another time");
            vec![FieldError::new("once", message)]
        })
    }
}
