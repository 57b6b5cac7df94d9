//! Sessions: the signed-in user of a browser, and the flash messages for its next page.
//!
//! The cookie holds 128 random bits, and the table stores only their hash. A session exists only if there is something
//! to store: a user has signed in, or a plain form left a flash message. A session ends after twelve hours without a
//! request and seven days after sign-in. Both limits are checked here against the server's clock, never against the age
//! of the cookie. Signing in changes the session id, so an attacker gains nothing by planting an id before.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::views::CurrentUser;
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_protocol::id::UserId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tower_sessions::{
    Expiry, Session, SessionManagerLayer, SessionStore,
    cookie::{
        SameSite,
        time::{Duration, OffsetDateTime},
    },
    session::{self, Id, Record},
    session_store,
};

use crate::{
    clock::Clock,
    config::http::HttpConfig,
    error::chain,
    store::{Store, StoreError, sessions::SessionRow},
};

/// The time without a request after which a session ends.
const IDLE_TIMEOUT: TimeDelta = TimeDelta::hours(12);

/// The time after sign-in at which a session ends, however busy it is.
const SESSION_LIFETIME: TimeDelta = TimeDelta::days(7);

/// The lifetime of a session without a user. It only carries a flash message to the next page.
const FLASH_TTL: TimeDelta = TimeDelta::minutes(15);

/// The shortest time between two extensions of a session, so that not every page view writes to the database.
const EXTEND_INTERVAL: TimeDelta = TimeDelta::minutes(5);

/// The most flash messages in a session. One more removes all earlier ones.
const MAX_FLASHES: usize = 8;

/// The largest form data in a flash message of a signed-in user, in bytes of JSON. A whole job form fits.
const MAX_FLASH_BYTES: usize = 256 * 1_024;
/// The largest form data in a flash message without a user, in bytes of JSON. A name and an e-mail address fit.
const MAX_ANONYMOUS_FLASH_BYTES: usize = 2 * 1_024;

/// The longest time for reading a session. A page reads its session several times, one after the other, and must be
/// able to report that PostgreSQL is down within the time limit of a request.
const LOAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);
/// The time after a failed read during which no session is read. The other reads of the same page fail at once.
const LOAD_RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// The key of the signed-in user in the data of a session.
const SIGNED_IN_USER_KEY: &str = "person";
/// The key of the flash messages in the data of a session.
const FLASHES_KEY: &str = "flashes";

/// The user of a session and the time of sign-in.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SignedInUser {
    user: UserId,
    since: DateTime<Utc>,
}

/// Builds the session layer, with its cookie and its table. Every request behind it carries a [`Session`] in its
/// extensions.
#[must_use]
pub fn layer(store: Store, clock: Clock, config: &HttpConfig) -> SessionManagerLayer<PostgresSessionStore> {
    SessionManagerLayer::new(PostgresSessionStore::new(store, clock))
        .with_name(cookie_name(config))
        .with_http_only(true)
        // Lax, not Strict: a link to an occurrence in a chat must open the occurrence, not the sign-in page. Every
        // change is a POST; from another site, Lax sends it without the cookie and the guard refuses it.
        .with_same_site(SameSite::Lax)
        .with_secure(config.is_secure())
        .with_path("/")
        // This is the lifetime of the cookie in the browser. The end of the session is in the table.
        .with_expiry(Expiry::OnInactivity(Duration::seconds(SESSION_LIFETIME.num_seconds())))
}

/// Returns the name of the cookie. Over TLS, the prefix `__Host-` makes browsers require `Secure`, `Path=/` and no
/// `Domain`.
#[must_use]
pub fn cookie_name(config: &HttpConfig) -> &'static str {
    if config.is_secure() { "__Host-milvaion_session" } else { "milvaion_session" }
}

/// Starts the session of a user who has just signed in. The session gets a new id and loses all earlier data.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be stored.
pub async fn sign_in_session(session: &Session, me: &CurrentUser, now: DateTime<Utc>) -> Result<(), AppError> {
    session.clear().await;
    session.cycle_id().await.map_err(unavailable)?;
    session.insert(SIGNED_IN_USER_KEY, SignedInUser { user: me.id, since: now }).await.map_err(unavailable)?;
    session.save().await.map_err(unavailable)
}

/// Ends the session. Its id is no longer valid.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be deleted.
pub async fn sign_out_session(session: &Session) -> Result<(), AppError> {
    session.flush().await.map_err(unavailable)
}

