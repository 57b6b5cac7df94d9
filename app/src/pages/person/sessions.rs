//! The sessions of a user.

use leptos::{prelude::*, server_fn::ServerFn};
use milvaion_api::team::SessionView;
use milvaion_protocol::id::SessionId;

use super::{PersonState, confirm::ConfirmedAction};
use crate::{
    api::team::{EndUserSessions, end_user_sessions, sessions_ended_notice},
    components::{
        action_error::{ActionError, LastError},
        dialog::ConfirmDialog,
        focus::hand_focus,
        icon::Icon,
        table::{Actions, Table, Text},
        time::Time,
    },
};

/// The id of the section, whose buttons disappear with the sessions.
const SECTION_ID: &str = "sessions-section";
/// The id of the heading.
const HEADING_ID: &str = "sessions";

/// The table of sessions with the actions that end them.
#[component]
pub fn SessionsSection(
    /// The page's user.
    person: PersonState,
) -> impl IntoView {
    let error = LastError::of("End session");
    let sessions = Memo::new(move |_| person.view.with(|view| view.sessions.clone()));
    let ids = Memo::new(move |_| sessions.with(|all| all.iter().map(|session| session.id).collect::<Vec<_>>()));
    let has_any = Memo::new(move |_| sessions.with(|all| !all.is_empty()));
    let end = Callback::new(move |session: Option<SessionId>| {
        person.run(error, end_user_sessions(person.id, session), move |ended| {
            hand_focus(SECTION_ID, HEADING_ID);
            person.report(sessions_ended_notice(ended));
        });
    });
    let row = move |id: SessionId| {
        let session = sessions.with_untracked(|all| all.iter().find(|session| session.id == id).cloned());
        session.map(|session| view! { <SessionRow person session sessions end/> })
    };
    let end_all = move || {
        has_any.get().then(|| {
            let title = Signal::derive(move || format!("End all sessions of {}?", person.name.get()));
            view! {
                <ConfirmedAction
                    person
                    id="end-all-sessions"
                    label="End all sessions…"
                    title
                    verb="End all sessions"
                    path=EndUserSessions::PATH
                    on_confirm=move |()| end.run(None)
                >
                    <p>
                        "The user is signed out on every device at once and can sign in again. A form that is open keeps its input until then."
                    </p>
                    {person.is_self.then(|| view! { <p>"This includes the session that you use now."</p> })}
                </ConfirmedAction>
            }
        })
    };
    view! {
        <section class="card stack" id=SECTION_ID aria-labelledby=HEADING_ID>
            <h2 id=HEADING_ID tabindex="-1">"Sessions"</h2>
            <ActionError error/>
            <p class="muted" hidden=move || has_any.get()>"No session. The user is signed out everywhere."</p>
            <Table
                caption="Sessions, the last used one first"
                columns=[Text("Device"), Text("Address"), Text("Created"), Text("Last seen"), Actions]
                hidden=move || !has_any.get()
            >
                <For each=move || ids.get() key=|id| *id children=row/>
            </Table>
            <div>{end_all}</div>
        </section>
    }
}

#[component]
fn SessionRow(
    person: PersonState,
    session: SessionView,
    sessions: Memo<Vec<SessionView>>,
    end: Callback<Option<SessionId>>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let SessionView { id, device, address, created_at, last_seen_at, is_current } = session;
    let last_seen = Memo::new(move |_| {
        sessions.with(|all| {
            all.iter().find(|session| session.id == id).map_or(last_seen_at, |session| session.last_seen_at)
        })
    });
    let label = format!("End the session {device}");
    let consequence = format!("{device} is signed out at once. The user can sign in again.");
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Device">
                {device}
                {is_current
                    .then(|| {
                        view! {
                            <div>
                                <span class="badge" data-status="active">
                                    <Icon name="circle-dot"/>
                                    <span>"This session"</span>
                                </span>
                            </div>
                        }
                    })}
            </th>
            <td role="cell" data-label="Address" class="breaks">{address.unwrap_or_else(|| "–".to_owned())}</td>
            <td role="cell" data-label="Created">
                <Time at=created_at relative=true/>
            </td>
            <td role="cell" data-label="Last seen">
                <Time at=last_seen relative=true/>
            </td>
            <td role="cell" class="row-actions">
                <button
                    type="button"
                    class="btn btn-small needs-js"
                    aria-label=label.clone()
                    aria-disabled=move || person.busy.disabled()
                    on:click=move |_| person.busy.ask(open)
                >
                    "End session…"
                </button>
                <form method="post" action=EndUserSessions::PATH class="hide-js">
                    <input type="hidden" name="id" value=person.id.to_string()/>
                    <input type="hidden" name="session" value=id.to_string()/>
                    <button type="submit" class="btn btn-small" aria-label=label>"End session"</button>
                </form>
                <ConfirmDialog
                    open
                    id=format!("end-{id}")
                    title="End this session?"
                    verb="End session"
                    on_confirm=move |()| end.run(Some(id))
                >
                    <p>{consequence}</p>
                    {is_current.then(|| view! { <p>"It is the session that you use now."</p> })}
                </ConfirmDialog>
            </td>
        </tr>
    }
}
