//! `milvaion export`, `milvaion diff` and `milvaion apply`: jobs, calendars and alert rules as YAML files.
//!
//! The server compares and saves; the commands read files, show the plan and ask. A document is sent as it was parsed, so
//! that the server names a field that it does not know, and the command adds the file and the line.

mod document;
mod export;
mod paths;
mod plan_text;

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use milvaion_api::rest::{FilesPlan, Prune, files::MAX_DOCUMENTS};
use milvaion_client::ClientError;
use serde_json::{Value, json};

pub(super) use export::export;

use self::{
    document::ParsedFile,
    plan_text::{plan_text, summary},
};
use super::{CliError, Console, GlobalOptions, OutputFormat, Yes, exit, session::Session};

/// The options of an export.
#[derive(Clone, Debug, Args)]
pub struct ExportOptions {
    /// Only jobs with a tag and the calendars that they name, without alert rules: `tag=TAG`.
    #[arg(long, value_name = "SELECTOR")]
    pub selector: Option<TagSelector>,
    /// The options.
    #[command(flatten)]
    pub globals: GlobalOptions,
}

/// The options of a comparison.
#[derive(Clone, Debug, Args)]
pub struct DiffOptions {
    /// The files.
    #[command(flatten)]
    pub files: FileOptions,
    /// The options.
    #[command(flatten)]
    pub globals: GlobalOptions,
}

/// The options of an apply.
#[derive(Clone, Debug, Args)]
pub struct ApplyOptions {
    /// The files.
    #[command(flatten)]
    pub files: FileOptions,
    /// Shows the plan and changes nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Does not ask before deletions. Required without a terminal if there are any.
    #[arg(short, long)]
    pub yes: bool,
    /// The options.
    #[command(flatten)]
    pub globals: GlobalOptions,
}

/// The files of a command.
#[derive(Clone, Debug, Args)]
pub struct FileOptions {
    /// File, folder, or `-` for standard input. Of a folder, all files *.yaml and *.yml are read, also in its folders.
    #[arg(short = 'f', long = "file", value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Deletes jobs that came from a file, have the tag of --selector, and are in none of these files. Calendars and alert
    /// rules are never deleted. Files without any document are refused, because all jobs with the tag would be deleted.
    #[arg(long, requires = "selector")]
    pub prune: bool,
    /// The jobs that belong to the files: `tag=TAG`. --prune deletes those that no file has; without it, the plan warns about
    /// them.
    #[arg(long, value_name = "SELECTOR")]
    pub selector: Option<TagSelector>,
}

/// A selector of jobs by a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagSelector(String);

impl FromStr for TagSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("tag", tag)) if !tag.trim().is_empty() => Ok(Self(tag.trim().to_owned())),
            _ => Err("write the selector as tag=TAG, for example tag=nightly".into()),
        }
    }
}

/// Shows the differences between files and the server. Returns 1 if there are any.
pub(super) async fn diff(options: &DiffOptions, console: &mut Console) -> Result<u8, CliError> {
    // As for the program diff, 1 means a difference, so no failure may have that code.
    plan_and_print(options, console).await.map_err(|error| CliError::NotCompared(Box::new(error)))
}

async fn plan_and_print(options: &DiffOptions, console: &mut Console) -> Result<u8, CliError> {
    let files = paths::read_files(&options.files.paths, console)?;
    let mut session = Session::open(&options.globals, console)?;
    let plan = plan(&session, &options.files, &files).await?;
    print_plan(&mut session, &plan)?;
    Ok(if plan.is_empty() { exit::SUCCESS } else { exit::DIFFERENT })
}

/// Makes jobs, calendars and alert rules be as files say.
pub(super) async fn apply(options: &ApplyOptions, console: &mut Console) -> Result<u8, CliError> {
    let files = paths::read_files(&options.files.paths, console)?;
    let mut session = Session::open(&options.globals, console)?;
    let planned = plan(&session, &options.files, &files).await?;
    if options.dry_run || session.format == OutputFormat::Table {
        print_plan(&mut session, &planned)?;
    }
    if options.dry_run {
        return Ok(exit::SUCCESS);
    }
    if !planned.deleted.is_empty() {
        session.console.flush()?;
        let question = match planned.deleted.len() {
            1 => "Delete 1 job that no file has?".to_owned(),
            jobs => format!("Delete {jobs} jobs that no file has?"),
        };
        session.confirm(Yes { yes: options.yes }, &question)?;
    }
    let expected = u32::try_from(planned.deleted.len()).ok();
    let body = request(&options.files, &files, expected);
    let applied = session.client.apply_files(&body).await.map_err(|error| located(error, &files))?;
    if session.format == OutputFormat::Table {
        session.console.flush()?;
        session.console.message(&format!("Applied: {}", summary(&applied)));
        return Ok(exit::SUCCESS);
    }
    session.print(&applied, |_, _| String::new())
}

async fn plan(session: &Session<'_>, options: &FileOptions, files: &[ParsedFile]) -> Result<FilesPlan, CliError> {
    let documents: usize = files.iter().map(|file| file.documents.len()).sum();
    if documents > MAX_DOCUMENTS {
        return Err(CliError::Usage(format!(
            "The files have {documents} documents, at most {MAX_DOCUMENTS} are applied at once. Give fewer files, such as one folder."
        )));
    }
    // Such as the empty output of a program that failed.
    if documents == 0 && options.prune {
        return Err(CliError::Usage(
            "The files have no documents, so --prune would delete all jobs with the tag that came from files. Check the input. \
             If no job is to be left, delete the last ones on their pages."
                .into(),
        ));
    }
    session.client.plan_files(&request(options, files, None)).await.map_err(|error| located(error, files))
}

/// Returns the request for files.
fn request(options: &FileOptions, files: &[ParsedFile], expected: Option<u32>) -> Value {
    let documents =
        |file: &ParsedFile| file.documents.iter().map(|document| document.value.clone()).collect::<Vec<_>>();
    let files: Vec<Value> =
        files.iter().map(|file| json!({ "name": file.name, "documents": documents(file) })).collect();
    let mut request = json!({ "files": files });
    match &options.selector {
        Some(TagSelector(tag)) if options.prune => request["prune"] = json!(Prune { tag: tag.clone(), expected }),
        Some(TagSelector(tag)) => request["tag"] = json!(tag),
        None => {}
    }
    request
}

fn print_plan(session: &mut Session<'_>, plan: &FilesPlan) -> Result<(), CliError> {
    session.print(plan, plan_text)?;
    if session.format == OutputFormat::Table {
        session.console.flush()?;
        session.console.message(&summary(plan));
    }
    Ok(())
}

/// Adds the file, the document and the line to errors about documents.
fn located(error: ClientError, files: &[ParsedFile]) -> CliError {
    let ClientError::Problem(problem) = &error else { return error.into() };
    let lines: Vec<String> = problem
        .errors
        .iter()
        .filter_map(|error| {
            let mut parts = error.field.splitn(5, '.');
            let (Some("files"), Some(file), Some("documents"), Some(document)) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return None;
            };
            let file = files.get(file.parse::<usize>().ok()?)?;
            let field = parts.next().unwrap_or_default();
            Some(file.describe(document.parse().ok()?, field, &error.message))
        })
        .collect();
    if lines.is_empty() { error.into() } else { CliError::Documents(lines.join("\n")) }
}
