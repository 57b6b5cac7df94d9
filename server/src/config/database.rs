//! PostgreSQL.

use super::EnvReader;

/// How to reach the truth.
#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// `DATABASE_URL`: as in `postgres://user:password@host/database`. An embedded one when not set.
    pub url: String,
    /// `DATABASE_CONNECTIONS`: the most connections this server opens, 4 to 200. Default 16.
    pub max_connections: u32,
}

impl DatabaseConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self { url: String::new(), max_connections: read.number("DATABASE_CONNECTIONS", 16, 4, 200) }
    }
}
