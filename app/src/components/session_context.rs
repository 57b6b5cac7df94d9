//! The signed-in user.
//!
//! The layout has the user from the document, so on both sides each page and its buttons are rendered for the right user
//! at once. Hiding a button is only a convenience; the server checks every call.

use leptos::{prelude::*, task::spawn_local};
use milvaion_api::{
    permissions::{Permission, Role},
    views::CurrentUser,
};

use crate::{api::session::whoami, error::AppError};

/// The signed-in user, shared by the whole layout. It changes in a browser only.
#[derive(Clone)]
pub struct SessionContext {
    me: ArcRwSignal<Option<CurrentUser>>,
    /// The error if the last request for the user failed.
    error: ArcRwSignal<Option<AppError>>,
    refetched: ArcTrigger,
}

impl SessionContext {
    /// Provides the user to everything inside the layout. If the server could not determine the user, the response has
    /// the status of that `error`.
    pub fn provide(me: Option<CurrentUser>, error: Option<AppError>) {
        #[cfg(feature = "ssr")]
        let error = error.map(crate::api::with_error_status);
        let (me, error) = (ArcRwSignal::new(me), ArcRwSignal::new(error));
        provide_context(Self { me, error, refetched: ArcTrigger::new() });
    }

    /// Returns the user. Does not track changes.
    ///
    /// # Errors
    ///
    /// Fails if the server could not determine the user.
    pub fn user(&self) -> Result<Option<CurrentUser>, AppError> {
        self.error.get_untracked().map_or_else(|| Ok(self.me.get_untracked()), Err)
    }

    /// Requests the user again, because the role may have changed or the session may have ended.
    pub fn refetch(&self) {
        let session = self.clone();
        spawn_local(async move {
            match whoami().await {
                Ok(me) => {
                    session.error.set(None);
                    if session.me.with_untracked(|known| *known != me) {
                        session.me.set(me);
                    }
                }
                Err(error) => session.error.set(Some(error)),
            }
            session.refetched.notify();
        });
    }

    /// Runs `act` whenever the user was requested again, until the present owner is disposed. What a page may show
    /// depends on the user, so a page then reads its data again: a role that may no longer read it sees the refusal.
    pub fn when_refetched(&self, act: impl Fn() + 'static) {
        let refetched = self.refetched.clone();
        Effect::new(move |is_later: Option<()>| {
            refetched.track();
            if is_later.is_some() {
                act();
            }
        });
    }

    /// Shows the new name of the user. The page stays as it is, because nothing that the user may do has changed.
    pub fn rename(&self, me: CurrentUser) {
        self.me.set(Some(me));
    }
}

/// Returns true if `now` is the user `before` with the same rights.
#[must_use]
pub fn is_renamed(before: Option<&CurrentUser>, now: &CurrentUser) -> bool {
    before.is_some_and(|before| before.id == now.id && before.role == now.role)
}

/// Returns the signed-in user; outside the layout none.
#[must_use]
pub fn use_signed_in_user() -> Signal<Option<CurrentUser>> {
    match use_context::<SessionContext>() {
        Some(session) => Signal::derive(move || session.me.get()),
        None => Signal::stored(None),
    }
}

/// Returns the role of the signed-in user.
#[must_use]
pub fn use_role() -> Memo<Option<Role>> {
    let user = use_signed_in_user();
    Memo::new(move |_| user.with(|me| me.as_ref().map(|me| me.role)))
}

/// Returns true if the signed-in user may do `action`. Used to decide whether its button is rendered.
#[must_use]
pub fn may(action: Permission) -> bool {
    use_signed_in_user().with_untracked(|me| me.as_ref().is_some_and(|me| me.role.allows(action)))
}
