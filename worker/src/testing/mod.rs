//! Runs a job or a singleton loop in a test, without any service.
//!
//! A [`TestRun`] executes one attempt with the same pipeline as a worker: the input is decoded from JSON, panics are
//! caught and the timeout applies. The reports and log lines that a worker would send are returned in a [`TestReport`].
//! A [`TestContext`] is the context of such an attempt for code that is called directly, such as a helper of a job.
//! A [`TestLoop`] runs a singleton loop with the election, the timers and the deadlines of a worker, on a paused clock.
//! Everything that users need to test their jobs belongs here. Helpers for the tests of this crate do not.
//!
//! Timeouts, progress and checkpoints use the clock of the runtime, so a test with a paused clock waits for nothing:
//!
//! ```
//! use std::time::Duration;
//!
//! use milvaion_worker::{JobContext, JobError, OccurrenceStatus, testing::TestRun};
//!
//! async fn slow(ctx: JobContext, _: ()) -> Result<(), JobError> {
//!     ctx.cancelled().cancelled().await;
//!     Err(JobError::new("too slow"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! tokio::time::pause();
//! let report = TestRun::of("slow", slow, ()).timeout_seconds(3_600).run().await;
//! assert_eq!(report.status(), OccurrenceStatus::TimedOut);
//! # }
//! ```

mod context;
mod loops;
mod report;
mod run;

pub use milvaion_protocol::message::{LogLine, RunProgress, StatusReport};

pub use context::TestContext;
pub use loops::{TestLoop, TestLoopReport, TestLoopRun};
pub use report::TestReport;
pub use run::TestRun;
