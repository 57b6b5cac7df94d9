//! The badge of a user's state: the same word, icon and color on the team page and on the page of a user.

use leptos::prelude::*;
use milvaion_api::team::UserState;

use crate::components::icon::LiveIcon;

/// Returns the icon of a state.
const fn icon_of(state: UserState) -> &'static str {
    match state {
        UserState::Active => "circle-check",
        UserState::Locked => "lock",
        UserState::Deactivated => "user-x",
        UserState::Invited => "mail",
    }
}

/// Returns the status whose color family the badge has.
const fn status_of(state: UserState) -> &'static str {
    match state {
        UserState::Active => "active",
        UserState::Locked => "retrying",
        UserState::Deactivated => "paused",
        UserState::Invited => "queued",
    }
}

/// A state as an icon with its label.
#[component]
pub fn UserStateBadge(
    /// The state.
    #[prop(into)]
    state: Signal<UserState>,
) -> impl IntoView {
    view! {
        <span class="badge" data-status=move || status_of(state.get()) data-state=move || state.get().slug()>
            <LiveIcon name=Signal::derive(move || icon_of(state.get()))/>
            <span>{move || state.get().label()}</span>
        </span>
    }
}