/// Returns the user of the session, unless the sign-in is older than seven days. The user may be deactivated or deleted
/// since; that is in the users table.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be read.
pub async fn user_of(session: &Session, now: DateTime<Utc>) -> Result<Option<UserId>, AppError> {
    let signed_in: Option<SignedInUser> = session.get(SIGNED_IN_USER_KEY).await.map_err(unavailable)?;
    Ok(signed_in.filter(|signed_in| now < signed_in.since + SESSION_LIFETIME).map(|signed_in| signed_in.user))
}

/// The state of a stored session, as an open event stream checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredSession {
    /// A session of this user.
    Active(UserId),
    /// A session that was not used for twelve hours or is older than seven days.
    Expired,
    /// A session that was signed out. Its row no longer exists.
    Deleted,
}

/// Reads the session from the table again, because a [`Session`] keeps what it has read. Unlike a request, this check
/// does not extend the session: an open stream is not a use of the dashboard.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be read.
pub async fn stored_session(store: &Store, session: &Session, now: DateTime<Utc>) -> Result<StoredSession, AppError> {
    let Some(id) = session.id() else { return Ok(StoredSession::Deleted) };
    // Read without its expiry, so that an expired session and a deleted one can be told apart.
    let row = store.session(&hash(id), DateTime::UNIX_EPOCH).await?;
    let Some(row) = row else { return Ok(StoredSession::Deleted) };
    let signed_in = row.data.get(SIGNED_IN_USER_KEY).and_then(|value| SignedInUser::deserialize(value).ok());
    Ok(match signed_in {
        None => StoredSession::Deleted,
        Some(signed_in) if row.expires_at <= now || now >= signed_in.since + SESSION_LIFETIME => StoredSession::Expired,
        Some(signed_in) => StoredSession::Active(signed_in.user),
    })
}

/// Stores a flash message for the next page. It replaces an earlier message of the same form. Form data beyond the size
/// limit is dropped.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be read.
pub async fn put_flash(session: &Session, mut flash: FlashMessage) -> Result<(), AppError> {
    let is_anonymous = session.get_value(SIGNED_IN_USER_KEY).await.map_err(unavailable)?.is_none();
    let limit = if is_anonymous { MAX_ANONYMOUS_FLASH_BYTES } else { MAX_FLASH_BYTES };
    if flash.typed.to_string().len() > limit {
        flash.typed = Value::Null;
    }
    let mut flashes = flashes(session).await?;
    if flashes.len() >= MAX_FLASHES {
        flashes.clear();
    }
    let form = flash.form.clone();
    flashes.insert(form, serde_json::to_value(flash).unwrap_or_default());
    session.insert(FLASHES_KEY, flashes).await.map_err(unavailable)
}

/// Returns the flash message of `form` and removes it from the session.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be read or stored.
pub async fn take_flash(session: &Session, form: &str) -> Result<Option<FlashMessage>, AppError> {
    let mut flashes = flashes(session).await?;
    let Some(flash) = flashes.remove(form) else { return Ok(None) };
    if flashes.is_empty() {
        session.remove_value(FLASHES_KEY).await.map_err(unavailable)?;
    } else {
        session.insert(FLASHES_KEY, flashes).await.map_err(unavailable)?;
    }
    // Saved here and not by the layer: a page that is streamed reads its messages after the layer has saved changes.
    session.save().await.map_err(unavailable)?;
    Ok(serde_json::from_value(flash).ok())
}

async fn flashes(session: &Session) -> Result<Map<String, Value>, AppError> {
    let value = session.get_value(FLASHES_KEY).await.map_err(unavailable)?;
    Ok(if let Some(Value::Object(flashes)) = value { flashes } else { Map::new() })
}

fn unavailable(error: session::Error) -> AppError {
    tracing::error!(error = %chain(&error), "a session could not be read or stored; check that PostgreSQL runs");
    AppError::Unavailable("The session cannot be read. Try again in a moment.".into())
}

/// The session table of PostgreSQL, as a backend of the session layer.
#[derive(Clone, Debug)]
pub struct PostgresSessionStore {
    store: Store,
    clock: Clock,
    outage: SessionOutage,
}

/// The last failed read of a session because of an outage. Clones share it.
#[derive(Clone, Debug, Default)]
struct SessionOutage(Arc<Mutex<Option<Instant>>>);

