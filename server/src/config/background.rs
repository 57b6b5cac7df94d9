//! Settings for the server's background tasks.

use std::time::Duration;

use super::EnvReader;

/// Periods and batch sizes of the background tasks.
#[derive(Clone, Debug)]
pub struct BackgroundConfig {
    /// `DISPATCH_BATCH`: maximum number of due jobs that one transaction dispatches. From 1 to 5,000. Default 500.
    pub dispatch_batch: i64,
    /// `SWEEP_MILLISECONDS`: interval, in milliseconds, at which PostgreSQL is queried for due jobs while Redis is
    /// unreachable. From 100 to 10,000. Default 1,000.
    pub sweep: Duration,
    /// `REBUILD_SECONDS`: interval, in seconds, at which the due index in Redis is rebuilt from PostgreSQL. From 5 to
    /// 3,600. Default 300.
    pub rebuild: Duration,
    /// `REPUBLISH_SECONDS`: interval, in seconds, at which unsent occurrences are published again, and the minimum age,
    /// in seconds, of an occurrence that is. From 1 to 3,600. Default 5.
    pub republish: Duration,
    /// `EXPIRE_QUEUED_HOURS`: time, in hours, after which an occurrence that no worker has begun is skipped. From 1 to
    /// 44,400. Default 720, which is 30 days.
    pub expire_queued: chrono::Duration,
}

impl BackgroundConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            dispatch_batch: read.number("DISPATCH_BATCH", 500, 1, 5_000),
            sweep: Duration::from_millis(read.number("SWEEP_MILLISECONDS", 1_000, 100, 10_000)),
            rebuild: Duration::from_secs(read.number("REBUILD_SECONDS", 300, 5, 3_600)),
            republish: Duration::from_secs(read.number("REPUBLISH_SECONDS", 5, 1, 3_600)),
            expire_queued: chrono::Duration::hours(read.number("EXPIRE_QUEUED_HOURS", 720, 1, 44_400)),
        }
    }
}
