//! Announcements to screen readers: of the stream's return, and of a text that changes often.
//!
//! The pill in the top bar shows the state, but a change of it is not announced, because it changes with every short
//! interruption. The [banner](crate::components::status_banner) of an offline page announces the loss. It disappears
//! without a word, so this region announces that the stream is back, after the state has lasted for a moment.

use std::time::Duration;

use leptos::prelude::*;

use super::{LiveState, LiveUpdates};
use crate::browser;

/// The time that a state must last before it is announced.
const ANNOUNCEMENT_DELAY: Duration = Duration::from_secs(2);
/// The minimum time between two announcements of a text that changes often, in milliseconds.
const ANNOUNCEMENT_INTERVAL_MILLIS: i64 = 30_000;

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
        browser::run_after(ANNOUNCEMENT_DELAY, announce);
    });
    view! { <p class="sr-only" role="status" id="live-announcement">{text}</p> }
}

/// A live region for a text that may change many times a minute. The first text is announced at once; after that, at
/// most one each 30 seconds, which is then the current one.
#[component]
pub fn PacedAnnouncement(
    /// The text; `None` while there is nothing to announce.
    #[prop(into)]
    text: Signal<Option<String>>,
) -> impl IntoView {
    let announced = RwSignal::new(String::new());
    let last_at = StoredValue::new(None::<i64>);
    let is_waiting = StoredValue::new(false);
    let announce = move || {
        let _ = is_waiting.try_set_value(false);
        // Nothing may be left to announce, or the page may be gone.
        if let Some(Some(text)) = text.try_get_untracked() {
            let _ = last_at.try_set_value(Some(browser::now_millis()));
            let _ = announced.try_set(text);
        }
    };
    Effect::new(move |_| {
        if text.with(Option::is_none) {
            // The same text is announced again only if it was removed before.
            announced.set(String::new());
        } else if !is_waiting.get_value() {
            let delay = announcement_delay(last_at.get_value(), browser::now_millis());
            if delay.is_zero() {
                announce();
            } else {
                is_waiting.set_value(true);
                browser::run_after(delay, announce);
            }
        }
    });
    view! { <p class="sr-only" role="status">{move || announced.get()}</p> }
}

/// Returns the time from `now` until the next announcement, if the last one was at `last`.
fn announcement_delay(last: Option<i64>, now: i64) -> Duration {
    // The browser's clock may be turned back.
    let wait = last.map_or(0, |last| (last + ANNOUNCEMENT_INTERVAL_MILLIS - now).min(ANNOUNCEMENT_INTERVAL_MILLIS));
    Duration::from_millis(u64::try_from(wait).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_thirty_seconds_apart() {
        assert_eq!(announcement_delay(None, 5_000), Duration::ZERO);
        assert_eq!(announcement_delay(Some(5_000), 6_000), Duration::from_secs(29));
        assert_eq!(announcement_delay(Some(5_000), 35_000), Duration::ZERO);
        assert_eq!(announcement_delay(Some(5_000), 90_000), Duration::ZERO);
        assert_eq!(announcement_delay(Some(5_000), 1_000), Duration::from_secs(30), "the clock was turned back");
    }
}
