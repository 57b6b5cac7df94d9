//! The calls between a browser and its server.
//!
//! Every server function here is a few lines: get the backend and the person by naming the [`Permission`] it performs, call
//! one method, hand the answer back. [`authorize`] is the only door to the backend for them, and it is the backend that
//! judges session, role and origin. Reads use GET-like calls from resources; whatever changes something is a POST that a
//! plain HTML form can send too.
//!
//! A plain form post has no script that could show an answer, so [`respond`] leads it back to a page and leaves a
//! [`FlashMessage`](crate::backend::FlashMessage) there: what went well, what did not, and what was typed.

pub mod calendars;
pub mod cluster;
pub mod failures;
pub mod jobs;
pub mod occurrences;
pub mod overview;
pub mod session;
pub mod team;
pub mod versions;
pub mod workers;

#[cfg(feature = "ssr")]
pub use server_side::*;

#[cfg(feature = "ssr")]
mod server_side {
    use std::sync::Arc;

    use http::{StatusCode, header, request::Parts};
    use leptos::prelude::*;
    use leptos_axum::ResponseOptions;
    use milvaion_api::{permissions::Permission, views::CurrentUser};
    use serde::Serialize;

    use crate::{
        backend::{Backend, FlashMessage},
        error::AppError,
    };

    /// The backend of this request.
    ///
    /// # Errors
    ///
    /// Only when the server forgot to provide it.
    pub fn backend() -> Result<Arc<dyn Backend>, AppError> {
        use_context::<Arc<dyn Backend>>().ok_or_else(|| AppError::Failed("the server gave this page no backend".into()))
    }

    /// The head of this request.
    ///
    /// # Errors
    ///
    /// Only when called outside a request.
    pub fn request() -> Result<Parts, AppError> {
        use_context::<Parts>().ok_or_else(|| AppError::Failed("there is no request here".into()))
    }

    /// The backend and the person who asks, if they may do `action`.
    ///
    /// # Errors
    ///
    /// `SignedOut` or `Denied`; the response's status says the same.
    pub async fn authorize(action: Permission) -> Result<(Arc<dyn Backend>, CurrentUser), AppError> {
        let backend = backend()?;
        let parts = request()?;
        let me = backend.authorize(&parts, action).await.map_err(with_error_status)?;
        Ok((backend, me))
    }

    /// Gives the response the status that says the same as the error.
    pub fn with_error_status(error: AppError) -> AppError {
        if let (Some(response), Ok(status)) = (use_context::<ResponseOptions>(), StatusCode::from_u16(error.status())) {
            response.set_status(status);
        }
        error
    }

    /// Whether a plain form sent this, not our script.
    #[must_use]
    pub fn is_plain_form() -> bool {
        use_context::<Parts>().is_some_and(|parts| {
            parts.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("text/html"))
        })
    }

    /// Ends a changing call. A script gets the result as it is. A plain form is led to `then` with `notice`, or back to
    /// `back` with what was wrong and what was typed (`typed` must hold no secret).
    ///
    /// # Errors
    ///
    /// The error itself, for a script.
    pub async fn respond<T: Default>(
        form: &str,
        result: Result<T, AppError>,
        then: impl FnOnce(&T) -> String,
        notice: &str,
        back: &str,
        typed: impl Serialize,
    ) -> Result<T, AppError> {
        if !is_plain_form() {
            return result.map_err(with_error_status);
        }
        let backend = backend()?;
        let parts = request()?;
        match result {
            Ok(value) => {
                if !notice.is_empty() {
                    let flash =
                        FlashMessage { form: "notice".into(), notice: Some(notice.into()), ..FlashMessage::default() };
                    backend.put_flash(&parts, flash).await?;
                }
                leptos_axum::redirect(&then(&value));
                Ok(value)
            }
            Err(AppError::SignedOut) => {
                leptos_axum::redirect("/login");
                Ok(T::default())
            }
            // A refusal by role is a page of its own with its own status, not a message on the way back.
            Err(error @ AppError::Denied(_)) => Err(with_error_status(error)),
            Err(error) => {
                let mut flash = FlashMessage {
                    form: form.into(),
                    typed: serde_json::to_value(typed).unwrap_or_default(),
                    ..FlashMessage::default()
                };
                match error {
                    AppError::Fields(fields) => flash.fields = fields,
                    other => flash.error = Some(other.to_string()),
                }
                backend.put_flash(&parts, flash).await?;
                leptos_axum::redirect(back);
                Ok(T::default())
            }
        }
    }
}
