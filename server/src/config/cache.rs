//! Settings for Redis.

use milvaion_protocol::topology;

use super::EnvReader;

/// The connection to Redis.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// The address of Redis: the value of `REDIS_URL`, or the address of the private Redis.
    pub url: String,
    /// `MILVAION_KEY_PREFIX`: prefix of all keys; the workers need the same value. Default `Milvaion:JobScheduler:`.
    pub key_prefix: String,
}

impl CacheConfig {
    /// Reads the settings from the environment, except the address.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            url: String::new(),
            key_prefix: read.text("MILVAION_KEY_PREFIX").unwrap_or_else(|| topology::DEFAULT_REDIS_KEY_PREFIX.into()),
        }
    }
}
