//! `milvaion loops`.

use clap::Subcommand;
use milvaion_api::singletons::{LoopStatus, SingletonLoop};

use super::{
    CliError, ListOptions, OutputFormat, Yes, exit,
    session::Session,
    table::{Cell, Color, Details, Table, block},
};

/// A command on singleton loops.
#[derive(Debug, Subcommand)]
pub enum LoopsCommand {
    /// Lists the singleton loops by name, with their leaders.
    List {
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Prints a singleton loop with its instances.
    Get {
        /// Name of the loop.
        name: String,
    },
    /// Enables a singleton loop, so that an instance runs it.
    Enable {
        /// Name of the loop.
        name: String,
    },
    /// Disables a singleton loop on every instance. Its run in progress is cancelled.
    Disable {
        /// Name of the loop.
        name: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
    /// Asks the leader of a singleton loop to hand it over to another instance.
    Yield {
        /// Name of the loop.
        name: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
    /// Forgets a singleton loop that no instance has offered for a minute.
    Forget {
        /// Name of the loop.
        name: String,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
}

/// Runs a command on singleton loops.
pub(super) async fn run(command: LoopsCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    let (found, message) = match command {
        LoopsCommand::List { list } => {
            let loops = session.list(&(), list, async |client, ()| client.singleton_loops().await).await?;
            return session.print_list(&loops, list, "singleton loops", |session, loops| {
                Table::new(
                    ["NAME", "STATE", "LEADER", "EPOCH", "SCHEDULE", "INSTANCES", "RUNS", "ERRORS", "P99", "LAST END"],
                    loops.iter().map(|row| cells(session, row)),
                )
            });
        }
        LoopsCommand::Get { name } => {
            let found = session.client.singleton_loop(&name).await?;
            return session.print(&found, loop_text);
        }
        LoopsCommand::Enable { name } => {
            let message = format!("The singleton loop {name} is enabled.");
            (session.client.enable_singleton_loop(&name).await?, message)
        }
        LoopsCommand::Disable { name, yes } => {
            session.confirm(yes, &format!("Disable the singleton loop {name}, so that no instance runs it?"))?;
            let message = format!("The singleton loop {name} is disabled.");
            (session.client.disable_singleton_loop(&name).await?, message)
        }
        LoopsCommand::Yield { name, yes } => {
            session.confirm(yes, &format!("Ask the leader of the singleton loop {name} to hand it over?"))?;
            let message = format!("The leader of the singleton loop {name} is asked to hand it over.");
            (session.client.yield_singleton_loop(&name).await?, message)
        }
        LoopsCommand::Forget { name, yes } => {
            session.confirm(yes, &format!("Forget the singleton loop {name}?"))?;
            session.client.forget_singleton_loop(&name).await?;
            session.console.message(&format!("The singleton loop {name} is forgotten."));
            return Ok(exit::SUCCESS);
        }
    };
    if session.format == OutputFormat::Table {
        session.console.message(&message);
        return Ok(exit::SUCCESS);
    }
    session.print(&found, |_, _| String::new())
}

fn state(row: &SingletonLoop) -> Cell {
    let color = match row.status {
        LoopStatus::Leading => Color::Green,
        LoopStatus::NoLeader | LoopStatus::NotOffered => Color::Red,
        LoopStatus::Disabled => Color::Yellow,
    };
    Cell::new(row.status.label().to_lowercase(), color)
}

fn cells(session: &Session<'_>, row: &SingletonLoop) -> [Cell; 10] {
    let leader = row.leader.as_ref().map_or_else(|| Cell::faint("-"), |leader| Cell::plain(&leader.instance_id));
    [
        Cell::plain(&row.name),
        state(row),
        leader,
        row.epoch.to_string().into(),
        Cell::plain(&row.schedule),
        row.instance_count.to_string().into(),
        row.runs.to_string().into(),
        row.errors.to_string().into(),
        format!("{:.1} ms", row.p99_ms).into(),
        session.moment_or(row.last_ended_at, "-"),
    ]
}

fn loop_text(session: &Session<'_>, row: &SingletonLoop) -> String {
    let times = |median: f64, high: f64| format!("{median:.2} ms / {high:.2} ms");
    let leader = row.leader.as_ref();
    let mut details = Details::default()
        .with("Name", &row.name)
        .with("State", state(row))
        .with_some("Disabled by", row.disabled.as_ref().map(|disabled| &disabled.by))
        .with_some("Leader", leader.map(|leader| &leader.instance_id))
        .with_some("Worker", leader.map(|leader| &leader.worker_id))
        .with_some("Host", leader.map(|leader| &leader.host));
    if let Some(leader) = leader {
        let lease = format!("{} of {} ms remain", leader.lease_remaining_ms, row.lease_ms);
        details = details.with("Leads since", session.moment_or(leader.since, "-")).with("Lease", lease);
    }
    let details = details
        .with("Epoch", row.epoch.to_string())
        .with("Schedule", &row.schedule)
        .with("Ticks", row.ticks.to_string())
        .with("Runs", row.runs.to_string())
        .with("Dropped ticks", row.dropped.to_string())
        .with("Errors", row.errors.to_string())
        .with("Duration p50 / p99", times(row.p50_ms, row.p99_ms))
        .with("Lateness p50 / p99", times(row.late_p50_ms, row.late_p99_ms))
        .with("Last end", session.moment_or(row.last_ended_at, "-"))
        .with("Last heartbeat", session.moment_or(row.last_seen_at, "-"))
        .with("Instances", row.instance_count.to_string());
    let instances: Vec<&str> = row.instances.iter().map(|instance| instance.id.as_str()).collect();
    session.details(&details)
        + &block("Instances", Some(&instances.join("\n")))
        + &block("Last error", row.last_error.as_deref())
}
