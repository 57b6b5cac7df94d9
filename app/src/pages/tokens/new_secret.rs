//! The box with a new secret. The server returns a secret only once, so it stays on the page until the user leaves it.

use leptos::prelude::*;

use crate::{
    api::tokens::check_command,
    components::{copy_button::CopyButton, icon::Icon},
};

/// The id of the field with the secret.
pub const SECRET_ID: &str = "token-secret";

/// A secret that the server has just created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownSecret {
    /// The result of the action, as a sentence.
    pub text: String,
    /// The secret.
    pub secret: String,
}

/// Shows a new secret and a command that checks it, each with a button that copies it. The region exists from the
/// start, because screen readers do not announce a region that is added with its text.
#[component]
pub fn NewSecret(
    /// The secret, if one was created.
    #[prop(into)]
    shown: Signal<Option<ShownSecret>>,
) -> impl IntoView {
    let notice = move || {
        shown.get().map(|ShownSecret { text, secret }| {
            // The script creates a secret only in a browser, so a window exists.
            let command = check_command(&secret, &window().location().origin().unwrap_or_default());
            view! {
                <div class="notice" data-kind="success">
                    <Icon name="key-round"/>
                    <div class="stack grow">
                        <p>{text} " Copy the secret and store it safely. It is not shown again."</p>
                        <CopiedField id=SECRET_ID label="Secret" what="secret" value=secret/>
                        <CopiedField
                            id="token-command"
                            label="Command that checks the token"
                            what="command"
                            value=command
                        />
                    </div>
                </div>
            }
        })
    };
    view! { <div role="status">{notice}</div> }
}

/// A text that is copied, in a field from which it can be selected.
#[component]
fn CopiedField(id: &'static str, label: &'static str, what: &'static str, value: String) -> impl IntoView {
    view! {
        <div class="cluster">
            <div class="field grow">
                <label for=id>{label}</label>
                <input type="text" class="input-mono" readonly id=id value=value.clone()/>
            </div>
            <CopyButton text=Signal::stored(value) what/>
        </div>
    }
}
