//! The end of a session, as seen by an open page.
//!
//! Every part of the app that learns that the session has ended reports it to the [`SessionEnd`], whose handler here
//! decides what becomes of the open page. A page without unsaved changes is replaced by the sign-in page, which states
//! the reason. A page with unsaved changes stays as it is under a notice, and the user signs in in another tab. The
//! session cookie is shared by all tabs, so the page then continues to work.

use leptos::{ev, prelude::*, task::spawn_local};
use leptos_router::{NavigateOptions, hooks::use_navigate};

use super::{
    icon::Icon,
    session_context::use_signed_in_user,
    toast::{ToastKind, toasts},
};
use crate::{
    api::session::{SessionEnd, SessionEndReason, sign_in_address, whoami},
    browser,
    live::LiveUpdates,
};

/// The reason shown above a page with unsaved changes; `None` while the session is valid.
#[derive(Clone, Copy)]
struct EndedSession(RwSignal<Option<SessionEndReason>>);

/// Provides the handler of the end of the session and the state of its notice to everything inside the layout. Called
/// once, by the layout. `is_dirty` returns true while the page has unsaved changes.
pub fn provide_session_end(is_dirty: impl Fn() -> bool + Send + Sync + 'static) {
    let navigate = use_navigate();
    let ended = RwSignal::new(None);
    provide_context(EndedSession(ended));
    SessionEnd::provide(move |reason| {
        if is_dirty() {
            let _ = ended.try_set(Some(reason));
            return;
        }
        let options = NavigateOptions { replace: true, ..NavigateOptions::default() };
        navigate(&sign_in_address(reason, &browser::current_path()), options);
    });
}

/// Returns the reason for the end of the session while a page with unsaved changes stays open; `None` while the session
/// is valid.
#[must_use]
pub fn use_ended_session() -> RwSignal<Option<SessionEndReason>> {
    use_context::<EndedSession>().map_or_else(|| RwSignal::new(None), |EndedSession(ended)| ended)
}

/// The notice above a page with unsaved changes whose session has ended. It disappears when a session is valid again,
/// which is checked whenever the user returns to the tab. If that session is of another user, the page is loaded again.
#[component]
pub fn SessionEndNotice() -> impl IntoView {
    let ended = use_ended_session();
    let toasts = toasts();
    let live = use_context::<LiveUpdates>();
    let user = use_signed_in_user();
    let has_loaded = StoredValue::new(false);
    let check = move || {
        if browser::is_hidden() || ended.try_with_untracked(Option::is_some) != Some(true) {
            return;
        }
        spawn_local(async move {
            let Ok(Some(me)) = whoami().await else { return };
            // Two events can report the same return to the tab.
            if ended.try_with_untracked(Option::is_some) != Some(true) {
                return;
            }
            if user.get_untracked().is_some_and(|known| known.id != me.id) {
                // Asked once: the browser's own question returns the focus to the tab.
                if has_loaded.try_update_value(|done| std::mem::replace(done, true)) == Some(false) {
                    browser::load(&browser::current_path());
                }
                return;
            }
            ended.set(None);
            toasts.show(ToastKind::Info, format!("You are signed in as {}.", me.email));
            if let Some(live) = live {
                live.report_sign_in(me);
            }
        });
    };
    Effect::new(move |_| {
        let focus = window_event_listener(ev::focus, move |_| check());
        browser::on_capture("visibilitychange", move |_| check());
        on_cleanup(move || focus.remove());
    });
    view! {
        <div role="alert" class="sticky-notice" id="session-end">
            {move || ended.get().map(notice)}
        </div>
    }
}

/// The same notice inside an open dialog, because a modal dialog makes the rest of the page inert.
#[component]
pub fn DialogSessionEndNotice(
    /// True while the dialog is open.
    open: RwSignal<bool>,
) -> impl IntoView {
    let ended = use_ended_session();
    view! { <div role="alert">{move || ended.get().filter(|_| open.get()).map(notice)}</div> }
}

fn notice(reason: SessionEndReason) -> AnyView {
    view! {
        <div class="notice" data-kind="warn">
            <Icon name="log-out"/>
            <p>
                "You are signed out. "
                {reason.sentence()}
                " "
                <a href="/login" target="_blank" rel="noopener external">"Sign in in another tab"</a>
                ", then continue here; your changes are kept."
            </p>
        </div>
    }
    .into_any()
}
