//! The announcement of the stream's return to screen readers.
//!
//! The pill in the top bar shows the state, but a change of it is not announced, because it changes with every short
//! interruption. The [banner](crate::components::status_banner) of an offline page announces the loss. It disappears
//! without a word, so this region announces that the stream is back, after the state has lasted for a moment.

use std::time::Duration;

use leptos::prelude::*;

use super::{LiveState, LiveUpdates};

/// The time that a state must last before it is announced.
const ANNOUNCEMENT_DELAY: Duration = Duration::from_secs(2);

/// The live region that announces the return of live updates. Rendered once, by the layout.
#[component]
pub fn LiveAnnouncer() -> impl IntoView {
    let live = expect_context::<LiveUpdates>();
    let text = RwSignal::new("");
    let was_offline = StoredValue::new(false);
    Effect::new(move |_| {
        let state = live.state.get();
        if !matches!(state, LiveState::Live | LiveState::Offline) {
            return;
        }
        let announce = move || {
            if live.state.try_get_untracked() != Some(state) {
                return;
            }
            let is_offline = state == LiveState::Offline;
            if is_offline {
                // The same text is announced again only if it was removed before.
                text.set("");
            } else if was_offline.get_value() {
                text.set("Live updates are on again.");
            }
            was_offline.set_value(is_offline);
        };
        set_timeout(announce, ANNOUNCEMENT_DELAY);
    });
    view! { <p class="sr-only" role="status" id="live-announcement">{text}</p> }
}
