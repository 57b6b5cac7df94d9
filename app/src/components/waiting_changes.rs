//! The button that shows the changes of a list that wait, because the user works in the list.
//!
//! The button is in no live region: under load its number changes many times a minute, and a region would announce each.

use leptos::{ev, prelude::*};

use super::icon::Icon;
use crate::{browser, live::announcer::PacedAnnouncement};

/// The button, and the announcement of the changes.
#[component]
pub fn WaitingChangesButton(
    /// The changes that wait, as "2 new occurrences"; `None` while none waits.
    #[prop(into)]
    changes: Signal<Option<String>>,
    /// The id of the heading of the list, which receives the focus.
    #[prop(default = browser::PAGE_TITLE_ID)]
    heading: &'static str,
    /// Shows the changes.
    #[prop(into)]
    on_show: Callback<()>,
) -> impl IntoView {
    let show = move |_: ev::MouseEvent| {
        // The button disappears.
        browser::focus_in_place(heading);
        on_show.run(());
    };
    let button = move || {
        changes.get().map(|changes| {
            view! {
                <button type="button" class="pill" on:click=show>
                    <Icon name="chevron-down"/>
                    {format!("{changes} · Show")}
                </button>
            }
        })
    };
    view! {
        <div>
            {button}
            <PacedAnnouncement text=changes/>
        </div>
    }
}
