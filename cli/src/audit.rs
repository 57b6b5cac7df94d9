//! `milvaion audit`.

use chrono::NaiveDate;
use clap::Subcommand;
use milvaion_api::{
    audit::{AuditResult, AuditRow},
    rest::AuditQuery,
};

use super::{
    CliError, ListOptions,
    arguments::words,
    session::Session,
    table::{Cell, Color, Table},
};

/// A command on the audit log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Lists the audit log, newest first.
    List {
        /// Only actions of this author: an e-mail address, `system` or `unknown`.
        #[arg(long)]
        who: Option<String>,
        /// Only this action, as in `job.pause`, or all of a kind, as in `job.`.
        #[arg(long)]
        action: Option<String>,
        /// Only actions on this object: `job:`, `occurrence:` or `user:` and its id.
        #[arg(long, value_name = "KIND:ID")]
        object: Option<String>,
        /// Only actions that were carried out, or only refused ones.
        #[arg(long, value_parser = words::<AuditResult>(AuditResult::ALL.map(AuditResult::slug)))]
        result: Option<AuditResult>,
        /// Only actions on or after this day in UTC, such as 2026-10-25.
        #[arg(long, value_name = "DAY")]
        since: Option<NaiveDate>,
        /// Only actions on or before this day in UTC.
        #[arg(long, value_name = "DAY")]
        until: Option<NaiveDate>,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
}

/// Runs a command on the audit log.
pub(super) async fn run(command: AuditCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    let AuditCommand::List { who, action, object, result, since, until, list } = command;
    let query = AuditQuery { who, action, object, result, since, until, before: None };
    let rows = session.list(&query, list, async |client, query| client.audit(query).await).await?;
    session.print_list(&rows, list, "actions", audit_table)
}

fn audit_table(session: &Session<'_>, rows: &[AuditRow]) -> Table {
    Table::new(
        ["TIME", "WHO", "ACTION", "OBJECT", "RESULT", "REASON"],
        rows.iter().map(|row| {
            let color = match row.result {
                AuditResult::Done => Color::Plain,
                AuditResult::Refused => Color::Red,
            };
            let result = match row.repeats {
                0 | 1 => row.result.slug().to_owned(),
                repeats => format!("{}, {repeats} times", row.result.slug()),
            };
            [
                session.moment(row.at()),
                Cell::plain(&row.who),
                Cell::plain(&row.action),
                Cell::plain(row.object_name.as_ref().unwrap_or(&row.object)),
                Cell::new(result, color),
                row.reason.clone().unwrap_or_default().into(),
            ]
        }),
    )
}
