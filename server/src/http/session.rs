//! Sessions: the signed-in user of a browser, and the flash messages for its next page.
//!
//! The cookie holds 128 random bits, and the table stores only their hash. A session exists only if there is something
//! to store: a user has signed in, or a plain form left a flash message. A session ends after twelve hours without a
//! request and seven days after sign-in. Both limits are checked here against the server's clock, never against the age
//! of the cookie. Signing in changes the session id, so an attacker gains nothing by planting an id before.
//!
//! A session also ends when it is revoked or when the passphrase is changed. A sign-in with the old passphrase may be
//! under way meanwhile, so a session that began before the last change of the passphrase is refused too.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use http::{header, request::Parts};
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
    store::{
        Store, StoreError,
        sessions::{SessionEnd, SessionRow},
        users::UserRow,
    },
};

/// The time without a request after which a session ends.
const IDLE_TIMEOUT: TimeDelta = TimeDelta::hours(12);

/// The time after sign-in at which a session ends, however busy it is.
const SESSION_LIFETIME: TimeDelta = TimeDelta::days(7);

/// The lifetime of a session without a user. It only carries a flash message to the next page.
const FLASH_TTL: TimeDelta = TimeDelta::minutes(15);

/// The shortest time between two extensions of a session, so that not every page view writes to the database.
const EXTEND_INTERVAL: TimeDelta = TimeDelta::minutes(1);

/// The longest part of a header User-Agent that is stored, in characters.
const MAX_USER_AGENT_CHARS: usize = 300;

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

/// The user of a session, and the time and the origin of the sign-in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignedInUser {
    /// The user. It may be deactivated or deleted since.
    pub user: UserId,
    /// The time of the sign-in, before the passphrase was verified.
    since: DateTime<Utc>,
    #[serde(default)]
    origin: SessionOrigin,
}

impl SignedInUser {
    /// Returns the signed-in user of the data of a session.
    fn of(value: Option<&Value>) -> Option<Self> {
        value.and_then(|value| Self::deserialize(value).ok())
    }

    /// Returns true if `user` is active and has not changed the passphrase since the sign-in.
    #[must_use]
    pub fn is_valid_for(&self, user: &UserRow) -> bool {
        user.is_active && !self.is_older_than_passphrase_of(user)
    }

    /// Returns true if `user` has changed the passphrase since the sign-in.
    #[must_use]
    pub fn is_older_than_passphrase_of(&self, user: &UserRow) -> bool {
        user.passphrase_changed_at.is_some_and(|changed_at| self.since < changed_at)
    }
}

/// The origin of a sign-in, for the list of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionOrigin {
    /// The network address of the client, if it is known.
    pub address: Option<IpAddr>,
    /// The header User-Agent, at most 300 characters.
    pub user_agent: Option<String>,
}

impl SessionOrigin {
    /// Returns the origin of a request from `address`.
    #[must_use]
    pub fn of(parts: &Parts, address: Option<IpAddr>) -> Self {
        let header = parts.headers.get(header::USER_AGENT);
        let user_agent =
            header.map(|value| String::from_utf8_lossy(value.as_bytes()).chars().take(MAX_USER_AGENT_CHARS).collect());
        Self { address, user_agent }
    }
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

/// Starts the session of a user who has just signed in. The session gets a new id and loses all earlier data. `since` is
/// a time before the passphrase was verified: if the passphrase is changed meanwhile, the session is not valid.
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be stored.
pub async fn sign_in_session(
    session: &Session,
    me: &CurrentUser,
    since: DateTime<Utc>,
    origin: SessionOrigin,
) -> Result<(), AppError> {
    session.clear().await;
    session.cycle_id().await.map_err(unavailable)?;
    let signed_in = SignedInUser { user: me.id, since, origin };
    session.insert(SIGNED_IN_USER_KEY, signed_in).await.map_err(unavailable)?;
    session.save().await.map_err(unavailable)
}

/// Returns the hash of the id of a session, by which the table finds it; `None` if the session is not stored.
#[must_use]
pub fn id_hash(session: &Session) -> Option<[u8; 32]> {
    session.id().map(hash)
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
/// since, or have changed the passphrase; see [`SignedInUser::is_valid_for`].
///
/// # Errors
///
/// Returns `Unavailable` if the session cannot be read.
pub async fn user_of(session: &Session, now: DateTime<Utc>) -> Result<Option<SignedInUser>, AppError> {
    let signed_in: Option<SignedInUser> = session.get(SIGNED_IN_USER_KEY).await.map_err(unavailable)?;
    Ok(signed_in.filter(|signed_in| now < signed_in.since + SESSION_LIFETIME))
}

/// The state of a stored session, as an open event stream checks it.
#[derive(Clone, Debug)]
pub enum StoredSession {
    /// A session of this user.
    Active(SignedInUser),
    /// A session that was not used for twelve hours or is older than seven days.
    Expired,
    /// A session that was ended before its expiry.
    Ended(SessionEnd),
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
    let Some((row, end)) = store.session_with_end(&hash(id)).await? else { return Ok(StoredSession::Deleted) };
    if let Some(end) = end {
        return Ok(StoredSession::Ended(end));
    }
    Ok(match SignedInUser::of(row.data.get(SIGNED_IN_USER_KEY)) {
        None => StoredSession::Deleted,
        Some(signed_in) if row.expires_at <= now || now >= signed_in.since + SESSION_LIFETIME => StoredSession::Expired,
        Some(signed_in) => StoredSession::Active(signed_in),
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
    // The layer between the store and this function passes only the text.
    let exhausted = StoreError::Exhausted.to_string();
    if matches!(&error, session::Error::Store(session_store::Error::Backend(cause)) if *cause == exhausted) {
        return StoreError::Exhausted.into();
    }
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
        // A full pool is no outage: the next request may find a free connection.
        let is_outage = |error: &StoreError| error.is_outage() && !matches!(error, StoreError::Exhausted);
        self.outage.record(answer.as_ref().is_err_and(is_outage));
        answer.map_err(backend)
    }

    /// Builds the row that stores `record`.
    fn row(&self, record: &Record) -> SessionRow {
        let signed_in = SignedInUser::of(record.data.get(SIGNED_IN_USER_KEY));
        let now = self.clock.now();
        let expires_at = signed_in.as_ref().map_or(now + FLASH_TTL, |signed_in| expiry(signed_in.since, now));
        let origin = signed_in.as_ref().map(|signed_in| signed_in.origin.clone()).unwrap_or_default();
        SessionRow {
            data: record.data.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into(),
            user_id: signed_in.as_ref().map(|signed_in| signed_in.user),
            created_at: signed_in.map_or(now, |signed_in| signed_in.since),
            last_seen_at: now,
            expires_at,
            address: origin.address.map(|address| address.to_string()),
            user_agent: origin.user_agent,
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
        if let Some(user) = row.user_id.filter(|_| now >= row.last_seen_at + EXTEND_INTERVAL) {
            let expires_at = expiry(row.created_at, now);
            self.store.extend_session(&hash(*id), user, now, expires_at).await.map_err(backend)?;
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

/// Returns the expiry of a session of a user that is used now.
fn expiry(since: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
    (now + IDLE_TIMEOUT).min(since + SESSION_LIFETIME)
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
