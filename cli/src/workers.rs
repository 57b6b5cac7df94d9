//! `milvaion workers`.

use clap::Subcommand;
use milvaion_api::{
    rest::WorkerQuery,
    views::{InstanceState, InstanceView, WorkerView},
};

use super::{
    CliError, ListOptions,
    session::Session,
    table::{Cell, Color, Table},
};

/// A command on workers.
#[derive(Debug, Subcommand)]
pub enum WorkersCommand {
    /// Lists the workers with their instances.
    List {
        /// Only workers with a live instance.
        #[arg(long)]
        alive: bool,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
}

/// Runs a command on workers.
pub(super) async fn run(command: WorkersCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    let WorkersCommand::List { alive, list } = command;
    let query = WorkerQuery { alive };
    let workers = session.list(&query, list, async |client, query| client.workers(query).await).await?;
    session.print_list(&workers, list, "workers", |session, workers| {
        Table::new(
            [
                "WORKER",
                "INSTANCE",
                "STATE",
                "RUNNING",
                "BY PRIORITY",
                "LAST HEARTBEAT",
                "STARTED",
                "STOPPED",
                "HOST",
                "VERSION",
                "NOTICE",
            ],
            workers.iter().flat_map(|worker| {
                worker.instances.iter().map(|instance| row(session, worker, instance)).collect::<Vec<_>>()
            }),
        )
    })
}

fn row(session: &Session<'_>, worker: &WorkerView, instance: &InstanceView) -> [Cell; 11] {
    let (state, color) = match instance.state {
        InstanceState::Active => ("active", Color::Green),
        InstanceState::Completing => ("completing", Color::Yellow),
        InstanceState::Unreachable => ("unreachable", Color::Red),
        InstanceState::Draining => ("draining", Color::Yellow),
        InstanceState::Lost => ("lost", Color::Red),
        InstanceState::Gone => ("gone", Color::Faint),
    };
    [
        Cell::plain(&worker.id),
        Cell::plain(&instance.id),
        Cell::new(state, color),
        instance.running_text().into(),
        instance.priorities_text().into(),
        session.moment(instance.last_heartbeat_at),
        session.moment(instance.started_at),
        session.moment_or(instance.stopped_at, "–"),
        Cell::plain(&instance.host),
        Cell::plain(&instance.version),
        instance.notice.clone().unwrap_or_default().into(),
    ]
}
