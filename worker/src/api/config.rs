//! The settings of a worker, with their defaults and bounds.

use std::{collections::BTreeMap, fmt, net::SocketAddr, ops::RangeInclusive, path::Path, time::Duration};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::AttemptLogBounds,
    topology::{DEFAULT_BROKER_PREFIX, DEFAULT_REDIS_KEY_PREFIX, is_valid_name},
};

mod file;

use crate::{
    api::error::{ConfigErrors, WorkerError},
    reporting::log_buffer::LogBounds,
    reporting::outbox::Outbox,
    singleton::options::{LoopOverrides, read_overrides},
};

/// True if the SDK was built with a TLS library.
const HAS_TLS: bool = cfg!(any(feature = "native-tls", feature = "rustls"));

/// The settings of a worker: its services, its limits and its timeouts.
///
/// [`from_env`](Self::from_env) reads the environment variables named below. [`default`](Self::default) holds the value
/// of each setting whose variable is unset. [`WorkerBuilder::build`](crate::WorkerBuilder::build) checks the bounds, so
/// they also apply to values that are set in code:
///
/// ```
/// let mut config = milvaion_worker::WorkerConfig::default();
/// config.capacity = 20;
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// `AMQP_URL`: the address of RabbitMQ, `amqp://` or `amqps://`. The virtual host `/` is written `%2f`.
    /// Default `amqp://127.0.0.1:5672/%2f`.
    pub amqp_url: String,
    /// `REDIS_URL`: the address of Redis, `redis://` or `rediss://`. Default `redis://127.0.0.1:6379/0`.
    pub redis_url: String,
    /// `MILVAION_WORKER_ID`: the worker this instance belongs to, to which jobs are addressed: 1 to 100 letters,
    /// digits, `-`, `_` and `.`. Default `default`.
    pub worker_id: String,
    /// `MILVAION_PREFIX`: the prefix of the names of exchanges and queues, 1 to 50 letters, digits, `-`, `_` and `.`.
    /// Must be equal on the server. Default `milvaion`.
    pub prefix: String,
    /// `MILVAION_KEY_PREFIX`: the prefix of keys in Redis, 1 to 100 characters without whitespace. Must be equal on the
    /// server. Default `Milvaion:JobScheduler:`.
    pub key_prefix: String,
    /// `MILVAION_CAPACITY`: the maximum number of concurrent runs of all job types. From 1 to 10,000. Default
    /// 50.
    pub capacity: u32,
    /// `MILVAION_CRITICAL_SLOTS`: the number of concurrent runs that are reserved for the priority 5 (critical), beside the
    /// capacity and beside the concurrency limits of the job types. With it, critical runs have a queue of their own, and start
    /// at once although all permits are taken. All instances of a worker should have as many. From 0 to 1,000. Default 0.
    pub critical_slots: u32,
    /// `MILVAION_CONCURRENCY`: concurrency limits per job type, such as `http-request=200,send-mail=5`. They override
    /// [`Job::CONCURRENCY`](crate::Job::CONCURRENCY). A type whose runs last only milliseconds needs a high limit: it
    /// starts at most this many runs in the few milliseconds the broker takes to confirm. From 1 to 1,000. Default none.
    pub concurrency: BTreeMap<String, u16>,
    /// `MILVAION_SHUTDOWN_GRACE_SECONDS`: the time, in seconds, for which runs may continue after SIGTERM
    /// before they are interrupted. Kubernetes kills a process 30 seconds after SIGTERM, Docker after 10, and interrupted
    /// runs must be reported before. From 0 to 3,600. Default 20.
    pub shutdown_grace: Duration,
    /// `MILVAION_OUTBOX`: the location of the outbox, which stores reports and log lines until the broker confirms
    /// them, so that they survive the process: a folder, which the instances of one machine can share; a file that ends
    /// in `.sqlite`, which only one process can use; or `off`. Default `$STATE_DIRECTORY`, else
    /// `$XDG_STATE_HOME/milvaion`, else `~/.local/state/milvaion`.
    pub outbox: Outbox,
    /// `MILVAION_OUTBOX_LINES`: the maximum number of log lines that wait for an unavailable broker. Beyond it the oldest
    /// lines are dropped, and the log of their run says how many. Also applies without an outbox. From 100 to 10,000,000. Default 100,000.
    pub outbox_lines: u32,
    /// `MILVAION_OUTBOX_MEGABYTES`: the maximum size, in megabytes, of the log lines that wait for the broker. The same
    /// limit applies in memory and on disk, and to a burst of lines that the worker has not encoded into batches yet. From 1 to 10,000. Default 64.
    pub outbox_megabytes: u32,
    /// `MILVAION_LOG_LINES`: the maximum number of log lines of an attempt that are sent at once. Of further lines, the newest
    /// are sent every 10 seconds and at the end of the attempt, up to four fifths of this number each time, and the log says
    /// how many are missing. The server keeps the `LOG_LINES` that it is set to. From 100 to 1,000,000. Default 10,000.
    pub log_lines: u32,
    /// `MILVAION_LOG_MEGABYTES`: the maximum size, in MiB, of the log lines of an attempt that are sent at once; further lines
    /// are treated as with `MILVAION_LOG_LINES`. A run that writes without pause takes up to four fifths of it in memory.
    /// `MILVAION_OUTBOX_MEGABYTES` should be several times as large, because lines that do not fit into it are dropped. From
    /// 1 to 256. Default 4.
    pub log_megabytes: u32,
    /// `MILVAION_HEALTH`: the listen address of `/health/live`, `/health/ready` and the Prometheus endpoint `/metrics`,
    /// such as `0.0.0.0:9100`. These endpoints require no authentication. Default none.
    pub health: Option<SocketAddr>,
    /// `MILVAION_SINGLETONS`: overrides of options of singleton loops, such as
    /// `price-feed.period=250ms;report.enabled=false`; see [`LoopOverrides`]. In the configuration file `singletons` is a
    /// table with one table for each loop. Default none.
    pub singletons: BTreeMap<String, LoopOverrides>,
    /// Timeout of a run if neither the job nor its job type sets one, 1 second to 7 days. Has no environment variable.
    /// Default one hour.
    pub default_timeout: Duration,
}

