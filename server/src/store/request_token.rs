//! The API token of the request that the present task carries out.
//!
//! Many statements write rows of the audit log, and each would have to pass the token on. The token belongs to the task
//! instead: [`with_token`] sets it around a request, and the pool gives it to PostgreSQL with each transaction, where the
//! default of a column reads it, that of `audit_log.token` or the one of new occurrences. A task that a request spawns has
//! no token, unless it sets that of the request again.

tokio::task_local! {
    static TOKEN: String;
}

/// Runs a request with a token, or without one. Its rows in the audit log and its new occurrences name the token.
pub async fn with_token<T>(token: Option<String>, request: impl Future<Output = T>) -> T {
    match token {
        Some(token) => TOKEN.scope(token, request).await,
        None => request.await,
    }
}

/// Returns the token of the present task.
#[must_use]
pub fn current() -> Option<String> {
    TOKEN.try_with(Clone::clone).ok()
}
