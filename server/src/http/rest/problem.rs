//! Errors of the API as documents: RFC 9457, `application/problem+json`.
//!
//! Every answer that is not a success has this form, also those to unknown paths and unreadable bodies, so that a program
//! reads errors in one way. The kind refers to the description on the page `/api/docs`.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use milvaion_api::{
    requests::FieldError,
    rest::{Problem, ProblemField},
};
use milvaion_app::error::AppError;

/// The media type of a problem.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";
/// The time after which a request that failed because a service is down may be repeated, in seconds.
const UNAVAILABLE_RETRY_SECONDS: u64 = 5;

/// The kinds of problems: the name, the status and the title.
pub(super) const PROBLEM_KINDS: [(&str, StatusCode, &str); 14] = [
    ("unreadable", StatusCode::BAD_REQUEST, "The request cannot be read"),
    ("not-signed-in", StatusCode::UNAUTHORIZED, "No valid token or session"),
    ("not-allowed", StatusCode::FORBIDDEN, "The role or the token does not allow this"),
    ("not-found", StatusCode::NOT_FOUND, "There is no such object"),
    ("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "The path does not support this method"),
    ("conflict", StatusCode::CONFLICT, "The state of the object does not allow this"),
    ("version-mismatch", StatusCode::PRECONDITION_FAILED, "The object has another version"),
    ("too-large", StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"),
    ("not-json", StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body is not JSON"),
    ("invalid-fields", StatusCode::UNPROCESSABLE_ENTITY, "Some fields are invalid"),
    ("rate-limit", StatusCode::TOO_MANY_REQUESTS, "Too many requests"),
    ("failed", StatusCode::INTERNAL_SERVER_ERROR, "The server failed"),
    ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "A service that the request needs is unavailable"),
    ("timeout", StatusCode::GATEWAY_TIMEOUT, "The request took too long"),
];

/// The reason for which the API refuses or fails a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    detail: String,
    errors: Vec<ProblemField>,
    /// The time after which a repetition may succeed, in seconds.
    retry_after: Option<u64>,
    /// The value of the header `Allow`.
    allow: Option<String>,
}

impl ApiError {
    /// Builds an error with a status and a text that names the cause and the remedy.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), errors: Vec::new(), retry_after: None, allow: None }
    }

    /// Builds the error of invalid fields, with their names in JSON.
    #[must_use]
    pub fn fields(errors: Vec<ProblemField>) -> Self {
        let detail = match errors.as_slice() {
            [one] => format!("{}: {}", one.field, one.message),
            several => format!("{} fields are invalid. The list errors names each.", several.len()),
        };
        Self { errors, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
    }

    /// Builds the error of one invalid field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::fields(vec![ProblemField { field: field.into(), message: message.into() }])
    }

    /// Builds the error of a version that is not the expected one.
    pub fn version(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, detail)
    }

    /// Names the methods that a path supports.
    #[must_use]
    pub fn allow(self, methods: String) -> Self {
        Self { allow: Some(methods), ..self }
    }

    /// Names the time after which a repetition may succeed, in seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Returns the HTTP status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the error of a command that takes an input, whose field the API calls `input`.
    #[must_use]
    pub fn of_input(error: AppError) -> Self {
        let mut refusal = Self::from(error);
        for error in &mut refusal.errors {
            if let Some(rest) = error.field.strip_prefix("jobData") {
                error.field = format!("input{rest}");
            }
        }
        refusal
    }

    /// Returns this error as one of a version that is not the expected one, if it is a conflict of a request that named
    /// a version.
    #[must_use]
    pub fn of_expected(self, has_expected: bool) -> Self {
        if has_expected && self.status == StatusCode::CONFLICT {
            return Self { status: StatusCode::PRECONDITION_FAILED, ..self };
        }
        self
    }
}

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        match error {
            AppError::Fields(errors) => {
                Self::fields(errors.into_iter().map(|error: FieldError| error.into()).collect())
            }
            AppError::SignedOut => Self::new(status, "Send a token in the header Authorization: Bearer milvaion_…"),
            AppError::Unavailable(_) => Self::new(status, error.to_string()).retry_after(UNAVAILABLE_RETRY_SECONDS),
            _ => Self::new(status, error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (name, _, title) = PROBLEM_KINDS.into_iter().find(|(_, status, _)| *status == self.status).unwrap_or((
            "failed",
            self.status,
            "The request failed",
        ));
        let problem = Problem {
            kind: format!("/api/docs#problem-{name}"),
            title: title.into(),
            status: self.status.as_u16(),
            detail: self.detail,
            errors: self.errors,
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"milvaion\""));
        }
        if let Some(methods) = self.allow.and_then(|methods| HeaderValue::from_str(&methods).ok()) {
            headers.insert(header::ALLOW, methods);
        }
        response
    }
}
