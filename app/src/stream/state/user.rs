//! The user of the stream: a changed role, the end of the session, and a new sign-in after it.
//!
//! The server reports both changes in the stream, and each tab relays what it learns by itself. Where no stream is open,
//! the tab asks for the user: after a refused connection, and once a minute while the user has paused the updates.

use milvaion_api::{events::StreamEndReason, views::CurrentUser};

use super::TabTransition;
use crate::{
    api::session::SessionEndReason,
    components::session_context::is_renamed,
    live::{
        LiveState,
        tab_message::{FrameKind, StreamFrame},
    },
    stream::inputs::TabEffect,
};

/// The interval at which a paused tab asks for its user.
const PAUSED_CHECK_MILLIS: i64 = 60_000;
/// The reason that a tab relays after the server refused the stream, because the refusal names none.
const UNKNOWN_REASON: &str = "ended";

impl TabTransition<'_> {
    /// Joins the tabs of the signed-in user, or applies a change of that user.
    pub(super) fn user_known(&mut self, me: CurrentUser) {
        match &self.state.user {
            // Everything on the page belongs to another user.
            Some(known) if known.id != me.id => self.effects.push(TabEffect::Reload),
            known => {
                let is_first = known.is_none();
                self.state.user = Some(me);
                if is_first {
                    self.join();
                }
            }
        }
    }

    /// Applies a change of the signed-in user: a notice names the new role, and the page is drawn again. A page that is
    /// in use stays as it is until the user leaves or reloads it.
    pub(super) fn user_changed(&mut self, me: CurrentUser) {
        let Some(known) = &self.state.user else { return };
        if *known == me {
            return;
        }
        if known.id != me.id {
            return self.effects.push(TabEffect::Reload);
        }
        let (before, role) = (known.role.label(), me.role.label());
        let is_renamed = is_renamed(Some(known), &me);
        self.state.user = Some(me.clone());
        if is_renamed {
            return self.effects.push(TabEffect::RenameUser(me));
        }
        self.state.is_user_held = true;
        self.effects.push(TabEffect::ShowToast(format!("Your role is now {role} (was {before}).")));
        if self.is_page_in_use() {
            let text = format!("Your role is now {role}. Reload the page to apply it.");
            self.effects.push(TabEffect::ShowNotice(text));
        } else {
            self.redraw_for_user();
        }
    }

    /// Returns true while drawing the page again would discard what the user typed, opened, selected or paused.
    pub(super) fn is_page_in_use(&self) -> bool {
        self.tab.is_paused || (self.tab.is_in_use)()
    }

    /// Draws the page again for a changed user. Returns false if there was no change.
    pub(super) fn redraw_for_user(&mut self) -> bool {
        let is_changed = std::mem::take(&mut self.state.is_user_held);
        if is_changed {
            self.effects.push(TabEffect::RefetchUser);
            // The page is rendered again from the data that it was opened with.
            self.resync();
        }
        is_changed
    }

    /// Checks the user of a paused tab: while every tab is paused, no stream is open that could report a change.
    pub(super) fn check_paused_user(&mut self) {
        if self.tab.now - self.state.user_checked_at >= PAUSED_CHECK_MILLIS {
            self.state.user_checked_at = self.tab.now;
            self.effects.push(TabEffect::AskUser);
        }
    }

    /// Reports to the other tabs that this tab has ended the session.
    pub(super) fn signed_out_here(&mut self) {
        self.relay_session_end(StreamEndReason::SignedOut.slug());
    }

    /// Handles a session that the server does not have any more.
    pub(super) fn session_missing(&mut self) {
        self.relay_session_end(UNKNOWN_REASON);
        self.session_ended(end_reason(UNKNOWN_REASON));
    }

    fn relay_session_end(&mut self, reason: &str) {
        self.relay(StreamFrame { kind: FrameKind::SessionEnd, id: String::new(), data: reason.to_owned() });
    }

    /// Leaves the stream and reports the end of the session to the page, unless this tab has signed out itself.
    pub(super) fn session_ended(&mut self, reason: SessionEndReason) {
        // The end is reported by the server and by each tab that notices it.
        if std::mem::replace(&mut self.state.is_left, true) {
            return;
        }
        self.choose_role();
        self.set_link(LiveState::Offline);
        if self.tab.is_sign_out_expected {
            return;
        }
        if reason == SessionEndReason::PassphraseChanged {
            // If the passphrase was changed in this browser, it has a new session.
            self.effects.push(TabEffect::CheckRenewal);
        } else {
            self.report_end(reason);
        }
    }

    pub(super) fn report_end(&mut self, reason: SessionEndReason) {
        self.effects.push(TabEffect::ReportEnd(reason));
    }

    /// Takes part in the stream again after the user has signed in again.
    pub(super) fn rejoin(&mut self, me: CurrentUser) {
        self.state.is_left = false;
        // What happened in the meantime was not received.
        self.state.position = None;
        self.user_changed(me);
        // An open connection belongs to the old session.
        self.connect();
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