/// Upper bound of [`WorkerConfig::capacity`].
const MAX_CAPACITY: u32 = 10_000;
/// Upper bound of [`WorkerConfig::critical_slots`], which are the prefetch of the queues of critical runs.
const MAX_CRITICAL_SLOTS: u32 = 1000;
/// Upper bound of [`WorkerConfig::shutdown_grace`]. A longer grace would first need a longer `TimeoutStopSec` in
/// systemd.
const MAX_SHUTDOWN_GRACE: Duration = Duration::from_secs(3600);
/// Bounds of [`WorkerConfig::outbox_lines`]. A single run can easily write a hundred lines at once.
const OUTBOX_LINES_RANGE: RangeInclusive<u32> = 100..=10_000_000;
/// Bounds of [`WorkerConfig::outbox_megabytes`].
const OUTBOX_MEGABYTES_RANGE: RangeInclusive<u32> = 1..=10_000;
/// Bounds of [`WorkerConfig::log_lines`]. More lines than the upper one have no numbers.
const LOG_LINES_RANGE: RangeInclusive<u32> = 100..=1_000_000;
/// Bounds of [`WorkerConfig::log_megabytes`].
const LOG_MEGABYTES_RANGE: RangeInclusive<u32> = 1..=256;
/// Upper bound of the concurrency limit of a job type.
pub(crate) const MAX_CONCURRENCY: u16 = 1000;
/// Upper bound of a timeout, including that of a single job.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

impl fmt::Debug for WorkerConfig {
    /// Writes all settings, without the passwords in the addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructured, so that a new setting is not forgotten.
        let Self {
            amqp_url,
            redis_url,
            worker_id,
            prefix,
            key_prefix,
            capacity,
            critical_slots,
            concurrency,
            shutdown_grace,
            outbox,
            outbox_lines,
            outbox_megabytes,
            log_lines,
            log_megabytes,
            health,
            singletons,
            default_timeout,
        } = self;
        f.debug_struct("WorkerConfig")
            .field("amqp_url", &without_password(amqp_url))
            .field("redis_url", &without_password(redis_url))
            .field("worker_id", worker_id)
            .field("prefix", prefix)
            .field("key_prefix", key_prefix)
            .field("capacity", capacity)
            .field("critical_slots", critical_slots)
            .field("concurrency", concurrency)
            .field("shutdown_grace", shutdown_grace)
            .field("outbox", outbox)
            .field("outbox_lines", outbox_lines)
            .field("outbox_megabytes", outbox_megabytes)
            .field("log_lines", log_lines)
            .field("log_megabytes", log_megabytes)
            .field("health", health)
            .field("singletons", singletons)
            .field("default_timeout", default_timeout)
            .finish()
    }
}

