//! The table of operations, and the way of a request through one of them.
//!
//! An operation is declared once: method, path, permission, and a handler whose types say what it takes and returns. The
//! router, the check of permissions, the check of requests, the OpenAPI document and the test of every role at every door
//! all read this one declaration, so that they cannot differ.
//!
//! A request passes: identify the caller, origin of a session, rate limit, permission, parameters and body, idempotency
//! key, handler. Everything before the handler may refuse it, and nothing before it changes anything.

use std::{any::TypeId, future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{FromRequestParts, RawPathParams, Request},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use milvaion_app::backend::RequestUser;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    ApiState, guard, idempotency,
    input::{InputSchema, MAX_BODY_BYTES, input_schema},
    operation::Operation,
    problem::ApiError,
};
use crate::store::request_token::with_token;

/// The longest time for an operation other than a stream.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(25);

/// The parameters of an operation that has none, and the body of a request without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct Nothing {}

/// A request that may be carried out.
#[derive(Debug)]
pub struct Call<P, Q, B> {
    /// The user, or the owner of the token, with the role that applies.
    pub me: RequestUser,
    /// The tag that limits the token.
    pub tag: Option<String>,
    /// The parameters in the path.
    pub path: P,
    /// The parameters in the query.
    pub query: Q,
    /// The body.
    pub body: B,
    /// The head of the request.
    pub head: Parts,
    /// The time at which the request arrived. If it is repeated with its idempotency key after an unknown outcome, the time at
    /// which the first one arrived.
    pub received_at: DateTime<Utc>,
    /// The value of the header `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// The name of the token or of the user of a session, as `token:id` or `user:id`.
    pub caller: String,
}

impl<P, Q, B> Call<P, Q, B> {
    /// Returns true if a program sent the request, with a token.
    pub fn is_script(&self) -> bool {
        self.caller.starts_with("token:")
    }

    /// Returns the version in the header `If-Match`; none without the header.
    ///
    /// # Errors
    ///
    /// Returns an error if the header is not a version.
    pub fn expected_version(&self) -> Result<Option<i32>, ApiError> {
        let Some(value) = self.head.headers.get(header::IF_MATCH) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default().trim();
        // A proxy that compresses answers makes their tags weak.
        let text = text.strip_prefix("W/").unwrap_or(text);
        let digits = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        let version = digits.and_then(|digits| digits.parse().ok());
        version.map(Some).ok_or_else(|| {
            ApiError::field(
                "If-Match",
                "must be the ETag of an earlier answer, a version in quotation marks such as \"7\"",
            )
        })
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Reply<T> {
    status: Option<StatusCode>,
    body: T,
    version: Option<i32>,
    location: Option<String>,
}

impl<T> Reply<T> {
    /// Builds an answer with the status of the operation's success.
    pub fn of(body: T) -> Self {
        Self { status: None, body, version: None, location: None }
    }

    /// Adds the version of the object, as `ETag`.
    #[must_use]
    pub fn version(self, version: i32) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Replaces the status.
    #[must_use]
    pub fn status(self, status: StatusCode) -> Self {
        Self { status: Some(status), ..self }
    }

    /// Adds the address of the new object, below `/api/v1`.
    #[must_use]
    pub fn location(self, path: String) -> Self {
        Self { location: Some(format!("/api/v1{path}")), ..self }
    }
}

/// The result of a handler.
pub type ApiResult<T> = Result<Reply<T>, ApiError>;

type BoxedHandler = Arc<
    dyn Fn(ApiState, guard::Caller, Parts, Vec<u8>) -> Pin<Box<dyn Future<Output = Response> + Send>> + Send + Sync,
>;

/// An operation with its handler and the schemas of its types.
#[derive(Clone)]
pub struct Endpoint {
    /// The declaration.
    pub operation: Operation,
    /// The schema of the path parameters.
    pub path: InputSchema,
    /// The schema of the query parameters.
    pub query: InputSchema,
    /// The schema of the body, if the operation takes one.
    pub body: Option<InputSchema>,
    /// Returns the schema of the answer, if it has a body.
    pub answer: fn(&mut SchemaGenerator) -> Option<schemars::Schema>,
    /// True if the answer is a stream of events.
    pub is_stream: bool,
    /// The largest body, in bytes.
    pub max_body_bytes: usize,
    handler: BoxedHandler,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("operation", &self.operation).finish_non_exhaustive()
    }
}

fn answer_schema<T: JsonSchema + 'static>(generator: &mut SchemaGenerator) -> Option<schemars::Schema> {
    (TypeId::of::<T>() != TypeId::of::<()>()).then(|| generator.subschema_for::<T>())
}

