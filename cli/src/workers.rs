//! `milvaion workers`.

use clap::Subcommand;
use milvaion_api::{
    rest::WorkerQuery,
    views::{InstanceView, WorkerView},
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
            ["WORKER", "INSTANCE", "STATE", "HOST", "VERSION", "RUNNING", "LAST HEARTBEAT", "NOTICE"],
            workers.iter().flat_map(|worker| {
                worker.instances.iter().map(|instance| row(session, worker, instance)).collect::<Vec<_>>()
            }),
        )
    })
}

fn row(session: &Session<'_>, worker: &WorkerView, instance: &InstanceView) -> [Cell; 8] {
    let state = match instance {
        InstanceView { alive: true, unreachable: true, .. } => Cell::new("no RabbitMQ", Color::Yellow),
        InstanceView { alive: true, .. } => Cell::new("alive", Color::Green),
        InstanceView { stopped: true, .. } => Cell::new("stopped", Color::Faint),
        _ => Cell::new("lost", Color::Red),
    };
    [
        Cell::plain(&worker.id),
        Cell::plain(&instance.id),
        state,
        Cell::plain(&instance.host),
        Cell::plain(&instance.version),
        format!("{} of {}", instance.running, instance.capacity).into(),
        session.moment(instance.last_heartbeat_at),
        instance.notice.clone().unwrap_or_default().into(),
    ]
}
