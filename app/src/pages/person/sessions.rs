//! The sessions of a user.

use leptos::{prelude::*, server_fn::ServerFn};
use milvaion_api::team::SessionView;
use milvaion_protocol::id::SessionId;

use super::PersonState;
use crate::{
    api::team::{EndUserSessions, end_user_sessions, sessions_ended_notice},
    components::{
        action_error::{ActionError, LastError},
        confirm::{AskButton, ConfirmAction, Confirmation, RowQuestion, RowQuestionDialog},
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
            Some(sessions_ended_notice(ended))
        });
    });
    let question = RowQuestion::default();
    let row = move |id: SessionId| {
        let session = sessions.with_untracked(|all| all.iter().find(|session| session.id == id).cloned());
        session.map(|session| view! { <SessionRow person session sessions question end/> })
    };
    let end_all = move || {
        has_any.get().then(|| {
            let what = Signal::derive(move || {
                const CONSEQUENCE: &str = "The user is signed out on every device at once and can sign in again. A form \
                                           that is open keeps its input until then.";
                let title = format!("End all sessions of {}?", person.name.get());
                Confirmation::new(title, CONSEQUENCE, "End all sessions")
                    .with_form(EndUserSessions::PATH, vec![("id", person.id.to_string())], "")
            });
            view! {
                <ConfirmAction
                    action=person.action
                    id="end-all-sessions"
                    label="End all sessions…"
                    what
                    on_confirm=move |()| end.run(None)
                >
                    {person.is_self.then(|| view! { <p>"This includes the session that you use now."</p> })}
                </ConfirmAction>
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
            <RowQuestionDialog question id="end-session-title"/>
        </section>
    }
}

#[component]
fn SessionRow(
    person: PersonState,
    session: SessionView,
    sessions: Memo<Vec<SessionView>>,
    question: RowQuestion,
    end: Callback<Option<SessionId>>,
) -> impl IntoView {
    let SessionView { id, device, address, created_at, last_seen_at, is_current } = session;
    let last_seen = Memo::new(move |_| {
        sessions.with(|all| {
            all.iter().find(|session| session.id == id).map_or(last_seen_at, |session| session.last_seen_at)
        })
    });
    let label = format!("End the session {device}");
    let own = if is_current { " It is the session that you use now." } else { "" };
    let consequence = format!("{device} is signed out at once. The user can sign in again.{own}");
    let ask = move |()| {
        let what = Confirmation::new("End this session?".to_owned(), consequence.clone(), "End session");
        question.ask(what, move || end.run(Some(id)));
    };
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
                <AskButton
                    action=person.action
                    label="End session…"
                    class="btn btn-small"
                    name=label.clone()
                    href=""
                    on_ask=ask
                />
                <form method="post" action=EndUserSessions::PATH class="hide-js">
                    <input type="hidden" name="id" value=person.id.to_string()/>
                    <input type="hidden" name="session" value=id.to_string()/>
                    <button type="submit" class="btn btn-small" aria-label=label>"End session"</button>
                </form>
            </td>
        </tr>
    }
}
