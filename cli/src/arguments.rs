//! The arguments that many commands share.

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The number of items that a list shows without `--limit`.
const DEFAULT_ITEMS: usize = 50;
/// The maximum number of items that a list shows.
pub(super) const MAX_ITEMS: usize = 10_000;

/// A group of commands with the options that all of them accept.
#[derive(Debug, Args)]
pub struct Remote<C: Subcommand> {
    /// The options.
    #[command(flatten)]
    pub globals: GlobalOptions,
    /// The command.
    #[command(subcommand)]
    pub command: C,
}

/// The options of every command that calls a server. A token is none of them: arguments are visible to other users of a
/// machine and stay in the history of a shell.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Server and output")]
pub struct GlobalOptions {
    /// Address of the server. Overrides MILVAION_URL, which overrides the address of `milvaion login`.
    #[arg(long, global = true, value_name = "URL")]
    pub url: Option<String>,
    /// Format of the result.
    #[arg(short, long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: OutputFormat,
    /// Prints no colors. The variable NO_COLOR has the same effect.
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// The format of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// A table for people. Its columns may change.
    #[default]
    Table,
    /// The JSON of the API.
    Json,
    /// The same as YAML.
    Yaml,
}

/// The length of a list.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ListOptions {
    /// Maximum number of items, 1 to 10,000; 50 without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), conflicts_with = "all")]
    pub limit: Option<u16>,
    /// Prints all items, at most 10,000.
    #[arg(long)]
    pub all: bool,
}

impl ListOptions {
    /// Returns the maximum number of items.
    #[must_use]
    pub fn max_items(self) -> usize {
        if self.all { MAX_ITEMS } else { self.limit.map_or(DEFAULT_ITEMS, usize::from) }
    }
}

/// The consent to a change that cannot be undone.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Yes {
    /// Does not ask before the change. Required without a terminal.
    #[arg(short, long)]
    pub yes: bool,
}

/// Returns a parser of the words of an enum in the API, which lists them in the help and in completions.
pub(super) fn words<T>(all: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(all).try_map(|text| serde_json::from_value(Value::String(text)))
}
