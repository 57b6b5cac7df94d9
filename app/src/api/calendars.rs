//! Server functions that list, define and delete calendars.

use leptos::prelude::*;
use milvaion_api::{
    calendar_form::CalendarForm,
    requests::FieldError,
    views::{BlackoutView, CalendarRow, CalendarView},
};
use milvaion_protocol::id::CalendarId;
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use super::session::FlashView;
use crate::{error::AppError, format::plural};

/// Validation result of the calendar form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalendarCheck {
    /// Errors in the form's order.
    pub errors: Vec<FieldError>,
    /// The next blackouts, if the form is valid.
    pub blackouts: Option<Vec<BlackoutView>>,
}

/// Everything the calendar form's page renders from, in one response, so that server and browser render the same page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalendarFormPage {
    /// The calendar to edit; `None` for a new one.
    pub calendar: Option<CalendarView>,
    /// Every zone name.
    pub zones: Vec<String>,
    /// Initial values: an empty form, the calendar to edit, or the values of a rejected post.
    pub form: CalendarForm,
    /// Result of a plain form post, if there was one.
    pub flash: Option<FlashView>,
    /// The next blackouts of `form`, if it is valid.
    pub blackouts: Option<Vec<BlackoutView>>,
}

/// Lists every calendar by name.
#[server(input = GetUrl, output = JsonText, endpoint = "calendars")]
pub async fn calendars() -> Result<Vec<CalendarRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.calendars(&me).await.map_err(super::with_error_status)
}

/// Loads the calendar form's page for the calendar `id`, or for a new one.
///
/// # Errors
///
/// `Denied` below Operator; `NotFound` if the calendar is deleted.
#[server(input = GetUrl, output = JsonText, endpoint = "calendar_form")]
pub async fn load_calendar_form(id: Option<CalendarId>) -> Result<CalendarFormPage, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let calendar = match id {
        Some(id) => Some(backend.calendar(&me, id).await.map_err(super::with_error_status)?),
        None => None,
    };
    let flash = backend.take_flash(&super::request()?, "calendar-form").await?.map(FlashView::from);
    // A flash may hold the values of another calendar that was posted in another tab.
    let typed = flash
        .as_ref()
        .and_then(|flash| serde_json::from_value::<CalendarForm>(flash.typed.clone()).ok())
        .filter(|form| form.id == id.map(|id| id.to_string()).unwrap_or_default());
    let zones: Vec<String> = milvaion_schedule::schedule::zone_names().into_iter().map(str::to_owned).collect();
    let form = match (typed, &calendar) {
        (Some(form), _) => form,
        (None, Some(view)) => CalendarForm::from_calendar(view.id, view.version, &view.calendar),
        (None, None) => {
            // An unknown zone would be rejected on save.
            let zone = super::session::viewer_zone().filter(|zone| zones.contains(zone));
            CalendarForm { zone: zone.unwrap_or_else(|| "UTC".into()), ..CalendarForm::default() }
        }
    };
    // Validation errors are shown beside their fields; the page itself loads.
    let blackouts = backend.check_calendar(&me, &form).await.ok();
    Ok(CalendarFormPage { calendar, zones, form, flash, blackouts })
}

/// Validates the form without saving it.
///
/// Invalid fields are a normal result here, not an error. A plain form post is redirected to the form, which shows the
/// errors beside their fields and the next blackouts.
///
/// # Errors
///
/// `Denied` below Operator; `Unavailable` if a service is down.
#[server(output = JsonText, endpoint = "check_calendar")]
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
            notice: errors.is_empty().then(|| "All fields are valid. Nothing is saved yet.".to_owned()),
            fields: errors,
            typed: serde_json::to_value(&form).unwrap_or_default(),
            ..crate::backend::FlashMessage::default()
        };
        backend.put_flash(&super::request()?, flash).await?;
        leptos_axum::redirect(&form_address(&form), false);
        return Ok(CalendarCheck::default());
    }
    Ok(CalendarCheck { errors, blackouts })
}

/// Creates or changes a calendar.
///
/// # Errors
///
/// `Fields` for invalid fields; `Conflict` if another user changed the calendar meanwhile; `Denied` below Operator.
#[server(output = JsonText, endpoint = "save_calendar")]
pub async fn save_calendar(form: CalendarForm) -> Result<CalendarId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let result = backend.save_calendar(&me, &form).await;
    let pending = match &result {
        Ok(id) if super::is_plain_form() => backend.calendar(&me, *id).await.ok().and_then(|view| view.pending_jobs),
        _ => None,
    };
    let notice = saved_notice(!form.id.is_empty(), pending);
    let back = form_address(&form);
    super::respond("calendar-form", result, |_| "/calendars".into(), &notice, &back, form).await
}

/// Returns the notice of a saved calendar. `pending_jobs` is the number of jobs to which the change is not applied yet.
#[must_use]
pub fn saved_notice(is_edit: bool, pending_jobs: Option<i64>) -> String {
    let saved = if is_edit { "The calendar is saved." } else { "The calendar is created." };
    match pending_jobs {
        Some(jobs) if jobs > 0 => {
            format!("{saved} In the background, the change is being applied to {}.", plural(jobs, "job"))
        }
        _ => saved.to_owned(),
    }
}

/// Returns one calendar with the jobs that use it.
///
/// # Errors
///
/// `NotFound` if it is deleted or never existed; `Denied` below Operator.
#[server(input = GetUrl, output = JsonText, endpoint = "calendar")]
pub async fn get_calendar(id: CalendarId) -> Result<CalendarView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    backend.calendar(&me, id).await.map_err(super::with_error_status)
}

/// Returns the address of the page whose form sent `form`.
#[cfg(feature = "ssr")]
fn form_address(form: &CalendarForm) -> String {
    match form.id.parse::<CalendarId>() {
        Ok(id) => format!("/calendars/{id}/edit"),
        Err(_) => "/calendars/new".into(),
    }
}

/// Deletes a calendar and returns its name.
///
/// # Errors
///
/// `Conflict` with the names of the jobs that use it; `NotFound` if it is already deleted; `Denied` below Operator.
#[server(output = JsonText, endpoint = "delete_calendar")]
pub async fn delete_calendar(id: CalendarId) -> Result<String, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineCalendar).await?;
    let result = backend.delete_calendar(&me, id).await;
    let notice = result.as_ref().map(|name| format!("The calendar {name} is deleted.")).unwrap_or_default();
    // A refusal belongs to no field of the form on that page.
    super::respond("notice", result, |_| "/calendars".into(), &notice, &format!("/calendars/{id}/edit"), ()).await
}
