//! Icons, drawn from the sprite that the document contains.
//!
//! The sprite is part of each document and not a file of its own. Chromium loads an external sprite again for each
//! `<use>` element that hydration replaces, aborts the earlier request, and then leaves the icons of that request empty.
//! In the document the icons are there with the first paint, add nothing to the WebAssembly, and need no request.

use leptos::prelude::*;

/// The prefix of the ids of the sprite's symbols, which keeps them apart from the ids of the page.
const SYMBOL_PREFIX: &str = "#icon-";

/// An icon of the sprite. It is decorative: the text beside it must carry the meaning.
#[component]
pub fn Icon(
    /// Name of the icon in the sprite.
    name: &'static str,
) -> impl IntoView {
    view! {
        <svg class="icon" aria-hidden="true" focusable="false">
            <use href=format!("{SYMBOL_PREFIX}{name}")></use>
        </svg>
    }
}

/// An [`Icon`] that changes while the page is open.
#[component]
pub fn LiveIcon(
    /// Name of the icon in the sprite.
    #[prop(into)]
    name: Signal<&'static str>,
) -> impl IntoView {
    view! {
        <svg class="icon" aria-hidden="true" focusable="false">
            <use href=move || format!("{SYMBOL_PREFIX}{}", name.get())></use>
        </svg>
    }
}