/// Returns an address with `***` in place of its user and password. A password can contain `@`, and an address that
/// cannot be read may consist of one, so only what certainly follows it is kept.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, address))) => format!("{scheme}://***@{}", without_query(address)),
        (Some(_), None) => without_query(url).to_owned(),
        (None, _) => "***".to_owned(),
    }
}

/// Returns an address without its query, in which drivers accept passwords too.
fn without_query(address: &str) -> &str {
    address.split_once('?').map_or(address, |(address, _)| address)
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            amqp_url: "amqp://127.0.0.1:5672/%2f".to_owned(),
            redis_url: "redis://127.0.0.1:6379/0".to_owned(),
            worker_id: "default".to_owned(),
            prefix: DEFAULT_BROKER_PREFIX.to_owned(),
            key_prefix: DEFAULT_REDIS_KEY_PREFIX.to_owned(),
            capacity: 50,
            critical_slots: 0,
            concurrency: BTreeMap::new(),
            shutdown_grace: Duration::from_secs(20),
            outbox: Outbox::default(),
            outbox_lines: 100_000,
            outbox_megabytes: 64,
            log_lines: AttemptLogBounds::DEFAULT_LINES,
            log_megabytes: AttemptLogBounds::DEFAULT_MEBIBYTES,
            health: None,
            singletons: BTreeMap::new(),
            default_timeout: Duration::from_secs(3600),
        }
    }
}

