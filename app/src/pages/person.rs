//! The page of a user, for Admins: role, sessions, passphrase, access, jobs and changes.
//!
//! The page is drawn once. Every action and every refresh changes one signal with the user's data, and each part of the
//! page follows its own memo of it, so that an open dialog and a chosen role stay as they are.

pub mod access;
pub mod jobs;
pub mod passphrase;
pub mod role;
pub mod sessions;

use std::time::Duration;

use leptos::{ev, prelude::*, server_fn::ServerFn};
use leptos_router::hooks::use_params_map;
use milvaion_api::{
    audit::{AuditObject, AuditRow},
    page::ListPage,
    permissions::Role,
    team::{PersonView, UserState},
};
use milvaion_protocol::id::UserId;

use self::{
    access::AccessSection, jobs::JobsSection, passphrase::PassphraseSection, role::RoleSection,
    sessions::SessionsSection,
};
use super::team::state_badge::UserStateBadge;
use crate::{
    api::{
        session::{FlashView, take_flash},
        team::{UnlockUser, person, unlock_user},
    },
    browser::PAGE_TITLE_ID,
    components::{
        action::{UserAction, use_action},
        action_error::{ActionError, LastError},
        audit_list::{AuditSlice, read_slice},
        focus::hand_focus,
        form::ErrorSummary,
        icon::Icon,
        loading::render_page,
        page_header::{Breadcrumbs, LiveTitle, PageHeader},
        session_context::{SessionContext, use_signed_in_user},
        time::{MaybeTime, Time},
    },
    error::AppError,
    format::capitalized,
    live::{ThrottledRefresh, live_page, set_if_changed},
};

/// The shortest time between two reads of the user.
const REFRESH_PAUSE: Duration = Duration::from_millis(200);
/// The interval at which an open page reads the user again, because no event reports sessions and sign-ins.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// `/team/:id`.
#[component]
pub fn PersonPage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.with(|params| params.get("id").and_then(|id| id.parse::<UserId>().ok())));
    let session = use_context::<SessionContext>();
    let data = Resource::new_blocking(move || id.get(), move |id| read(id, session.clone()));
    render_page(data, |(view, flash, audit)| view! { <PersonContent view flash audit/> })
}

/// The user, the result of a plain form, and the start of the audit log of the user.
type PersonData = (PersonView, FlashView, Option<ListPage<AuditRow>>);

async fn read(id: Option<UserId>, session: Option<SessionContext>) -> Result<PersonData, AppError> {
    let id = id.ok_or_else(no_such_user)?;
    let (view, flash, audit) =
        futures::try_join!(person(id), take_flash("person".into()), read_slice(session, AuditObject::User(id)))?;
    Ok((view, flash.unwrap_or_default(), audit))
}

/// Returns the error for an address that does not hold a user id.
fn no_such_user() -> AppError {
    let error = AppError::NotFound("This user does not exist or has been removed.".into());
    #[cfg(feature = "ssr")]
    let error = crate::api::with_error_status(error);
    error
}

/// The user of the page and what its parts share.
#[derive(Clone, Copy)]
pub struct PersonState {
    id: UserId,
    /// The name, which only the user changes.
    name: Memo<String>,
    view: RwSignal<PersonView>,
    /// True if the page shows the own user.
    is_self: bool,
    /// The only action on the user that runs at a time. Each kind has a place of its own for its error.
    action: UserAction,
    refresh: StoredValue<Option<ThrottledRefresh>>,
}

impl PersonState {
    fn role(self) -> Memo<Role> {
        Memo::new(move |_| self.view.with(|view| view.user.role))
    }

    fn state(self) -> Memo<UserState> {
        Memo::new(move |_| self.view.with(|view| view.state))
    }

    /// Returns true while the user is the last active Admin.
    fn is_last_admin(self) -> Memo<bool> {
        Memo::new(move |_| self.view.with(|view| view.is_last_admin && view.user.role == Role::Admin))
    }

    /// Runs `call`, unless an earlier one has not ended, and then `done`, which returns the text of the toast.
    fn run<T: 'static>(
        self,
        error: LastError,
        call: impl Future<Output = Result<T, AppError>> + 'static,
        done: impl FnOnce(T) -> Option<String> + 'static,
    ) {
        self.action.at(error).run(async move {
            let text = done(call.await?);
            self.read_again();
            Ok(text)
        });
    }

    /// Reads the user again after an action, unless the page was left.
    fn read_again(self) {
        if let Some(Some(refresh)) = self.refresh.try_get_value() {
            refresh.request_own();
        }
    }
}

#[component]
fn PersonContent(
    view: PersonView,
    flash: FlashView,
    /// The start of the audit log of the user.
    audit: Option<ListPage<AuditRow>>,
) -> impl IntoView {
    let id = view.user.id;
    let view = RwSignal::new(view);
    let is_removed = RwSignal::new(false);
    let me = use_signed_in_user();
    let person = PersonState {
        id,
        name: Memo::new(move |_| view.with(|view| view.user.name.clone())),
        view,
        is_self: me.with_untracked(|me| me.as_ref().is_some_and(|me| me.id == id)),
        action: use_action(LastError::of("Change user")),
        refresh: StoredValue::new(None),
    };
    keep_current(person, is_removed);
    let errors: Vec<_> =
        flash.problems().into_iter().map(|problem| (String::new(), capitalized(&problem.message))).collect();
    let removed = move || {
        is_removed.get().then(|| {
            view! {
                <div class="notice" data-kind="warn">
                    <Icon name="user-x"/>
                    <p>
                        "This user has been removed. "
                        <a href="/team">"Team"</a>
                    </p>
                </div>
            }
        })
    };
    let title = Signal::derive(move || format!("{} · Team", person.name.get()));
    view! {
        <LiveTitle text=title/>
        <Breadcrumbs steps=vec![("/team".into(), "Team".into())] here=person.name/>
        <PageHeader title=person.name/>
        <div class="stack">
            <ErrorSummary errors/>
            <div role="status">{removed}</div>
            <StateNotice person/>
            <Facts person/>
            <RoleSection person flash/>
            <SessionsSection person/>
            <PassphraseSection person/>
            <AccessSection person/>
            <JobsSection person/>
            <AuditSlice object=AuditObject::User(id) page=audit/>
        </div>
    }
}

