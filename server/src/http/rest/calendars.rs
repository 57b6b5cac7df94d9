//! The operations on blackout calendars.

use milvaion_api::{
    calendar_form::CalendarForm,
    permissions::Permission::{DefineCalendar, Read},
    rest::{CalendarDetail, Page},
    views::CalendarRow,
};
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::calendar::Calendar;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ApiState,
    endpoint::{ApiResult, Call, Endpoint, Nothing, Reply},
    operation::{Operation, TagScope},
    problem::ApiError,
};

/// The group of these operations in the document.
const GROUP: &str = "Calendars";

/// The path of a calendar.
#[derive(Debug, Deserialize, JsonSchema)]
struct CalendarPath {
    /// The id of the calendar.
    id: CalendarId,
}

/// Returns the operations.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let list_all = Operation {
        method: "GET",
        path: "/calendars",
        id: "listCalendars",
        group: GROUP,
        summary: "List all calendars by name",
        permission: Read,
        scope: TagScope::Free,
        success: 200,
        has_secret: false,
        is_versioned: false,
    };
    let of_one = Operation { path: "/calendars/{id}", scope: TagScope::Refused, ..list_all };
    vec![
        Endpoint::json(list_all, list),
        Endpoint::json(
            Operation {
                method: "POST",
                path: "/calendars",
                id: "createCalendar",
                summary: "Create a calendar",
                permission: DefineCalendar,
                success: 201,
                ..of_one
            },
            create,
        ),
        Endpoint::json(Operation { id: "getCalendar", summary: "Read a calendar", ..of_one }, get),
        Endpoint::json(
            Operation {
                method: "PUT",
                id: "replaceCalendar",
                is_versioned: true,
                summary: "Replace the definition of a calendar",
                permission: DefineCalendar,
                ..of_one
            },
            replace,
        ),
        Endpoint::json(
            Operation {
                method: "DELETE",
                id: "deleteCalendar",
                is_versioned: true,
                summary: "Delete a calendar that no job uses",
                permission: DefineCalendar,
                success: 204,
                ..of_one
            },
            delete,
        ),
    ]
}

async fn list(state: ApiState, call: Call<Nothing, Nothing, Nothing>) -> ApiResult<Page<CalendarRow>> {
    Ok(Reply::of(Page::all(state.backend.calendars(&call.me).await?)))
}

async fn show<P, B>(state: &ApiState, call: &Call<P, Nothing, B>, id: CalendarId) -> ApiResult<CalendarDetail> {
    let view = state.backend.calendar(&call.me, id).await?;
    let version = view.version;
    let form = CalendarForm::from_calendar(id, version, &view.calendar);
    let upcoming = state.backend.check_calendar(&call.me, &form).await.unwrap_or_default();
    Ok(Reply::of(CalendarDetail::new(view, upcoming)).version(version))
}

async fn get(state: ApiState, call: Call<CalendarPath, Nothing, Nothing>) -> ApiResult<CalendarDetail> {
    show(&state, &call, call.path.id).await
}

async fn create(state: ApiState, call: Call<Nothing, Nothing, Calendar>) -> ApiResult<CalendarDetail> {
    let id = state.jobs.save_calendar(&call.me, None, &call.body).await?;
    Ok(show(&state, &call, id).await?.location(format!("/calendars/{id}")))
}

async fn replace(state: ApiState, call: Call<CalendarPath, Nothing, Calendar>) -> ApiResult<CalendarDetail> {
    let (id, expected) = (call.path.id, call.expected_version()?);
    let version = state.backend.calendar(&call.me, id).await?.version;
    require_version(expected, version)?;
    let saved = state.jobs.save_calendar(&call.me, Some((id, version)), &call.body).await;
    saved.map_err(|error| ApiError::from(error).of_expected(expected.is_some()))?;
    show(&state, &call, id).await
}

async fn delete(state: ApiState, call: Call<CalendarPath, Nothing, Nothing>) -> ApiResult<()> {
    let (id, expected) = (call.path.id, call.expected_version()?);
    if expected.is_some() {
        require_version(expected, state.backend.calendar(&call.me, id).await?.version)?;
    }
    state.backend.delete_calendar(&call.me, id).await?;
    Ok(Reply::of(()))
}

fn require_version(expected: Option<i32>, version: i32) -> Result<(), ApiError> {
    match expected {
        Some(expected) if expected != version => {
            Err(ApiError::version(format!("This calendar is at version {version}, not {expected}.")))
        }
        _ => Ok(()),
    }
}
