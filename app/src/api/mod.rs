//! The server functions that the browser calls.
//!
//! Each server function is a few lines: it gets the backend and the user by naming the [`Permission`](milvaion_api::permissions::Permission) it needs, calls
//! one method and returns its result. [`authorize`] is the only way to the backend for them, and the backend checks the
//! session, the role and the origin. Reads are GET requests made by resources. Every change is a POST that a plain HTML
//! form can send too. Each returns `SignedOut` without a session and `Unavailable` if a service is down; a section
//! `# Errors` names other errors.
//!
//! No script handles the response to a plain form post. [`respond`] therefore redirects it to a page and stores a
//! [`FlashMessage`](crate::backend::FlashMessage) for that page: the notice, the errors and the typed values. A post
//! that [`authorize`] refuses is redirected too; its typed values are lost, because without a session none are stored.

#![expect(missing_docs, reason = "each server function generates a struct whose fields are its parameters")]

pub mod account;
pub mod alerts;
pub mod audit;
pub mod boot;
pub mod calendars;
pub mod cluster;
pub mod codec;
pub mod failures;
pub mod jobs;
pub mod occurrences;
pub mod overview;
pub mod session;
pub mod singletons;
pub mod team;
pub mod tokens;
pub mod versions;
pub mod workers;

#[cfg(feature = "ssr")]
pub use server_side::*;

#[cfg(feature = "ssr")]
mod server_side {
    use std::sync::Arc;

    use http::{HeaderValue, Method, StatusCode, Uri, header, request::Parts};
    use leptos::prelude::*;
    use leptos_axum::ResponseOptions;
    use milvaion_api::permissions::Permission;
    use serde::Serialize;

    use crate::{
        api::{
            boot::Boot,
            session::{SessionEndReason, sign_in_address},
        },
        backend::{Backend, FlashMessage, RequestUser},
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
    /// `SignedOut` or `Denied`; the response gets the matching status, or redirects a plain form post.
    pub async fn authorize(permission: Permission) -> Result<(Arc<dyn Backend>, RequestUser), AppError> {
        let backend = backend()?;
        let parts = request()?;
        // The page shows this error. During an outage, reading the session again would take as long as the first time.
        if let Some(error) = parts.extensions.get::<Boot>().and_then(|boot| boot.error.clone()) {
            return Err(with_error_status(error));
        }
        match backend.authorize(&parts, permission).await {
            Ok(me) => Ok((backend, me)),
            Err(error) => Err(refuse(&*backend, &parts, &referring_page(&parts), error).await),
        }
    }

    /// Ends a call that the user may not make, and returns the error. No script shows the error of a plain form post,
    /// so such a post is redirected: to the sign-in page, which continues at `page`, or to `page` with the reason.
    async fn refuse(backend: &dyn Backend, parts: &Parts, page: &str, error: AppError) -> AppError {
        if !is_plain_form() {
            return with_error_status(error);
        }
        match &error {
            AppError::SignedOut => leptos_axum::redirect(&sign_in_address(SessionEndReason::FormNotSent, page), false),
            AppError::Denied(reason) => {
                let flash =
                    FlashMessage { form: "notice".into(), error: Some(reason.clone()), ..FlashMessage::default() };
                if let Err(error) = backend.put_flash(parts, flash).await {
                    return with_error_status(error);
                }
                leptos_axum::redirect(page, false);
            }
            _ => return with_error_status(error),
        }
        error
    }

    /// Returns the path of the page that sent this request; the overview if the browser does not name the page. The
    /// server has refused requests from other sites before.
    fn referring_page(parts: &Parts) -> String {
        let address = parts.headers.get(header::REFERER).and_then(|value| Uri::try_from(value.as_bytes()).ok());
        let path = address.as_ref().and_then(Uri::path_and_query).map_or("/", |path| path.as_str());
        super::session::local_path(path).to_owned()
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

    /// Returns true if a plain form sent this request, not our script. The request for a page also accepts HTML, but
    /// posts nothing.
    #[must_use]
    pub fn is_plain_form() -> bool {
        use_context::<Parts>().is_some_and(|parts| {
            let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
            parts.method == Method::POST && accept.contains("text/html")
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
                leptos_axum::redirect(&then(&value), false);
                Ok(value)
            }
            Err(error @ (AppError::SignedOut | AppError::Denied(_))) => {
                Err(refuse(&*backend, &parts, back, error).await)
            }
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
                leptos_axum::redirect(back, false);
                Ok(T::default())
            }
        }
    }
}
