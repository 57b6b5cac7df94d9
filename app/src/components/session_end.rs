//! The end of a session, as seen by an open page.
//!
//! Every part of the app that learns that the session has ended reports it here, so that one place decides what becomes
//! of the open page.

use leptos::prelude::*;
use leptos_router::{NavigateOptions, hooks::use_navigate};

use crate::{api::session::query_value, browser};

/// The reason for which the session ended or its rights changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEndReason {
    /// The session was signed out or has expired.
    SignedOut,
    /// The session was signed out in another tab, or replaced by a new sign-in.
    SignedOutElsewhere,
    /// The session was not used for too long or reached its maximum age.
    Expired,
    /// The user was deactivated or deleted.
    Deactivated,
}

/// The handler of the end of the session.
#[derive(Clone, Copy)]
pub struct SessionEnd(Callback<SessionEndReason>);

impl SessionEnd {
    /// Returns the handler for the current owner. Must be called inside the router.
    #[must_use]
    pub fn current() -> Self {
        let navigate = use_navigate();
        Self(Callback::new(move |_reason| {
            let options = NavigateOptions { replace: true, ..NavigateOptions::default() };
            navigate(&format!("/login?next={}", query_value(&browser::current_path())), options);
        }))
    }

    /// Reports that the session has ended.
    pub fn report(self, reason: SessionEndReason) {
        self.0.run(reason);
    }
}
