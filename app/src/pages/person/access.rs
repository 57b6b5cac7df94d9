//! Deactivation, reactivation and removal of a user.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::team::UserState;

use super::{PersonState, jobs::JobLinks};
use crate::{
    api::team::{RemoveUser, SetUserActive, remove_user, set_user_active},
    components::{
        action_error::{ActionError, LastError},
        confirm::{ConfirmAction, Confirmation, ImpossibleAction},
        focus::hand_focus,
        icon::Icon,
    },
};

/// The id of the section, whose buttons change with the state of the user.
const SECTION_ID: &str = "access-section";
/// The id of the heading.
const HEADING_ID: &str = "access";

/// The actions that take the access away and give it back.
#[component]
pub fn AccessSection(
    /// The page's user.
    person: PersonState,
) -> impl IntoView {
    let error = LastError::of("Change access");
    let state = person.state();
    let is_deactivated = Memo::new(move |_| state.get() == UserState::Deactivated);
    let is_last_admin = person.is_last_admin();
    let navigate = use_navigate();
    let removed = Callback::new(move |()| navigate("/team", NavigateOptions::default()));
    let actions = move || {
        if is_deactivated.get() {
            view! { <DeactivatedActions person error removed/> }.into_any()
        } else if person.is_self {
            view! {
                <ImpossibleAction
                    id="no-deactivation-reason"
                    label="Deactivate…"
                    reason="You cannot deactivate your own account. Another Admin can."
                />
            }
            .into_any()
        } else if is_last_admin.get() {
            view! {
                <ImpossibleAction
                    id="no-deactivation-reason"
                    label="Deactivate…"
                    reason="This user is the last Admin and cannot be deactivated. Give another user the role Admin first."
                />
            }
            .into_any()
        } else {
            view! { <DeactivateAction person error/> }.into_any()
        }
    };
    view! {
        <section class="card stack" id=SECTION_ID aria-labelledby=HEADING_ID>
            <h2 id=HEADING_ID tabindex="-1">"Access"</h2>
            <ActionError error/>
            <div>{actions}</div>
        </section>
    }
}

#[component]
fn DeactivateAction(person: PersonState, error: LastError) -> impl IntoView {
    let what = Signal::derive(move || {
        const CONSEQUENCE: &str = "All sessions and API tokens of the user end at once, and the user can no longer sign \
                                   in. Jobs, history and the audit log keep the name. You can reactivate the user later.";
        let fields = vec![("id", person.id.to_string()), ("active", "false".to_owned())];
        Confirmation::new(format!("Deactivate {}?", person.name.get()), CONSEQUENCE, "Deactivate").with_form(
            SetUserActive::PATH,
            fields,
            "",
        )
    });
    let deactivate = move |()| {
        let name = person.name.get_untracked();
        person.run(error, set_user_active(person.id, false), move |()| {
            hand_focus(SECTION_ID, HEADING_ID);
            Some(format!("{name} is deactivated."))
        });
    };
    view! {
        <ConfirmAction action=person.action id="deactivate" label="Deactivate…" what on_confirm=deactivate>
            <JobLinks person/>
        </ConfirmAction>
    }
}

#[component]
fn DeactivatedActions(person: PersonState, error: LastError, removed: Callback<()>) -> impl IntoView {
    let reactivate = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let name = person.name.get_untracked();
        person.run(error, set_user_active(person.id, true), move |()| {
            hand_focus(SECTION_ID, HEADING_ID);
            Some(format!("{name} is reactivated and can sign in again."))
        });
    };
    let remove = move |()| {
        let name = person.name.get_untracked();
        person.run(error, remove_user(person.id), move |()| {
            removed.run(());
            Some(format!("{name} is removed."))
        });
    };
    let what = Signal::derive(move || {
        const CONSEQUENCE: &str = "The user is deleted permanently, and the e-mail address becomes free for a new user. \
                                   Jobs, history and the audit log keep it as text.";
        Confirmation::new(format!("Remove {}?", person.name.get()), CONSEQUENCE, "Remove user").with_form(
            RemoveUser::PATH,
            vec![("id", person.id.to_string())],
            "",
        )
    });
    view! {
        <div class="stack">
            <p class="muted">
                "Reactivation gives the user the same role, e-mail address and passphrase as before. Earlier sessions stay ended."
            </p>
            <div class="cluster">
                <form method="post" action=SetUserActive::PATH on:submit=reactivate>
                    <input type="hidden" name="id" value=person.id.to_string()/>
                    <input type="hidden" name="active" value="true"/>
                    <button type="submit" class="btn btn-primary" aria-disabled=move || person.action.disabled()>
                        <Icon name="user-check"/>
                        "Reactivate"
                    </button>
                </form>
                <ConfirmAction action=person.action id="remove" label="Remove user…" what on_confirm=remove>
                    <JobLinks person/>
                </ConfirmAction>
            </div>
        </div>
    }
}
