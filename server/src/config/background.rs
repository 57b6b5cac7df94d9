//! What the server does by itself.

use std::time::Duration;

use super::EnvReader;

/// Periods and batches.
#[derive(Clone, Debug)]
pub struct BackgroundConfig {
    /// `DISPATCH_BATCH`: how many due jobs one transaction fires, 1 to 5,000. Default 500.
    pub dispatch_batch: i64,
    /// `SWEEP_MILLISECONDS`: how often PostgreSQL is asked for due jobs while Redis is away, 100 to 10,000. Default 1,000.
    pub sweep: Duration,
    /// `REBUILD_SECONDS`: how often the schedule in Redis is rebuilt, 5 to 3,600. Default 300.
    pub rebuild: Duration,
    /// `REPUBLISH_SECONDS`: how often, and from which age on, unpublished occurrences are published again, 1 to 3,600.
    /// Default 5.
    pub republish: Duration,
}

impl BackgroundConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            dispatch_batch: read.number("DISPATCH_BATCH", 500, 1, 5_000),
            sweep: Duration::from_millis(read.number("SWEEP_MILLISECONDS", 1_000, 100, 10_000)),
            rebuild: Duration::from_secs(read.number("REBUILD_SECONDS", 300, 5, 3_600)),
            republish: Duration::from_secs(read.number("REPUBLISH_SECONDS", 5, 1, 3_600)),
        }
    }
}
