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
        action_error::{ActionError, LastError},
        busy::Busy,
        dialog::ConfirmDialog,
        focus::hand_focus,
        form::ErrorSummary,
        icon::Icon,
        input_form::summary_entries,
        nav::SignOutForm,
        table::{Actions, Table, Text},
        time::Time,
        toast::{ToastKind, toasts},
    },
};

/// The id of the section.
const SECTION_ID: &str = "sessions";
/// The id of the heading.
const HEADING_ID: &str = "sessions-heading";
/// The value of the parameter `end` that means every other session.
const ALL_OTHERS: &str = "others";
/// The effect of ending sessions.
const CONSEQUENCE: &str = "Its open pages leave at once and go to the sign-in page. Text that is not saved there is lost if the tab is closed. \
                           If you do not recognize the device, also change your passphrase.";

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
    let toasts = toasts();
    let error = LastError::of("End session");
    let problems = summary_entries(&flash.problems());
    let asked = RwSignal::new(None::<SessionView>);
    let (asks_one, asks_others) = (RwSignal::new(false), RwSignal::new(false));
    let busy = Busy::new();
    let end = move |session: Option<SessionId>| {
        busy.run(async move {
            error.clear();
            match end_own_sessions(session).await {
                Ok(ended) => {
                    // The buttons disappear with the sessions.
                    hand_focus(SECTION_ID, HEADING_ID);
                    toasts.show(ToastKind::Success, ended_notice(session.is_some(), ended));
                }
                Err(found) => error.show(found),
            }
            // A session that could not be ended may have ended by itself.
            let _ = on_change.try_run(());
        });
    };
    let end_one = Callback::new(move |()| {
        if let Some(session) = asked.get_untracked() {
            end(Some(session.id));
        }
    });
    let ask = Callback::new(move |session: SessionView| {
        asked.set(Some(session));
        busy.ask(asks_one);
    });
    let has_others = Memo::new(move |_| sessions.with(|all| all.iter().any(|session| !session.is_current)));
    let title = move || asked.with(|asked| asked.as_ref().map(question).unwrap_or_default());
    view! {
        <section class="card" id=SECTION_ID aria-labelledby=HEADING_ID>
            <div class="card-head">
                <h2 class="card-title" id=HEADING_ID tabindex="-1">"Sessions"</h2>
                <div class="cluster" hidden=move || !has_others.get()>
                    <button
                        type="button"
                        class="btn needs-js"
                        aria-disabled=move || busy.disabled()
                        on:click=move |_| busy.ask(asks_others)
                    >
                        "End all other sessions…"
                    </button>
                    <a class="btn hide-js" href=format!("/account?end={ALL_OTHERS}#end")>"End all other sessions…"</a>
                </div>
            </div>
            <p class="muted">"The browsers that are signed in to this account."</p>
            <ErrorSummary errors=Signal::stored(problems)/>
            <ActionError error/>
            <EndSection sessions/>
            <Table
                caption="Your sessions, the current one first"
                columns=[Text("Device"), Text("Address"), Text("Signed in"), Text("Last seen"), Actions]
            >
                <For each=move || sessions.get() key=|session| session.id let:session>
                    <SessionRow session sessions busy ask/>
                </For>
            </Table>
            <ConfirmDialog
                open=asks_one
                id="end-session-title"
                title=Signal::derive(title)
                verb="End session"
                on_confirm=end_one
            >
                <p>{CONSEQUENCE}</p>
            </ConfirmDialog>
            <ConfirmDialog
                open=asks_others
                id="end-others-title"
                title=Signal::stored("End all other sessions?".to_owned())
                verb="End all other sessions"
                on_confirm=Callback::new(move |()| end(None))
            >
                <p>"Every other browser is signed out of this account. This one stays signed in."</p>
            </ConfirmDialog>
        </section>
    }
}

#[component]
fn SessionRow(
    /// The session when its row is drawn.
    session: SessionView,
    /// All sessions, from which the row's values are updated.
    sessions: Signal<Vec<SessionView>>,
    /// The state of the action that ends sessions.
    busy: Busy,
    /// Asks for the confirmation.
    ask: Callback<SessionView>,
) -> impl IntoView {
    let SessionView { id, created_at, is_current, .. } = session.clone();
    let (device, address) = (session.device.clone(), session.address.clone());
    let label = format!("End the session {}", words(&session));
    let seen = session.last_seen_at;
    let last_seen = Memo::new(move |_| {
        sessions.with(|all| all.iter().find(|session| session.id == id).map_or(seen, |session| session.last_seen_at))
    });
    let action = if is_current {
        view! { <SignOutForm class="btn btn-small"/> }.into_any()
    } else {
        let plain_label = label.clone();
        view! {
            <button
                type="button"
                class="btn btn-small needs-js"
                aria-label=label
                aria-disabled=move || busy.disabled()
                on:click=move |_| ask.run(session.clone())
            >
                "End…"
            </button>
            <a class="btn btn-small hide-js" href=format!("/account?end={id}#end") aria-label=plain_label>"End…"</a>
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
            <td role="cell">{action}</td>
        </tr>
    }
}

/// The confirmation as a section of the page, for readers without scripts.
#[component]
fn EndSection(sessions: Signal<Vec<SessionView>>) -> impl IntoView {
    let end = use_query_map().with_untracked(|query| query.get("end"));
    let chosen = end.as_deref().and_then(|end| end.parse::<SessionId>().ok());
    let session = sessions
        .with_untracked(|all| all.iter().find(|session| Some(session.id) == chosen && !session.is_current).cloned());
    let (heading, text, verb, id) = match session {
        Some(session) => (question(&session), CONSEQUENCE, "End session", Some(session.id)),
        None if end.as_deref() == Some(ALL_OTHERS) => (
            "End all other sessions?".to_owned(),
            "Every other browser is signed out of this account. This one stays signed in.",
            "End all other sessions",
            None,
        ),
        None => return ().into_any(),
    };
    view! {
        <section class="card stack hide-js" id="end" aria-labelledby="end-heading">
            <h3 id="end-heading">{heading}</h3>
            <p>{text}</p>
            <form class="form-actions" method="post" action=EndOwnSessions::PATH>
                {id.map(|id| view! { <input type="hidden" name="session" value=id.to_string()/> })}
                <a class="btn" href="/account#sessions">"Cancel"</a>
                <button type="submit" class="btn btn-danger">{verb}</button>
            </form>
        </section>
    }
    .into_any()
}

/// Returns the question before a session is ended.
fn question(session: &SessionView) -> String {
    format!("End the session {}?", words(session))
}

/// Returns the device of a session and its address in words.
fn words(session: &SessionView) -> String {
    match &session.address {
        Some(address) => format!("of {} at {address}", session.device),
        None => format!("of {}", session.device),
    }
}
