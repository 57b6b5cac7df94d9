//! The server functions that the browser calls.
//!
//! Each server function is a few lines: it gets the backend and the user by naming the [`Permission`](milvaion_api::permissions::Permission) it needs, calls
//! one method and returns its result. [`authorize`] is the only way to the backend for them, and the backend checks the
//! session, the role and the origin. Reads are GET requests made by resources. Every change is a POST that a plain HTML
//! form can send too.
//!
//! No script handles the response to a plain form post. [`respond`] therefore redirects it to a page and stores a
//! [`FlashMessage`](crate::backend::FlashMessage) for that page: the notice, the errors and the typed values.

#![expect(missing_docs, reason = "each server function generates a struct whose fields are its parameters")]

pub mod calendars;
pub mod cluster;
pub mod codec;
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

    use http::{HeaderValue, StatusCode, header, request::Parts};
    use leptos::prelude::*;
    use leptos_axum::ResponseOptions;
    use milvaion_api::{permissions::Permission, views::CurrentUser};
    use serde::Serialize;

    use crate::{
        backend::{Backend, FlashMessage},
        components::session_end::{SessionEndReason, sign_in_address},
        error::AppError,
    };

    /// The time after which a client may repeat a request that failed because a service is down.
    const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("5");

    /// Returns the backend of this request.
    ///
    /// # Errors
    ///
    /// `Failed` if the server did not provide one.
    pub fn backend() -> Result<Arc<dyn Backend>, AppError> {
        use_context::<Arc<dyn Backend>>()
            .ok_or_else(|| AppError::Failed("No backend is provided for this request.".into()))
    }

    /// Returns the head of this request.
    ///
    /// # Errors
    ///
    /// `Failed` outside a request.
    pub fn request() -> Result<Parts, AppError> {
        use_context::<Parts>().ok_or_else(|| AppError::Failed("This call was made outside a request.".into()))
    }

    /// Returns the value of a cookie of this request, as it was sent.
    #[must_use]
    pub fn request_cookie(name: &str) -> Option<String> {
        let parts = use_context::<Parts>()?;
        let lines = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';'));
        pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('=').map(ToOwned::to_owned))
    }

    /// Returns the backend and the user who sent the request, if they have `permission`.
    ///
    /// # Errors
    ///
    /// `SignedOut` or `Denied`; the response gets the matching status.
    pub async fn authorize(permission: Permission) -> Result<(Arc<dyn Backend>, CurrentUser), AppError> {
        let backend = backend()?;
        let parts = request()?;
        let me = backend.authorize(&parts, permission).await.map_err(with_error_status)?;
        Ok((backend, me))
    }

    /// Sets the response's status to that of the error and returns the error. If a service is unavailable, the response
    /// also states when to try again.
    pub fn with_error_status(error: AppError) -> AppError {
        if let (Some(response), Ok(status)) = (use_context::<ResponseOptions>(), StatusCode::from_u16(error.status())) {
            response.set_status(status);
            if matches!(error, AppError::Unavailable(_)) {
                response.insert_header(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
            }
        }
        error
    }

    /// Returns true if a plain form sent this request, not our script.
    #[must_use]
    pub fn is_plain_form() -> bool {
        use_context::<Parts>().is_some_and(|parts| {
            parts.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("text/html"))
        })
    }

    /// Ends a call that changes something. A script gets the result unchanged. A plain form post is redirected to
    /// `then` with `notice`, or to `back` with the errors and the typed values. `typed` must not contain secrets.
    ///
    /// # Errors
    ///
    /// The error itself, if a script sent the request.
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
                leptos_axum::redirect(&sign_in_address(SessionEndReason::SignedOut, back));
                Ok(T::default())
            }
            // A denied request gets a page with its own status, not a message on the page it came from.
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
