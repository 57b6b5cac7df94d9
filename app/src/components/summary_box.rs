//! The box beside a form or a definition. In a wide window it scrolls by itself if it is higher than the window.

use leptos::{html, prelude::*};

use super::time::use_page_clock;

/// The box. It is in the order of the tab key only while it scrolls, because the keyboard could not scroll it otherwise.
/// A form may move the focus to it at any time.
#[component]
pub fn SummaryBox(
    /// The id of the box.
    #[prop(optional, into)]
    id: Option<String>,
    /// The id of its heading.
    heading: &'static str,
    /// The contents, with the heading.
    children: Children,
) -> impl IntoView {
    let node = NodeRef::<html::Aside>::new();
    // Without a script it may scroll.
    let is_focusable = RwSignal::new(true);
    let clock = use_page_clock();
    Effect::new(move |_| {
        // No event reports that the height of the contents has changed, so the clock checks.
        let _ = clock.now();
        let Some(node) = node.get() else { return };
        let is_needed = node.scroll_height() > node.client_height();
        if is_focusable.get_untracked() != is_needed {
            is_focusable.set(is_needed);
        }
    });
    view! {
        <aside
            class="summary"
            id=id
            aria-labelledby=heading
            tabindex=move || if is_focusable.get() { "0" } else { "-1" }
            node_ref=node
        >
            {children()}
        </aside>
    }
}
