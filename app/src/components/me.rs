//! Who reads.
//!
//! The layout asks once. A page is drawn only after the answer is known, on both sides, so that which buttons it has
//! never depends on what arrived first. Hiding a button is courtesy; the server judges every call again.

use leptos::prelude::*;
use protocol::{access::Action, view::Me};

use crate::{api::session::whoami, error::AppError};

/// The question who is signed in, and its answer.
#[derive(Clone, Copy)]
pub struct Session {
    asked: Resource<Result<Option<Me>, AppError>>,
    me: RwSignal<Option<Me>>,
}

impl Session {
    /// Asks, and lets everything inside the layout know.
    #[must_use]
    pub fn provide() -> Self {
        let session = Self { asked: Resource::new_blocking(|| (), |()| whoami()), me: RwSignal::new(None) };
        provide_context(session);
        session
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// When the server could not tell.
    pub async fn known(self) -> Result<Option<Me>, AppError> {
        let me = self.asked.await?;
        if self.me.with_untracked(|known| *known != me) {
            self.me.set(me.clone());
        }
        Ok(me)
    }

    /// Asks again: the role may have changed, or the session ended.
    pub fn ask_again(self) {
        self.asked.refetch();
    }
}

/// Who is signed in. Known from the first moment inside a page drawn by [`page`](super::loading::page).
#[must_use]
pub fn use_me() -> Signal<Option<Me>> {
    match use_context::<Session>() {
        Some(session) => session.me.into(),
        None => Signal::stored(None),
    }
}

/// Whether the person who reads may do `action`: whether to draw its button.
#[must_use]
pub fn may(action: Action) -> bool {
    use_me().with_untracked(|me| me.as_ref().is_some_and(|me| me.role.may(action)))
}
