//! Icons: one sprite for all of them, so that none costs a byte of script.

use leptos::prelude::*;

/// An icon of the sprite, by its name. It is decoration: the words beside it must say the same.
#[component]
pub fn Icon(
    /// Its name in the sprite.
    name: &'static str,
) -> impl IntoView {
    view! {
        <svg class="icon" aria-hidden="true" focusable="false">
            <use href=format!("/pkg/icons.svg#{name}")></use>
        </svg>
    }
}
