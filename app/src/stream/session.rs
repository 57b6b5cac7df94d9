//! The user of the stream: a changed role, the end of the session, and a new sign-in after it.
//!
//! The server reports both changes in the stream, and each tab relays what it learns by itself. Where no stream is open,
//! the tab asks for the user: after a refused connection, and once a minute while the user has paused the updates.

use std::time::Duration;

use leptos::{prelude::*, task::spawn_local};
use milvaion_api::{events::StreamEndReason, views::CurrentUser};

use super::{EventStream, tabs};
use crate::{
    api::session::{SessionEndReason, whoami},
    browser,
    components::{leave_guard::LeaveGuard, session_context::is_renamed, toast::ToastKind},
    live::{
        LiveState,
        tab_message::{FrameKind, StreamFrame},
    },
};

/// The interval at which a paused tab asks for its user.
const PAUSED_CHECK_MILLIS: i64 = 60_000;
/// The time after which a tab checks whether a change of the passphrase has given this browser a new session. The
/// response with the new session may arrive after the end of the old one. An earlier request would still carry the old
/// session, and its response would remove the cookie.
const RENEWAL_CHECK_DELAY: Duration = Duration::from_millis(1_500);
/// The reason that a tab relays after the server refused the stream, because the refusal names none.
const UNKNOWN_REASON: &str = "ended";

/// The user and the session.
impl EventStream {
    /// Applies a change of the signed-in user: a notice names the new role, and the page is drawn again. A page that is
    /// in use stays as it is until the user leaves or reloads it.
    pub(super) fn user_changed(self, me: CurrentUser) {
        let Some(known) = self.user.get_value() else { return };
        if known == me {
            return;
        }
        if known.id != me.id {
            return browser::reload();
        }
        if is_renamed(Some(&known), &me) {
            if let Some(session) = self.session.get_value() {
                session.rename(me.clone());
            }
            return self.user.set_value(Some(me));
        }
        let is_held = self.is_page_in_use();
        if known.role != me.role {
            let role = me.role.label();
            if let Some(toasts) = self.toasts {
                toasts.show(ToastKind::Info, format!("Your role is now {role} (was {}).", known.role.label()));
            }
            if is_held {
                let text = format!("Your role is now {role}. Reload the page to apply it.");
                self.notice.warn_at(&self.path.get_untracked(), text);
            }
        }
        self.user.set_value(Some(me));
        self.is_user_held.set_value(true);
        if !is_held {
            self.redraw_for_user();
        }
    }

    /// Returns true while drawing the page again would discard what the user typed, opened, selected or paused.
    pub(super) fn is_page_in_use(self) -> bool {
        self.is_paused() || self.guard.is_some_and(LeaveGuard::is_dirty) || tabs::has_open_dialog_or_selection()
    }

    /// Draws the page again for a changed user. Returns false if there was no change.
    pub(super) fn redraw_for_user(self) -> bool {
        let is_changed = self.is_user_held.try_update_value(std::mem::take) == Some(true);
        if is_changed {
            if let Some(session) = self.session.get_value() {
                session.refetch();
            }
            // The page is rendered again from the data that it was opened with.
            self.resync();
        }
        is_changed
    }

    /// Asks the server for the user, and applies a change or the end of the session.
    pub(super) fn check_user(self) {
        spawn_local(async move {
            let answer = whoami().await;
            if !self.is_alive() {
                return;
            }
            match answer {
                Ok(Some(me)) => self.user_changed(me),
                Ok(None) => {
                    self.relay_session_end(UNKNOWN_REASON);
                    self.session_ended(end_reason(UNKNOWN_REASON));
                }
                Err(_) => {}
            }
        });
    }

    /// Checks the user of a paused tab: while every tab is paused, no stream is open that could report a change.
    pub(super) fn check_paused_user(self) {
        let now = browser::now_millis();
        if now - self.user_checked_at.get_value() >= PAUSED_CHECK_MILLIS {
            self.user_checked_at.set_value(now);
            self.check_user();
        }
    }

    /// Reports the end of the session to the other tabs.
    pub(super) fn relay_session_end(self, reason: &str) {
        self.relay(&StreamFrame { kind: FrameKind::SessionEnd, id: String::new(), data: reason.to_owned() });
    }

    /// Leaves the stream and reports the end of the session to the page, unless this tab has signed out itself.
    pub(super) fn session_ended(self, reason: SessionEndReason) {
        // The end is reported by the server and by each tab that notices it.
        if self.is_left.try_update_value(|is_left| std::mem::replace(is_left, true)) != Some(false) {
            return;
        }
        self.choose_role();
        self.set_link(LiveState::Offline);
        if self.live.is_sign_out_expected.get_value() {
            return;
        }
        if reason == SessionEndReason::PassphraseChanged {
            set_timeout(move || self.rejoin_or_report(reason), RENEWAL_CHECK_DELAY);
        } else {
            self.session_end.report(reason);
        }
    }

    /// Takes part in the stream again if the passphrase was changed in this browser, which then has a new session.
    /// Otherwise reports the end of the session.
    fn rejoin_or_report(self, reason: SessionEndReason) {
        spawn_local(async move {
            if !self.is_alive() {
                return;
            }
            match whoami().await {
                _ if !self.is_alive() => {}
                Ok(Some(me)) => self.rejoin(me),
                Ok(None) | Err(_) => self.session_end.report(reason),
            }
        });
    }

    /// Takes part in the stream again after the user has signed in again.
    pub(super) fn rejoin(self, me: CurrentUser) {
        self.is_left.set_value(false);
        // What happened in the meantime was not received.
        self.position.set_value(None);
        self.reopen_at.set_value(None);
        self.user_changed(me);
        // An open connection belongs to the old session.
        self.open();
        self.join();
    }
}

/// Returns the reason that a frame names.
pub(super) fn end_reason(slug: &str) -> SessionEndReason {
    if slug == UNKNOWN_REASON {
        return SessionEndReason::SignedOut;
    }
    match StreamEndReason::of_slug(slug) {
        StreamEndReason::SignedOut => SessionEndReason::SignedOutElsewhere,
        StreamEndReason::Expired => SessionEndReason::Expired,
        StreamEndReason::Revoked => SessionEndReason::Revoked,
        StreamEndReason::PassphraseChanged => SessionEndReason::PassphraseChanged,
        StreamEndReason::Deactivated => SessionEndReason::Deactivated,
    }
}
