//! Settings for PostgreSQL.

use super::EnvReader;

/// The connection pool to PostgreSQL.
#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// The address of PostgreSQL: the value of `DATABASE_URL`, or the address of the private PostgreSQL.
    pub url: String,
    /// `DATABASE_CONNECTIONS`: maximum number of connections that this server opens. From 8 to 200. Default 16.
    pub max_connections: u32,
}

impl DatabaseConfig {
    /// Reads the settings from the environment, except the address.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self { url: String::new(), max_connections: read.number("DATABASE_CONNECTIONS", 16, 8, 200) }
    }
}
