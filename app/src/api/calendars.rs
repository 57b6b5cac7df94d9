//! Calendars: listing, defining and deleting them.

use leptos::prelude::*;
use milvaion_api::{
    calendar_form::CalendarForm,
    requests::FieldError,
    views::{BlackoutView, CalendarRow, CalendarView},
};
use milvaion_protocol::id::CalendarId;
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::session::FlashView;
use crate::error::AppError;

/// What the calendar form judges of itself while it is being filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalendarCheck {
    /// What is wrong, in the form's order.
    pub errors: Vec<FieldError>,
    /// The next blackouts, when all is right.
    pub blackouts: Option<Vec<BlackoutView>>,
}

/// Everything the page with the calendar form is drawn from, in one answer, so that it is drawn alike on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalendarFormPage {
    /// The calendar to change, if it is an edit.
    pub calendar: Option<CalendarView>,
    /// Every zone name.
    pub zones: Vec<String>,
    /// What stands in the fields: nothing, the calendar to change, or what was typed before a refusal.
    pub form: CalendarForm,
    /// What a plain form post left.
    pub flash: Option<FlashView>,
    /// The next blackouts of `form`, when it is right.
    pub blackouts: Option<Vec<BlackoutView>>,
}

/// Every calendar by name.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "calendars")]
pub async fn calendars() -> Result<Vec<CalendarRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.calendars(&me).await.map_err(super::with_error_status)
}

/// Everything the page with the calendar form is drawn from: of the calendar `id`, or of a new one.
///
/// # Errors
///
/// `Denied` below Operator, `NotFound` when the calendar is deleted.
#[server(input = GetUrl, endpoint = "calendar_form")]
pub async fn load_calendar_form(id: Option<CalendarId>) -> Result<CalendarFormPage, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let calendar = match id {
        Some(id) => Some(backend.calendar(&me, id).await.map_err(super::with_error_status)?),
        None => None,
    };
    let flash = backend.take_flash(&super::request()?, "calendar-form").await?.map(FlashView::from);
    // What was typed for another calendar in another tab does not belong here.
    let typed = flash
        .as_ref()
        .and_then(|flash| serde_json::from_value::<CalendarForm>(flash.typed.clone()).ok())
        .filter(|form| form.id == id.map(|id| id.to_string()).unwrap_or_default());
    let zones: Vec<String> = milvaion_schedule::schedule::zone_names().into_iter().map(str::to_owned).collect();
    let form = match (typed, &calendar) {
        (Some(form), _) => form,
        (None, Some(view)) => CalendarForm::from_calendar(view.id, view.version, &view.calendar),
        (None, None) => {
            // A zone we do not know would only be refused later.
            let zone = super::session::viewer_zone().filter(|zone| zones.contains(zone));
            CalendarForm { zone: zone.unwrap_or_else(|| "UTC".into()), ..CalendarForm::default() }
        }
    };
    // What is wrong is told beside the fields; the page itself is fine.
    let blackouts = backend.check_calendar(&me, &form).await.ok();
    Ok(CalendarFormPage { calendar, zones, form, flash, blackouts })
}

/// Judges the form without saving it. Wrong fields are an answer here, not an error; a plain form is led back to the
/// form, where they stand beside their fields, with the blackouts to come.
///
/// # Errors
///
/// `Denied` below Operator, or a service that is away.
#[server(endpoint = "check_calendar")]
pub async fn check_calendar(form: CalendarForm) -> Result<CalendarCheck, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let (errors, blackouts) = match backend.check_calendar(&me, &form).await {
        Ok(blackouts) => (Vec::new(), Some(blackouts)),
        Err(AppError::Fields(errors)) => (errors, None),
        Err(error) => return Err(super::with_error_status(error)),
    };
    if super::is_plain_form() {
        let flash = crate::backend::FlashMessage {
            form: "calendar-form".into(),
            notice: errors.is_empty().then(|| "Everything is right. Nothing is saved yet.".to_owned()),
            fields: errors,
            typed: serde_json::to_value(&form).unwrap_or_default(),
            ..crate::backend::FlashMessage::default()
        };
        backend.put_flash(&super::request()?, flash).await?;
        leptos_axum::redirect(&form_address(&form));
        return Ok(CalendarCheck::default());
    }
    Ok(CalendarCheck { errors, blackouts })
}

/// Makes or changes a calendar.
///
/// # Errors
///
/// The wrong fields; `Conflict` when somebody else changed the calendar meanwhile; `Denied` below Operator.
#[server(endpoint = "save_calendar")]
pub async fn save_calendar(form: CalendarForm) -> Result<CalendarId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let result = backend.save_calendar(&me, &form).await;
    let notice = if form.id.is_empty() { "The calendar is made." } else { "The calendar is saved." };
    let back = form_address(&form);
    super::respond("calendar-form", result, |_| "/calendars".into(), notice, &back, form).await
}

/// Where the form that sent `form` stands.
#[cfg(feature = "ssr")]
fn form_address(form: &CalendarForm) -> String {
    match form.id.parse::<CalendarId>() {
        Ok(id) => format!("/calendars/{id}/edit"),
        Err(_) => "/calendars/new".into(),
    }
}

/// Deletes a calendar and answers its name.
///
/// # Errors
///
/// `Conflict` with the names of the jobs that keep to it; `NotFound` when it is gone already; `Denied` below Operator.
#[server(endpoint = "delete_calendar")]
pub async fn delete_calendar(id: CalendarId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let result = backend.delete_calendar(&me, id).await;
    let notice = result.as_ref().map(|name| format!("The calendar {name} is deleted.")).unwrap_or_default();
    // What was typed into the form on that page was not sent: it comes back as the calendar is.
    super::respond("calendar-form", result, |_| "/calendars".into(), &notice, &format!("/calendars/{id}/edit"), ())
        .await
}
