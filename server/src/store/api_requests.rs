//! POST requests with an idempotency key, and their answers.
//!
//! A request is registered before its command runs. If the server dies in between, no answer is ever stored, and a
//! repetition is told that the outcome is unknown: running the command again could do its work twice.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{Result, Store};

/// The time for which an answer is kept.
pub const API_REQUEST_RETENTION: chrono::Duration = chrono::Duration::days(1);

/// The answer to a request, as it is repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAnswer {
    /// HTTP status.
    pub status: u16,
    /// The headers `ETag` and `Location`.
    pub headers: Value,
    /// The body; none if it held a secret.
    pub body: Option<Vec<u8>>,
}

/// The result of registering a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Registration {
    /// The key is new. The command can run.
    New,
    /// The request was answered before.
    Answered(StoredAnswer),
    /// The same request is being carried out, or a server died while it was. It arrived at this time.
    Unanswered(DateTime<Utc>),
    /// Another request has used the key.
    OtherRequest,
}

impl Store {
    /// Registers a request under its key.
    pub async fn register_api_request(
        &self,
        caller: &str,
        key: &str,
        fingerprint: &[u8; 32],
        now: DateTime<Utc>,
    ) -> Result<Registration> {
        let inserted = sqlx::query!(
            "INSERT INTO api_requests (caller, key, fingerprint, created_at) VALUES ($1, $2, $3, $4)
             ON CONFLICT (caller, key) DO NOTHING",
            caller,
            key,
            &fingerprint[..],
            now
        )
        .execute(self.pool())
        .await?;
        if inserted.rows_affected() == 1 {
            return Ok(Registration::New);
        }
        let known = sqlx::query!(
            "SELECT fingerprint, created_at, status, headers, body FROM api_requests WHERE caller = $1 AND key = $2",
            caller,
            key
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(match known {
            // Its command failed and was taken back in this moment; the caller repeats the request.
            None => Registration::Unanswered(now),
            Some(row) if row.fingerprint != fingerprint => Registration::OtherRequest,
            Some(row) => match row.status.and_then(|status| u16::try_from(status).ok()) {
                None => Registration::Unanswered(row.created_at),
                Some(status) => Registration::Answered(StoredAnswer {
                    status,
                    headers: row.headers.unwrap_or_default(),
                    body: row.body,
                }),
            },
        })
    }

    /// Stores the answer to a registered request.
    pub async fn answer_api_request(&self, caller: &str, key: &str, answer: &StoredAnswer) -> Result<()> {
        sqlx::query!(
            "UPDATE api_requests SET status = $3, headers = $4, body = $5 WHERE caller = $1 AND key = $2",
            caller,
            key,
            i16::try_from(answer.status).unwrap_or(500),
            answer.headers,
            answer.body.as_deref()
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Takes a request back that changed nothing, so that it can be repeated under its key.
    pub async fn forget_api_request(&self, caller: &str, key: &str) -> Result<()> {
        sqlx::query!("DELETE FROM api_requests WHERE caller = $1 AND key = $2 AND status IS NULL", caller, key)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}