impl SessionOutage {
    fn is_recent(&self) -> bool {
        self.0.lock().is_ok_and(|failed_at| failed_at.is_some_and(|at| at.elapsed() < LOAD_RETRY_INTERVAL))
    }

    fn record(&self, is_outage: bool) {
        if let Ok(mut failed_at) = self.0.lock() {
            *failed_at = is_outage.then(Instant::now);
        }
    }
}

impl PostgresSessionStore {
    /// Uses the session table of `store` and checks expiry against `clock`.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, outage: SessionOutage::default() }
    }

    /// Reads the row of a session, in at most [`LOAD_TIMEOUT`].
    async fn read(&self, id: &Id, now: DateTime<Utc>) -> session_store::Result<Option<SessionRow>> {
        if self.outage.is_recent() {
            return Err(session_store::Error::Backend("PostgreSQL did not respond a moment ago".into()));
        }
        let Ok(answer) = tokio::time::timeout(LOAD_TIMEOUT, self.store.session(&hash(*id), now)).await else {
            self.outage.record(true);
            return Err(session_store::Error::Backend("PostgreSQL did not respond within 3 seconds".into()));
        };
        self.outage.record(answer.as_ref().is_err_and(StoreError::is_outage));
        answer.map_err(backend)
    }

    /// Builds the row that stores `record`.
    fn row(&self, record: &Record) -> SessionRow {
        let signed_in = record.data.get(SIGNED_IN_USER_KEY).and_then(|value| SignedInUser::deserialize(value).ok());
        let lifetime = if signed_in.is_some() { IDLE_TIMEOUT } else { FLASH_TTL };
        SessionRow {
            data: record.data.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into(),
            user_id: signed_in.map(|signed_in| signed_in.user),
            expires_at: self.clock.now() + lifetime,
        }
    }
}

#[async_trait]
impl SessionStore for PostgresSessionStore {
    async fn create(&self, record: &mut Record) -> session_store::Result<()> {
        // Always a new id: the old one would become valid again after sign-out.
        let random = self.clock.token();
        record.id = Id(i128::from_le_bytes(std::array::from_fn(|i| random[i])));
        let row = self.row(record);
        let added = self.store.insert_session(&hash(record.id), &row).await.map_err(backend)?;
        if added || row.user_id.is_none() {
            // A session without a user may be lost: the next page then shows no message.
            Ok(())
        } else {
            Err(session_store::Error::Backend("the new session id already exists".into()))
        }
    }

    async fn save(&self, record: &Record) -> session_store::Result<()> {
        // A session that has ended in the meantime, by a sign-out in another tab, stays ended.
        self.store.update_session(&hash(record.id), &self.row(record)).await.map_err(backend)?;
        Ok(())
    }

    async fn load(&self, id: &Id) -> session_store::Result<Option<Record>> {
        let now = self.clock.now();
        let Some(row) = self.read(id, now).await? else { return Ok(None) };
        let end = now + IDLE_TIMEOUT;
        if row.user_id.is_some() && row.expires_at + EXTEND_INTERVAL < end {
            self.store.extend_session(&hash(*id), end).await.map_err(backend)?;
        }
        let Value::Object(data) = row.data else {
            return Err(session_store::Error::Decode("sessions.data is not a JSON object".into()));
        };
        // The layer sets its own expiry date before it saves a record. It is not stored, so any value will do here.
        Ok(Some(Record { id: *id, data: data.into_iter().collect(), expiry_date: OffsetDateTime::UNIX_EPOCH }))
    }

    async fn delete(&self, id: &Id) -> session_store::Result<()> {
        self.store.delete_session(&hash(*id)).await.map_err(backend)
    }
}

fn hash(id: Id) -> [u8; 32] {
    Sha256::digest(id.0.to_le_bytes()).into()
}

fn backend(error: StoreError) -> session_store::Error {
    session_store::Error::Backend(chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outage_stops_reads_for_one_second() {
        let outage = SessionOutage::default();
        assert!(!outage.is_recent());
        outage.record(true);
        assert!(outage.clone().is_recent());
        tokio::time::advance(LOAD_RETRY_INTERVAL).await;
        assert!(!outage.is_recent());
        outage.record(true);
        outage.record(false);
        assert!(!outage.is_recent());
    }
}
