//! Sessions: who a browser belongs to, and what it is told on the next page.
//!
//! The cookie holds 128 random bits; the table knows them only by their hash. There is a session only when there is
//! something to keep: somebody signed in, or a plain form left a message. A session ends after twelve hours without a
//! request and seven days after signing in; both are judged here, by our clock, never by the age of the cookie. Whoever
//! signs in gets a new id, so an id that was planted before is worth nothing.

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use milvaion_api::views::CurrentUser;
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_protocol::id::UserId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
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

/// A session ends when it rests for so long.
const IDLE_TIMEOUT: TimeDelta = TimeDelta::hours(12);

/// A session ends so long after signing in, however busy it is.
const SESSION_LIFETIME: TimeDelta = TimeDelta::days(7);

/// A session of nobody's lives for so long: it only carries a message to the next page.
const FLASH_TTL: TimeDelta = TimeDelta::minutes(15);

/// A session's end is put off at most this often, so that reading a page does not always write.
const EXTEND_INTERVAL: TimeDelta = TimeDelta::minutes(5);

/// Messages kept at one time; with one more, all earlier ones go.
const MAX_FLASHES: usize = 8;

/// What a message may hold of what was typed, in bytes of JSON: a whole job form of somebody signed in, a name and an
/// address of anybody else.
const MAX_FLASH_BYTES: usize = 256 * 1_024;
const MAX_ANONYMOUS_FLASH_BYTES: usize = 2 * 1_024;

/// The keys in a session's data.
const SIGNED_IN_USER_KEY: &str = "person";
const FLASHES_KEY: &str = "flashes";

/// Who signed in, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SignedInUser {
    user: UserId,
    since: DateTime<Utc>,
}

/// The session layer: cookie and table. Every request behind it carries a [`Session`] in its extensions.
#[must_use]
pub fn layer(store: Store, clock: Clock, config: &HttpConfig) -> SessionManagerLayer<PostgresSessionStore> {
    SessionManagerLayer::new(PostgresSessionStore::new(store, clock))
        .with_name(cookie_name(config))
        .with_http_only(true)
        // Lax, not Strict: a link to an occurrence in a chat must open it, not the sign-in page. What changes anything
        // is a POST, which Lax keeps back and the guard refuses.
        .with_same_site(SameSite::Lax)
        .with_secure(config.is_secure())
        .with_path("/")
        // Only how long the browser keeps the cookie; when the session ends is the table's to say.
        .with_expiry(Expiry::OnInactivity(Duration::seconds(SESSION_LIFETIME.num_seconds())))
}

/// What the cookie is called. Over TLS its name makes browsers insist on `Secure`, `Path=/` and no `Domain`.
#[must_use]
pub fn cookie_name(config: &HttpConfig) -> &'static str {
    if config.is_secure() { "__Host-milvaion_session" } else { "milvaion_session" }
}

/// Begins the session of somebody who has just proved who they are: with a new id and nothing of what was before.
///
/// # Errors
///
/// `Unavailable` when it cannot be kept.
pub async fn sign_in_session(session: &Session, me: &CurrentUser, now: DateTime<Utc>) -> Result<(), AppError> {
    session.clear().await;
    session.cycle_id().await.map_err(unavailable)?;
    session.insert(SIGNED_IN_USER_KEY, SignedInUser { user: me.id, since: now }).await.map_err(unavailable)?;
    session.save().await.map_err(unavailable)
}

/// Ends the session; its id is dead from now on.
///
/// # Errors
///
/// `Unavailable` when it cannot be ended.
pub async fn sign_out_session(session: &Session) -> Result<(), AppError> {
    session.flush().await.map_err(unavailable)
}

/// Whose session it is, if it has not outlived its seven days. Says nothing about whether they may do anything: that
/// is in the users table.
///
/// # Errors
///
/// `Unavailable` when it cannot be looked up.
pub async fn user_of(session: &Session, now: DateTime<Utc>) -> Result<Option<UserId>, AppError> {
    let person: Option<SignedInUser> = session.get(SIGNED_IN_USER_KEY).await.map_err(unavailable)?;
    Ok(person.filter(|person| now < person.since + SESSION_LIFETIME).map(|person| person.user))
}

