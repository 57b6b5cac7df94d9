//! Who may use an operation: identify, origin, rate limit, authorise.
//!
//! A caller has a token in the header `Authorization` or the session of a browser. A token is only accepted in that
//! header: addresses end up in logs and histories. The origin is checked for sessions only, because browsers send a
//! session's cookie by themselves and a token never. A rate limit counts for each token, or for each user of a session,
//! on this server.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use axum::{
    extract::RawPathParams,
    response::{IntoResponse, Response},
};
use chrono::TimeDelta;
use governor::{
    Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
    middleware::StateInformationMiddleware,
    state::keyed::DefaultKeyedStateStore,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts};
use milvaion_api::{permissions::Permission, tokens::TokenState};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{JobId, OccurrenceId, UserId};

use super::{
    ApiState,
    operation::{Operation, TagScope},
    problem::ApiError,
};
use crate::{
    command::tokens,
    error::chain,
    http::{
        client_address::client_address,
        guard::{self, StreamUser, denial, record_refusal, same_origin},
    },
    store::{request_token::with_token, tokens::TokenPrincipal},
};

/// The time between two updates of the last use of a token.
const USE_INTERVAL: TimeDelta = TimeDelta::minutes(1);
/// The number of callers from which the limiter forgets those that are idle.
const MAX_IDLE_CALLERS: usize = 10_000;

/// The caller of a request that is admitted.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user, or the owner of the token, with the role that applies.
    pub me: RequestUser,
    /// The tag that limits the token.
    pub tag: Option<String>,
    /// The name of the token or of the user of a session, as `token:id` or `user:id`.
    pub name: String,
    /// The label of the token in the audit log.
    pub token: Option<String>,
    /// The state of the rate limit after this request.
    pub limits: RateState,
}

/// The state of a rate limit, for the headers of an answer.
#[derive(Clone, Debug, Default)]
pub struct RateState {
    quota: u32,
    remaining: u32,
    reset_seconds: u64,
}

impl RateState {
    /// Writes the headers `RateLimit-Policy` and `RateLimit`.
    pub fn write(&self, headers: &mut HeaderMap) {
        let policy = format!("\"minute\";q={};w=60", self.quota);
        let state = format!("\"minute\";r={};t={}", self.remaining, self.reset_seconds);
        for (name, text) in [("ratelimit-policy", policy), ("ratelimit", state)] {
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

/// The rate limits of all callers. A caller may use up the requests of a minute at once; they come back evenly.
#[derive(Clone)]
pub struct RateLimits {
    limiter: Arc<Limiter>,
    quota: NonZeroU32,
}

type Limiter = RateLimiter<String, DefaultKeyedStateStore<String>, DefaultClock, StateInformationMiddleware>;

impl std::fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimits").field("quota", &self.quota).finish_non_exhaustive()
    }
}

impl RateLimits {
    /// Allows each caller `quota` requests a minute.
    #[must_use]
    pub fn new(quota: NonZeroU32) -> Self {
        let limiter = RateLimiter::keyed(Quota::per_minute(quota)).with_middleware::<StateInformationMiddleware>();
        Self { limiter: Arc::new(limiter), quota }
    }

