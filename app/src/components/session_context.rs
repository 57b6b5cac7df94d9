//! The signed-in user.
//!
//! The layout requests the user once. Both on the server and in the browser a page is rendered only after the response
//! is known, so its buttons never depend on the order of arrival. Hiding a button is only a convenience; the server
//! checks every call.

use std::sync::{Arc, RwLock};

use leptos::prelude::*;
use milvaion_api::{permissions::Permission, views::CurrentUser};

use crate::{api::session::whoami, error::AppError};

/// The signed-in user, shared by the whole layout.
///
/// Several parts of a page await the user, on several threads of the server at once, and each of them stores the
/// response. A signal cannot be used for that: a read during a write on another thread finds the signal disposed, and
/// the page ends in the middle. The user is therefore stored behind a lock, and a trigger signals a change, which
/// happens in a browser only.
#[derive(Clone)]
pub struct SessionContext {
    response: ArcResource<Result<Option<CurrentUser>, AppError>>,
    me: Arc<RwLock<Option<CurrentUser>>>,
    /// The user with a name that is newer than the response.
    renamed: Arc<RwLock<Option<CurrentUser>>>,
    changed: ArcTrigger,
    refetched: ArcTrigger,
}

impl SessionContext {
    /// Requests the user and provides the context to everything inside the layout.
    #[must_use]
    pub fn provide() -> Self {
        let session = Self {
            response: ArcResource::new_blocking(|| (), |()| whoami()),
            me: Arc::default(),
            renamed: Arc::default(),
            changed: ArcTrigger::new(),
            refetched: ArcTrigger::new(),
        };
        provide_context(session.clone());
        session
    }

    /// Waits for the user.
    ///
    /// # Errors
    ///
    /// Fails if the server could not determine the user.
    pub async fn user(self) -> Result<Option<CurrentUser>, AppError> {
        let me = self.response.await?;
        let renamed = self.renamed.read().ok().and_then(|renamed| renamed.clone());
        let me = renamed.filter(|renamed| is_renamed(me.as_ref(), renamed)).or(me);
        let is_changed = self.me.write().is_ok_and(|mut known| std::mem::replace(&mut *known, me.clone()) != me);
        if is_changed && cfg!(feature = "hydrate") {
            self.changed.notify();
        }
        Ok(me)
    }

    /// Requests the user again, because the role may have changed or the session may have ended.
    pub fn refetch(&self) {
        if let Ok(mut renamed) = self.renamed.write() {
            *renamed = None;
        }
        self.response.refetch();
        self.refetched.notify();
    }

    /// Runs `act` whenever the user is requested again, until the present owner is disposed. What a page may show
    /// depends on the user, so a page reads its data again too: a role that may no longer read it sees the refusal.
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
        if let Ok(mut renamed) = self.renamed.write() {
            *renamed = Some(me.clone());
        }
        if let Ok(mut known) = self.me.write() {
            *known = Some(me);
        }
        self.changed.notify();
    }
}

/// Returns true if `now` is the user `before` with the same rights.
#[must_use]
pub fn is_renamed(before: Option<&CurrentUser>, now: &CurrentUser) -> bool {
    before.is_some_and(|before| before.id == now.id && before.role == now.role)
}

/// Returns the signed-in user, which is known throughout a page rendered by
/// [`render_page`](super::loading::render_page).
#[must_use]
pub fn use_signed_in_user() -> Signal<Option<CurrentUser>> {
    match use_context::<SessionContext>() {
        Some(session) => Signal::derive(move || {
            session.changed.track();
            session.me.read().ok().and_then(|me| me.clone())
        }),
        None => Signal::stored(None),
    }
}

/// Returns true if the signed-in user may do `action`. Used to decide whether its button is rendered.
#[must_use]
pub fn may(action: Permission) -> bool {
    use_signed_in_user().with_untracked(|me| me.as_ref().is_some_and(|me| me.role.allows(action)))
}
