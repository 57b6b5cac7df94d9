//! The page behind a one-time link for a new passphrase. An Admin creates the link, or the command line of the server.

use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use milvaion_api::team::ResetInfo;

use super::login::{AuthPage, PassphraseField, navigate_when_done, problems_of};
use crate::{
    api::{
        reset::{ResetLink, ResetPassphrase, load_reset_link},
        session::{FlashView, take_flash},
    },
    components::{
        busy::SubmitButton,
        form::ErrorSummary,
        icon::Icon,
        input_form::{error_of, summary_entries},
        loading::render_page,
    },
    error::AppError,
};

/// `/reset?token=`.
#[component]
pub fn ResetPage() -> impl IntoView {
    let query = use_query_map();
    let token = Memo::new(move |_| query.with(|query| query.get("token")).unwrap_or_default());
    let data = Resource::new_blocking(
        move || token.get(),
        |token| async {
            Ok::<_, AppError>((load_reset_link(token).await?, take_flash("reset".into()).await?.unwrap_or_default()))
        },
    );
    render_page(data, move |(link, flash): (ResetLink, FlashView)| match link {
        ResetLink::Good(info) => view! { <ResetForm token=token.get_untracked() info flash/> }.into_any(),
        ResetLink::Spent => view! { <ExpiredResetLink/> }.into_any(),
    })
}

/// Explains that the link is no longer valid and how to get a new one.
#[component]
fn ExpiredResetLink() -> impl IntoView {
    view! {
        <AuthPage title="This link no longer works">
            <div class="notice" data-kind="warn">
                <Icon name="clock"/>
                <p>
                    "A reset link works once, for 24 hours, and only until it is revoked or replaced by a newer one."
                </p>
            </div>
            <p>
                "Ask an Admin for a new link. If no Admin can sign in, run milvaion admin reset-passphrase with your e-mail address on the server's machine."
            </p>
            <p>
                <a class="btn" href="/login">"Go to the sign-in page"</a>
            </p>
        </AuthPage>
    }
}

#[component]
fn ResetForm(token: String, info: ResetInfo, flash: FlashView) -> impl IntoView {
    let action = ServerAction::<ResetPassphrase>::new();
    let wrong = problems_of(action.value(), &flash);
    navigate_when_done(action.value());
    let ResetInfo { name, email } = info;
    view! {
        <AuthPage title="Set a new passphrase">
            <p>
                {format!("This link is for {name}. ")}
                "A new passphrase ends all sessions of this account and signs you in here."
            </p>
            <ActionForm action attr:class="form">
                <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
                <input type="hidden" name="token" value=token/>
                // Without a name the field is not sent: a password manager stores it with the new passphrase.
                <div class="field">
                    <label for="f-email">"E-mail"</label>
                    <input type="email" id="f-email" value=email autocomplete="username" readonly/>
                </div>
                <PassphraseField
                    label="New passphrase"
                    hint="At least 12 characters. Several unrelated words make a good passphrase."
                    autocomplete="new-password"
                    error=error_of(wrong, "passphrase")
                />
                <SubmitButton is_busy=action.pending()>
                    {move || if action.pending().get() { "Saving…" } else { "Set passphrase" }}
                </SubmitButton>
            </ActionForm>
        </AuthPage>
    }
}
