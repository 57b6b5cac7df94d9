//! How long things are kept.

use chrono::Duration;

use super::Reader;

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
    /// `KEEP_TRIGGER_KEYS_DAYS`: for how long a second run with the same key is the first one, 1 to 365. Default 7.
    pub trigger_keys: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            occurrences: Duration::days(30),
            logs: Duration::days(14),
            failed: Duration::days(180),
            dead_letters: Duration::days(180),
            trigger_keys: Duration::days(7),
        }
    }
}

impl RetentionConfig {
    pub(super) fn read(read: &mut Reader) -> Self {
        let default = Self::default();
        let mut days =
            |name: &str, default: Duration, most: i64| Duration::days(read.number(name, default.num_days(), 1, most));
        Self {
            occurrences: days("KEEP_OCCURRENCES_DAYS", default.occurrences, 3_650),
            logs: days("KEEP_LOGS_DAYS", default.logs, 3_650),
            failed: days("KEEP_FAILED_DAYS", default.failed, 3_650),
            dead_letters: days("KEEP_DEAD_LETTERS_DAYS", default.dead_letters, 3_650),
            trigger_keys: days("KEEP_TRIGGER_KEYS_DAYS", default.trigger_keys, 365),
        }
    }
}
