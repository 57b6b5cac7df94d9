//! The page behind a one-time link for a new passphrase.

use leptos::prelude::*;
use leptos_meta::Title;

use crate::components::page_header::PageHeader;

/// `/reset`.
#[component]
pub fn ResetPage() -> impl IntoView {
    view! {
        <Title text="New passphrase"/>
        <PageHeader title="New passphrase" sub="Not built yet."/>
    }
}
