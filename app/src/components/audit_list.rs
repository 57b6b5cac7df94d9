//! The audit log of one object, and of the own account.

use leptos::prelude::*;
use milvaion_api::audit::AuditObject;

/// The changes of one object, newest first.
#[component]
pub fn AuditSlice(
    /// The object.
    object: AuditObject,
) -> impl IntoView {
    let _ = object;
}

/// The audit rows of the signed-in user.
#[component]
pub fn OwnAudit() -> impl IntoView {}
