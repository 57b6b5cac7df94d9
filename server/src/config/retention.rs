//! Settings for retention.

use chrono::Duration;

use super::EnvReader;

/// Ages after which rows are deleted. Occurrences and logs are deleted by whole days in UTC: a day is kept until its
/// last hour is old enough, and as long as an occurrence of that day is open.
#[derive(Clone, Debug)]
pub struct RetentionConfig {
    /// `KEEP_OCCURRENCES_DAYS`: retention of ended occurrences, in days; open occurrences are always kept. From 1 to
    /// 3,650. Default 30.
    pub occurrences: Duration,
    /// `KEEP_LOGS_DAYS`: retention of the log lines of occurrences, in days. From 1 to 3,650. Default 14.
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
        let mut days = |name: &str, default: Duration| Duration::days(read.number(name, default.num_days(), 1, 3_650));
        Self {
            audit,
            occurrences: days("KEEP_OCCURRENCES_DAYS", default.occurrences),
            logs: days("KEEP_LOGS_DAYS", default.logs),
            failed: days("KEEP_FAILED_DAYS", default.failed),
            dead_letters: days("KEEP_DEAD_LETTERS_DAYS", default.dead_letters),
        }
    }
}
