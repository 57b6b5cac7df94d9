//! The role of a user, with the rights that a change gives and takes.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::permissions::{Permission, RightsChange, Role};

use super::PersonState;
use crate::{
    api::{
        session::FlashView,
        team::{ChangeRole, change_role},
    },
    components::{
        action_error::{ActionError, LastError},
        form::adopt_early_choice,
        icon::Icon,
    },
    error::AppError,
    pages::team::role_description,
};

/// The reason why the last Admin keeps the role.
const LAST_ADMIN_REASON: &str =
    "This user is the last Admin, so the role cannot be changed. Give another user the role Admin first.";
/// The message if the change of the own role is not confirmed.
const CONFIRM_TEXT: &str = "Select the checkbox below the rights to confirm that you lose them.";

/// The radio cards of the roles, the rights that change, and the button.
#[component]
pub fn RoleSection(
    /// The page's user.
    person: PersonState,
    /// The values and errors that a plain form left behind.
    flash: FlashView,
) -> impl IntoView {
    let error = LastError::of("Change role");
    let current = person.role();
    let is_last_admin = person.is_last_admin();
    let typed = Role::from_slug(&flash.typed("role"));
    let chosen = RwSignal::new(typed.unwrap_or(current.get_untracked()));
    let is_confirmed = RwSignal::new(false);
    adopt_early_choice("role", move |slug| {
        if let Some(role) = Role::from_slug(&slug) {
            chosen.set(role);
        }
    });
    // The choice follows a change of the role, also one that another Admin has made.
    Effect::new(move |before: Option<Role>| {
        let role = current.get();
        if before.is_some_and(|before| before != role) {
            chosen.set(role);
            is_confirmed.set(false);
        }
        role
    });
    let change = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let (from, to) = (current.get_untracked(), chosen.get_untracked());
        if from == to || is_last_admin.get_untracked() {
            return;
        }
        let confirm_self = is_confirmed.get_untracked();
        if person.is_self && !confirm_self {
            error.show(AppError::Conflict(CONFIRM_TEXT.into()));
            return;
        }
        let name = person.name.get_untracked();
        person.run(error, change_role(person.id, to, confirm_self), move |()| {
            Some(format!("{name} is now {} (was {}).", to.label(), from.label()))
        });
    };
    // Drawn again only if the role changes, which also selects the new role.
    let cards = move || {
        let current = current.get();
        let checked = chosen.get_untracked();
        Role::ALL
            .into_iter()
            .map(|role| {
                view! {
                    <label class="radio-card">
                        <input
                            type="radio"
                            name="role"
                            value=role.slug()
                            checked=role == checked
                            disabled=move || is_last_admin.get() && role != current
                            on:change=move |_| chosen.set(role)
                        />
                        <span>
                            <strong>{role.label()} {(role == current).then_some(" (current)")}</strong>
                            <span class="muted">{role_description(role)}</span>
                        </span>
                    </label>
                }
            })
            .collect::<Vec<_>>()
    };
    let rights = move || {
        let (from, to) = (current.get(), chosen.get());
        if from == to {
            view! { <p class="muted">"Choose another role to see which rights change."</p> }.into_any()
        } else {
            changed_rights(from, to)
        }
    };
    let all_rights = move || {
        let from = current.get();
        Role::ALL
            .into_iter()
            .filter(|to| *to != from)
            .map(|to| {
                view! {
                    <div class="stack">
                        <h3>{format!("From {} to {}", from.label(), to.label())}</h3>
                        {changed_rights(from, to)}
                    </div>
                }
            })
            .collect::<Vec<_>>()
    };
    let confirmation = person.is_self.then(|| self_confirmation(current, chosen, is_confirmed));
    let is_idle = move || chosen.get() == current.get() || is_last_admin.get() || person.action.is_running();
    let reason = move || {
        is_last_admin.get().then(|| {
            view! {
                <p class="notice" data-kind="info" id="last-admin">
                    <Icon name="info"/>
                    <span>{LAST_ADMIN_REASON}</span>
                </p>
            }
        })
    };
    view! {
        <section class="card stack" aria-labelledby="role">
            <h2 id="role">"Role"</h2>
            <form method="post" action=ChangeRole::PATH class="stack" id="role-form" on:submit=change>
                <input type="hidden" name="id" value=person.id.to_string()/>
                <fieldset class="radio-cards">
                    <legend class="sr-only">"Role"</legend>
                    {cards}
                </fieldset>
                {reason}
                <div class="needs-js" id="rights" aria-live="polite" hidden=move || is_last_admin.get()>{rights}</div>
                <div class="hide-js stack" hidden=move || is_last_admin.get()>{all_rights}</div>
                {confirmation}
                <ActionError error/>
                <div class="form-actions">
                    <button
                        type="submit"
                        class="btn needs-js"
                        aria-disabled=move || is_idle().then_some("true")
                        aria-describedby=move || is_last_admin.get().then_some("last-admin")
                    >
                        "Change role"
                    </button>
                    <button type="submit" class="btn hide-js" disabled=move || is_last_admin.get()>"Change role"</button>
                </div>
            </form>
        </section>
    }
}

/// The warning and the confirmation of a change of the own role. The checkbox is needed only for a role with fewer
/// rights, but the page of an Admin offers no other.
fn self_confirmation(current: Memo<Role>, chosen: RwSignal<Role>, is_confirmed: RwSignal<bool>) -> AnyView {
    const WARNING: &str = "This is your own role. With fewer rights you can no longer open this page, and only another \
                           Admin can give the rights back to you.";
    const CONFIRMATION: &str = "I understand that I lose the rights listed above and cannot give them back to myself.";
    view! {
        <div class="stack needs-js" hidden=move || chosen.get() == current.get()>
            <p class="notice" data-kind="warn">
                <Icon name="triangle-alert"/>
                <span>{WARNING}</span>
            </p>
            <label class="check">
                <input
                    type="checkbox"
                    prop:checked=move || is_confirmed.get()
                    on:change=move |event| is_confirmed.set(event_target_checked(&event))
                />
                <span>{CONFIRMATION}</span>
            </label>
        </div>
        <div class="stack hide-js">
            <p class="notice" data-kind="warn">
                <Icon name="triangle-alert"/>
                <span>{WARNING}</span>
            </p>
            <label class="check">
                <input type="checkbox" name="confirm_self" value="true"/>
                <span>{CONFIRMATION}</span>
            </label>
        </div>
    }
    .into_any()
}

/// Draws the rights that a change of role gives and takes.
fn changed_rights(from: Role, to: Role) -> AnyView {
    let RightsChange { gained, lost } = RightsChange::between(from, to);
    let list = |kind: &'static str, icon: &'static str, heading: String, rights: Vec<Permission>| {
        (!rights.is_empty()).then(|| {
            let entries: Vec<_> = rights
                .into_iter()
                .map(|right| {
                    view! {
                        <li>
                            <Icon name=icon/>
                            <span>{right.describe()}</span>
                        </li>
                    }
                })
                .collect();
            view! {
                <div data-rights=kind>
                    <p><strong>{heading}</strong></p>
                    <ul class="rights">{entries}</ul>
                </div>
            }
        })
    };
    view! {
        <div class="stack">
            {list("gained", "plus", format!("Rights gained as {}", to.label()), gained)}
            {list("lost", "x", format!("Rights lost as {}", to.label()), lost)}
        </div>
    }
    .into_any()
}
