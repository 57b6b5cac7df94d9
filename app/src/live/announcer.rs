//! The announcement of a lost stream to screen readers.
//!
//! The pill in the top bar shows the state, but a change of it is not announced, because it changes with every short
//! interruption. This region announces only that the stream is offline and that it is back, and only after the state
//! has lasted for a moment.

use std::time::Duration;

use leptos::prelude::*;

use super::{LiveState, LiveUpdates};

/// The time that a state must last before it is announced.
const ANNOUNCEMENT_DELAY: Duration = Duration::from_secs(2);

/// The live region that announces the loss and the return of live updates. Rendered once, by the layout.
#[component]
pub fn LiveAnnouncer() -> impl IntoView {
    let live = expect_context::<LiveUpdates>();
    let text = RwSignal::new("");
    Effect::new(move |_| {
        let state = live.state.get();
        if !matches!(state, LiveState::Live | LiveState::Offline) {
            return;
        }
        let announce = move || {
            if live.state.try_get_untracked() != Some(state) {
                return;
            }
            match state {
                LiveState::Offline => text.set("Live updates are offline. The data may be out of date."),
                _ if !text.get_untracked().is_empty() => text.set("Live updates are on again."),
                _ => {}
            }
        };
        set_timeout(announce, ANNOUNCEMENT_DELAY);
    });
    view! { <p class="sr-only" role="status" id="live-announcement">{text}</p> }
}
