//! The page of the own account.

use leptos::prelude::*;
use leptos_meta::Title;

use crate::components::page_header::PageHeader;

/// `/account`.
#[component]
pub fn AccountPage() -> impl IntoView {
    view! {
        <Title text="Account"/>
        <PageHeader title="Account" sub="Not built yet."/>
    }
}
