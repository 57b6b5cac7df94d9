//! The team page.

use leptos::prelude::*;
use leptos_meta::Title;

use crate::components::page_header::PageHeader;

/// `/team`.
#[component]
pub fn TeamPage() -> impl IntoView {
    view! {
        <Title text="Team"/>
        <PageHeader title="Team" sub="Not built yet."/>
    }
}
