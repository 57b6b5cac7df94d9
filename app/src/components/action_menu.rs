//! Menus: a `<details>` element, which opens and closes without a script and from the keyboard.

use leptos::{ev, html, prelude::*, wasm_bindgen::JsCast, web_sys::Node};
use leptos_router::hooks::use_location;

use super::icon::Icon;

/// The further actions of a page, behind a button. Its items are buttons and links with the class `btn`, alone or in a
/// `<span>`, and a separator is an `<hr>`.
///
/// The items stand beside the `<details>` element, and the style sheet hides them while it is closed. An action draws
/// its dialog and its progress beside its item, and a browser shows nothing of what is inside a closed `<details>`.
#[component]
pub fn ActionMenu(
    /// The items.
    children: Children,
) -> impl IntoView {
    let menu = NodeRef::<html::Details>::new();
    let button = NodeRef::<html::Summary>::new();
    close_when_left(menu, button);
    // While the click is captured, so before the item receives it: a dialog returns the focus to the element that had
    // it when the dialog opened, and the item is hidden by then.
    let choose = move |_: ev::MouseEvent| {
        if let Some(menu) = menu.get_untracked().filter(|menu| menu.open()) {
            menu.set_open(false);
            focus_button(button);
        }
    };
    view! {
        <div class="action-menu" on:focusout=close_on_tab(menu)>
            <details node_ref=menu>
                <summary class="btn" node_ref=button>
                    <span>"More"<span class="sr-only">" actions"</span></span>
                    <Icon name="chevron-down"/>
                </summary>
            </details>
            <div on:click:capture=choose>{children()}</div>
        </div>
    }
}

/// Closes the menu after a navigation, on Escape and on a click outside. Without a script its button closes it.
pub fn close_when_left(menu: NodeRef<html::Details>, button: NodeRef<html::Summary>) {
    let location = use_location();
    let opened = move || menu.get_untracked().filter(|menu| menu.open());
    Effect::new(move |before: Option<()>| {
        location.pathname.track();
        location.search.track();
        if let (Some(()), Some(menu)) = (before, opened()) {
            menu.set_open(false);
        }
    });
    Effect::new(move |_| {
        let keys = window_event_listener(ev::keydown, move |event| {
            if let Some(menu) = opened().filter(|_| event.key() == "Escape") {
                menu.set_open(false);
                focus_button(button);
            }
        });
        let clicks = window_event_listener(ev::click, move |event| {
            if let Some(menu) = opened().filter(|menu| !menu.contains(Some(&event_target::<Node>(&event)))) {
                menu.set_open(false);
            }
        });
        on_cleanup(move || {
            keys.remove();
            clicks.remove();
        });
    });
}

/// Closes the menu when the focus moves to an element outside of the one that listens.
pub fn close_on_tab(menu: NodeRef<html::Details>) -> impl Fn(ev::FocusEvent) + 'static {
    move |event| {
        let next = event.related_target().and_then(|target| target.dyn_into::<Node>().ok());
        let here = event.current_target().and_then(|target| target.dyn_into::<Node>().ok());
        let (Some(next), Some(here), Some(menu)) = (next, here, menu.get_untracked()) else { return };
        if !here.contains(Some(&next)) {
            menu.set_open(false);
        }
    }
}

fn focus_button(button: NodeRef<html::Summary>) {
    if let Some(button) = button.get_untracked() {
        let _ = button.focus();
    }
}
