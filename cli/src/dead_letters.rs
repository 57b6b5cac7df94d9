//! `milvaion dead-letters`.

use clap::Subcommand;
use milvaion_api::rest::{DeadLetterQuery, ResolveDeadLetters};
use milvaion_protocol::id::DeadLetterId;

use super::{
    CliError, ListOptions, OutputFormat, exit,
    failures::summary,
    session::Session,
    table::{Cell, Table},
};

/// The maximum number of dead letters in one request.
const MAX_IDS: usize = 1_000;

/// A command on dead letters.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// Lists the open dead letters, newest first.
    List {
        /// Lists resolved dead letters instead.
        #[arg(long)]
        resolved: bool,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Resolves dead letters with a note.
    Resolve {
        /// The ids of the dead letters, at most 1,000.
        #[arg(required = true)]
        ids: Vec<DeadLetterId>,
        /// Note, at most 2,000 characters.
        #[arg(long, default_value = "", hide_default_value = true)]
        note: String,
    },
}

/// Runs a command on dead letters.
pub(super) async fn run(command: DeadLettersCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    match command {
        DeadLettersCommand::List { resolved, list } => {
            let query = DeadLetterQuery { resolved: Some(resolved), ..DeadLetterQuery::default() };
            let found = session.list(&query, list, async |client, query| client.dead_letters(query).await).await?;
            session.print_list(&found, list, "dead letters", |session, letters| {
                Table::new(
                    ["ID", "RECEIVED", "REASON", "SOURCE", "COPIES", "OCCURRENCE", "BODY"],
                    letters.iter().map(|letter| {
                        [
                            letter.id.to_string().into(),
                            session.moment(letter.received_at),
                            Cell::plain(&letter.reason),
                            Cell::plain(&letter.source),
                            letter.copies.to_string().into(),
                            letter.occurrence_id.map(|id| id.to_string()).unwrap_or_default().into(),
                            Cell::plain(&letter.body),
                        ]
                    }),
                )
            })
        }
        DeadLettersCommand::Resolve { ids, note } => {
            if ids.len() > MAX_IDS {
                return Err(CliError::Usage("Give at most 1,000 ids.".into()));
            }
            let result = session.client.resolve_dead_letters(&ResolveDeadLetters { ids, note }).await?;
            if session.format != OutputFormat::Table {
                return session.print(&result, |_, _| String::new());
            }
            session.console.message(&summary(&result, "dead letters", "resolved"));
            Ok(exit::SUCCESS)
        }
    }
}
