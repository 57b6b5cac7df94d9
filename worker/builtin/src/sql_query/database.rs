//! The configured databases.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use sqlx::{ConnectOptions, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use url::Url;

use crate::guard::{ProtectedBackend, normalize_host};

/// A database, configured by a URL.
#[derive(Clone, Debug)]
pub(crate) enum SqlDatabase {
    Postgres { options: Box<PgConnectOptions>, password: Option<String> },
    Sqlite { options: Box<SqliteConnectOptions> },
}

impl SqlDatabase {
    /// Returns the password, which must not appear in any text.
    pub(super) fn password(&self) -> Option<&str> {
        match self {
            Self::Postgres { password, .. } => password.as_deref(),
            Self::Sqlite { .. } => None,
        }
    }

    /// Returns the host and the port of the server, so that no HTTP request is sent there.
    pub(crate) fn backend(&self) -> Option<ProtectedBackend> {
        match self {
            Self::Postgres { options, .. } => {
                Some(ProtectedBackend { host: normalize_host(options.get_host()), port: options.get_port() })
            }
            Self::Sqlite { .. } => None,
        }
    }
}

impl FromStr for SqlDatabase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An error of sqlx is not shown: it may repeat the URL with its password.
        let wrong = || "give postgres://user:password@host:5432/database or sqlite:/path/to/file.db".to_owned();
        // Statements are not logged. sqlx would log slow ones at a level that is shown by default.
        if text.starts_with("sqlite:") {
            let options = SqliteConnectOptions::from_str(text).map_err(|_| wrong())?.disable_statement_logging();
            return Ok(Self::Sqlite { options: Box::new(options) });
        }
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(wrong());
        }
        let url = Url::parse(text).map_err(|_| wrong())?;
        let options = PgConnectOptions::from_str(text).map_err(|_| wrong())?;
        let password = url.password().map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        let options = options.disable_statement_logging().application_name("milvaion-worker");
        Ok(Self::Postgres { options: Box::new(options), password })
    }
}
