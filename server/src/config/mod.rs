//! Settings of the server, read from environment variables.
//!
//! Each concern has one struct. The documentation of each field names the environment variable, the unit, the bounds
//! and the default. All variables are read once, at start. All errors are reported together, each in a sentence that
//! names the variable and the remedy.

pub mod alerts;
pub mod background;
pub mod broker;
pub mod cache;
pub mod database;
pub mod error;
pub mod http;
pub mod lost_runs;
pub mod metrics;
pub mod retention;
pub mod secret_text;

use std::{env, fmt::Display, path::PathBuf, str::FromStr};

/// All settings of the server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// `DATABASE_URL`: address of PostgreSQL, as in `postgres://user:password@host/database`. Starts with `postgres://`
    /// or `postgresql://`. Default none: a private PostgreSQL is started.
    pub database_url: Option<String>,
    /// `REDIS_URL`: address of Redis, as in `redis://:password@host:6379`. Starts with `redis://` or `rediss://`.
    /// Default none: a private Redis is started.
    pub redis_url: Option<String>,
    /// `AMQP_URL`: address of RabbitMQ, as in `amqp://user:password@host:5672/%2f`. Starts with `amqp://` or
    /// `amqps://`. Default none: a private RabbitMQ is started.
    pub amqp_url: Option<String>,
    /// `MILVAION_DATA`: folder for the data and the logs of private services; the option `--data` takes precedence.
    /// Default `.milvaion`.
    pub data_dir: PathBuf,
    /// The settings for PostgreSQL; the address is filled in once the services run.
    pub database: database::DatabaseConfig,
    /// The settings for Redis; the address is filled in once the services run.
    pub cache: cache::CacheConfig,
    /// The settings for RabbitMQ; the address is filled in once the services run.
    pub broker: broker::BrokerConfig,
    /// The settings for the HTTP server.
    pub http: http::HttpConfig,
    /// The settings for auto-disable and alerts.
    pub alerts: alerts::AlertsConfig,
    /// The settings for background tasks.
    pub background: background::BackgroundConfig,
    /// The settings for lost runs and lost messages.
    pub lost_runs: lost_runs::LostRunConfig,
    /// The settings for metrics.
    pub metrics: metrics::MetricsConfig,
    /// The settings for retention.
    pub retention: retention::RetentionConfig,
}

impl ServerConfig {
    /// Reads all settings from the environment.
    ///
    /// # Errors
    ///
    /// Returns [`error::InvalidSettings`] with one sentence for each variable that has an invalid value.
    pub fn from_env() -> Result<Self, error::InvalidSettings> {
        let mut read = EnvReader::default();
        let url = |read: &mut EnvReader, name: &str, schemes: &[&str]| {
            let value = read.text(name)?;
            if schemes.iter().any(|scheme| value.starts_with(scheme)) {
                return Some(value);
            }
            read.add_error(name, &format!("it must start with {}", schemes.join(" or ")));
            None
        };
        let config = Self {
            database_url: url(&mut read, "DATABASE_URL", &["postgres://", "postgresql://"]),
            redis_url: url(&mut read, "REDIS_URL", &["redis://", "rediss://"]),
            amqp_url: url(&mut read, "AMQP_URL", &["amqp://", "amqps://"]),
            data_dir: read.text("MILVAION_DATA").map_or_else(|| PathBuf::from(".milvaion"), PathBuf::from),
            database: database::DatabaseConfig::read(&mut read),
            cache: cache::CacheConfig::read(&mut read),
            broker: broker::BrokerConfig::read(&mut read),
            http: http::HttpConfig::read(&mut read),
            alerts: alerts::AlertsConfig::read(&mut read),
            background: background::BackgroundConfig::read(&mut read),
            lost_runs: lost_runs::LostRunConfig::read(&mut read),
            metrics: metrics::MetricsConfig::read(&mut read),
            retention: retention::RetentionConfig::read(&mut read),
        };
        if read.errors.is_empty() { Ok(config) } else { Err(error::InvalidSettings(read.errors)) }
    }
}

/// A reader of environment variables that collects errors.
#[derive(Debug, Default)]
pub struct EnvReader {
    errors: Vec<String>,
}

impl EnvReader {
    /// Returns the trimmed value of a variable; `None` if it is unset or empty.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match env::var(name) {
            Ok(value) if !value.trim().is_empty() => Some(value.trim().to_owned()),
            Ok(_) | Err(env::VarError::NotPresent) => None,
            Err(env::VarError::NotUnicode(_)) => {
                self.add_error(name, "its value is not UTF-8");
                None
            }
        }
    }

    /// Returns the number in a variable, or `default` if it is unset. Adds an error if the value is not a number from
    /// `low` to `high`.
    pub fn number<T>(&mut self, name: &str, default: T, low: T, high: T) -> T
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let Some(text) = self.text(name) else { return default };
        match text.parse::<T>() {
            Ok(value) if value >= low && value <= high => value,
            _ => {
                self.add_error(name, &format!("give a whole number from {low} to {high}, not {text:?}"));
                default
            }
        }
    }

    /// Adds an error about the variable `name`; `reason` is a clause that states the remedy.
    pub fn add_error(&mut self, name: &str, reason: &str) {
        self.errors.push(format!("{name} is invalid: {reason}."));
    }
}
