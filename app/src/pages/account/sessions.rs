//! The own sessions. Every other one can be ended, alone or together; the current one is ended by signing out.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::hooks::use_query_map;
use milvaion_api::team::SessionView;
use milvaion_protocol::id::SessionId;

use crate::{
    api::{
        account::{EndOwnSessions, end_own_sessions, ended_notice},
        session::FlashView,
    },
    components::{
        action::{UserAction, use_action},
        action_error::{ActionError, LastError},
        confirm::{AskButton, Confirmation, RowQuestion, RowQuestionDialog, confirm_section},
        focus::hand_focus,
        form::ErrorSummary,
        icon::Icon,
        input_form::summary_entries,
        nav::SignOutForm,
        table::{Actions, Table, Text},
        time::Time,
    },
};

/// The id of the section.
const SECTION_ID: &str = "sessions";
/// The id of the heading.
const HEADING_ID: &str = "sessions-heading";
/// The value of the parameter `end` that means every other session.
const ALL_OTHERS: &str = "others";

/// The section *Sessions*.
#[component]
pub fn SessionsSection(
    /// The sessions, the current one first.
    sessions: Signal<Vec<SessionView>>,
    /// The result of a plain post of this section.
    flash: FlashView,
    /// Called after sessions were ended.
    on_change: Callback<()>,
) -> impl IntoView {
    let error = LastError::of("End session");
    let problems = summary_entries(&flash.problems());
    let action = use_action(error);
    let question = RowQuestion::default();
    let end = move |session: Option<SessionId>| {
        action.run(async move {
            let answer = end_own_sessions(session).await;
            if answer.is_ok() {
                // The buttons disappear with the sessions.
                hand_focus(SECTION_ID, HEADING_ID);
            }
            // A session that could not be ended may have ended by itself.
            let _ = on_change.try_run(());
            answer.map(|ended| Some(ended_notice(session.is_some(), ended)))
        });
    };
    let ask = Callback::new(move |session: Option<SessionView>| {
        let id = session.as_ref().map(|session| session.id);
        question.ask(end_question(session.as_ref()), move || end(id));
    });
    let has_others = Memo::new(move |_| sessions.with(|all| all.iter().any(|session| !session.is_current)));
    view! {
        <section class="card" id=SECTION_ID aria-labelledby=HEADING_ID>
            <div class="card-head">
                <h2 class="card-title" id=HEADING_ID tabindex="-1">"Sessions"</h2>
                <div class="cluster" hidden=move || !has_others.get()>
                    <AskButton
                        action
                        label="End all other sessions…"
                        href=format!("/account?end={ALL_OTHERS}#end")
                        on_ask=move |()| ask.run(None)
                    />
                </div>
            </div>
            <p class="muted">"The browsers that are signed in to this account."</p>
            <ErrorSummary errors=Signal::stored(problems)/>
            <ActionError error/>
            {asked_question(sessions).map(|what| confirm_section("end", what))}
            <Table
                caption="Your sessions, the current one first"
                columns=[Text("Device"), Text("Address"), Text("Signed in"), Text("Last seen"), Actions]
            >
                <For each=move || sessions.get() key=|session| session.id let:session>
                    <SessionRow session sessions action ask/>
                </For>
            </Table>
            <RowQuestionDialog question id="end-session-title"/>
        </section>
    }
}

#[component]
fn SessionRow(
    /// The session when its row is drawn.
    session: SessionView,
    /// All sessions, from which the row's values are updated.
    sessions: Signal<Vec<SessionView>>,
    /// The action that ends sessions.
    action: UserAction,
    /// Asks for the confirmation.
    ask: Callback<Option<SessionView>>,
) -> impl IntoView {
    let SessionView { id, created_at, is_current, .. } = session.clone();
    let (device, address) = (session.device.clone(), session.address.clone());
    let label = format!("End the session {}", words(&session));
    let seen = session.last_seen_at;
    let last_seen = Memo::new(move |_| {
        sessions.with(|all| all.iter().find(|session| session.id == id).map_or(seen, |session| session.last_seen_at))
    });
    let button = if is_current {
        view! { <SignOutForm class="btn btn-small"/> }.into_any()
    } else {
        view! {
            <AskButton
                action
                label="End…"
                class="btn btn-small"
                name=label
                href=format!("/account?end={id}#end")
                on_ask=move |()| ask.run(Some(session.clone()))
            />
        }
        .into_any()
    };
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Device">
                {device}
                {is_current
                    .then(|| {
                        view! {
                            " "
                            <span class="badge" data-status="active">
                                <Icon name="check"/>
                                <span>"This session"</span>
                            </span>
                        }
                    })}
            </th>
            <td role="cell" data-label="Address">{address.unwrap_or_else(|| "Unknown".into())}</td>
            <td role="cell" data-label="Signed in"><Time at=created_at relative=true/></td>
            <td role="cell" data-label="Last seen"><Time at=last_seen relative=true/></td>
            <td role="cell">{button}</td>
        </tr>
    }
}

/// Returns the question that the address asks, for users without scripts.
fn asked_question(sessions: Signal<Vec<SessionView>>) -> Option<Confirmation> {
    let end = use_query_map().with_untracked(|query| query.get("end"))?;
    if end == ALL_OTHERS {
        return Some(end_question(None));
    }
    let chosen = end.parse::<SessionId>().ok()?;
    sessions.with_untracked(|all| {
        let session = all.iter().find(|session| session.id == chosen && !session.is_current)?;
        Some(end_question(Some(session)))
    })
}

/// Returns the question before a session is ended, or every other one.
fn end_question(session: Option<&SessionView>) -> Confirmation {
    let question = match session {
        Some(session) => Confirmation::new(
            format!("End the session {}?", words(session)),
            "Its open pages leave at once and go to the sign-in page. Text that is not saved there is lost if the tab \
             is closed. If you do not recognize the device, also change your passphrase.",
            "End session",
        ),
        None => Confirmation::new(
            "End all other sessions?".to_owned(),
            "Every other browser is signed out of this account. This one stays signed in.",
            "End all other sessions",
        ),
    };
    let fields = session.map(|session| ("session", session.id.to_string())).into_iter().collect();
    question.with_form(EndOwnSessions::PATH, fields, "/account#sessions")
}

/// Returns the device of a session and its address in words.
fn words(session: &SessionView) -> String {
    match &session.address {
        Some(address) => format!("of {} at {address}", session.device),
        None => format!("of {}", session.device),
    }
}