impl WorkerConfig {
    /// Reads the environment variables. A variable that is unset or empty leaves the default.
    ///
    /// # Errors
    /// Returns [`WorkerError::Config`] with one sentence for each invalid variable.
    pub fn from_env() -> Result<Self, WorkerError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads a TOML file and the environment variables, which take precedence. The keys of the file are the names of
    /// the variables in lower case without `MILVAION_`; `concurrency` can be a table:
    ///
    /// ```toml
    /// worker_id = "mail"
    /// capacity = 20
    /// concurrency = { http-request = 200, send-mail = 5 }
    /// ```
    ///
    /// # Errors
    /// Returns [`WorkerError::File`] if the file cannot be read or has an unknown key, and [`WorkerError::Config`] like
    /// [`from_env`](Self::from_env).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, WorkerError> {
        let file = file::read(path.as_ref())?;
        Self::from_lookup(|name| std::env::var(name).ok().filter(|value| !value.is_empty()).or_else(|| file.get(name)))
    }

    /// Reads the variables that `lookup` returns.
    ///
    /// # Errors
    /// Returns [`WorkerError::Config`] like [`from_env`](Self::from_env).
    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, WorkerError> {
        let mut errors = ConfigErrors::default();
        let mut config = Self::default();
        let read = |name: &str| lookup(name).filter(|value| !value.is_empty());
        for (name, field) in [
            ("AMQP_URL", &mut config.amqp_url),
            ("REDIS_URL", &mut config.redis_url),
            ("MILVAION_WORKER_ID", &mut config.worker_id),
            ("MILVAION_PREFIX", &mut config.prefix),
            ("MILVAION_KEY_PREFIX", &mut config.key_prefix),
        ] {
            if let Some(value) = read(name) {
                *field = value;
            }
        }
        if let Some(text) = read("MILVAION_CAPACITY") {
            match text.parse() {
                Ok(capacity) => config.capacity = capacity,
                Err(_) => {
                    errors.add(format!("MILVAION_CAPACITY is {text:?}: give a whole number from 1 to {MAX_CAPACITY}."))
                }
            }
        }
        if let Some(text) = read("MILVAION_CRITICAL_SLOTS") {
            match text.parse() {
                Ok(slots) => config.critical_slots = slots,
                Err(_) => {
                    errors.add(out_of_range("MILVAION_CRITICAL_SLOTS", &(0..=MAX_CRITICAL_SLOTS), &format!("{text:?}")))
                }
            }
        }
        for part in read("MILVAION_CONCURRENCY").iter().flat_map(|text| text.split(',')) {
            match part.split_once('=').map(|(name, number)| (name.trim(), number.trim().parse())) {
                Some((name, Ok(concurrency))) => drop(config.concurrency.insert(name.to_owned(), concurrency)),
                _ => errors.add(format!(
                    "MILVAION_CONCURRENCY has {part:?}: give a job type and a number from 1 to {MAX_CONCURRENCY}, such as http-request=200."
                )),
            }
        }
        if let Some(text) = read("MILVAION_SHUTDOWN_GRACE_SECONDS") {
            match text.parse() {
                Ok(seconds) => config.shutdown_grace = Duration::from_secs(seconds),
                Err(_) => errors.add(format!(
                    "MILVAION_SHUTDOWN_GRACE_SECONDS is {text:?}: give a whole number of seconds from 0 to {}.",
                    MAX_SHUTDOWN_GRACE.as_secs()
                )),
            }
        }
        if let Some(text) = read("MILVAION_OUTBOX") {
            config.outbox = Outbox::read(&text);
        }
        for (name, bounds, field) in [
            ("MILVAION_OUTBOX_LINES", OUTBOX_LINES_RANGE, &mut config.outbox_lines),
            ("MILVAION_OUTBOX_MEGABYTES", OUTBOX_MEGABYTES_RANGE, &mut config.outbox_megabytes),
            ("MILVAION_LOG_LINES", LOG_LINES_RANGE, &mut config.log_lines),
            ("MILVAION_LOG_MEGABYTES", LOG_MEGABYTES_RANGE, &mut config.log_megabytes),
        ] {
            if let Some(text) = read(name) {
                match text.parse() {
                    Ok(number) => *field = number,
                    Err(_) => errors.add(out_of_range(name, &bounds, &format!("{text:?}"))),
                }
            }
        }
        if let Some(text) = read("MILVAION_HEALTH") {
            match text.parse() {
                Ok(address) => config.health = Some(address),
                Err(_) => errors
                    .add(format!("MILVAION_HEALTH is {text:?}: give an address and a port, such as 0.0.0.0:9100.")),
            }
        }
        if let Some(text) = read("MILVAION_SINGLETONS") {
            config.singletons = read_overrides(&text, &mut errors);
        }
        config.check(&mut errors);
        errors.into_result(config)
    }

    /// Returns the bounds of the log lines that wait for the broker.
    pub(crate) fn log_bounds(&self) -> LogBounds {
        LogBounds { lines: self.outbox_lines as usize, bytes: self.outbox_megabytes as usize * 1_000_000 }
    }

    /// Returns the bounds of the log of an attempt.
    pub(crate) fn attempt_log_bounds(&self) -> AttemptLogBounds {
        AttemptLogBounds::new(self.log_lines, self.log_megabytes)
    }

    /// Adds an error for each setting that is outside its bounds. The value may come from code, so an error names the field
    /// first and then the variable.
    pub(crate) fn check(&self, errors: &mut ConfigErrors) {
        // The addresses can contain passwords, so the messages do not repeat them.
        if self.amqp_url.starts_with("amqps:") && !HAS_TLS {
            errors.add(without_tls("AMQP_URL", "amqps"));
        } else if let Err(reason) = self.amqp_url.parse::<AMQPUri>() {
            errors.add(format!("AMQP_URL cannot be read ({reason}): write amqp://user:password@host:5672/%2f."));
        }
        if self.redis_url.starts_with("rediss:") && !HAS_TLS {
            errors.add(without_tls("REDIS_URL", "rediss"));
        } else if let Err(reason) = redis::Client::open(self.redis_url.as_str()) {
            errors.add(format!("REDIS_URL cannot be read ({reason}): write redis://:password@host:6379/0."));
        }
        if !is_valid_name(&self.worker_id, 100) {
            errors.add(format!(
                "worker_id (MILVAION_WORKER_ID) is {:?}: give 1 to 100 letters, digits, '-', '_' and '.'.",
                self.worker_id
            ));
        }
        if !is_valid_name(&self.prefix, 50) {
            errors.add(format!(
                "prefix (MILVAION_PREFIX) is {:?}: give 1 to 50 letters, digits, '-', '_' and '.'.",
                self.prefix
            ));
        }
        if !(1..=100).contains(&self.key_prefix.len()) || self.key_prefix.contains(char::is_whitespace) {
            errors.add(format!(
                "key_prefix (MILVAION_KEY_PREFIX) is {:?}: give 1 to 100 characters without whitespace.",
                self.key_prefix
            ));
        }
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            errors.add(format!(
                "capacity (MILVAION_CAPACITY) is {}: give a whole number from 1 to {MAX_CAPACITY}.",
                self.capacity
            ));
        }
        if self.critical_slots > MAX_CRITICAL_SLOTS {
            let (name, bounds) = ("critical_slots (MILVAION_CRITICAL_SLOTS)", 0..=MAX_CRITICAL_SLOTS);
            errors.add(out_of_range(name, &bounds, &self.critical_slots.to_string()));
        }
        for (job_type, concurrency) in &self.concurrency {
            if !(1..=MAX_CONCURRENCY).contains(concurrency) {
                errors.add(format!(
                    "concurrency (MILVAION_CONCURRENCY) gives {job_type:?} {concurrency}: give a number from 1 to {MAX_CONCURRENCY}."
                ));
            }
        }
        if self.shutdown_grace > MAX_SHUTDOWN_GRACE {
            errors.add(format!(
                "shutdown_grace (MILVAION_SHUTDOWN_GRACE_SECONDS) is {} s: give a whole number of seconds from 0 to {}.",
                self.shutdown_grace.as_secs(),
                MAX_SHUTDOWN_GRACE.as_secs()
            ));
        }
        self.outbox.check(errors);
        for (name, bounds, number) in [
            ("outbox_lines (MILVAION_OUTBOX_LINES)", OUTBOX_LINES_RANGE, self.outbox_lines),
            ("outbox_megabytes (MILVAION_OUTBOX_MEGABYTES)", OUTBOX_MEGABYTES_RANGE, self.outbox_megabytes),
            ("log_lines (MILVAION_LOG_LINES)", LOG_LINES_RANGE, self.log_lines),
            ("log_megabytes (MILVAION_LOG_MEGABYTES)", LOG_MEGABYTES_RANGE, self.log_megabytes),
        ] {
            if !bounds.contains(&number) {
                errors.add(out_of_range(name, &bounds, &number.to_string()));
            }
        }
        if !(Duration::from_secs(1)..=MAX_TIMEOUT).contains(&self.default_timeout) {
            errors.add(format!("default_timeout is {:?}: give 1 second to 7 days.", self.default_timeout));
        }
    }
}

