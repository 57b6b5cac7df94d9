//! Definitions from files: plan what they change, and apply them.
//!
//! A file says how its jobs and calendars are to be, and applying it makes them so. All documents of all files are checked
//! before anything is changed, and each file is applied in one transaction: a team that reads "applied" in its pipeline
//! knows that the installation is as its repository says. `plan` compares the documents with what is stored, `apply`
//! carries the differences out, and `export` writes what is stored as documents.
//!
//! A job that comes from a file remembers the file and the version that the file had. Every later version is an edit
//! elsewhere, which a plan shows and an apply overwrites.

mod apply;
mod export;
mod plan;
mod rules;
mod warnings;

use milvaion_api::{
    requests::{FieldError, JobInput},
    rest::{ApplyFiles, FileDocument, FilePlan, FilesPlan, PlannedOutcome, ProblemField, PrunedJob},
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;

use crate::store::{StoreError, calendars::CalendarSet, jobs::StoredJob, sources::JobOfFile};
use rules::PlannedRule;

/// The most errors of invalid documents in one answer.
const MAX_ERRORS: usize = 20;

/// The caller of a plan or an apply.
#[derive(Clone, Copy, Debug)]
pub struct FilesCaller<'a> {
    /// The user, or the owner of the token.
    pub me: &'a RequestUser,
    /// The tag that limits the token.
    pub tag: Option<&'a str>,
}

impl<'a> FilesCaller<'a> {
    /// Returns the tag of the jobs that belong to the files: that of the request, or the one that limits the token.
    fn selected_tag(self, request: &'a ApplyFiles) -> Option<&'a str> {
        let named = request.prune.as_ref().map(|prune| prune.tag.as_str()).or(request.tag.as_deref());
        named.or(self.tag)
    }
}

/// The reason for which files are not planned or applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesError {
    /// Documents are invalid; nothing was changed.
    Documents(Vec<ProblemField>),
    /// Any other reason.
    Other(AppError),
}

impl From<AppError> for FilesError {
    fn from(error: AppError) -> Self {
        Self::Other(error)
    }
}

impl From<StoreError> for FilesError {
    fn from(error: StoreError) -> Self {
        Self::Other(error.into())
    }
}

/// What a request changes, ready to be carried out.
#[derive(Debug, Default)]
struct Plan {
    /// The files, in the order of the request.
    files: Vec<PlannedFile>,
    /// The numbers of the files, in the order in which they are applied.
    order: Vec<usize>,
    /// The jobs to delete.
    deleted: Vec<JobOfFile>,
    /// The warnings about jobs that no document names and that are not deleted.
    warnings: Vec<String>,
    /// The calendars of all jobs, as they are after the request.
    calendars: CalendarSet,
}

/// What a file changes.
#[derive(Debug)]
struct PlannedFile {
    calendars: Vec<PlannedCalendar>,
    rules: Vec<PlannedRule>,
    jobs: Vec<PlannedJob>,
    report: FilePlan,
}

/// A calendar that is created or changed.
#[derive(Debug)]
struct PlannedCalendar {
    id: CalendarId,
    /// The version that is changed; none for a new calendar.
    version: Option<i32>,
    calendar: Calendar,
}

/// A job of a file, which may be as the file says.
#[derive(Debug)]
struct PlannedJob {
    id: JobId,
    key: String,
    /// The job as it is stored; none for a new one.
    before: Option<StoredJob>,
    job: JobInput,
    outcome: PlannedOutcome,
}

impl Plan {
    /// Returns the plan for the caller.
    fn into_report(self) -> FilesPlan {
        let deleted = self.deleted.into_iter().map(|job| PrunedJob {
            id: job.id,
            key: job.key,
            display_name: job.display_name,
            file: job.file,
        });
        FilesPlan {
            files: self.files.into_iter().map(|file| file.report).collect(),
            deleted: deleted.collect(),
            warnings: self.warnings,
        }
    }
}

impl PlannedFile {
    fn new(name: &str) -> Self {
        let report = FilePlan { name: name.to_owned(), documents: Vec::new() };
        Self { calendars: Vec::new(), rules: Vec::new(), jobs: Vec::new(), report }
    }
}

/// The place of a document in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: usize,
    document: usize,
}

/// The errors of documents, with their places.
#[derive(Debug, Default)]
struct DocumentErrors(Vec<ProblemField>);

impl DocumentErrors {
    /// Adds an error of a field of a document.
    fn add(&mut self, place: Place, field: &str, message: impl Into<String>) {
        self.0.push(ProblemField { field: path_of(place, field), message: message.into() });
    }

    /// Adds the errors of a check of a calendar or an alert rule.
    fn extend(&mut self, place: Place, errors: Vec<FieldError>) {
        for error in errors {
            self.add(place, &error.field, error.message);
        }
    }

    /// Adds the errors of a check of a job, whose fields have the names of the form.
    fn extend_job(&mut self, place: Place, errors: Vec<FieldError>) {
        self.0.extend(errors.into_iter().map(|error| {
            let error = ProblemField::from(error);
            ProblemField { field: path_of(place, &error.field), message: error.message }
        }));
    }

    /// Returns the errors, if there are any.
    fn into_result(mut self) -> Result<(), FilesError> {
        self.0.truncate(MAX_ERRORS);
        if self.0.is_empty() { Ok(()) } else { Err(FilesError::Documents(self.0)) }
    }
}

fn path_of(Place { file, document }: Place, field: &str) -> String {
    format!("files.{file}.documents.{document}.{field}")
}

/// Returns all documents with their places.
fn documents(request: &ApplyFiles) -> impl Iterator<Item = (Place, &FileDocument)> {
    let files = request.files.iter().enumerate();
    files.flat_map(|(file, content)| {
        content.documents.iter().enumerate().map(move |(document, content)| (Place { file, document }, content))
    })
}