    /// Counts a request of a caller.
    ///
    /// # Errors
    ///
    /// Returns the state and the time until the next request, if the caller has none left.
    pub fn count(&self, caller: &str) -> Result<RateState, (RateState, Duration)> {
        if self.limiter.len() > MAX_IDLE_CALLERS {
            self.limiter.retain_recent();
        }
        let state = |remaining: u32| {
            let used = u64::from(self.quota.get() - remaining.min(self.quota.get()));
            let reset_seconds = (used * 60).div_ceil(u64::from(self.quota.get()));
            RateState { quota: self.quota.get(), remaining, reset_seconds }
        };
        match self.limiter.check_key(&caller.to_owned()) {
            Ok(snapshot) => Ok(state(snapshot.remaining_burst_capacity())),
            Err(until) => Err((state(0), until.wait_time_from(DefaultClock::default().now()))),
        }
    }
}

/// Admits a request to an operation, or returns the answer that refuses it.
///
/// # Errors
///
/// Returns the refusal as a whole answer, with the headers of the rate limit if the caller is known.
pub async fn admit(state: &ApiState, operation: &Operation, head: &mut Parts) -> Result<Caller, Response> {
    let (me, token) = identify(state, operation, head).await.map_err(IntoResponse::into_response)?;
    let name = token.as_ref().map_or_else(|| format!("user:{}", me.id), |token| format!("token:{}", token.id));
    let limits = match state.limits.count(&name) {
        Ok(limits) => limits,
        Err((limits, wait)) => {
            let detail = format!("This caller has made {} requests within a minute, which is the limit.", limits.quota);
            let seconds = wait.as_secs() + 1;
            let refusal = ApiError::new(StatusCode::TOO_MANY_REQUESTS, detail).retry_after(seconds);
            return Err(with_limits(refusal, &limits));
        }
    };
    if let Err(refusal) = authorise(state, operation, &me, token.as_ref()).await {
        return Err(with_limits(refusal, &limits));
    }
    if let Some(token) = &token {
        note_use(state, operation, token, me.address.map(|address| address.to_string())).await;
    }
    let label = token.as_ref().map(|token| token.label.clone());
    Ok(Caller { me, tag: token.and_then(|token| token.tag), name, token: label, limits })
}

fn with_limits(refusal: ApiError, limits: &RateState) -> Response {
    let mut response = refusal.into_response();
    limits.write(response.headers_mut());
    response
}

/// Returns the caller: of the token, if the request has one, else of the session.
async fn identify(
    state: &ApiState,
    operation: &Operation,
    head: &Parts,
) -> Result<(RequestUser, Option<TokenPrincipal>), ApiError> {
    let address = client_address(&state.config, head);
    if head.headers.contains_key(header::AUTHORIZATION) {
        let token = bearer(state, &head.headers).await?;
        return Ok((RequestUser { user: token.user.clone(), address }, Some(token)));
    }
    let user = guard::me(&state.store, &state.clock, head).await?.ok_or(AppError::SignedOut)?;
    if operation.method != "GET" {
        same_origin(&state.config, head)?;
    }
    Ok((RequestUser { user, address }, None))
}

/// Returns the usable token in the header `Authorization`.
async fn bearer(state: &ApiState, headers: &HeaderMap) -> Result<TokenPrincipal, ApiError> {
    let refuse = |detail: &str| ApiError::new(StatusCode::UNAUTHORIZED, detail);
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(refuse("The request has several Authorization headers. Send one."));
    };
    let text = value.to_str().unwrap_or_default();
    let secret = match text.split_once(' ') {
        Some((scheme, secret)) if scheme.eq_ignore_ascii_case("bearer") => secret.trim(),
        _ => return Err(refuse("The Authorization header must be: Bearer, a space, and a token.")),
    };
    let Some(token) = tokens::principal(&state.store, &state.clock, secret).await? else {
        return Err(refuse("There is no such token. Create one on the page API tokens."));
    };
    match token.state {
        state if state.is_usable() => Ok(token),
        TokenState::Expired => Err(refuse("This token has expired. Create a new one, or rotate tokens in time.")),
        _ => Err(refuse("This token was revoked, or its owner was deactivated.")),
    }
}

async fn authorise(
    state: &ApiState,
    operation: &Operation,
    me: &RequestUser,
    token: Option<&TokenPrincipal>,
) -> Result<(), ApiError> {
    let action = operation.permission;
    if !me.role.allows(action) {
        if action.mutates() {
            let label = token.map(|token| token.label.clone());
            with_token(label, record_refusal(&state.store, &state.clock, me, action, me.address)).await;
        }
        return Err(AppError::Denied(denial(me.role, action)).into());
    }
    let Some(token) = token else { return Ok(()) };
    let refuse = |detail: String| Err(ApiError::new(StatusCode::FORBIDDEN, detail));
    if token.read_only && operation.method != "GET" && action.mutates() {
        return refuse("This token may only read. Use another token for changes.".into());
    }
    if action == Permission::ManageAccount && operation.method != "GET" {
        return refuse("The own account can be changed on its page only, not with a token.".into());
    }
    if let Some(tag) = &token.tag
        && operation.scope == TagScope::Refused
    {
        return refuse(format!(
            "This token is limited to jobs with the tag {tag}. Use another token for this operation."
        ));
    }
    Ok(())
}

