//! Makes the jobs of declared schedules be as the code of the live workers says.
//!
//! A registration stores what an instance declares, and this task compares it with the jobs. It looks at all instances
//! together, because a schedule is retired only if no instance of the newest version declares it. Most ticks find nothing to
//! do.

use std::time::Duration;

use crate::{
    command::{declared_jobs::DeclarationReport, jobs::JobCommands},
    domain::declarations::DeclarationKey,
    engine::{RunsOn, Service, context::Context},
};

/// The background task that keeps the jobs of declared schedules.
#[derive(Debug)]
pub struct DeclaredJobKeeper {
    /// The commands that create and change jobs.
    pub jobs: JobCommands,
    /// The declaration that the last tick tried last.
    last_tried: Option<DeclarationKey>,
}

impl DeclaredJobKeeper {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: JobCommands::of(context), last_tried: None }
    }
}

impl Service for DeclaredJobKeeper {
    const NAME: &'static str = "declared-jobs";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = DeclarationReport;

    fn period(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn tick(&mut self) -> anyhow::Result<DeclarationReport> {
        self.jobs.reconcile_declarations(&mut self.last_tried).await
    }

    fn has_more(report: &DeclarationReport) -> bool {
        // Refused declarations are tried again by each tick. Without any other, the next one can wait for its period.
        report.has_more && report.settled() > 0
    }

    fn is_notable(report: &DeclarationReport) -> bool {
        report.settled() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_declarations_wait_for_the_period() {
        let refused = DeclarationReport { failed: 200, has_more: true, ..DeclarationReport::default() };
        assert!(!DeclaredJobKeeper::has_more(&refused));
        assert!(DeclaredJobKeeper::has_more(&DeclarationReport { created: 1, failed: 199, ..refused }));
        assert!(!DeclaredJobKeeper::has_more(&DeclarationReport { created: 1, ..DeclarationReport::default() }));
    }
}
