//! Makes the jobs of declared schedules be as the code of the live workers says.
//!
//! A registration stores what an instance declares, and this task compares it with the jobs. It looks at all instances
//! together, because a schedule is retired only if no instance of the newest version declares it. Most ticks find nothing to
//! do.

use std::time::Duration;

use crate::{
    command::{declared_jobs::DeclarationReport, jobs::JobCommands},
    engine::{RunsOn, Service, context::Context},
};

/// The background task that keeps the jobs of declared schedules.
#[derive(Debug)]
pub struct DeclaredJobKeeper {
    /// The commands that create and change jobs.
    pub jobs: JobCommands,
}

impl DeclaredJobKeeper {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: context.jobs() }
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
        self.jobs.reconcile_declarations().await
    }

    fn has_more(report: &DeclarationReport) -> bool {
        report.has_more
    }

    fn is_notable(report: &DeclarationReport) -> bool {
        report.created + report.updated + report.detached + report.retired > 0
    }
}
