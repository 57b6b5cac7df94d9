//! Server functions that list the audit log.

use leptos::prelude::*;
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditRow},
    page::ListPage,
};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Lists the rows of the audit log that match `filter`, newest first.
///
/// # Errors
///
/// `Denied` below Admin; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "audit")]
pub async fn audit(#[server(default)] filter: AuditFilter) -> Result<ListPage<AuditRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ReadAudit).await?;
    backend.audit(&me, filter).await.map_err(super::with_error_status)
}

/// Lists the rows about one object before `before`, newest first. `object` is the key of an
/// [`AuditObject`](milvaion_api::audit::AuditObject), as in `job:<id>`.
///
/// # Errors
///
/// `Fields` if `object` is not such a key; `Denied` below Operator; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "object_audit")]
pub async fn object_audit(object: String, before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ReadObjectAudit).await?;
    let Some(object) = milvaion_api::audit::AuditObject::from_key(&object) else {
        let text = "The object is not valid. Use job:, occurrence: or user: with an id.";
        return Err(super::with_error_status(AppError::field("object", text)));
    };
    backend.object_audit(&me, object, before).await.map_err(super::with_error_status)
}

/// Lists the rows by or about the signed-in user before `before`, newest first.
#[server(input = GetUrl, output = JsonText, endpoint = "own_audit")]
pub async fn own_audit(before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.own_audit(&me, before).await.map_err(super::with_error_status)
}
