//! The box with a one-time link. The server returns a link only once, so it stays on the page until the user leaves it.

use leptos::prelude::*;

use crate::components::{copy_button::CopyButton, icon::Icon};

/// A one-time link that the server has just created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedLink {
    /// The result of the action, as a sentence.
    pub text: String,
    /// The path of the link.
    pub path: String,
}

/// Shows a new link with a button that copies it. The region exists from the start, because screen readers do not
/// announce a region that is added with its text.
#[component]
pub fn NewLink(
    /// The link, if one was created.
    #[prop(into)]
    link: Signal<Option<CreatedLink>>,
    /// The id of the field with the link, unique on the page.
    id: &'static str,
) -> impl IntoView {
    let shown = move || {
        link.get().map(|CreatedLink { text, path }| {
            // A link is created only in a browser, so a window exists.
            let address = format!("{}{path}", window().location().origin().unwrap_or_default());
            view! {
                <div class="notice" data-kind="success">
                    <Icon name="link"/>
                    <div class="stack grow">
                        <p>{text} " Pass this link on. It works once and is not shown again."</p>
                        <div class="cluster">
                            <div class="field grow">
                                <input
                                    type="text"
                                    class="input-mono"
                                    readonly
                                    aria-label="One-time link"
                                    id=id
                                    value=address.clone()
                                />
                            </div>
                            <CopyButton text=Signal::stored(address) what="one-time link"/>
                        </div>
                    </div>
                </div>
            }
        })
    };
    view! { <div role="status">{shown}</div> }
}
