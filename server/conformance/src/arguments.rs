//! The arguments of the command, which the server's binary and the small binary of this crate share.

use clap::{Args, ValueEnum};

/// The level of a case, and of a worker: the highest level of which it passes every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ConformanceLevel {
    /// The worker runs jobs and reports their ends.
    Minimal,
    /// It also claims its runs, so that no attempt runs twice, and sends heartbeats.
    Claims,
    /// It implements the whole protocol.
    Full,
}

impl ConformanceLevel {
    /// All levels, the lowest first.
    pub const ALL: [Self; 3] = [Self::Minimal, Self::Claims, Self::Full];

    /// Returns the name of the level.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Claims => "claims",
            Self::Full => "full",
        }
    }
}

/// The arguments of `milvaion conformance`.
#[derive(Clone, Debug, Args)]
pub struct ConformanceArguments {
    /// Level that the worker must pass. Its cases and those of lower levels run.
    #[arg(long, value_enum, default_value = "full")]
    pub level: ConformanceLevel,
    /// Case to run, by its name. Can be repeated. Without it, all cases of the level run.
    #[arg(long = "case", value_name = "NAME")]
    pub cases: Vec<String>,
    /// Print the cases of the level instead of running them.
    #[arg(long)]
    pub list: bool,
    /// Print the verdicts as JSON.
    #[arg(long)]
    pub json: bool,
    /// Job type of the worker that returns its input.
    #[arg(long, value_name = "JOB_TYPE", default_value = "conformance-echo")]
    pub echo_type: String,
    /// Number of cases that run side by side, 1 to 64.
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub parallel: u8,
    /// Command that starts the worker, and its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "list")]
    pub command: Vec<String>,
}
