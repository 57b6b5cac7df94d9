//! Settings for retention.

use chrono::Duration;

use super::EnvReader;
use crate::domain::partitions::MAX_RETENTION;

/// Ages after which rows are deleted. Occurrences and logs are deleted by whole days in UTC, by weeks if they are kept for
/// more than 56 days, and by months if they are kept for more than 430: each is kept until its last hour is old enough.
#[derive(Clone, Debug)]
pub struct RetentionConfig {
    /// `KEEP_OCCURRENCES_DAYS`: retention of ended occurrences, in days from the end; open occurrences are always kept.
    /// From 1 to 1,850. Default 30.
    pub occurrences: Duration,
    /// `KEEP_LOGS_DAYS`: retention of the log lines of occurrences, in days. From 1 to 1,850. Default 14.
    pub logs: Duration,
    /// `KEEP_FAILED_DAYS`: retention of failures, resolved or not, in days. From 1 to 3,650. Default 180.
    pub failed: Duration,
    /// `KEEP_DEAD_LETTERS_DAYS`: retention of dead letters, resolved or not, in days. From 1 to 3,650. Default 180.
    pub dead_letters: Duration,
    /// `KEEP_AUDIT_DAYS`: retention of the audit log, in days; deleted by whole months in UTC. From 30 to 1,850. Default
    /// 400.
    pub audit: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            occurrences: Duration::days(30),
            logs: Duration::days(14),
            failed: Duration::days(180),
            dead_letters: Duration::days(180),
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
        let mut partitioned =
            |name: &str, default: Duration| Duration::days(read.number(name, default.num_days(), 1, MAX_RETENTION));
        let occurrences = partitioned("KEEP_OCCURRENCES_DAYS", default.occurrences);
        let logs = partitioned("KEEP_LOGS_DAYS", default.logs);
        let mut days = |name: &str, default: Duration| Duration::days(read.number(name, default.num_days(), 1, 3_650));
        Self {
            audit,
            occurrences,
            logs,
            failed: days("KEEP_FAILED_DAYS", default.failed),
            dead_letters: days("KEEP_DEAD_LETTERS_DAYS", default.dead_letters),
        }
    }
}
