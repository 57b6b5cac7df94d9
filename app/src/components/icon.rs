//! Icons, drawn from one SVG sprite so that they add nothing to the WebAssembly.

use leptos::prelude::*;

/// An icon of the sprite. It is decorative: the text beside it must carry the meaning.
#[component]
pub fn Icon(
    /// Name of the icon in the sprite.
    name: &'static str,
) -> impl IntoView {
    view! {
        <svg class="icon" aria-hidden="true" focusable="false">
            <use href=format!("/pkg/icons.svg#{name}")></use>
        </svg>
    }
}
