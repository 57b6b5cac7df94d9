//! The page of a user, for Admins.

use leptos::prelude::*;
use leptos_meta::Title;

use crate::components::page_header::PageHeader;

/// `/team/:id`.
#[component]
pub fn PersonPage() -> impl IntoView {
    view! {
        <Title text="User"/>
        <PageHeader title="User" sub="Not built yet."/>
    }
}
