//! The form that creates a token.

use leptos::{html, prelude::*};
use milvaion_api::{
    permissions::Role,
    tokens::{DEFAULT_TOKEN_DAYS, TOKEN_DAYS_CHOICES},
};

use super::TokenActions;
use crate::{
    api::{
        session::FlashView,
        tokens::{CUSTOM_LIFETIME, NO_EXPIRY},
    },
    components::{
        action::SubmitButton,
        check_field::CheckField,
        fields::{InputField, SelectField, use_script},
        form::ErrorSummary,
        icon::Icon,
        input_form::{control_id, control_name, error_of, summary_entries},
    },
    pages::login::problems_of,
};

/// The form for a new token.
#[component]
pub fn NewTokenForm(
    /// The values and errors that a plain form left behind.
    flash: FlashView,
    /// The actions on tokens.
    actions: TokenActions,
    /// The role of the user, which limits the choices.
    role: Role,
    /// True for the list of all tokens.
    all: bool,
) -> impl IntoView {
    let creating = actions.creating;
    let wrong = problems_of(creating.value(), &flash);
    let chosen = Role::from_slug(&flash.typed("role")).unwrap_or(Role::Viewer);
    let roles: Vec<_> = Role::ALL
        .into_iter()
        .filter(|choice| *choice <= role)
        .map(|choice| view! { <option value=choice.slug() selected=choice == chosen>{choice.label()}</option> })
        .collect();
    let is_admin = role == Role::Admin;
    let (name, tag, days) = (flash.typed("name"), flash.typed("tag"), flash.typed("expiresInDays"));
    let (is_read_only, is_service) = (flash.typed("readOnly") == "on", flash.typed("service") == "on");
    let field = NodeRef::<html::Input>::new();
    let lifetime = RwSignal::new(chosen_lifetime(&flash));
    // Empties the form after each creation: the next token is for another script.
    Effect::new(move |before: Option<u32>| {
        let created = actions.created.get();
        if before.is_some_and(|before| before != created)
            && let Some(field) = field.get_untracked()
        {
            if let Some(form) = field.form() {
                form.reset();
            }
            field.set_value("");
            lifetime.set(DEFAULT_TOKEN_DAYS.to_string());
        }
        created
    });
    view! {
        <section class="card stack" id="new-token" aria-labelledby="new-token-heading">
            <h2 id="new-token-heading">"New token"</h2>
            <ActionForm action=creating attr:class="form">
                <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
                <input type="hidden" name="all" value=all.to_string()/>
                <InputField
                    id="f-name"
                    name=control_name("name")
                    label="Name"
                    hint="The script or system that uses the token; 1 to 100 characters."
                    maxlength="100"
                    value=name
                    aria_required=true
                    error=error_of(wrong, "name")
                    node=field
                />
                <SelectField
                    id="f-role"
                    name=control_name("role")
                    label="Role"
                    hint="The rights of the token, at most your own. Choose the lowest role that is enough."
                    error=error_of(wrong, "role")
                >
                    {roles}
                </SelectField>
                <CheckField
                    field="readOnly"
                    label="Read only"
                    hint="The token reads what its role may read and changes nothing."
                    checked=is_read_only
                    error=error_of(wrong, "readOnly")
                />
                <InputField
                    id="f-tag"
                    name=control_name("tag")
                    label="Tag"
                    hint="Limits the token to the jobs with this tag and to their occurrences; 1 to 50 characters."
                    optional=true
                    maxlength="50"
                    value=tag
                    error=error_of(wrong, "tag")
                />
                <LifetimeFields
                    lifetime
                    days
                    is_admin
                    lifetime_error=error_of(wrong, "neverExpires")
                    days_error=error_of(wrong, "expiresInDays")
                />
                {is_admin
                    .then(|| {
                        view! {
                            <CheckField
                                field="service"
                                label="Service token"
                                hint="The token belongs to the installation and remains when you leave. Only Admins manage it."
                                checked=is_service
                                error=error_of(wrong, "service")
                            />
                        }
                    })}
                <div class="form-actions">
                    <SubmitButton is_busy=creating.pending()>
                        <Icon name="key-round"/>
                        "Create token"
                    </SubmitButton>
                </div>
            </ActionForm>
        </section>
    }
}

/// Returns the lifetime of a refused post, or the default.
fn chosen_lifetime(flash: &FlashView) -> String {
    let typed = flash.typed("lifetime");
    if typed.is_empty() { DEFAULT_TOKEN_DAYS.to_string() } else { typed }
}

/// The choice of a lifetime, and the number of days of a custom one.
#[component]
fn LifetimeFields(
    /// The chosen lifetime, updated by the select.
    lifetime: RwSignal<String>,
    /// The typed number of days.
    days: String,
    /// True to offer a token that never expires.
    is_admin: bool,
    /// The error of the choice.
    lifetime_error: Signal<Option<String>>,
    /// The error of the number of days.
    days_error: Signal<Option<String>>,
) -> impl IntoView {
    let chosen = lifetime.get_untracked();
    let mut choices: Vec<_> =
        TOKEN_DAYS_CHOICES.into_iter().map(|days| (days.to_string(), format!("{days} days"))).collect();
    choices.push((CUSTOM_LIFETIME.to_owned(), "Another number of days".to_owned()));
    if is_admin {
        choices.push((NO_EXPIRY.to_owned(), "Never expires".to_owned()));
    }
    let options: Vec<_> = choices
        .into_iter()
        .map(|(value, label)| {
            let selected = value == chosen;
            view! { <option value=value selected=selected>{label}</option> }
        })
        .collect();
    let has_script = use_script();
    let is_custom = Memo::new(move |_| lifetime.with(|lifetime| lifetime == CUSTOM_LIFETIME));
    view! {
        // The ids are those of the fields of the request, to which the entries of the error summary lead.
        <SelectField
            id=control_id("neverExpires")
            name=control_name("lifetime")
            label="Lifetime"
            hint=format!("The token stops working after this time. Default: {DEFAULT_TOKEN_DAYS} days.")
            error=lifetime_error
            chosen=lifetime
        >
            {options}
        </SelectField>
        <div hidden=move || has_script.get() && !is_custom.get() && days_error.get().is_none()>
            <InputField
                id=control_id("expiresInDays")
                name=control_name("expiresInDays")
                label="Number of days"
                hint="Used if the lifetime is another number of days; 1 to 3,650."
                inputmode="numeric"
                value=days
                error=days_error
            />
        </div>
    }
}
