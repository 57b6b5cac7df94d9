//! Changes of a user's account: the name, the passphrase and the sessions that end.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::UserId;
use serde_json::json;

use super::{Result, Store, lock_user};
use crate::store::{
    audit::{self, AuditEntry},
    pool::StoreTransaction,
    sessions::{EndedSessions, SessionEnd, end_sessions},
};

/// A new passphrase, with the session and the device that remain. Not `Debug`, so that no log can contain a hash.
pub struct NewPassphrase<'a> {
    /// The hash of the new passphrase: argon2id in PHC string format.
    pub hash: &'a str,
    /// The hash of the id of the session in which the passphrase is changed. Its successor replaces it.
    pub session: Option<&'a [u8; 32]>,
    /// The hash of the token of the known device on which the passphrase is changed. All others are forgotten.
    pub device: Option<&'a [u8; 32]>,
}

impl<'a> NewPassphrase<'a> {
    /// Returns a passphrase that was chosen with a one-time link: no session and no device remains.
    pub(super) const fn of_link(hash: &'a str) -> Self {
        Self { hash, session: None, device: None }
    }
}

impl Store {
    /// Renames a user and inserts the audit row `entry`. Returns false if the user does not exist or has this name.
    pub async fn rename_user(&self, id: UserId, name: &str, entry: AuditEntry) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let Some(user) = lock_user(&mut tx, id).await?.filter(|user| user.name != name) else { return Ok(false) };
        sqlx::query!("UPDATE users SET name = $2 WHERE id = $1", id.0, name).execute(&mut tx).await?;
        let entry = entry.change(Some(json!({ "name": user.name })), Some(json!({ "name": name })));
        audit::record(&mut tx, &entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Changes the passphrase of a user whose stored hash is still `verified_hash`: ends all other sessions, forgets all
    /// other devices, deletes an open link for a new passphrase and inserts the audit row `entry`, all or nothing.
    /// Returns false, and changes nothing, if the hash has changed since, or the user is deactivated.
    pub async fn change_passphrase(
        &self,
        id: UserId,
        verified_hash: &str,
        new: &NewPassphrase<'_>,
        entry: AuditEntry,
    ) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        if !lock_user(&mut tx, id).await?.is_some_and(|user| user.is_active) {
            return Ok(false);
        }
        let stored =
            sqlx::query_scalar!("SELECT passphrase_hash FROM users WHERE id = $1", id.0).fetch_one(&mut tx).await?;
        if stored != verified_hash {
            return Ok(false);
        }
        let ended = store_passphrase(&mut tx, id, new, entry.at).await?;
        sqlx::query!("DELETE FROM one_time_links WHERE user_id = $1", id.0).execute(&mut tx).await?;
        audit::record(&mut tx, &entry.change(None, Some(json!({ "endedSessions": ended })))).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Ends sessions of a user and, if there were any, inserts the audit row `entry`. Returns their number, or `None` if
    /// `which` names a session that does not exist or belongs to another user. A session that has ended already counts
    /// as none.
    pub async fn end_sessions(&self, user: UserId, which: EndedSessions<'_>, entry: AuditEntry) -> Result<Option<u32>> {
        let mut tx = self.pool().begin().await?;
        if lock_user(&mut tx, user).await?.is_none() {
            return Ok(None);
        }
        if let EndedSessions::ById(id) = which {
            let exists = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM sessions WHERE id = $1 AND user_id = $2) AS "exists!""#,
                id.0,
                user.0
            )
            .fetch_one(&mut tx)
            .await?;
            if !exists {
                return Ok(None);
            }
        }
        let ended = end_sessions(&mut tx, user, which, SessionEnd::Revoked, entry.at).await?;
        if ended > 0 {
            let entry = match which {
                EndedSessions::ById(id) => entry.change(Some(json!({ "session": id })), None),
                _ => entry.change(None, Some(json!({ "endedSessions": ended }))),
            };
            audit::record(&mut tx, &entry).await?;
            tx.commit().await?;
        }
        Ok(Some(ended))
    }
}

/// Stores a passphrase, ends the sessions of the user and forgets the devices, except those in `new`. The user must be
/// locked. Returns the number of ended sessions.
pub(super) async fn store_passphrase(
    connection: &mut StoreTransaction,
    id: UserId,
    new: &NewPassphrase<'_>,
    now: DateTime<Utc>,
) -> Result<u32> {
    sqlx::query!(
        "UPDATE users SET passphrase_hash = $2, passphrase_changed_at = $3 WHERE id = $1",
        id.0,
        new.hash,
        now
    )
    .execute(&mut *connection)
    .await?;
    let which = new.session.map_or(EndedSessions::All, EndedSessions::AllExcept);
    let ended = end_sessions(connection, id, which, SessionEnd::PassphraseChanged, now).await?;
    if let Some(session) = new.session {
        // An open stream of this session must reconnect with the new one, and not report the end of the session.
        end_sessions(connection, id, EndedSessions::ByHash(session), SessionEnd::Replaced, now).await?;
    }
    sqlx::query!(
        "DELETE FROM known_devices WHERE user_id = $1 AND token_hash IS DISTINCT FROM $2",
        id.0,
        new.device.map(<[u8; 32]>::as_slice)
    )
    .execute(connection)
    .await?;
    Ok(ended)
}