/// Keeps a message for the next page, in place of an earlier one of the same form. What was typed is left out when it is
/// too long to keep.
///
/// # Errors
///
/// `Unavailable` when it cannot be kept.
pub async fn put_flash(session: &Session, mut flash: FlashMessage) -> Result<(), AppError> {
    let is_nobodys = session.get_value(SIGNED_IN_USER_KEY).await.map_err(unavailable)?.is_none();
    let limit = if is_nobodys { MAX_ANONYMOUS_FLASH_BYTES } else { MAX_FLASH_BYTES };
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

/// Reads and forgets the message that `form` left.
///
/// # Errors
///
/// `Unavailable` when it cannot be looked up.
pub async fn take_flash(session: &Session, form: &str) -> Result<Option<FlashMessage>, AppError> {
    let mut flashes = flashes(session).await?;
    let Some(flash) = flashes.remove(form) else { return Ok(None) };
    if flashes.is_empty() {
        session.remove_value(FLASHES_KEY).await.map_err(unavailable)?;
    } else {
        session.insert(FLASHES_KEY, flashes).await.map_err(unavailable)?;
    }
    // Saved at once: a page that is sent piece by piece asks for its messages after the layer has looked for changes.
    session.save().await.map_err(unavailable)?;
    Ok(serde_json::from_value(flash).ok())
}

async fn flashes(session: &Session) -> Result<Map<String, Value>, AppError> {
    let value = session.get_value(FLASHES_KEY).await.map_err(unavailable)?;
    Ok(if let Some(Value::Object(flashes)) = value { flashes } else { Map::new() })
}

fn unavailable(error: session::Error) -> AppError {
    tracing::error!(error = %chain(&error), "a session could not be read or kept");
    AppError::Unavailable("The session cannot be looked up. Try again in a moment.".into())
}

/// Our table, as the session layer wants it.
#[derive(Clone, Debug)]
pub struct PostgresSessionStore {
    store: Store,
    clock: Clock,
}

impl PostgresSessionStore {
    /// The table `store` has, judged by `clock`.
    #[must_use]
    pub const fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock }
    }

    /// The row that keeps `record` from now on.
    fn row(&self, record: &Record) -> SessionRow {
        let person = record.data.get(SIGNED_IN_USER_KEY).and_then(|value| SignedInUser::deserialize(value).ok());
        let life = if person.is_some() { IDLE_TIMEOUT } else { FLASH_TTL };
        SessionRow {
            data: record.data.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into(),
            user_id: person.map(|person| person.user),
            expires_at: self.clock.now() + life,
        }
    }
}

#[async_trait]
impl SessionStore for PostgresSessionStore {
    async fn create(&self, record: &mut Record) -> session_store::Result<()> {
        // Never the id that was there: after signing out it would be alive again.
        let random = self.clock.token();
        record.id = Id(i128::from_le_bytes(std::array::from_fn(|i| random[i])));
        let row = self.row(record);
        let added = self.store.insert_session(&hash(record.id), &row).await.map_err(backend)?;
        if added || row.user_id.is_none() {
            // Without a person a session may be dropped: the next page then has no message to show.
            Ok(())
        } else {
            Err(session_store::Error::Backend("the new session id was taken".into()))
        }
    }

    async fn save(&self, record: &Record) -> session_store::Result<()> {
        // A session that was ended meanwhile, by signing out in another tab, stays ended.
        self.store.update_session(&hash(record.id), &self.row(record)).await.map_err(backend)?;
        Ok(())
    }

    async fn load(&self, id: &Id) -> session_store::Result<Option<Record>> {
        let now = self.clock.now();
        let Some(row) = self.store.session(&hash(*id), now).await.map_err(backend)? else { return Ok(None) };
        let end = now + IDLE_TIMEOUT;
        if row.user_id.is_some() && row.expires_at + EXTEND_INTERVAL < end {
            self.store.extend_session(&hash(*id), end).await.map_err(backend)?;
        }
        let Value::Object(data) = row.data else {
            return Err(session_store::Error::Decode("sessions.data is no JSON object".into()));
        };
        // The layer writes its own idea of the end into a record before it saves it, and we read none of it.
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
