//! The audit log of one object.

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
