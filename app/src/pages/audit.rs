//! The audit page.

use leptos::prelude::*;
use leptos_meta::Title;

use crate::components::page_header::PageHeader;

/// `/audit`.
#[component]
pub fn AuditPage() -> impl IntoView {
    view! {
        <Title text="Audit log"/>
        <PageHeader title="Audit log" sub="Not built yet."/>
    }
}