/// Returns the error of an address that needs a TLS library, which this SDK was built without.
fn without_tls(name: &str, scheme: &str) -> String {
    format!(
        "{name} begins with {scheme}://, and this worker was built without TLS: enable one of the features \"native-tls\" and \"rustls\" of milvaion-worker."
    )
}

fn out_of_range(name: &str, bounds: &RangeInclusive<u32>, value: &str) -> String {
    format!("{name} is {value}: give a whole number from {} to {}.", bounds.start(), bounds.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<WorkerConfig, WorkerError> {
        WorkerConfig::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn empty_environment_gives_the_defaults() {
        assert_eq!(read(&[]).expect("valid"), WorkerConfig::default());
        assert_eq!(read(&[("MILVAION_CAPACITY", "")]).expect("valid"), WorkerConfig::default());
    }

    #[test]
    fn default_grace_leaves_time_before_kubernetes_kills() {
        // It kills a process 30 seconds after SIGTERM. Interrupted runs clean up and are reported before.
        assert_eq!(WorkerConfig::default().shutdown_grace, Duration::from_secs(20));
    }

    #[test]
    fn variables_override_the_defaults() {
        let config = read(&[
            ("MILVAION_WORKER_ID", "mail.eu"),
            ("MILVAION_SHUTDOWN_GRACE_SECONDS", "8"),
            ("MILVAION_CRITICAL_SLOTS", "2"),
            ("MILVAION_CONCURRENCY", "http-request=200, send=5"),
            ("MILVAION_OUTBOX", "/var/lib/mail"),
            ("MILVAION_OUTBOX_LINES", "500"),
            ("MILVAION_OUTBOX_MEGABYTES", "2"),
            ("MILVAION_LOG_LINES", "100000"),
            ("MILVAION_LOG_MEGABYTES", "32"),
        ])
        .expect("valid");
        assert_eq!(config.outbox, Outbox::Folder("/var/lib/mail".into()));
        let bounds = config.log_bounds();
        assert_eq!((bounds.lines, bounds.bytes), (500, 2_000_000));
        assert_eq!(config.attempt_log_bounds(), AttemptLogBounds { lines: 100_000, bytes: 32 * 1024 * 1024 });
        assert_eq!(config.concurrency, BTreeMap::from([("http-request".to_owned(), 200), ("send".to_owned(), 5)]));
        assert_eq!((config.worker_id.as_str(), config.critical_slots), ("mail.eu", 2));
        assert_eq!(config.shutdown_grace, Duration::from_secs(8));
    }

    #[test]
    fn all_errors_are_reported_and_name_their_variable() {
        let wrong = [
            ("AMQP_URL", "http://x"),
            ("REDIS_URL", "nonsense"),
            ("MILVAION_WORKER_ID", "a b"),
            ("MILVAION_PREFIX", "ü"),
            ("MILVAION_KEY_PREFIX", "a b"),
            ("MILVAION_CAPACITY", "0"),
            ("MILVAION_CRITICAL_SLOTS", "1001"),
            ("MILVAION_CONCURRENCY", "send=0"),
            ("MILVAION_SHUTDOWN_GRACE_SECONDS", "soon"),
            ("MILVAION_OUTBOX", "/proc/self/status"),
            ("MILVAION_OUTBOX_LINES", "99"),
            ("MILVAION_OUTBOX_MEGABYTES", "-1"),
            ("MILVAION_LOG_LINES", "1000001"),
            ("MILVAION_LOG_MEGABYTES", "257"),
            ("MILVAION_HEALTH", "9100"),
        ];
        let Err(WorkerError::Config(errors)) = read(&wrong) else { panic!("must be refused") };
        for (name, _) in wrong {
            let (begins, names) = (format!("{name} "), format!("({name}) "));
            let is_about = |sentence: &&String| sentence.starts_with(&begins) || sentence.contains(&names);
            assert_eq!(errors.messages().iter().filter(is_about).count(), 1, "{name}");
        }
    }

    #[test]
    fn errors_of_values_from_code_begin_with_the_field() {
        let config = WorkerConfig {
            worker_id: "a b".to_owned(),
            prefix: String::new(),
            key_prefix: "a b".to_owned(),
            capacity: 0,
            critical_slots: 1_001,
            concurrency: BTreeMap::from([("send".to_owned(), 0)]),
            shutdown_grace: Duration::from_secs(3_601),
            outbox: Outbox::Folder("/proc/self/status".into()),
            outbox_lines: 99,
            outbox_megabytes: 0,
            log_lines: 99,
            log_megabytes: 0,
            default_timeout: Duration::ZERO,
            ..WorkerConfig::default()
        };
        let mut errors = ConfigErrors::default();
        config.check(&mut errors);
        let begin = |sentence: &String| sentence.split_once([' ', ':']).map(|(field, _)| field.to_owned());
        let fields: Vec<_> = errors.messages().iter().filter_map(begin).collect();
        let expected = [
            "worker_id",
            "prefix",
            "key_prefix",
            "capacity",
            "critical_slots",
            "concurrency",
            "shutdown_grace",
            "outbox",
            "outbox_lines",
            "outbox_megabytes",
            "log_lines",
            "log_megabytes",
            "default_timeout",
        ];
        assert_eq!(fields, expected, "{errors}");
    }

    /// Runs in a build of its own: `cargo test -p milvaion-worker --no-default-features`.
    #[test]
    #[cfg(not(any(feature = "native-tls", feature = "rustls")))]
    fn addresses_with_tls_need_a_feature() {
        let wrong = [("AMQP_URL", "amqps://mq.example.com"), ("REDIS_URL", "rediss://redis.example.com")];
        let Err(WorkerError::Config(errors)) = read(&wrong) else { panic!("must be refused") };
        assert_eq!(errors.messages().len(), 2);
        assert!(errors.messages().iter().all(|sentence| sentence.contains("\"rustls\"")), "{errors}");
    }

    #[test]
    fn debug_output_has_no_password() {
        let config = WorkerConfig {
            amqp_url: "amqps://milvaion:hunt@er2@mq.example.com/%2f?password=hunter3".to_owned(),
            redis_url: "redis://:hunter4@redis.example.com:6379/0".to_owned(),
            ..WorkerConfig::default()
        };
        let text = format!("{config:?}");
        assert!(!text.contains("hunt") && !text.contains("er2"), "{text}");
        assert!(text.contains("mq.example.com/%2f") && text.contains("redis.example.com:6379/0"), "{text}");
        assert_eq!(without_password("hunter2"), "***");
    }

    #[test]
    fn rejected_address_does_not_show_its_password() {
        let Err(error) = read(&[("REDIS_URL", "nonsense://:hunter2@host")]) else { panic!("must be refused") };
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
