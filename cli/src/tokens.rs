//! `milvaion tokens`.
//!
//! The secret of a new token is the only result on standard output, so that a script can pass it on without it appearing
//! on a screen. Everything about it goes to standard error.

use clap::Subcommand;
use milvaion_api::{
    permissions::Role,
    rest::TokenQuery,
    tokens::{CreatedToken, NewToken, ROTATION_OVERLAP_HOURS, TokenRow, TokenState},
};
use milvaion_protocol::id::TokenId;

use super::{
    CliError, ListOptions, OutputFormat, Yes,
    arguments::words,
    exit,
    session::Session,
    table::{Cell, Color, Table},
};

/// A command on API tokens.
#[derive(Debug, Subcommand)]
pub enum TokensCommand {
    /// Lists your tokens.
    List {
        /// Lists the tokens of all users and services. Only an Admin can do this.
        #[arg(long)]
        everyone: bool,
        /// The length of the list.
        #[command(flatten)]
        list: ListOptions,
    },
    /// Creates a token and prints its secret, which cannot be read again.
    Create {
        /// Name, 1 to 100 characters.
        name: String,
        /// Role, at most your own.
        #[arg(long, value_parser = words::<Role>(Role::ALL.map(Role::slug)))]
        role: Role,
        /// The token may only read.
        #[arg(long)]
        read_only: bool,
        /// Limits the token to the jobs with this tag.
        #[arg(long)]
        tag: Option<String>,
        /// Lifetime in days, 1 to 3,650; 90 without it.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3_650))]
        expires_in: Option<u32>,
        /// The token never expires. Only an Admin can create such a token.
        #[arg(long, conflicts_with = "expires_in")]
        never_expires: bool,
        /// The token belongs to the installation and remains when you leave. Only an Admin can create such a token.
        #[arg(long)]
        service: bool,
    },
    /// Replaces a token by a new one and prints the new secret. The old one works for 24 more hours.
    Rotate {
        /// The id of the token.
        id: TokenId,
    },
    /// Revokes a token at once.
    Revoke {
        /// The id of the token.
        id: TokenId,
        /// The consent.
        #[command(flatten)]
        yes: Yes,
    },
}

/// Runs a command on tokens.
pub(super) async fn run(command: TokensCommand, session: &mut Session<'_>) -> Result<u8, CliError> {
    match command {
        TokensCommand::List { everyone, list } => {
            let query = TokenQuery { all: everyone, ..TokenQuery::default() };
            let found = session.list(&query, list, async |client, query| client.tokens(query).await).await?;
            session.print_list(&found, list, "tokens", tokens_table)
        }
        TokensCommand::Create { name, role, read_only, tag, expires_in, never_expires, service } => {
            let token = NewToken { name, role, read_only, tag, expires_in_days: expires_in, never_expires, service };
            let created = session.client.create_token(&token).await?;
            print_secret(session, &created)
        }
        TokensCommand::Rotate { id } => {
            let created = session.client.rotate_token(id).await?;
            let code = print_secret(session, &created)?;
            session.console.message(&format!("The old token works for {ROTATION_OVERLAP_HOURS} more hours."));
            Ok(code)
        }
        TokensCommand::Revoke { id, yes } => {
            let token = session.client.token(id).await?;
            session.confirm(yes, &format!("Revoke the token {:?} (…{})?", token.name, token.hint))?;
            session.client.revoke_token(id).await?;
            session.console.message(&format!("The token {:?} is revoked.", token.name));
            Ok(exit::SUCCESS)
        }
    }
}

fn print_secret(session: &mut Session<'_>, created: &CreatedToken) -> Result<u8, CliError> {
    let code = session.print(created, |_, created| format!("{}\n", created.secret))?;
    if session.format == OutputFormat::Table {
        session.console.flush()?;
        let CreatedToken { token, .. } = created;
        let expiry = token.expires_at.map_or_else(
            || "It never expires.".to_owned(),
            |at| format!("It expires on {}.", (session.console.environment.to_local)(at).format("%Y-%m-%d")),
        );
        let text = format!("Token {:?}, id {}. {expiry} The secret cannot be read again.", token.name, token.id);
        session.console.message(&text);
    }
    Ok(code)
}

fn tokens_table(session: &Session<'_>, tokens: &[TokenRow]) -> Table {
    Table::new(
        ["ID", "NAME", "SECRET", "OWNER", "ROLE", "TAG", "STATE", "EXPIRES", "LAST USED"],
        tokens.iter().map(|token| {
            let color = match token.state {
                TokenState::Active => Color::Green,
                TokenState::Rotated => Color::Yellow,
                TokenState::Expired | TokenState::Revoked => Color::Faint,
            };
            let role = if token.read_only { ", read only" } else { "" };
            [
                token.id.to_string().into(),
                Cell::plain(&token.name),
                format!("…{}", token.hint).into(),
                token.owner.as_ref().map_or_else(|| Cell::faint("service"), Cell::plain),
                format!("{}{role}", token.role.label()).into(),
                token.tag.clone().unwrap_or_default().into(),
                Cell::new(token.state.label(), color),
                session.moment_or(token.expires_at, "never"),
                session.moment_or(token.last_used_at, "never"),
            ]
        }),
    )
}
