//! Keyboard shortcuts, and the preference that turns them off.
//!
//! Single-key shortcuts interfere with voice control, so users can turn them off. They are inactive while the user
//! types and while a dialog is open.

use leptos::{ev, prelude::*};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::permissions::Permission;

use super::{
    dialog::Dialog,
    leave_guard::LeaveGuard,
    menu::{MENU, entry_of_key},
    preferences::SharedPreferences,
    session_context::use_signed_in_user,
};
use crate::browser;

/// The time within which the second key must follow `g`, in milliseconds.
const SECOND_KEY_TIMEOUT_MILLIS: i64 = 1_500;

/// The key listener and the dialog that lists the shortcuts. Rendered once, by the layout.
#[component]
pub fn Shortcuts() -> impl IntoView {
    let open = RwSignal::new(false);
    let preferences = SharedPreferences::current();
    let after_g = StoredValue::new(0_i64);
    let navigate = use_navigate();
    let guard = use_context::<LeaveGuard>();
    let user = use_signed_in_user();
    let may_define =
        move || user.with_untracked(|me| me.as_ref().is_some_and(|me| me.role.allows(Permission::DefineJob)));
    Effect::new(move |_| {
        let navigate = navigate.clone();
        let listener = window_event_listener(ev::keydown, move |event| {
            let is_on = untrack(|| preferences.has_shortcuts());
            if !is_on || event.ctrl_key() || event.meta_key() || event.alt_key() || is_typing() {
                return;
            }
            let go = |path: &'static str| {
                let navigate = navigate.clone();
                let open_page = Callback::new(move |()| navigate(path, NavigateOptions::default()));
                match guard {
                    Some(guard) => guard.leave(open_page),
                    None => open_page.run(()),
                }
            };
            let now = browser::now_millis();
            let is_second = now - after_g.get_value() < SECOND_KEY_TIMEOUT_MILLIS;
            after_g.set_value(0);
            let key = event.key();
            if is_second && let Some(entry) = entry_of_key(&key) {
                return go(entry.path);
            }
            match key.as_str() {
                "g" if !is_second => after_g.set_value(now),
                "n" if may_define() && browser::current_path().split('?').next() == Some("/jobs") => {
                    event.prevent_default();
                    go("/jobs/new");
                }
                "?" => open.set(true),
                _ => {}
            }
        });
        on_cleanup(move || listener.remove());
    });
    let switch = move |event: ev::Event| preferences.set_shortcuts(event_target_checked(&event));
    view! {
        <Dialog open id="shortcuts-title" title="Keyboard shortcuts">
            <KeyTable/>
            <label class="check">
                <input type="checkbox" prop:checked=move || preferences.has_shortcuts() on:change=switch/>
                <span>"Enable single-key shortcuts"</span>
            </label>
            <div class="dialog-actions">
                <a class="btn btn-quiet" href="/help" on:click=move |_| open.set(false)>"Open help"</a>
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>"Close"</button>
            </div>
        </Dialog>
    }
}

/// The shortcuts as a list.
#[component]
pub fn KeyTable() -> impl IntoView {
    let pages = MENU
        .iter()
        .filter(|entry| !entry.key.is_empty())
        .map(|entry| (vec!["g", entry.key], format!("Go to the {}", entry.name.to_ascii_lowercase())));
    let others = [
        (vec!["n"], "New job, on the jobs page (Operator or Admin)".to_owned()),
        (vec!["?"], "Show the keyboard shortcuts".to_owned()),
    ];
    let rows = pages
        .chain(others)
        .map(|(keys, what)| {
            let keys = keys.into_iter().map(|key| view! { <kbd class="kbd">{key}</kbd>" " }).collect::<Vec<_>>();
            view! {
                <dt>{keys}</dt>
                <dd>{what}</dd>
            }
        })
        .collect::<Vec<_>>();
    view! { <dl class="kv">{rows}</dl> }
}

#[cfg(feature = "hydrate")]
fn is_typing() -> bool {
    use wasm_bindgen::JsCast;

    let document = document();
    if matches!(document.query_selector("dialog[open]"), Ok(Some(_))) {
        return true;
    }
    let Some(element) = document.active_element() else { return false };
    matches!(element.tag_name().as_str(), "INPUT" | "TEXTAREA" | "SELECT")
        || element.dyn_ref::<web_sys::HtmlElement>().is_some_and(web_sys::HtmlElement::is_content_editable)
}

#[cfg(not(feature = "hydrate"))]
const fn is_typing() -> bool {
    false
}
