//! The end of a session, as seen by an open page.
//!
//! Every part of the app that learns that the session has ended reports it here, so that one place decides what becomes
//! of the open page. A page without unsaved changes is replaced by the sign-in page, which states the reason. A page
//! with unsaved changes stays as it is under a notice, and the user signs in in another tab. The session cookie is
//! shared by all tabs, so the page then continues to work.

use std::time::Duration;

use leptos::{ev, prelude::*, task::spawn_local};
use leptos_router::{NavigateOptions, hooks::use_navigate};

use super::{
    icon::Icon,
    leave_guard::LeaveGuard,
    session_context::use_signed_in_user,
    toast::{ToastKind, toasts},
};
use crate::{
    api::session::{query_value, whoami},
    browser,
    live::LiveUpdates,
};

/// The time after which a page reports a read that was refused. The refusal does not say why the session ended, but the
/// event stream does, at the latest 1.5 s after the end. A tab whose browser has a new session is signed in by then.
const REASON_WAIT: Duration = Duration::from_secs(3);

/// The reason for which the session ended or its rights changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEndReason {
    /// The session was signed out or has expired.
    SignedOut,
    /// The session was signed out in another tab, or replaced by a new sign-in.
    SignedOutElsewhere,
    /// The session was not used for too long or reached its maximum age.
    Expired,
    /// The session was ended from another device, or by an Admin.
    Revoked,
    /// The passphrase was changed, which ends all other sessions of the user.
    PassphraseChanged,
    /// The user was deactivated or deleted.
    Deactivated,
    /// The session had ended before a plain form was sent.
    FormNotSent,
}

impl SessionEndReason {
    /// Every reason.
    const ALL: [Self; 7] = [
        Self::SignedOut,
        Self::SignedOutElsewhere,
        Self::Expired,
        Self::Revoked,
        Self::PassphraseChanged,
        Self::Deactivated,
        Self::FormNotSent,
    ];

    /// Returns the value of the sign-in page's parameter `reason`.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::SignedOut => "signed-out",
            Self::SignedOutElsewhere => "signed-out-elsewhere",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::PassphraseChanged => "passphrase-changed",
            Self::Deactivated => "deactivated",
            Self::FormNotSent => "form-not-sent",
        }
    }

    /// Returns the reason of this slug; `None` for any other text.
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.slug() == slug)
    }

    /// Returns the reason as a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::SignedOut => "Your session has ended.",
            Self::SignedOutElsewhere => "You were signed out in another tab.",
            Self::Expired => "Your session has expired.",
            Self::Revoked => "Your session was ended from another device or by an Admin.",
            Self::PassphraseChanged => "Your passphrase was changed. Sign in with the new one.",
            Self::Deactivated => "Your account was deactivated.",
            Self::FormNotSent => {
                "Your session has ended. The form was not sent: nothing was changed, and any input must be entered \
                 again."
            }
        }
    }
}

/// Returns the address of the sign-in page that states `reason` and then continues at `next`.
#[must_use]
pub fn sign_in_address(reason: SessionEndReason, next: &str) -> String {
    format!("/login?next={}&reason={}", query_value(next), reason.slug())
}

/// The reason shown above a page with unsaved changes; `None` while the session is valid.
#[derive(Clone, Copy)]
struct EndedSession(RwSignal<Option<SessionEndReason>>);

/// The handler of the end of the session.
#[derive(Clone, Copy)]
pub struct SessionEnd(Callback<SessionEndReason>);

impl SessionEnd {
    /// Returns the handler for the current owner. Must be called inside the router.
    #[must_use]
    pub fn current() -> Self {
        let navigate = use_navigate();
        let guard = use_context::<LeaveGuard>();
        let ended = use_context::<EndedSession>();
        Self(Callback::new(move |reason| {
            if let (Some(guard), Some(EndedSession(ended))) = (guard, ended)
                && guard.is_dirty()
            {
                let _ = ended.try_set(Some(reason));
                return;
            }
            let options = NavigateOptions { replace: true, ..NavigateOptions::default() };
            navigate(&sign_in_address(reason, &browser::current_path()), options);
        }))
    }

    /// Reports that the server refused a read of the page because the session has ended. Waits for the reason, so that
    /// the sign-in page states it, and reports nothing if the page is gone or the browser has a valid session by then.
    pub fn report_refused_read(self) {
        let report = move || {
            spawn_local(async move {
                if matches!(whoami().await, Ok(None)) {
                    let _ = self.0.try_run(SessionEndReason::SignedOut);
                }
            });
        };
        set_timeout(report, REASON_WAIT);
    }

    /// Provides the state of the notice to everything inside the layout. Called once, by the layout.
    pub fn provide_notice() {
        provide_context(EndedSession(RwSignal::new(None)));
    }

    /// Reports that the session has ended.
    pub fn report(self, reason: SessionEndReason) {
        self.0.run(reason);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_reasons_are_accepted() {
        for reason in SessionEndReason::ALL {
            assert_eq!(SessionEndReason::from_slug(reason.slug()), Some(reason));
        }
        for slug in ["", "Signed-Out", "<b>"] {
            assert_eq!(SessionEndReason::from_slug(slug), None, "{slug:?}");
        }
        assert_eq!(
            sign_in_address(SessionEndReason::SignedOut, "/jobs/new?type=a/b"),
            "/login?next=/jobs/new%3Ftype%3Da/b&reason=signed-out"
        );
    }
}
