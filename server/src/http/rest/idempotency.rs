//! Requests with the header `Idempotency-Key`: a repetition gets the first answer and does nothing.
//!
//! A program that lost the answer to a POST cannot know whether it was carried out. With a key it sends the same request
//! again. A request that was refused changed nothing, so its key stays free. One whose outcome is unknown, because the
//! server died or failed, is not carried out a second time unless that is harmless.

use std::future::Future;

use axum::{
    body::{Body, to_bytes},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderName, HeaderValue, StatusCode, header, request::Parts};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tracing::{Instrument, Span};

use super::{ApiState, guard::Caller, operation::Operation, problem::ApiError};
use crate::{
    error::chain,
    store::{
        api_requests::{Registration, StoredAnswer},
        request_token::{self, with_token},
    },
};
use milvaion_app::error::AppError;

/// The maximum length of a key, in characters.
const MAX_KEY_CHARS: usize = 200;
/// The largest answer that is stored, in bytes. No operation with a larger one takes a key.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// The time after which a request without an answer is no longer being carried out.
const EXECUTION_LIMIT: TimeDelta = TimeDelta::seconds(30);
/// The header of a repeated answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Returns true if an operation may have a key. One that changes nothing needs none.
fn takes_key(operation: &Operation) -> bool {
    operation.method == "POST" && operation.permission.mutates()
}

/// Returns true if an operation can be carried out again without harm, because the second time finds the work done. Any
/// other one creates an object each time, and answers so.
fn is_repeatable(operation: &Operation) -> bool {
    operation.success != StatusCode::CREATED.as_u16()
}

/// Returns the key of a request.
///
/// # Errors
///
/// Returns an error for an invalid key.
pub(super) fn key(operation: &Operation, head: &Parts) -> Result<Option<String>, ApiError> {
    let Some(value) = head.headers.get("idempotency-key").filter(|_| takes_key(operation)) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text.is_empty() || text.len() > MAX_KEY_CHARS || !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return Err(ApiError::field("Idempotency-Key", "must have 1 to 200 printable ASCII characters"));
    }
    Ok(Some(text.to_owned()))
}

/// A request with its key.
#[derive(Clone, Debug)]
pub(super) struct KeyedRequest {
    caller: String,
    key: String,
    fingerprint: [u8; 32],
}

impl KeyedRequest {
    /// Takes the fingerprint of a request.
    #[must_use]
    pub(super) fn new(caller: &Caller, key: String, head: &Parts, body: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        for part in [head.method.as_str().as_bytes(), head.uri.to_string().as_bytes(), body] {
            hasher.update(part.len().to_le_bytes());
            hasher.update(part);
        }
        Self { caller: caller.name.clone(), key, fingerprint: hasher.finalize().into() }
    }
}

/// Carries out a request once. It goes on if its client disconnects, so that its answer is stored. `run` receives the time
/// at which the first request with the key arrived.
///
/// # Errors
///
/// Returns an error if the key was used for another request, or if the outcome of the first request is unknown.
pub(super) async fn once<F>(
    state: &ApiState,
    operation: &Operation,
    request: KeyedRequest,
    run: impl FnOnce(DateTime<Utc>) -> F + Send + 'static,
) -> Result<Response, ApiError>
where
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    let now = state.clock.now();
    let registered = state
        .store
        .register_api_request(&request.caller, &request.key, &request.fingerprint, now)
        .await
        .map_err(AppError::from)?;
    let received_at = match registered {
        Registration::New => now,
        Registration::Answered(answer) => return replay(answer),
        Registration::OtherRequest => {
            return Err(ApiError::field("Idempotency-Key", "was used for another request: choose a new key"));
        }
        Registration::Unanswered(since) if is_repeatable(operation) => since,
        Registration::Unanswered(since) if now - since < EXECUTION_LIMIT => {
            let detail = "The first request with this key is still being carried out. Repeat it in a moment.";
            return Err(ApiError::new(StatusCode::CONFLICT, detail).retry_after(1));
        }
        Registration::Unanswered(since) => {
            return Err(ApiError::new(
                StatusCode::CONFLICT,
                format!(
                    "The outcome of the first request with this key, of {}, is unknown, because the server failed \
                     meanwhile. Look whether it was carried out; if not, repeat it with a new key.",
                    since.format("%Y-%m-%d %H:%M:%S UTC")
                ),
            ));
        }
    };
    let (state, has_secret) = (state.clone(), operation.has_secret);
    // A task of its own ends the request also when its caller leaves. It belongs to the same token and the same trace.
    let (token, trace) = (request_token::current(), milvaion_telemetry::current());
    let trace = trace.as_ref().map(milvaion_telemetry::continued);
    let answer = async move {
        let response = with_token(token, run(received_at)).await.unwrap_or_else(IntoResponse::into_response);
        store_answer(&state, &request, has_secret, response).await
    };
    let carried_out = tokio::spawn(milvaion_telemetry::within(trace, answer.instrument(Span::current())));
    carried_out.await.map_err(|error| {
        tracing::error!(error = %error, "a request of the API panicked");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong in the server. Its log has the details.")
    })?
}

async fn store_answer(
    state: &ApiState,
    request: &KeyedRequest,
    has_secret: bool,
    response: Response,
) -> Result<Response, ApiError> {
    let status = response.status();
    let (head, body) = response.into_parts();
    let body = to_bytes(body, MAX_ANSWER_BYTES).await.unwrap_or_default();
    let stored = if status.is_success() {
        let mut headers = Map::new();
        for name in [header::ETAG, header::LOCATION, header::CONTENT_TYPE] {
            if let Some(text) = head.headers.get(&name).and_then(|value| value.to_str().ok()) {
                headers.insert(name.to_string(), Value::from(text));
            }
        }
        let answer = StoredAnswer {
            status: status.as_u16(),
            headers: Value::Object(headers),
            body: (!has_secret).then(|| body.to_vec()),
        };
        state.store.answer_api_request(&request.caller, &request.key, &answer).await
    } else if status.is_client_error() {
        state.store.forget_api_request(&request.caller, &request.key).await
    } else {
        Ok(())
    };
    if let Err(error) = stored {
        tracing::warn!(
            error = %chain(&error),
            "the answer to a request with an idempotency key was not stored; a repetition is refused"
        );
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

fn replay(answer: StoredAnswer) -> Result<Response, ApiError> {
    let Some(body) = answer.body else {
        let detail = "This request was carried out before. Its answer contained a secret, which is stored nowhere.";
        return Err(ApiError::new(StatusCode::CONFLICT, detail));
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    for (name, value) in answer.headers.as_object().into_iter().flatten() {
        if let (Ok(name), Some(Ok(value))) =
            (HeaderName::from_bytes(name.as_bytes()), value.as_str().map(HeaderValue::from_str))
        {
            headers.insert(name, value);
        }
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_operations_that_create_an_object_are_not_repeated() {
        let operations = super::super::endpoints().into_iter().map(|endpoint| endpoint.operation);
        let refused: BTreeSet<&str> =
            operations.filter(|one| takes_key(one) && !is_repeatable(one)).map(|one| one.id).collect();
        let expected = [
            "createAlertChannel",
            "createAlertRule",
            "createCalendar",
            "createJob",
            "createResetLink",
            "createToken",
            "duplicateJob",
            "inviteUser",
            "renewInvitation",
            "retryOccurrence",
            "rotateToken",
        ];
        assert_eq!(refused, BTreeSet::from(expected));
    }
}
