//! The one-time link with which a user chooses a new passphrase. No Admin sets or sees a passphrase.

use leptos::{ev, prelude::*, server_fn::ServerFn};
use milvaion_api::team::UserState;

use super::PersonState;
use crate::{
    api::team::{CreateResetLink, RESET_REVOKED_NOTICE, RevokeResetLink, create_reset_link, revoke_reset_link},
    browser,
    components::{
        action_error::{ActionError, LastError},
        confirm::{ConfirmAction, Confirmation, ImpossibleAction},
        focus::hand_focus,
        icon::Icon,
        time::Time,
    },
    pages::team::new_link::{CreatedLink, NewLink},
};

/// The id of the field with the new link.
const RESET_LINK_ID: &str = "reset-link";
/// The id of the notice about an open link.
const OPEN_LINK_ID: &str = "open-reset";
/// The id of the heading.
const HEADING_ID: &str = "passphrase";

/// The state of the reset link with its actions.
#[component]
pub fn PassphraseSection(
    /// The page's user.
    person: PersonState,
) -> impl IntoView {
    let error = LastError::of("Create reset link");
    let revoke_error = LastError::of("Revoke link");
    let link = RwSignal::new(None::<CreatedLink>);
    let open_link = Memo::new(move |_| person.view.with(|view| view.reset.clone()));
    let has_link = Memo::new(move |_| open_link.with(Option::is_some));
    let state = person.state();
    let is_deactivated = Memo::new(move |_| state.get() == UserState::Deactivated);
    let create = move |()| {
        let name = person.name.get_untracked();
        person.run(error, create_reset_link(person.id), move |path| {
            let text = format!("The reset link of {name} is created.");
            let _ = link.try_set(Some(CreatedLink { text, path }));
            browser::focus_on_next_frame(RESET_LINK_ID);
            None
        });
    };
    let revoke = move |event: ev::SubmitEvent| {
        event.prevent_default();
        person.run(revoke_error, revoke_reset_link(person.id), move |()| {
            hand_focus(OPEN_LINK_ID, HEADING_ID);
            let _ = link.try_set(None);
            Some(RESET_REVOKED_NOTICE.to_owned())
        });
    };
    let pending = move || {
        open_link.get().map(|reset| {
            view! {
                <div class="notice" data-kind="info" id=OPEN_LINK_ID>
                    <Icon name="key-round"/>
                    <div class="stack">
                        <p>
                            "A reset link is open. " {reset.created_by} " created it " <Time at=reset.created_at relative=true/>
                            "; it expires " <Time at=reset.expires_at relative=true/> "."
                        </p>
                        <form method="post" action=RevokeResetLink::PATH on:submit=revoke>
                            <input type="hidden" name="id" value=person.id.to_string()/>
                            <button type="submit" class="btn btn-small" aria-disabled=move || person.action.disabled()>
                                "Revoke link"
                            </button>
                        </form>
                    </div>
                </div>
            }
        })
    };
    let action = move || {
        if is_deactivated.get() {
            return view! {
                <ImpossibleAction
                    id="no-reset-reason"
                    label="Create reset link…"
                    reason="A deactivated user cannot sign in. Reactivate the user first."
                />
            }
            .into_any();
        }
        let what = Signal::derive(move || {
            const CONSEQUENCE: &str = "The link is shown once, to you; pass it on to the user. It works once, for 24 \
                                       hours. The present passphrase stays valid until the link is used.";
            let title = format!("Create a reset link for {}?", person.name.get());
            Confirmation { class: "btn btn-primary", ..Confirmation::new(title, CONSEQUENCE, "Create reset link") }
                .with_form(CreateResetLink::PATH, vec![("id", person.id.to_string())], "")
        });
        view! {
            <ConfirmAction
                action=person.action
                id="create-reset-link"
                label="Create reset link…"
                what
                on_confirm=create
            >
                <p>"Using the link ends all sessions of the user, and every device counts as unknown again."</p>
                {move || has_link.get().then(|| view! { <p>"The link that is open now stops working."</p> })}
            </ConfirmAction>
        }
        .into_any()
    };
    view! {
        <section class="card stack" aria-labelledby=HEADING_ID>
            <h2 id=HEADING_ID tabindex="-1">"Passphrase"</h2>
            <p class="muted">
                "A user who forgot the passphrase chooses a new one with a one-time link. You never see the passphrase."
            </p>
            <NewLink link id=RESET_LINK_ID/>
            <div>{pending}</div>
            <ActionError error/>
            <ActionError error=revoke_error/>
            <div>{action}</div>
        </section>
    }
}