/// Returns true while the caller of an open stream, of the log of `occurrence` if it is given, may still read. PostgreSQL
/// that fails ends no stream.
pub async fn may_go_on(state: &ApiState, head: &Parts, user: UserId, occurrence: Option<OccurrenceId>) -> bool {
    if head.headers.contains_key(header::AUTHORIZATION) {
        return match may_token_go_on(state, head, occurrence).await {
            Ok(may_read) => may_read,
            Err(error) => !matches!(error.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN),
        };
    }
    let found = guard::stream_user(&state.store, &state.clock, head, user).await;
    found.map_or(true, |found| matches!(found, StreamUser::Active(_)))
}

async fn may_token_go_on(state: &ApiState, head: &Parts, occurrence: Option<OccurrenceId>) -> Result<bool, ApiError> {
    let token = bearer(state, &head.headers).await?;
    if let (Some(tag), Some(id)) = (&token.tag, occurrence) {
        require_occurrence_tag(state, tag, id).await?;
    }
    Ok(token.user.role.allows(Permission::Read))
}

/// Checks that the object in the path belongs to the tag that limits the token.
///
/// # Errors
///
/// Returns an error if it does not, or if it does not exist.
pub async fn check_scope(
    state: &ApiState,
    caller: &Caller,
    operation: &Operation,
    path: &RawPathParams,
) -> Result<(), ApiError> {
    let Some(tag) = &caller.tag else { return Ok(()) };
    let parameter = |name: &str| path.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    let id = || parameter("id").unwrap_or_default();
    match operation.scope {
        TagScope::Refused | TagScope::Free | TagScope::Handler => Ok(()),
        TagScope::Job => {
            let Ok(id) = id().parse::<JobId>() else { return Ok(()) };
            require_job_tag(state, tag, id).await
        }
        TagScope::JobKey => match state.store.job_id_of_key(&parameter("key").unwrap_or_default()).await {
            Ok(Some(id)) => require_job_tag(state, tag, id).await,
            Ok(None) => Ok(()),
            Err(error) => Err(AppError::from(error).into()),
        },
        TagScope::Occurrence => {
            let Ok(id) = id().parse::<OccurrenceId>() else { return Ok(()) };
            require_occurrence_tag(state, tag, id).await
        }
    }
}

/// Checks that the job of an occurrence, if that exists, has the tag that limits a token.
///
/// # Errors
///
/// Returns 403 without the tag, and the error of PostgreSQL.
pub(super) async fn require_occurrence_tag(state: &ApiState, tag: &str, id: OccurrenceId) -> Result<(), ApiError> {
    match state.store.occurrence_status(id).await.map_err(AppError::from)? {
        Some((_, job)) => require_job_tag(state, tag, job).await,
        None => Ok(()),
    }
}

/// Checks that a job has the tag that limits a token.
///
/// # Errors
///
/// Returns an error if it has not. A job that does not exist has no tag: the occurrences of deleted jobs are refused.
pub async fn require_job_tag(state: &ApiState, tag: &str, id: JobId) -> Result<(), ApiError> {
    let job = state.store.job_to_show(id).await.map_err(AppError::from)?;
    require_tag(tag, job.as_ref().map_or(&[], |job| &job.definition.tags))
}

/// Checks that the tags of a job contain the one that limits a token.
///
/// # Errors
///
/// Returns an error that names the tag.
pub fn require_tag(tag: &str, tags: &[String]) -> Result<(), ApiError> {
    if tags.iter().any(|own| own == tag) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        format!("This token is limited to jobs with the tag {tag}, which this job does not have."),
    ))
}

/// Stores the use of a token, at most once a minute. The request goes on if it cannot be stored.
async fn note_use(state: &ApiState, operation: &Operation, token: &TokenPrincipal, address: Option<String>) {
    let now = state.clock.now();
    if token.last_used_at.is_some_and(|at| now - at < USE_INTERVAL) {
        return;
    }
    let route = operation.route();
    if let Err(error) = state.store.note_token_use(token.id, now, address.as_deref(), &route).await {
        tracing::warn!(token.id = %token.id, error = %chain(&error), "the last use of token {} was not stored", token.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_the_requests_of_a_minute() {
        let limits = RateLimits::new(NonZeroU32::new(3).expect("positive"));
        for remaining in [2, 1, 0] {
            assert_eq!(limits.count("token:a").expect("allowed").remaining, remaining);
        }
        let (state, wait) = limits.count("token:a").expect_err("used up");
        assert_eq!((state.remaining, state.reset_seconds), (0, 60));
        assert!(wait <= Duration::from_secs(20));
        assert!(limits.count("token:b").is_ok(), "another caller has its own");
    }
}
