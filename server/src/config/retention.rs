//! Settings for retention.

use chrono::Duration;
use milvaion_protocol::message::AttemptLogBounds;

use super::EnvReader;
use crate::domain::partitions::MAX_RETENTION;

/// Ages and sizes beyond which rows are deleted. Occurrences and logs are deleted by whole days in UTC, by weeks if they are kept for
/// more than 56 days, and by months if they are kept for more than 430: each is kept until its last hour is old enough.
#[derive(Clone, Debug)]
pub struct RetentionConfig {
    /// `KEEP_OCCURRENCES_DAYS`: retention of ended occurrences, in days from the end; open occurrences are always kept.
    /// From 1 to 1,850. Default 30.
    pub occurrences: Duration,
    /// `KEEP_LOGS_DAYS`: retention of the log lines of occurrences, in days. From 1 to 1,850. Default 14.
    pub logs: Duration,
    /// The bounds of the log of an attempt.
    ///
    /// `LOG_LINES`: maximum number of log lines that are kept of an attempt: of a longer log the first fifth of this number and
    /// the last four fifths, and a line between them that says how many are missing. A worker has settings of its own for what
    /// it sends. From 100 to 1,000,000. Default 10,000.
    ///
    /// `LOG_MEGABYTES`: maximum size, in MiB, of the log lines that are kept of an attempt, divided in the same way. From 1 to
    /// 256. Default 4.
    pub log_bounds: AttemptLogBounds,
    /// `KEEP_FAILED_DAYS`: retention of failures, resolved or not, in days. From 1 to 3,650. Default 180.
    pub failed: Duration,
    /// `KEEP_DEAD_LETTERS_DAYS`: retention of dead letters, resolved or not, in days. From 1 to 3,650. Default 180.
    pub dead_letters: Duration,
    /// `KEEP_WORKERS_DAYS`: retention of workers and job types that no instance offers and no job names, in days from the last
    /// registration or heartbeat. From 1 to 3,650. Default 30.
    pub workers: Duration,
    /// `KEEP_AUDIT_DAYS`: retention of the audit log, in days; deleted by whole months in UTC. From 30 to 1,850. Default
    /// 400.
    pub audit: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            occurrences: Duration::days(30),
            logs: Duration::days(14),
            log_bounds: AttemptLogBounds::default(),
            failed: Duration::days(180),
            dead_letters: Duration::days(180),
            workers: Duration::days(30),
            audit: Duration::days(400),
        }
    }
}

impl RetentionConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let default = Self::default();
        // Each month of the audit log is a partition, and a query of the log locks all of them.
        let audit = Duration::days(read.number("KEEP_AUDIT_DAYS", default.audit.num_days(), 30, 1_850));
        let log_lines = read.number("LOG_LINES", 10_000, 100, 1_000_000);
        let log_bounds = AttemptLogBounds::new(log_lines, read.number("LOG_MEGABYTES", 4, 1, 256));
        let mut partitioned =
            |name: &str, default: Duration| Duration::days(read.number(name, default.num_days(), 1, MAX_RETENTION));
        let occurrences = partitioned("KEEP_OCCURRENCES_DAYS", default.occurrences);
        let logs = partitioned("KEEP_LOGS_DAYS", default.logs);
        let mut days = |name: &str, default: Duration| Duration::days(read.number(name, default.num_days(), 1, 3_650));
        Self {
            audit,
            occurrences,
            logs,
            log_bounds,
            failed: days("KEEP_FAILED_DAYS", default.failed),
            dead_letters: days("KEEP_DEAD_LETTERS_DAYS", default.dead_letters),
            workers: days("KEEP_WORKERS_DAYS", default.workers),
        }
    }
}
