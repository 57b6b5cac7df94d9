//! `milvaion admin`: the users of an installation, for an operator on the server's machine.
//!
//! An installation whose only Admin has forgotten the passphrase cannot be recovered in the browser. Access to the
//! database is proof enough: it is sufficient to change the users directly. The commands write the same audit rows as the
//! dashboard, with `system` as the author.
//!
//! The commands use `DATABASE_URL`. Without it they use the private PostgreSQL of the data folder: the one that a running
//! server has started, or one that they start and stop themselves.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use milvaion_api::permissions::Role;
use milvaion_server::{
    clock::Clock,
    command::one_time_links,
    config::ServerConfig,
    embedded::{self, EmbeddedError, EmbeddedServices, ServiceSelection},
    lifecycle::ServerError,
    store::{
        Store,
        users::{ThrottleSlot, UserRow},
    },
};

use super::CliError;

/// The author of the audit rows.
const AUTHOR: &str = "system";

/// The subcommands of `milvaion admin`.
#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Print all users with their roles and states.
    List {
        /// Data folder of the private services. Overrides MILVAION_DATA.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Print a one-time link with which a user chooses a new passphrase. It is valid for 24 hours.
    ResetPassphrase {
        /// The e-mail address of the user.
        #[arg(value_name = "E-MAIL")]
        email: String,
        /// Data folder of the private services. Overrides MILVAION_DATA.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
}

/// Runs a subcommand. The exit code is 1 if there is no such user or the user is deactivated.
///
/// # Errors
///
/// Returns [`CliError`] if PostgreSQL cannot be reached, or if standard output does not accept the result.
pub(super) async fn admin(command: AdminCommand) -> Result<ExitCode, CliError> {
    let (AdminCommand::List { data } | AdminCommand::ResetPassphrase { data, .. }) = &command;
    let mut config = ServerConfig::from_env().map_err(ServerError::from)?;
    if let Some(data) = data {
        config.data_dir.clone_from(data);
    }
    let (store, services) = open(&config).await?;
    let result = match &command {
        AdminCommand::List { .. } => list(&store).await,
        AdminCommand::ResetPassphrase { email, .. } => reset_passphrase(&store, &config, email).await,
    };
    store.close().await;
    if let Some(services) = services {
        services.stop().await;
    }
    result
}

/// Connects to the database. Returns the private PostgreSQL too, if it was started for this command.
async fn open(config: &ServerConfig) -> Result<(Store, Option<EmbeddedServices>), CliError> {
    let mut database = config.database.clone();
    let mut services = None;
    database.url = match &config.database_url {
        Some(url) => url.clone(),
        None => {
            let stored = running_postgres(&config.data_dir)?;
            let wanted = ServiceSelection { postgres: true, redis: false, rabbitmq: false };
            match embedded::start(&config.data_dir, wanted, |line| eprintln!("  {line}")).await {
                Ok(started) => {
                    let url = started.database_url.clone().unwrap_or(stored);
                    services = Some(started);
                    url
                }
                // A server uses the folder, so its PostgreSQL runs.
                Err(EmbeddedError::Busy { .. }) => stored,
                Err(error) => return Err(error.into()),
            }
        }
    };
    match Store::open(&database).await {
        Ok(store) => Ok((store, services)),
        Err(error) => {
            if let Some(services) = services {
                services.stop().await;
            }
            Err(CliError::Database(error))
        }
    }
}

fn running_postgres(data_dir: &Path) -> Result<String, CliError> {
    embedded::running_postgres(data_dir).ok_or_else(|| CliError::NoInstallation { folder: data_dir.to_owned() })
}

fn print(text: &str) -> Result<(), CliError> {
    io::stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)
}

async fn list(store: &Store) -> Result<ExitCode, CliError> {
    let mut users = store.list_users().await.map_err(CliError::Database)?;
    users.sort_by(|a, b| b.role.cmp(&a.role).then_with(|| a.email.cmp(&b.email)));
    let now = milvaion_server::clock::machine_now();
    let emails: Vec<_> = users.iter().map(|user| user.email.as_str()).collect();
    let locked = store.accounts_locked_until(&emails, now).await.map_err(CliError::Database)?;
    let mut rows = vec![["E-MAIL", "NAME", "ROLE", "STATE", "LAST SIGN-IN (UTC)"].map(str::to_owned)];
    rows.extend(users.iter().zip(locked).map(|(user, locked_until)| {
        let state = match locked_until {
            _ if !user.is_active => "deactivated",
            Some(_) => "locked",
            None => "active",
        };
        let last = user.last_sign_in_at.map(|at| at.format("%Y-%m-%d %H:%M").to_string());
        [
            user.email.clone(),
            // A name may hold any character; a control character could move the cursor.
            user.name.chars().filter(|letter| !letter.is_control()).collect(),
            user.role.slug().to_owned(),
            state.to_owned(),
            last.unwrap_or_else(|| "never".into()),
        ]
    }));
    print(&table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Aligns the columns.
fn table(rows: &[[String; 5]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..4).map(width).collect();
    rows.iter().fold(String::new(), |mut text, row| {
        for (cell, width) in row.iter().zip(&widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(&row[4]);
        text.push('\n');
        text
    })
}

async fn reset_passphrase(store: &Store, config: &ServerConfig, email: &str) -> Result<ExitCode, CliError> {
    let email = email.trim().to_lowercase();
    let Some(user) = store.user_by_email(&email).await.map_err(CliError::Database)? else {
        let users = store.list_users().await.map_err(CliError::Database)?;
        eprintln!("There is no user with the e-mail address {email:?}. {}", admins(&users));
        return Ok(ExitCode::FAILURE);
    };
    let clock = Clock::system();
    // The month of the audit row may be missing if no server ran for long.
    store.ensure_partitions(clock.now()).await.map_err(CliError::Database)?;
    let path = match one_time_links::reset_link(store, &clock, AUTHOR, None, &user).await {
        Ok(path) => path,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    store.reset_sign_in_attempts(ThrottleSlot::account(&email)).await.map_err(CliError::Database)?;
    let (address, hint) = match &config.http.public_url {
        Some(base) => (format!("{base}{path}"), ""),
        None => (path, "Open this path at the address of the dashboard, such as http://127.0.0.1:8600.\n"),
    };
    print(&format!(
        "{address}\n{hint}{name} ({role}) chooses a new passphrase there. The link works once, for 24 hours, and ends all \
         sessions of the user.\n",
        name = user.name,
        role = user.role.label()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the addresses of the active Admins as a sentence.
fn admins(users: &[UserRow]) -> String {
    let emails: Vec<_> = users
        .iter()
        .filter(|user| user.is_active && user.role == Role::Admin)
        .map(|user| user.email.as_str())
        .collect();
    match emails.as_slice() {
        [] => "There is no Admin yet: start the server and open the setup link that it prints.".into(),
        emails => format!("The Admins are: {}.", emails.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_aligned() {
        let row = |cells: [&str; 5]| cells.map(str::to_owned);
        let text = table(&[
            row(["E-MAIL", "NAME", "ROLE", "STATE", "LAST"]),
            row(["a@b.c", "Żółw", "admin", "active", "never"]),
        ]);
        assert_eq!(text, "E-MAIL  NAME  ROLE   STATE   LAST\na@b.c   Żółw  admin  active  never\n");
    }
}
