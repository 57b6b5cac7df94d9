//! What can be set from outside.
//!
//! One struct for each concern, every setting with its environment variable, unit, default and bound beside it. All are
//! read once, at start, and every mistake is told at once, in a sentence that names the variable and the remedy.

pub mod alerts;
pub mod background;
pub mod broker;
pub mod cache;
pub mod database;
pub mod http;
pub mod lost_runs;
pub mod retention;

use std::{env, fmt::Display, path::PathBuf, str::FromStr};

/// Everything.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// PostgreSQL; none means an embedded one.
    pub database_url: Option<String>,
    /// Redis; none means an embedded one.
    pub redis_url: Option<String>,
    /// RabbitMQ; none means an embedded one.
    pub amqp_url: Option<String>,
    /// `MILVAION_DATA`: where embedded services keep data and logs. Default `.milvaion`.
    pub data_dir: PathBuf,
    /// See [`database::DatabaseConfig`]; the URL is filled in once services are up.
    pub database: database::DatabaseConfig,
    /// See [`cache::CacheConfig`].
    pub cache: cache::CacheConfig,
    /// See [`broker::BrokerConfig`].
    pub broker: broker::BrokerConfig,
    /// See [`http::HttpConfig`].
    pub http: http::HttpConfig,
    /// See [`alerts::AlertsConfig`].
    pub alerts: alerts::AlertsConfig,
    /// See [`background::BackgroundConfig`].
    pub background: background::BackgroundConfig,
    /// See [`lost_runs::LostRunConfig`].
    pub lost_runs: lost_runs::LostRunConfig,
    /// See [`retention::RetentionConfig`].
    pub retention: retention::RetentionConfig,
}

impl ServerConfig {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// Every mistake, one sentence each.
    pub fn from_env() -> Result<Self, Vec<String>> {
        let mut read = EnvReader::default();
        let url = |read: &mut EnvReader, name: &str, schemes: &[&str]| {
            let value = read.text(name)?;
            if schemes.iter().any(|scheme| value.starts_with(scheme)) {
                return Some(value);
            }
            read.wrong(name, &format!("it must start with {}", schemes.join(" or ")));
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
            retention: retention::RetentionConfig::read(&mut read),
        };
        if read.mistakes.is_empty() { Ok(config) } else { Err(read.mistakes) }
    }
}

/// Reads variables and collects what is wrong with them.
#[derive(Debug, Default)]
pub struct EnvReader {
    mistakes: Vec<String>,
}

impl EnvReader {
    /// A variable that is set and not empty.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match env::var(name) {
            Ok(value) if !value.trim().is_empty() => Some(value.trim().to_owned()),
            Ok(_) | Err(env::VarError::NotPresent) => None,
            Err(env::VarError::NotUnicode(_)) => {
                self.wrong(name, "it is not UTF-8");
                None
            }
        }
    }

    /// A number within bounds, or its default.
    pub fn number<T>(&mut self, name: &str, default: T, low: T, high: T) -> T
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let Some(text) = self.text(name) else { return default };
        match text.parse::<T>() {
            Ok(value) if value >= low && value <= high => value,
            _ => {
                self.wrong(name, &format!("it takes a whole number from {low} to {high}: got {text}"));
                default
            }
        }
    }

    /// Notes a mistake.
    pub fn wrong(&mut self, name: &str, what: &str) {
        self.mistakes.push(format!("{name} cannot be used: {what}."));
    }
}
