//! Who reads.
//!
//! The layout asks once. A page is drawn only after the answer is known, on both sides, so that which buttons it has
//! never depends on what arrived first. Hiding a button is courtesy; the server judges every call again.

use std::sync::{Arc, RwLock};

use leptos::prelude::*;
use milvaion_api::{permissions::Permission, views::CurrentUser};

use crate::{api::session::whoami, error::AppError};

/// The question who is signed in, and its answer.
///
/// Several parts of a page wait for the answer, on several threads of the server at once, and each of them writes it
/// down. A signal is not made for that: whoever reads one while another thread writes it is told that it is gone, and
/// the page ends in the middle. So the answer lies behind a lock, and a signal only says that it has changed, which it
/// does in a browser alone.
#[derive(Clone)]
pub struct SessionContext {
    asked: ArcResource<Result<Option<CurrentUser>, AppError>>,
    me: Arc<RwLock<Option<CurrentUser>>>,
    changed: ArcTrigger,
}

impl SessionContext {
    /// Asks, and lets everything inside the layout know.
    #[must_use]
    pub fn provide() -> Self {
        let session = Self {
            asked: ArcResource::new_blocking(|| (), |()| whoami()),
            me: Arc::default(),
            changed: ArcTrigger::new(),
        };
        provide_context(session.clone());
        session
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// When the server could not tell.
    pub async fn user(self) -> Result<Option<CurrentUser>, AppError> {
        let me = self.asked.await?;
        let is_news = self.me.write().is_ok_and(|mut known| std::mem::replace(&mut *known, me.clone()) != me);
        if is_news && cfg!(feature = "hydrate") {
            self.changed.notify();
        }
        Ok(me)
    }

    /// Asks again: the role may have changed, or the session ended.
    pub fn refetch(&self) {
        self.asked.refetch();
    }
}

/// Who is signed in. Known from the first moment inside a page drawn by [`render_page`](super::loading::render_page).
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

/// Whether the person who reads may do `action`: whether to draw its button.
#[must_use]
pub fn may(action: Permission) -> bool {
    use_signed_in_user().with_untracked(|me| me.as_ref().is_some_and(|me| me.role.allows(action)))
}
