//! The team page: the users of the installation, the pending invitations, and a form for a new one.

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    permissions::Role,
    views::{InviteView, TeamView, UserView},
};

use super::login::problems_of;
use crate::{
    api::{
        session::{FlashView, take_flash},
        team::{InviteUser, RevokeInvite, team},
    },
    components::{
        action_error::{ActionError, LastError},
        copy_button::CopyButton,
        dialog::ConfirmDialog,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{error_of, summary_entries},
        loading::render_page,
        page_header::PageHeader,
        time::{MaybeTime, Time},
        toast::{ToastKind, toasts},
    },
    error::AppError,
};

/// The descriptions of the roles, shown where an Admin chooses one for an invitation.
const ROLE_DESCRIPTIONS: [(Role, &str); 3] = [
    (Role::Viewer, "Views jobs, occurrences and failures; changes nothing."),
    (Role::Operator, "Also defines, runs and pauses jobs, and retries failures."),
    (Role::Admin, "Also deletes jobs and manages users."),
];

/// `/team`.
#[component]
pub fn TeamPage() -> impl IntoView {
    let data = Resource::new_blocking(
        || (),
        |()| async { Ok::<_, AppError>((team().await?, take_flash("invite-user".into()).await?.unwrap_or_default())) },
    );
    // These actions live outside the view that is redrawn with the data, so that a new link survives a list refresh.
    let inviting = ServerAction::<InviteUser>::new();
    let revoking = ServerAction::<RevokeInvite>::new();
    let revoke_error = LastError::of("Revoke");
    let toasts = toasts();
    Effect::new(move |_| {
        if let Some(Ok(_)) = inviting.value().get() {
            data.refetch();
        }
    });
    Effect::new(move |_| match revoking.value().get() {
        Some(Ok(())) => {
            toasts.show(ToastKind::Success, "The invitation is revoked.");
            data.refetch();
        }
        Some(Err(error)) => revoke_error.show(error),
        None => {}
    });
    render_page(data, move |(team, flash): (TeamView, FlashView)| {
        let TeamView { users, invites } = team;
        view! {
            <Title text="Team"/>
            <PageHeader title="Team" sub="Users who can sign in, and their roles."/>
            <div class="stack">
                <UserTable users/>
                <InviteTable invites revoking error=revoke_error/>
                <InviteForm flash inviting/>
            </div>
        }
    })
}

#[component]
fn UserTable(users: Vec<UserView>) -> impl IntoView {
    let rows: Vec<_> = users
        .into_iter()
        .map(|user| {
            view! {
                <tr role="row">
                    <th role="rowheader" scope="row" data-label="Name">{user.me.name}</th>
                    <td role="cell" data-label="E-mail" class="breaks">{user.me.email}</td>
                    <td role="cell" data-label="Role">{user.me.role.label()}</td>
                    <td role="cell" data-label="Last sign-in">
                        <MaybeTime at=user.last_sign_in_at relative=true/>
                    </td>
                    <td role="cell" data-label="Joined">
                        <Time at=user.created_at/>
                    </td>
                </tr>
            }
        })
        .collect();
    view! {
        <section class="stack" aria-labelledby="people">
            <h2 id="people">"Users"</h2>
            <div class="table-wrap">
                <table role="table" class="table table-cards">
                    <caption class="sr-only">"Users who can sign in"</caption>
                    <thead>
                        <tr role="row">
                            <th role="columnheader" scope="col">"Name"</th>
                            <th role="columnheader" scope="col">"E-mail"</th>
                            <th role="columnheader" scope="col">"Role"</th>
                            <th role="columnheader" scope="col">"Last sign-in"</th>
                            <th role="columnheader" scope="col">"Joined"</th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        </section>
    }
}

#[component]
fn InviteTable(
    invites: Vec<InviteView>,
    revoking: ServerAction<RevokeInvite>,
    /// The error of the last revocation.
    error: LastError,
) -> impl IntoView {
    let rows: Vec<_> = invites.into_iter().map(|invite| view! { <InviteRow invite revoking error/> }).collect();
    if rows.is_empty() {
        return view! {
            <section class="stack" aria-labelledby="invites">
                <h2 id="invites">"Pending invitations"</h2>
                <ActionError error/>
                <p class="muted">"No invitation is pending. Invite a user with the form below."</p>
            </section>
        }
        .into_any();
    }
    view! {
        <section class="stack" aria-labelledby="invites">
            <h2 id="invites">"Pending invitations"</h2>
            <ActionError error/>
            <div class="table-wrap">
                <table role="table" class="table table-cards">
                    <caption class="sr-only">"Invitations that are not used yet"</caption>
                    <thead>
                        <tr role="row">
                            <th role="columnheader" scope="col">"Name"</th>
                            <th role="columnheader" scope="col">"Role"</th>
                            <th role="columnheader" scope="col">"Expires"</th>
                            <th role="columnheader" scope="col">"Invited by"</th>
                            <th role="columnheader" scope="col">
                                <span class="sr-only">"Actions"</span>
                            </th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        </section>
    }
    .into_any()
}

