//! Actions that run later.
//!
//! Leptos cancels a timer together with the owner that was current at its start. That may be an effect, which ends when
//! it runs again, or a row whose button was clicked. An action that is started here runs in any case, so it must allow
//! for a page that has been left.

use std::time::Duration;

use leptos::{leptos_dom::helpers::TimeoutHandle, prelude::*};

use super::IN_BROWSER;

/// Runs `action` after `delay`, also if the current owner ends before. The handle cancels it.
pub fn run_after(delay: Duration, action: impl FnOnce() + 'static) -> Option<TimeoutHandle> {
    let action: Box<dyn FnOnce()> = Box::new(action);
    without_owner(|| set_timeout(action, delay).ok()).flatten()
}

/// Runs `action` before the next frame is drawn, also if the current owner ends before.
pub fn run_on_next_frame(action: impl FnOnce() + 'static) {
    let action: Box<dyn FnOnce()> = Box::new(action);
    let _ = without_owner(|| request_animation_frame(action));
}

/// Starts a timer while no owner is current. Starts none on the server.
fn without_owner<T>(start: impl FnOnce() -> T) -> Option<T> {
    if !IN_BROWSER {
        return None;
    }
    let owner = Owner::current();
    if let Some(owner) = owner.clone() {
        owner.unset();
    }
    let started = start();
    if let Some(owner) = owner {
        owner.set();
    }
    Some(started)
}
