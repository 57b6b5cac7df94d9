//! `milvaion cluster`.

use clap::Subcommand;
use milvaion_api::{
    rest::{Cluster, PauseRequest},
    views::HealthState,
};

use super::{
    CliError, OutputFormat, Yes, exit,
    session::Session,
    table::{Cell, Color, Details, Table},
};

/// A command on the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Prints whether the cluster is paused, and the health of every part.
    Status,
    /// Pauses the cluster: no job starts until it is resumed. Running occurrences go on.
    Pause {
        /// Reason, which every page shows.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
    /// Resumes the cluster.
    Resume,
}

/// Runs a command on the cluster.
pub(super) async fn run(command: ClusterCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    let (cluster, message) = match command {
        ClusterCommand::Status => {
            let cluster = session.client.cluster().await?;
            return session.print(&cluster, cluster_text);
        }
        ClusterCommand::Pause { reason, yes } => {
            session.confirm(yes, "Pause the cluster, so that no job starts?")?;
            (session.client.pause_cluster(&PauseRequest { reason }).await?, "The cluster is paused.")
        }
        ClusterCommand::Resume => (session.client.resume_cluster().await?, "The cluster is resumed."),
    };
    if session.format == OutputFormat::Table {
        session.console.message(message);
        return Ok(exit::SUCCESS);
    }
    session.print(&cluster, |_, _| String::new())
}

fn cluster_text(session: &Session<'_>, cluster: &Cluster) -> String {
    let details = match &cluster.pause {
        None => Details::default().with("Cluster", Cell::new("active", Color::Green)),
        Some(pause) => Details::default()
            .with("Cluster", Cell::new("paused", Color::Yellow))
            .with("Since", session.moment(pause.since))
            .with("By", &pause.by)
            .with_some("Reason", Some(&pause.reason)),
    };
    let rows = cluster.health.iter().map(|item| {
        let state = match item.state {
            HealthState::Ok => Cell::new("works", Color::Green),
            HealthState::Warn => Cell::new("restricted", Color::Yellow),
            HealthState::Down => Cell::new("down", Color::Red),
        };
        [Cell::plain(&item.name), state, session.moment_or(item.since, ""), Cell::plain(&item.detail)]
    });
    let health = Table::new(["PART", "STATE", "SINCE", "DETAIL"], rows);
    format!("{}\n{}", session.details(&details), session.table(&health))
}
