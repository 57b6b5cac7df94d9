//! `milvaion login`, `logout` and `whoami`.
//!
//! A token is checked before it is stored, so that a typing error is found now and not in the first script of the night.

use std::io;

use milvaion_api::views::CurrentUser;
use milvaion_client::Client;
use url::Host;

use super::{
    CliError, Console, GlobalOptions,
    credentials::{Credentials, CredentialsFile},
    exit,
    secret::read_secret,
    session::Session,
    table::Details,
};

/// The address that is proposed if none is known: that of a server on the same machine.
const LOCAL_ADDRESS: &str = "http://127.0.0.1:8600";

/// Signs in: asks for the address and the token, checks them and stores them.
pub(super) async fn login(globals: &GlobalOptions, console: &mut Console) -> Result<u8, CliError> {
    let file = CredentialsFile::in_folder(console.environment.config_folder.as_deref())?;
    let url = match globals.url.clone().or_else(|| console.environment.url.clone()) {
        Some(url) => url,
        None if console.is_interactive => {
            // A damaged file is replaced by this command, so it must not end it.
            let stored = file.read().ok().flatten().map(|stored| stored.url);
            let proposed = stored.unwrap_or_else(|| LOCAL_ADDRESS.to_owned());
            let answer = console.ask(&format!("Address of the server [{proposed}]:"))?;
            if answer.is_empty() { proposed } else { answer }
        }
        None => return Err(CliError::Usage("Standard input is for the token. Give the address with --url.".into())),
    };
    let token = if console.is_interactive {
        console.message("Create a token on the page API tokens of the dashboard.");
        read_secret(&io::stdin(), &mut console.input, &mut console.messages, "Token:")
            .map_err(|source| CliError::Input { name: "The terminal".into(), source })?
    } else {
        console.read_line()?
    };
    let client = Client::new(&url, &token)?;
    let address = client.base_url().to_string();
    if client.base_url().scheme() == "http" && !is_loopback(&client) {
        console.message(&format!("Warning: {address} has no encryption, so others on the network can read the token."));
    }
    let mut session = Session::new(client, globals, console);
    let user = session.client.account().await?;
    file.write(&Credentials { url: address.clone(), token })?;
    session.console.message(&format!("Signed in to {address}. The token is stored in {}.", file.path().display()));
    print_user(&mut session, &user)
}

fn is_loopback(client: &Client) -> bool {
    match client.base_url().host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Deletes the stored token.
pub(super) fn logout(console: &mut Console) -> Result<u8, CliError> {
    let file = CredentialsFile::in_folder(console.environment.config_folder.as_deref())?;
    console.message(if file.delete()? {
        "Signed out. The token stays valid until it expires or is revoked."
    } else {
        "You were not signed in."
    });
    Ok(exit::SUCCESS)
}

/// Prints the user of the token.
pub(super) async fn whoami(session: &mut Session<'_>) -> Result<u8, CliError> {
    let user = session.client.account().await?;
    print_user(session, &user)
}

fn print_user(session: &mut Session<'_>, user: &CurrentUser) -> Result<u8, CliError> {
    session.print(user, |session, user| {
        let details = Details::default()
            .with("Server", session.client.base_url().as_str())
            .with("Name", &user.name)
            .with_some("E-mail", Some(&user.email))
            .with("Role", user.role.label());
        session.details(&details)
    })
}
