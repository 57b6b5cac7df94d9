//! The form that changes the passphrase.
//!
//! The server gives this browser a new session and ends all others. The tab that sends the form therefore expects the
//! end of the session until the response arrives, and then takes part in the stream again with the new one.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::views::CurrentUser;

use crate::{
    api::{
        account::{ChangePassphrase, PASSPHRASE_NOTICE},
        session::FlashView,
    },
    browser,
    components::{
        action::SubmitButton,
        form::ErrorSummary,
        input_form::{error_of, summary_entries},
        session_context::use_signed_in_user,
        time::MaybeTime,
        toast::{ToastKind, toasts},
    },
    live::LiveUpdates,
    pages::login::{PassphraseField, problems_in},
};

/// The section *Passphrase*.
#[component]
pub fn PassphraseSection(
    /// The user.
    me: CurrentUser,
    /// The last change; none since the user joined.
    changed_at: Signal<Option<DateTime<Utc>>>,
    /// The result of a plain post of this form.
    flash: FlashView,
    /// Called after a change.
    on_change: Callback<()>,
) -> impl IntoView {
    let toasts = toasts();
    let user = use_signed_in_user();
    let live = use_context::<LiveUpdates>();
    let action = ServerAction::<ChangePassphrase>::new();
    let wrong = problems_in("passphrase-errors", action.value(), &flash);
    Effect::new(move |was_pending: Option<bool>| {
        let is_pending = action.pending().get();
        if let Some(live) = live
            && was_pending.is_some_and(|was_pending| was_pending != is_pending)
        {
            live.expect_sign_out(is_pending);
        }
        is_pending
    });
    Effect::new(move |_| {
        if !matches!(action.value().get(), Some(Ok(()))) {
            return;
        }
        browser::type_value("f-current", "");
        browser::type_value("f-passphrase", "");
        if let (Some(live), Some(me)) = (live, user.get_untracked()) {
            live.report_sign_in(me);
        }
        toasts.show(ToastKind::Success, PASSPHRASE_NOTICE);
        on_change.run(());
    });
    view! {
        <section class="card" id="passphrase" aria-labelledby="passphrase-heading">
            <h2 class="card-title" id="passphrase-heading">"Passphrase"</h2>
            <dl class="kv">
                <dt>"Last change"</dt>
                <dd><MaybeTime at=changed_at relative=true/></dd>
            </dl>
            // Not guarded against leaving: a password manager fills it in, which is no unsaved change of the user.
            <ActionForm action attr:class="form">
                <ErrorSummary
                    id="passphrase-errors"
                    errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))
                />
                // Tells password managers whose passphrase is changed.
                <input type="email" name="username" value=me.email autocomplete="username" hidden readonly/>
                <PassphraseField
                    label="Current passphrase"
                    hint=""
                    autocomplete="current-password"
                    error=error_of(wrong, "current")
                    name="current"
                />
                <PassphraseField
                    label="New passphrase"
                    hint="At least 12 characters. Several unrelated words make a good passphrase."
                    autocomplete="new-password"
                    error=error_of(wrong, "passphrase")
                />
                <p class="hint">"The change ends all your other sessions. This browser stays signed in."</p>
                <div class="form-actions">
                    <SubmitButton is_busy=action.pending()>
                        {move || if action.pending().get() { "Changing…" } else { "Change passphrase" }}
                    </SubmitButton>
                </div>
            </ActionForm>
        </section>
    }
}