/// The facts about the user.
#[component]
fn Facts(person: PersonState) -> impl IntoView {
    let view = person.view;
    let (role, state) = (person.role(), person.state());
    let email = Memo::new(move |_| view.with(|view| view.user.email.clone()));
    let joined = Memo::new(move |_| view.with(|view| view.created_at));
    let last_sign_in = Memo::new(move |_| view.with(|view| view.last_sign_in_at));
    let last_seen = Memo::new(move |_| view.with(|view| view.last_seen_at));
    let passphrase = Memo::new(move |_| view.with(|view| view.passphrase_changed_at));
    let tokens = Memo::new(move |_| view.with(|view| view.tokens));
    let passphrase_text = move || match passphrase.get() {
        Some(at) => view! { <Time at=at relative=true/> }.into_any(),
        None => view! { <span class="muted">"Not since the user joined"</span> }.into_any(),
    };
    let tokens_text = move || {
        let tokens = tokens.get();
        (tokens > 0).then(|| {
            view! {
                <dt>"API tokens"</dt>
                <dd>{tokens}</dd>
            }
        })
    };
    view! {
        <section class="card" aria-labelledby="facts">
            <h2 class="sr-only" id="facts">"Overview"</h2>
            <dl class="kv" id="user-facts">
                <dt>"E-mail"</dt>
                <dd>{move || email.get()}</dd>
                <dt>"Role"</dt>
                <dd id="user-role">{move || role.get().label()}</dd>
                <dt>"State"</dt>
                <dd id="user-state"><UserStateBadge state/></dd>
                <dt>"Joined"</dt>
                <dd><Time at=joined/></dd>
                <dt>"Last sign-in"</dt>
                <dd><MaybeTime at=last_sign_in relative=true/></dd>
                <dt>"Last seen"</dt>
                <dd><MaybeTime at=last_seen relative=true/></dd>
                <dt>"Passphrase changed"</dt>
                <dd>{passphrase_text}</dd>
                {tokens_text}
            </dl>
        </section>
    }
}

/// The id of the notice about a locked user.
const LOCKED_ID: &str = "locked";

/// The notice about a locked or deactivated user.
#[component]
fn StateNotice(person: PersonState) -> impl IntoView {
    let error = LastError::of("Unlock");
    let view = person.view;
    let notice = Memo::new(move |_| view.with(|view| (view.state, view.locked_until, view.deactivated_at)));
    let unlock = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let name = person.name.get_untracked();
        person.run(error, unlock_user(person.id), move |()| {
            hand_focus(LOCKED_ID, PAGE_TITLE_ID);
            Some(format!("{name} is unlocked and can sign in from every device."))
        });
    };
    let shown = move || {
        match notice.get() {
        (UserState::Locked, until, _) => Some(
            view! {
                <div class="notice" data-kind="warn" id=LOCKED_ID>
                    <Icon name="lock"/>
                    <div class="stack">
                        <p>
                            "There were too many failed sign-ins. Sign-ins from unknown devices are refused"
                            {until.map(|until| view! { " until " <Time at=until/> })}
                            ". Open sessions continue, and devices on which the user has signed in before can still sign in."
                        </p>
                        <form method="post" action=UnlockUser::PATH on:submit=unlock>
                            <input type="hidden" name="id" value=person.id.to_string()/>
                            <button type="submit" class="btn" aria-disabled=move || person.action.disabled()>
                                <Icon name="lock-open"/>
                                "Unlock"
                            </button>
                        </form>
                    </div>
                </div>
            }
            .into_any(),
        ),
        (UserState::Deactivated, _, at) => Some(
            view! {
                <div class="notice" data-kind="info" id="deactivated">
                    <Icon name="user-x"/>
                    <p>
                        "This user is deactivated"
                        {at.map(|at| view! { " since " <Time at=at/> })}
                        " and cannot sign in. Jobs that the user created keep running."
                    </p>
                </div>
            }
            .into_any(),
        ),
        _ => None,
    }
    };
    view! {
        <div role="status">{shown}</div>
        <ActionError error/>
    }
}

/// Reads the user again after an action on this page, when events may have been missed, and every
/// [`IDLE_REFRESH_INTERVAL`].
fn keep_current(person_state: PersonState, is_removed: RwSignal<bool>) {
    let PersonState { id, view, .. } = person_state;
    let refresh = live_page(
        REFRESH_PAUSE,
        move || async move {
            match person(id).await {
                Err(AppError::NotFound(_)) => Ok(None),
                read => read.map(Some),
            }
        },
        |_| false,
        move |read| match read {
            None => is_removed.set(true),
            Some(read) => set_if_changed(view, read),
        },
    );
    person_state.refresh.set_value(Some(refresh.every(IDLE_REFRESH_INTERVAL)));
}
