//! The databases of the configuration.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use sqlx::{ConnectOptions, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use url::Url;

use crate::guard::{ProtectedBackend, normalize_host};

/// A database, by its address.
#[derive(Clone, Debug)]
pub(crate) enum SqlDatabase {
    Postgres { options: Box<PgConnectOptions>, password: Option<String> },
    Sqlite { options: Box<SqliteConnectOptions> },
}

impl SqlDatabase {
    /// What must not be read in any text.
    pub(super) fn password(&self) -> Option<&str> {
        match self {
            Self::Postgres { password, .. } => password.as_deref(),
            Self::Sqlite { .. } => None,
        }
    }

    /// Where it listens, so that no HTTP request is made to it.
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
        // What sqlx says about an address may repeat it, password and all.
        let wrong = || "write postgres://user:password@host:5432/database or sqlite:/path/to/file.db".to_owned();
        // Statements are not logged: slow ones would be, at a level that is seen.
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
