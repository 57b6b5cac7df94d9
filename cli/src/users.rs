//! `milvaion users`.

use clap::Subcommand;
use milvaion_api::{
    permissions::Role,
    rest::TeamQuery,
    team::{TeamRow, UserState},
};

use super::{
    CliError, ListOptions,
    arguments::words,
    session::Session,
    table::{Cell, Color, Table},
};

/// A command on users.
#[derive(Debug, Subcommand)]
pub enum UsersCommand {
    /// Lists the users and the open invitations.
    List {
        /// Only users with this text in the name or the e-mail address.
        #[arg(long)]
        text: Option<String>,
        /// Only users with this role.
        #[arg(long, value_parser = words::<Role>(Role::ALL.map(Role::slug)))]
        role: Option<Role>,
        /// Only users in this state.
        #[arg(long, value_parser = words::<UserState>(UserState::ALL.map(UserState::slug)))]
        state: Option<UserState>,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
}

/// Runs a command on users.
pub(super) async fn run(command: UsersCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    let UsersCommand::List { text, role, state, list } = command;
    let query = TeamQuery { text, role, state };
    let users = session.list(&query, list, async |client, query| client.users(query).await).await?;
    session.print_list(&users, list, "users", users_table)
}

fn users_table(session: &Session<'_>, users: &[TeamRow]) -> Table {
    Table::new(
        ["ID", "NAME", "E-MAIL", "ROLE", "STATE", "LAST SEEN"],
        users.iter().map(|user| {
            let color = match user.state {
                UserState::Active => Color::Green,
                UserState::Locked => Color::Yellow,
                UserState::Deactivated => Color::Faint,
                UserState::Invited => Color::Blue,
            };
            [
                user.id.to_string().into(),
                Cell::plain(&user.name),
                user.email.clone().unwrap_or_default().into(),
                user.role.label().into(),
                Cell::new(user.state.label(), color),
                session.moment_or(user.last_seen_at, "never"),
            ]
        }),
    )
}
