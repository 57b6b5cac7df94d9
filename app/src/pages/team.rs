//! The people of an installation: who they are, who is invited, and how to invite somebody.

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

/// What each role may do, for those who hand them out.
const ROLE_DESCRIPTIONS: [(Role, &str); 3] = [
    (Role::Viewer, "Sees everything that runs, changes nothing."),
    (Role::Operator, "Defines jobs and runs them."),
    (Role::Admin, "Does everything, people included."),
];

/// `/team`.
#[component]
pub fn TeamPage() -> impl IntoView {
    let data = Resource::new_blocking(
        || (),
        |()| async { Ok::<_, AppError>((team().await?, take_flash("invite-user".into()).await?.unwrap_or_default())) },
    );
    // These live outside of what is drawn anew with the data, so that a new link is not lost when the list comes back.
    let inviting = ServerAction::<InviteUser>::new();
    let revoking = ServerAction::<RevokeInvite>::new();
    let toasts = toasts();
    Effect::new(move |_| {
        if let Some(Ok(_)) = inviting.value().get() {
            data.refetch();
        }
    });
    Effect::new(move |_| match revoking.value().get() {
        Some(Ok(())) => {
            toasts.show(ToastKind::Success, "The invitation is taken back.");
            data.refetch();
        }
        Some(Err(error)) => toasts.show(ToastKind::Error, error.to_string()),
        None => {}
    });
    render_page(data, move |(team, flash): (TeamView, FlashView)| {
        let TeamView { users, invites } = team;
        view! {
            <Title text="Team"/>
            <PageHeader title="Team" sub="Who can sign in to this installation, and as what."/>
            <div class="stack">
                <UserTable users/>
                <InviteTable invites revoking/>
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
                <tr>
                    <th scope="row" data-label="Name">{user.me.name}</th>
                    <td data-label="E-mail">{user.me.email}</td>
                    <td data-label="Role">{user.me.role.label()}</td>
                    <td data-label="Last sign-in">
                        <MaybeTime at=user.last_sign_in_at relative=true/>
                    </td>
                    <td data-label="Since">
                        <Time at=user.created_at/>
                    </td>
                </tr>
            }
        })
        .collect();
    view! {
        <section class="stack" aria-labelledby="people">
            <h2 id="people">"People"</h2>
            <div class="table-wrap">
                <table class="table table-cards">
                    <caption class="sr-only">"People who can sign in"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Name"</th>
                            <th scope="col">"E-mail"</th>
                            <th scope="col">"Role"</th>
                            <th scope="col">"Last sign-in"</th>
                            <th scope="col">"Since"</th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        </section>
    }
}

#[component]
fn InviteTable(invites: Vec<InviteView>, revoking: ServerAction<RevokeInvite>) -> impl IntoView {
    let rows: Vec<_> = invites.into_iter().map(|invite| view! { <InviteRow invite revoking/> }).collect();
    if rows.is_empty() {
        return view! {
            <section class="stack" aria-labelledby="invites">
                <h2 id="invites">"Open invitations"</h2>
                <p class="muted">"Nobody is invited at the moment."</p>
            </section>
        }
        .into_any();
    }
    view! {
        <section class="stack" aria-labelledby="invites">
            <h2 id="invites">"Open invitations"</h2>
            <div class="table-wrap">
                <table class="table table-cards">
                    <caption class="sr-only">"Invitations nobody has used yet"</caption>
                    <thead>
                        <tr>
                            <th scope="col">"Name"</th>
                            <th scope="col">"Role"</th>
                            <th scope="col">"Good until"</th>
                            <th scope="col">"Invited by"</th>
                            <th scope="col">
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
fn InviteRow(invite: InviteView, revoking: ServerAction<RevokeInvite>) -> impl IntoView {
    let asks = RwSignal::new(false);
    let id = invite.id;
    let label = format!("Take back the invitation of {}", invite.name);
    let title = format!("{label}?");
    view! {
        <tr>
            <th scope="row" data-label="Name">{invite.name}</th>
            <td data-label="Role">{invite.role.label()}</td>
            <td data-label="Good until">
                <Time at=invite.expires_at/>
            </td>
            <td data-label="Invited by">{invite.invited_by}</td>
            <td class="row-actions">
                <button
                    type="button"
                    class="btn btn-small needs-js"
                    aria-label=label.clone()
                    on:click=move |_| asks.set(true)
                >
                    "Take back…"
                </button>
                <div class="hide-js">
                    <ActionForm action=revoking>
                        <input type="hidden" name="id" value=id.to_string()/>
                        <button type="submit" class="btn btn-small" aria-label=label>"Take back"</button>
                    </ActionForm>
                </div>
                <ConfirmDialog
                    open=asks
                    id=format!("revoke-{id}")
                    title
                    verb="Take back"
                    on_confirm=move |()| {
                        revoking.dispatch(RevokeInvite { id });
                    }
                >
                    <p>"Its link stops working at once. You can invite the same person again."</p>
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
    // The next invitation is for somebody else.
    let name = NodeRef::<leptos::html::Input>::new();
    Effect::new(move |_| {
        if let (Some(Ok(_)), Some(name)) = (inviting.value().get(), name.get()) {
            name.set_value("");
        }
    });
    let roles: Vec<_> = ROLE_DESCRIPTIONS
        .into_iter()
        .map(|(role, what)| {
            view! {
                <label class="radio-card">
                    <input type="radio" name="role" value=role.slug() checked=role == chosen/>
                    <span>
                        <strong>{role.label()}</strong>
                        <span class="muted">{what}</span>
                    </span>
                </label>
            }
        })
        .collect();
    view! {
        <section class="card stack" aria-labelledby="add-person">
            <h2 id="add-person">"Add a person"</h2>
            <p class="muted">
                "You get a one-time link to pass on. Whoever opens it chooses their own e-mail and passphrase."
            </p>
            <NewLink inviting/>
            <ActionForm action=inviting attr:class="form">
                <ErrorSummary errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
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
                        "Make a link"
                    </button>
                </div>
            </ActionForm>
        </section>
    }
}

/// The link just made. It cannot be had again, so it stands here until the page is left.
#[component]
fn NewLink(inviting: ServerAction<InviteUser>) -> impl IntoView {
    let link = Signal::derive(move || match inviting.value().get() {
        // An action has a value only in a browser, so there is a window to ask.
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
                                    <p>"Pass this link on. It works once and is shown only now."</p>
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
