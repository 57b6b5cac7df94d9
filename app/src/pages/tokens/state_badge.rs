//! The badge of a token's state.

use leptos::prelude::*;
use milvaion_api::tokens::TokenState;

use crate::components::icon::LiveIcon;

/// Returns the icon of a state.
const fn icon_of(state: TokenState) -> &'static str {
    match state {
        TokenState::Active => "circle-check",
        TokenState::Rotated => "rotate-cw",
        TokenState::Expired => "timer-off",
        TokenState::Revoked => "ban",
    }
}

/// Returns the status whose color family the badge has.
const fn status_of(state: TokenState) -> &'static str {
    match state {
        TokenState::Active => "active",
        TokenState::Rotated => "retrying",
        TokenState::Expired => "paused",
        TokenState::Revoked => "cancelled",
    }
}

/// A state as an icon with its label.
#[component]
pub fn TokenStateBadge(
    /// The state.
    #[prop(into)]
    state: Signal<TokenState>,
) -> impl IntoView {
    view! {
        <span class="badge" data-status=move || status_of(state.get())>
            <LiveIcon name=Signal::derive(move || icon_of(state.get()))/>
            <span>{move || state.get().label()}</span>
        </span>
    }
}
