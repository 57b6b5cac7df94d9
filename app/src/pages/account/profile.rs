//! The name of the user, and the e-mail address and the role, which only an Admin changes.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{permissions::Role, views::CurrentUser};

use crate::{
    api::{
        account::{RENAMED_NOTICE, RenameAccount},
        session::FlashView,
    },
    browser,
    components::{
        action::SubmitButton,
        form::{ErrorSummary, FormField, described_by},
        input_form::{error_of, summary_entries},
        session_context::SessionContext,
        time::Time,
        toast::{ToastKind, toasts},
    },
    pages::login::problems_in,
};

/// The section *Profile*.
#[component]
pub fn ProfileSection(
    /// The user.
    me: CurrentUser,
    /// The time at which the user joined.
    joined_at: DateTime<Utc>,
    /// The result of a plain post of this form.
    flash: FlashView,
    /// Called after a change.
    on_change: Callback<()>,
) -> impl IntoView {
    let toasts = toasts();
    let session = use_context::<SessionContext>();
    let action = ServerAction::<RenameAccount>::new();
    let wrong = problems_in("profile-errors", action.value(), &flash);
    let name_error = error_of(wrong, "name");
    // The attribute is the initial value, with which the guard of unsaved changes compares the field.
    let typed = flash.typed.get("name").and_then(serde_json::Value::as_str).map(str::to_owned);
    let saved = RwSignal::new(typed.unwrap_or_else(|| me.name.clone()));
    let sent = StoredValue::new(String::new());
    Effect::new(move |_| {
        if let Some(input) = action.input().get() {
            sent.set_value(input.name);
        }
    });
    let known = me.clone();
    Effect::new(move |_| {
        if !matches!(action.value().get(), Some(Ok(()))) {
            return;
        }
        let name = sent.get_value().trim().to_owned();
        saved.set(name.clone());
        browser::type_value("f-name", &name);
        if let Some(session) = &session {
            session.rename(CurrentUser { name, ..known.clone() });
        }
        toasts.show(ToastKind::Success, RENAMED_NOTICE);
        on_change.run(());
    });
    let role_hint = match me.role {
        Role::Admin => "Another Admin can change your role.",
        Role::Operator | Role::Viewer => "An Admin can change your role.",
    };
    view! {
        <section class="card" id="profile" aria-labelledby="profile-heading">
            <h2 class="card-title" id="profile-heading">"Profile"</h2>
            <dl class="kv">
                <dt>"E-mail"</dt>
                <dd>{me.email}</dd>
                <dt>"Role"</dt>
                <dd>
                    {me.role.label()}
                    <div class="hint">{role_hint}</div>
                </dd>
                <dt>"Joined"</dt>
                <dd><Time at=joined_at/></dd>
            </dl>
            <ActionForm action attr:class="form" attr:data-guarded="true">
                <ErrorSummary
                    id="profile-errors"
                    errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))
                />
                <FormField id="f-name" label="Name" hint="Shown to other users; 1 to 100 characters." error=name_error>
                    <input
                        type="text"
                        id="f-name"
                        name="name"
                        value=move || saved.get()
                        autocomplete="name"
                        required
                        maxlength="100"
                        aria-describedby=described_by("f-name")
                        aria-invalid=move || name_error.get().is_some().then_some("true")
                    />
                </FormField>
                <div class="form-actions">
                    <SubmitButton is_busy=action.pending()>
                        {move || if action.pending().get() { "Saving…" } else { "Save name" }}
                    </SubmitButton>
                </div>
            </ActionForm>
        </section>
    }
}