#[component]
fn InviteRow(invite: InviteView, revoking: ServerAction<RevokeInvite>, error: LastError) -> impl IntoView {
    let open = RwSignal::new(false);
    let id = invite.id;
    let label = format!("Revoke the invitation of {}", invite.name);
    let title = format!("{label}?");
    view! {
        <tr role="row">
            <th role="rowheader" scope="row" data-label="Name">{invite.name}</th>
            <td role="cell" data-label="Role">{invite.role.label()}</td>
            <td role="cell" data-label="Expires">
                <Time at=invite.expires_at/>
            </td>
            <td role="cell" data-label="Invited by" class="breaks">{invite.invited_by}</td>
            <td role="cell" class="row-actions">
                <button
                    type="button"
                    class="btn btn-small needs-js"
                    aria-label=label.clone()
                    on:click=move |_| open.set(true)
                >
                    "Revoke…"
                </button>
                <div class="hide-js">
                    <ActionForm action=revoking>
                        <input type="hidden" name="id" value=id.to_string()/>
                        <button type="submit" class="btn btn-small" aria-label=label>"Revoke"</button>
                    </ActionForm>
                </div>
                <ConfirmDialog
                    open
                    id=format!("revoke-{id}")
                    title
                    verb="Revoke"
                    on_confirm=move |()| {
                        error.clear();
                        revoking.dispatch(RevokeInvite { id });
                    }
                >
                    <p>"The link stops working immediately. You can invite the same person again."</p>
                </ConfirmDialog>
            </td>
        </tr>
    }
}

#[component]
fn InviteForm(flash: FlashView, inviting: ServerAction<InviteUser>) -> impl IntoView {
    let wrong = problems_of(inviting.value(), &flash);
    let name_error = error_of(wrong, "name");
    let role_error = error_of(wrong, "role");
    let typed_role = flash.typed("role");
    let chosen = Role::from_slug(&typed_role).unwrap_or(Role::Viewer);
    // Empties the name after each invitation: the next one is for another person.
    let name = NodeRef::<leptos::html::Input>::new();
    Effect::new(move |_| {
        if let (Some(Ok(_)), Some(name)) = (inviting.value().get(), name.get()) {
            name.set_value("");
        }
    });
    let roles: Vec<_> = ROLE_DESCRIPTIONS
        .into_iter()
        .map(|(role, description)| {
            view! {
                <label class="radio-card">
                    <input type="radio" name="role" value=role.slug() checked=role == chosen/>
                    <span>
                        <strong>{role.label()}</strong>
                        <span class="muted">{description}</span>
                    </span>
                </label>
            }
        })
        .collect();
    view! {
        <section class="card stack" aria-labelledby="add-person">
            <h2 id="add-person">"Invite a user"</h2>
            <p class="muted">
                "Create a one-time link and pass it on; it is valid for 72 hours. The invited user chooses an e-mail address and a passphrase."
            </p>
            <NewLink inviting/>
            <ActionForm action=inviting attr:class="form">
                <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
                <FormField id="f-name" label="Name" error=name_error>
                    <input
                        type="text"
                        id="f-name"
                        name="name"
                        value=flash.typed("name")
                        autocomplete="off"
                        maxlength="100"
                        node_ref=name
                        aria-required="true"
                        aria-describedby=described_by("f-name")
                        aria-invalid=move || name_error.get().is_some().then_some("true")
                    />
                </FormField>
                <fieldset class="radio-cards" id="f-role" tabindex="-1">
                    <legend>"Role"</legend>
                    {roles}
                </fieldset>
                <p class="field-error" hidden=move || role_error.get().is_none()>{move || role_error.get()}</p>
                <div class="form-actions">
                    <button type="submit" class="btn btn-primary" disabled=move || inviting.pending().get()>
                        <Icon name="user-plus"/>
                        "Create link"
                    </button>
                </div>
            </ActionForm>
        </section>
    }
}

/// Shows the new link. The server returns it only once, so it stays here until the reader leaves the page.
#[component]
fn NewLink(inviting: ServerAction<InviteUser>) -> impl IntoView {
    let link = Signal::derive(move || match inviting.value().get() {
        // An action has a value only in a browser, so a window exists.
        Some(Ok(path)) => Some(format!("{}{path}", window().location().origin().unwrap_or_default())),
        _ => None,
    });
    let text = Signal::derive(move || link.get().unwrap_or_default());
    view! {
        <div role="status">
            {move || {
                link.get()
                    .map(|link| {
                        view! {
                            <div class="notice" data-kind="success">
                                <Icon name="link"/>
                                <div class="stack grow">
                                    <p>"Pass this link on. It works once and is not shown again."</p>
                                    <div class="cluster">
                                        <div class="field grow">
                                            <input
                                                type="text"
                                                class="input-mono"
                                                readonly
                                                aria-label="One-time link"
                                                id="one-time-link"
                                                value=link
                                            />
                                        </div>
                                        <CopyButton text what="one-time link"/>
                                    </div>
                                </div>
                            </div>
                        }
                    })
            }}
        </div>
    }
}
