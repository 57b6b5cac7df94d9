//! Calendars.

use milvaion_api::{
    rest::{CalendarDetail, Page},
    views::CalendarRow,
};
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::calendar::Calendar;

use crate::{Client, ClientError};

impl Client {
    /// Returns all calendars.
    pub async fn calendars(&self) -> Result<Page<CalendarRow>, ClientError> {
        self.get(&["calendars"], &()).await
    }

    /// Creates a calendar.
    ///
    /// # Errors
    ///
    /// Returns an error if the definition is invalid, the name is taken, or the request fails.
    pub async fn create_calendar(&self, calendar: &Calendar) -> Result<CalendarDetail, ClientError> {
        self.post(&["calendars"], calendar).await
    }

    /// Returns a calendar.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such calendar or the request fails.
    pub async fn calendar(&self, id: CalendarId) -> Result<CalendarDetail, ClientError> {
        self.get(&["calendars", &id.to_string()], &()).await
    }

    /// Changes a calendar, of which `expected` is the version if it is given.
    ///
    /// # Errors
    ///
    /// Returns an error if the definition is invalid, the calendar has another version, or the request fails.
    pub async fn update_calendar(
        &self,
        id: CalendarId,
        calendar: &Calendar,
        expected: Option<i32>,
    ) -> Result<CalendarDetail, ClientError> {
        self.put(&["calendars", &id.to_string()], calendar, expected).await?.json()
    }

    /// Deletes a calendar, of which `expected` is the version if it is given.
    ///
    /// # Errors
    ///
    /// Returns an error if jobs use the calendar, it has another version, or the request fails.
    pub async fn delete_calendar(&self, id: CalendarId, expected: Option<i32>) -> Result<(), ClientError> {
        self.delete(&["calendars", &id.to_string()], expected).await
    }
}
