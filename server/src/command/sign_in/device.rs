//! Known devices: the token that a browser keeps after a sign-in.
//!
//! The token grants nothing. It only shows that a user has signed in from this browser before, so that the browser has
//! a sign-in limit of its own. A sign-out keeps it.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::TimeDelta;
use milvaion_protocol::id::UserId;
use sha2::{Digest, Sha256};

use crate::{
    clock::Clock,
    store::{Store, StoreError},
};

/// The time without a sign-in after which a device is no longer known.
pub const DEVICE_RETENTION: TimeDelta = TimeDelta::days(180);

/// The length of a token: 32 bytes in base64.
const TOKEN_CHARS: usize = 43;

/// Records that a user signed in from a device. Returns the token that the device must keep: the one that it
/// `presented` if the user knows the device, else a new one.
pub async fn remember(
    store: &Store,
    clock: &Clock,
    user: UserId,
    presented: Option<&str>,
) -> Result<String, StoreError> {
    let now = clock.now();
    if let Some(token) = presented
        && let Some(hash) = token_hash(token)
        && store.use_device(&hash, user, now, now - DEVICE_RETENTION).await?
    {
        return Ok(token.to_owned());
    }
    let token = URL_SAFE_NO_PAD.encode(clock.token());
    store.insert_device(&hash(&token), user, now).await?;
    Ok(token)
}

/// Returns the hash of a token; `None` if the text is no token, so that it need not be looked up.
pub fn token_hash(token: &str) -> Option<[u8; 32]> {
    (token.len() == TOKEN_CHARS).then(|| hash(token))
}

/// Returns the hash under which a token is stored.
pub(crate) fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_256_bits() {
        assert_eq!(URL_SAFE_NO_PAD.encode(Clock::system().token()).len(), TOKEN_CHARS);
        assert_eq!(token_hash("short"), None);
    }
}
