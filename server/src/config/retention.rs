//! How long things are kept.

use chrono::Duration;

use super::EnvReader;

/// Ages after which things are taken away. Whole days; a day is kept until its last hour is old enough.
#[derive(Clone, Debug)]
pub struct RetentionConfig {
    /// `KEEP_OCCURRENCES_DAYS`: finished occurrences, 1 to 3,650. Default 30. Open ones are always kept.
    pub occurrences: Duration,
    /// `KEEP_LOGS_DAYS`: what occurrences wrote, 1 to 3,650. Default 14.
    pub logs: Duration,
    /// `KEEP_FAILED_DAYS`: failures, settled or not, 1 to 3,650. Default 180.
    pub failed: Duration,
    /// `KEEP_DEAD_LETTERS_DAYS`: messages nobody understood, 1 to 3,650. Default 180.
    pub dead_letters: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            occurrences: Duration::days(30),
            logs: Duration::days(14),
            failed: Duration::days(180),
            dead_letters: Duration::days(180),
        }
    }
}

impl RetentionConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let default = Self::default();
        let mut days = |name: &str, default: Duration| Duration::days(read.number(name, default.num_days(), 1, 3_650));
        Self {
            occurrences: days("KEEP_OCCURRENCES_DAYS", default.occurrences),
            logs: days("KEEP_LOGS_DAYS", default.logs),
            failed: days("KEEP_FAILED_DAYS", default.failed),
            dead_letters: days("KEEP_DEAD_LETTERS_DAYS", default.dead_letters),
        }
    }
}
