//! Settings for PostgreSQL.

use super::EnvReader;

/// The connections of the consumers of reports: one for each of them.
pub const REPORT_CONNECTIONS: u32 = 3;
/// The connections that each have one owner or one purpose: those of the dispatcher, of the lease and of the consumers of
/// reports.
const OWN_CONNECTIONS: u32 = 2 + REPORT_CONNECTIONS;

/// The connections to PostgreSQL.
#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// The address of PostgreSQL: the value of `DATABASE_URL`, or the address of the private PostgreSQL.
    pub url: String,
    /// `DATABASE_CONNECTIONS`: maximum number of connections that this server opens. From 10 to 200. Default 16.
    pub max_connections: u32,
}

impl DatabaseConfig {
    /// Reads the settings from the environment, except the address.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self { url: String::new(), max_connections: read.number("DATABASE_CONNECTIONS", 16, 10, 200) }
    }

    /// Returns the settings for the requests of users: half of the connections that have no other purpose, so that no
    /// number of requests can take those of the services.
    #[must_use]
    pub fn for_web(&self) -> Self {
        Self { max_connections: (self.max_connections.saturating_sub(OWN_CONNECTIONS) / 2).max(1), ..self.clone() }
    }

    /// Returns the settings for the services that share connections: the rest.
    #[must_use]
    pub fn for_background(&self) -> Self {
        let rest = self.max_connections.saturating_sub(OWN_CONNECTIONS + self.for_web().max_connections);
        Self { max_connections: rest.max(1), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_setting() {
        for (max_connections, background, web) in [(10, 3, 2), (11, 3, 3), (16, 6, 5), (200, 98, 97)] {
            let config = DatabaseConfig { url: String::new(), max_connections };
            let shares = (config.for_background().max_connections, config.for_web().max_connections);
            assert_eq!(shares, (background, web), "{max_connections}");
            assert_eq!(shares.0 + shares.1 + OWN_CONNECTIONS, max_connections);
        }
    }
}
