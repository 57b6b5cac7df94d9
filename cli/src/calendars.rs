//! `milvaion calendars`.

use clap::Subcommand;
use milvaion_api::rest::CalendarDetail;
use milvaion_protocol::id::CalendarId;

use super::{
    CliError, ListOptions, Yes, exit,
    session::Session,
    table::{Cell, Color, Details, Table, block},
};

/// A command on calendars.
#[derive(Debug, Subcommand)]
pub enum CalendarsCommand {
    /// Lists the calendars by name, with their next blackouts.
    List {
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Prints a calendar with its next blackouts and its jobs.
    Get {
        /// The id of the calendar.
        id: CalendarId,
    },
    /// Deletes a calendar that no job has.
    Delete {
        /// The id of the calendar.
        id: CalendarId,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
}

/// Runs a command on calendars.
pub(super) async fn run(command: CalendarsCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    match command {
        CalendarsCommand::List { list } => {
            let found = session.list(&(), list, async |client, ()| client.calendars().await).await?;
            session.print_list(&found, list, "calendars", |_, calendars| {
                Table::new(
                    ["ID", "NAME", "ZONE", "JOBS", "NEXT BLACKOUT", "BLACKOUTS"],
                    calendars.iter().map(|calendar| {
                        let next = match &calendar.next {
                            Some(next) if next.is_now => Cell::new(format!("now: {}", next.in_zone), Color::Yellow),
                            Some(next) => Cell::plain(&next.in_zone),
                            None => Cell::faint("-"),
                        };
                        [
                            calendar.id.to_string().into(),
                            Cell::plain(&calendar.name),
                            Cell::plain(&calendar.zone),
                            calendar.jobs.to_string().into(),
                            next,
                            Cell::plain(&calendar.words),
                        ]
                    }),
                )
            })
        }
        CalendarsCommand::Get { id } => {
            let calendar = session.client.calendar(id).await?;
            session.print(&calendar, calendar_text)
        }
        CalendarsCommand::Delete { id, yes } => {
            let name = session.client.calendar(id).await?.definition.name;
            session.confirm(yes, &format!("Delete the calendar {name:?}?"))?;
            session.client.delete_calendar(id, None).await?;
            session.console.message(&format!("The calendar {name:?} is deleted."));
            Ok(exit::SUCCESS)
        }
    }
}

fn calendar_text(session: &Session<'_>, calendar: &CalendarDetail) -> String {
    let lines = |lines: Vec<String>| lines.join("\n");
    let details = Details::default()
        .with("Id", calendar.id.to_string())
        .with("Name", &calendar.definition.name)
        .with("Zone", &calendar.definition.zone)
        .with("Days", calendar.definition.dates.len().to_string())
        .with("Weekly windows", calendar.definition.windows.len().to_string())
        .with("Jobs", calendar.jobs_total.to_string())
        .with_some("Jobs being updated", calendar.pending_jobs.map(|jobs| jobs.to_string()))
        .with("Version", calendar.version.to_string())
        .with("Changed", session.moment(calendar.modified_at))
        .with("Changed by", &calendar.modified_by);
    let upcoming = lines(calendar.upcoming.iter().map(|blackout| blackout.in_zone.clone()).collect());
    let jobs = lines(calendar.jobs.iter().map(|job| format!("{}  {}", job.id, job.display_name)).collect());
    session.details(&details) + &block("Next blackouts", Some(&upcoming)) + &block("Jobs", Some(&jobs))
}