impl Endpoint {
    /// Declares an operation that answers with JSON, or without a body.
    pub fn json<P, Q, B, R, F, Fut>(operation: Operation, handler: F) -> Self
    where
        P: DeserializeOwned + JsonSchema + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize + JsonSchema + Send + 'static,
        F: Fn(ApiState, Call<P, Q, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = ApiResult<R>> + Send + 'static,
    {
        let run = move |state: ApiState, call: Call<P, Q, B>| {
            let handler = handler.clone();
            async move {
                let answered = tokio::time::timeout(OPERATION_TIMEOUT, handler(state, call)).await;
                let reply = answered.map_err(|_| {
                    ApiError::new(
                        StatusCode::GATEWAY_TIMEOUT,
                        format!("The request took longer than {} s. Narrow it down.", OPERATION_TIMEOUT.as_secs()),
                    )
                })??;
                Ok(json_response(&operation, reply))
            }
        };
        Self::new::<P, Q, B, _, _>(operation, answer_schema::<R>, false, run)
    }

    /// Declares an operation that answers with a stream of events. Their data are described in its summary.
    pub fn stream<P, Q, F, Fut>(operation: Operation, handler: F) -> Self
    where
        P: DeserializeOwned + JsonSchema + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(ApiState, Call<P, Q, Nothing>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new::<P, Q, Nothing, _, _>(operation, |_| None, true, handler)
    }

    fn new<P, Q, B, F, Fut>(
        operation: Operation,
        answer: fn(&mut SchemaGenerator) -> Option<schemars::Schema>,
        is_stream: bool,
        run: F,
    ) -> Self
    where
        P: DeserializeOwned + JsonSchema + Send + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(ApiState, Call<P, Q, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let (path, query) = (input_schema::<P>(), input_schema::<Q>());
        let body = (TypeId::of::<B>() != TypeId::of::<Nothing>()).then(input_schema::<B>);
        let schemas = (path.clone(), query.clone(), body.clone().unwrap_or_else(input_schema::<Nothing>));
        let handler: BoxedHandler = Arc::new(move |state, caller, head, body| {
            let (schemas, run) = (schemas.clone(), run.clone());
            Box::pin(async move {
                let answered = async {
                    let (path_schema, query_schema, body_schema) = &schemas;
                    let mut head = head;
                    let raw = RawPathParams::from_request_parts(&mut head, &())
                        .await
                        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
                    let pairs = raw.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
                    let path = path_schema.parameters(pairs)?;
                    let query = query_schema.query(head.uri.query())?;
                    let content = body_schema.body(&head.headers, &body)?;
                    guard::check_scope(&state, &caller, &operation, &raw).await?;
                    let key = idempotency::key(&operation, &head)?;
                    let call = Call {
                        me: caller.me.clone(),
                        tag: caller.tag.clone(),
                        path,
                        query,
                        body: content,
                        head,
                        received_at: state.clock.now(),
                        idempotency_key: key.clone(),
                        caller: caller.name.clone(),
                    };
                    let Some(key) = key else { return run(state, call).await };
                    let request = idempotency::KeyedRequest::new(&caller, key, &call.head, &body);
                    let of_run = state.clone();
                    let run = move |received_at| run(of_run, Call { received_at, ..call });
                    idempotency::once(&state, &operation, request, run).await
                };
                answered.await.unwrap_or_else(IntoResponse::into_response)
            })
        });
        Self { operation, path, query, body, answer, is_stream, max_body_bytes: MAX_BODY_BYTES, handler }
    }

    /// Sets the largest body, in bytes.
    #[must_use]
    pub fn with_body_limit(self, max_body_bytes: usize) -> Self {
        Self { max_body_bytes, ..self }
    }

    /// Carries out a request.
    pub async fn handle(&self, state: ApiState, request: Request<Body>) -> Response {
        let (mut head, body) = request.into_parts();
        let caller = match guard::admit(&state, &self.operation, &mut head).await {
            Ok(caller) => caller,
            Err(refusal) => return refusal,
        };
        let limits = caller.limits.clone();
        let mut response = match to_bytes(body, self.max_body_bytes).await {
            Ok(body) => {
                // A request that only reads writes no audit rows.
                let token = caller.token.clone().filter(|_| self.operation.method != "GET");
                with_token(token, (self.handler)(state, caller, head, body.to_vec())).await
            }
            Err(_) => ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("The body has more than {} KiB, which is the limit.", self.max_body_bytes / 1024),
            )
            .into_response(),
        };
        limits.write(response.headers_mut());
        // Answers belong to one caller and change at any time.
        response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.operation.method.parse().unwrap_or(Method::GET)
    }
}

fn json_response<T: Serialize + 'static>(operation: &Operation, reply: Reply<T>) -> Response {
    let status = reply.status.or_else(|| StatusCode::from_u16(operation.success).ok()).unwrap_or(StatusCode::OK);
    let mut headers = HeaderMap::new();
    if let Some(version) = reply.version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok()) {
        headers.insert(header::ETAG, version);
    }
    if let Some(location) = reply.location.and_then(|location| HeaderValue::from_str(&location).ok()) {
        headers.insert(header::LOCATION, location);
    }
    if TypeId::of::<T>() == TypeId::of::<()>() {
        return (status, headers).into_response();
    }
    match serde_json::to_vec(&reply.body) {
        Ok(body) => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            (status, headers, body).into_response()
        }
        Err(error) => {
            tracing::error!(http.operation = operation.id, error = %error, "the answer of {} cannot be written", operation.id);
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The answer could not be written. The log has the details.",
            )
            .into_response()
        }
    }
}
