//! A button that copies text to the clipboard.

use leptos::prelude::*;

use super::icon::LiveIcon;
use crate::browser;

/// A button that copies `text` and announces the result.
#[component]
pub fn CopyButton(
    /// The text to copy.
    #[prop(into)]
    text: Signal<String>,
    /// Name of the copied value for the button's label, as in "occurrence id".
    #[prop(into)]
    what: String,
) -> impl IntoView {
    let copied = RwSignal::new(None::<bool>);
    let label = {
        let what = what.clone();
        move || match copied.get() {
            None => format!("Copy {what}"),
            Some(true) => format!("Copied {what}"),
            Some(false) => format!("Could not copy {what}. Select it and copy it with the keyboard."),
        }
    };
    let announcement = label.clone();
    let icon = move || match copied.get() {
        None => "copy",
        Some(true) => "check",
        Some(false) => "x",
    };
    let copy = move |_| {
        browser::copy(text.get_untracked(), move |done| {
            let _ = copied.try_set(Some(done));
            browser::run_after(std::time::Duration::from_secs(2), move || {
                let _ = copied.try_set(None);
            });
        });
    };
    view! {
        <button type="button" class="icon-btn needs-js" aria-label=label.clone() title=label on:click=copy>
            <LiveIcon name=Signal::derive(icon)/>
        </button>
        <span class="sr-only" role="status">
            {move || if copied.get().is_some() { announcement() } else { String::new() }}
        </span>
    }
}
