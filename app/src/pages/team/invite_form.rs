//! The form that invites a user.

use leptos::prelude::*;
use milvaion_api::permissions::Role;

use super::{Invitations, new_link::NewLink};
use crate::{
    api::session::FlashView,
    components::{
        action::SubmitButton,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{error_of, summary_entries},
    },
    pages::login::problems_of,
};

/// The descriptions of the roles, shown where an Admin chooses one.
pub(in crate::pages) const fn role_description(role: Role) -> &'static str {
    match role {
        Role::Viewer => "Views jobs, occurrences and failures; changes nothing.",
        Role::Operator => "Also defines, runs and pauses jobs, and retries failures.",
        Role::Admin => "Also deletes jobs and manages users.",
    }
}

/// The form for a new invitation, with the link that it has created.
#[component]
pub fn InviteForm(
    /// The values and errors that a plain form left behind.
    flash: FlashView,
    /// The actions on invitations.
    invitations: Invitations,
) -> impl IntoView {
    let inviting = invitations.inviting;
    let wrong = problems_of(inviting.value(), &flash);
    let name_error = error_of(wrong, "name");
    let role_error = error_of(wrong, "role");
    let typed = flash.typed("name");
    let name = if typed.is_empty() { invitations.name.get_untracked() } else { typed };
    let chosen = Role::from_slug(&flash.typed("role")).unwrap_or(invitations.role.get_untracked());
    let field = NodeRef::<leptos::html::Input>::new();
    // Empties the name after each invitation: the next one is for another user.
    Effect::new(move |_| {
        if let (Some(_), Some(field)) = (invitations.invited.get(), field.get()) {
            field.set_value("");
        }
    });
    let roles: Vec<_> = Role::ALL
        .into_iter()
        .map(|role| {
            view! {
                <label class="radio-card">
                    <input
                        type="radio"
                        name="role"
                        value=role.slug()
                        checked=role == chosen
                        on:change=move |_| invitations.role.set(role)
                    />
                    <span>
                        <strong>{role.label()}</strong>
                        <span class="muted">{role_description(role)}</span>
                    </span>
                </label>
            }
        })
        .collect();
    view! {
        <section class="card stack" aria-labelledby="invite-user">
            <h2 id="invite-user">"Invite a user"</h2>
            <p class="muted">
                "Create a one-time link and pass it on; it is valid for 72 hours. The invited user chooses an e-mail address and a passphrase."
            </p>
            <NewLink link=invitations.invited id="one-time-link"/>
            <ActionForm action=inviting attr:class="form">
                <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
                <FormField id="f-name" label="Name" error=name_error>
                    <input
                        type="text"
                        id="f-name"
                        name="name"
                        value=name
                        autocomplete="off"
                        maxlength="100"
                        node_ref=field
                        aria-required="true"
                        aria-describedby=described_by("f-name")
                        aria-invalid=move || name_error.get().is_some().then_some("true")
                        on:input=move |event| invitations.name.set(event_target_value(&event))
                    />
                </FormField>
                <fieldset class="radio-cards" id="f-role" tabindex="-1">
                    <legend>"Role"</legend>
                    {roles}
                </fieldset>
                <p class="field-error" hidden=move || role_error.get().is_none()>{move || role_error.get()}</p>
                <div class="form-actions">
                    <SubmitButton is_busy=inviting.pending()>
                        <Icon name="user-plus"/>
                        "Create link"
                    </SubmitButton>
                </div>
            </ActionForm>
        </section>
    }
}
