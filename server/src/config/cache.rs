//! Redis.

use milvaion_protocol::topology;

use super::EnvReader;

/// How to reach the fast clock.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// `REDIS_URL`: as in `redis://:password@host:6379`. An embedded one when not set.
    pub url: String,
    /// `MILVAION_KEY_PREFIX`: what every key starts with. Default `Milvaion:JobScheduler:`. Workers must agree.
    pub key_prefix: String,
}

impl CacheConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            url: String::new(),
            key_prefix: read.text("MILVAION_KEY_PREFIX").unwrap_or_else(|| topology::DEFAULT_REDIS_KEY_PREFIX.into()),
        }
    }
}
