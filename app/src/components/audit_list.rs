//! The audit log of the own account.

use leptos::prelude::*;

/// The audit rows of the signed-in user.
#[component]
pub fn OwnAudit() -> impl IntoView {}
