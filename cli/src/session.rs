//! A command with the server it calls and the console it writes to.

use chrono::{DateTime, Utc};
use milvaion_api::rest::Page;
use milvaion_client::{Client, ClientError, Listing, PagedQuery, collect};
use serde::Serialize;

use super::{
    CliError, Console, GlobalOptions, ListOptions, OutputFormat, Yes,
    arguments::MAX_ITEMS,
    confirm::confirm,
    credentials::{Credentials, CredentialsFile},
    exit,
    output::to_document,
    table::{Cell, Color, Details, Table},
    times,
};

/// A command with its server and its console.
pub(super) struct Session<'a> {
    /// The server.
    pub(super) client: Client,
    /// The console.
    pub(super) console: &'a mut Console,
    /// The format of the result.
    pub(super) format: OutputFormat,
    has_colors: bool,
    /// The time of the command, to which ages refer.
    pub(super) now: DateTime<Utc>,
}

impl<'a> Session<'a> {
    /// Finds the server and the token of a command: the address in `--url`, in `MILVAION_URL` or with the stored token,
    /// and the token in `MILVAION_TOKEN` or the stored one of that address.
    pub(super) fn open(globals: &GlobalOptions, console: &'a mut Console) -> Result<Self, CliError> {
        let requested = globals.url.clone().or_else(|| console.environment.url.clone());
        let given = console.environment.token.clone();
        let stored = if requested.is_some() && given.is_some() { None } else { stored(console)? };
        let client = match (requested, given, stored) {
            (Some(url), Some(token), _) => Client::new(&url, &token)?,
            (None, Some(token), Some(stored)) => Client::new(&stored.url, &token)?,
            (None, None, Some(stored)) => Client::new(&stored.url, &stored.token)?,
            (Some(url), None, Some(stored)) => {
                let client = Client::new(&url, &stored.token)?;
                if Client::new(&stored.url, &stored.token)?.base_url() != client.base_url() {
                    let requested = client.base_url().to_string();
                    return Err(CliError::OtherServer { stored: stored.url, requested });
                }
                client
            }
            (None, Some(_), None) => return Err(CliError::NoServer),
            (_, None, None) => return Err(CliError::NotSignedIn),
        };
        Ok(Self::new(client, globals, console))
    }

    /// Builds a session with a known server.
    pub(super) fn new(client: Client, globals: &GlobalOptions, console: &'a mut Console) -> Self {
        let has_colors = console.is_output_terminal && !console.environment.no_color && !globals.no_color;
        let now = (console.environment.now)();
        Self { client, console, format: globals.output, has_colors, now }
    }

    /// Prints a result: for people by `table`, or as a document.
    pub(super) fn print<T: Serialize>(
        &mut self,
        value: &T,
        table: impl FnOnce(&Self, &T) -> String,
    ) -> Result<u8, CliError> {
        let text = match to_document(self.format, value)? {
            Some(document) => document,
            None => table(self, value),
        };
        self.console.write(text.as_bytes())?;
        Ok(exit::SUCCESS)
    }

    /// Prints a list, with a message if it has more items, or none.
    pub(super) fn print_list<T: Serialize>(
        &mut self,
        list: &Listing<T>,
        options: ListOptions,
        noun: &str,
        table: impl FnOnce(&Self, &[T]) -> Table,
    ) -> Result<u8, CliError> {
        if self.format == OutputFormat::Table && list.items.is_empty() {
            self.console.message(&format!("There are no such {noun}."));
            return Ok(exit::SUCCESS);
        }
        self.print(&list.items, |session, items| table(session, items).render(session.has_colors))?;
        if list.has_more {
            // The list comes first on a terminal.
            self.console.flush()?;
            self.console.message(&if options.max_items() == MAX_ITEMS {
                format!("Only the first 10,000 {noun} are listed. Narrow the list down with a filter.")
            } else {
                format!("There are more {noun}. Use --all, or a larger --limit.")
            });
        }
        Ok(exit::SUCCESS)
    }

    /// Reads a list up to the length that the options name.
    pub(super) async fn list<Q: PagedQuery, T>(
        &self,
        query: &Q,
        options: ListOptions,
        page: impl AsyncFn(&Client, &Q) -> Result<Page<T>, ClientError>,
    ) -> Result<Listing<T>, CliError> {
        Ok(collect(query, options.max_items(), async |query: &Q| page(&self.client, query).await).await?)
    }

    /// Formats the fields of one object.
    pub(super) fn details(&self, details: &Details) -> String {
        details.render(self.has_colors)
    }

    /// Formats a table inside a longer text.
    pub(super) fn table(&self, table: &Table) -> String {
        table.render(self.has_colors)
    }

    /// Colours a text.
    pub(super) fn paint(&self, text: &str, color: Color) -> String {
        Cell::new(text, color).painted(self.has_colors)
    }

    /// Asks for consent to a change that cannot be undone.
    pub(super) fn confirm(&mut self, yes: Yes, question: &str) -> Result<(), CliError> {
        confirm(self.console, yes, question)
    }

    /// Formats a time: local, and relative to now.
    pub(super) fn moment(&self, at: DateTime<Utc>) -> Cell {
        Cell::plain(times::moment(at, self.now, self.console.environment.to_local))
    }

    /// Formats a time that may be missing.
    pub(super) fn moment_or(&self, at: Option<DateTime<Utc>>, missing: &str) -> Cell {
        at.map_or_else(|| Cell::faint(missing), |at| self.moment(at))
    }
}

/// Returns the stored address and token, if there are any.
fn stored(console: &Console) -> Result<Option<Credentials>, CliError> {
    match CredentialsFile::in_folder(console.environment.config_folder.as_deref()) {
        Ok(file) => file.read(),
        // A container may have no home folder. Its environment names the server and the token.
        Err(CliError::NoConfigFolder) => Ok(None),
        Err(error) => Err(error),
    }
}
