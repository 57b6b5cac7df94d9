//! Jobs: their definitions, versions and runs.
//!
//! A job has an id that the server chose, and perhaps a key that its author chose. Users and files name it by the key,
//! so a [`JobReference`] is either.

use std::{fmt, str::FromStr};

use http::StatusCode;
use milvaion_api::{
    audit::AuditRow,
    requests::JobInput,
    rest::{
        CancelDelayed, CancelDelayedResult, CompareQuery, DuplicateJob, Job, JobAuditQuery, JobQuery, JobSummary,
        NewJob, OccurrenceDetail, Page, PauseRequest, RunJob, SkipDue, VersionQuery,
    },
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
};
use milvaion_protocol::id::JobId;

use super::segment;
use crate::{Client, ClientError};

/// The maximum length of a key.
const MAX_KEY_CHARS: usize = 100;
/// The argument that names a key.
const JOB_KEY: &str = "the key of a job";
/// The length of an id as text.
const ID_CHARS: usize = 36;

/// The id or the key of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobReference {
    /// The id.
    Id(JobId),
    /// The key.
    Key(String),
}

impl FromStr for JobReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Only the usual form is an id: 32 digits without hyphens are a valid key.
        if text.len() == ID_CHARS
            && let Ok(id) = text.parse()
        {
            return Ok(Self::Id(id));
        }
        let is_lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let is_key = text.len() <= MAX_KEY_CHARS
            && text.bytes().next().is_some_and(is_lower)
            && text.bytes().all(|b| is_lower(b) || matches!(b, b'.' | b'_' | b'-'));
        if is_key {
            return Ok(Self::Key(text.to_owned()));
        }
        Err("this is neither the id nor the key of a job: a key has lower-case letters, digits, `.`, `_` and `-`. \
             `milvaion jobs list` shows both"
            .into())
    }
}

impl fmt::Display for JobReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Key(key) => f.write_str(key),
        }
    }
}

/// A job after a PUT to its key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SavedJob {
    /// The job.
    pub job: Job,
    /// True if the request created the job; false if it changed an existing one.
    pub is_new: bool,
}

impl Client {
    /// Returns a page of the jobs.
    pub async fn jobs(&self, query: &JobQuery) -> Result<Page<JobSummary>, ClientError> {
        self.get(&["jobs"], query).await
    }

    /// Creates a job.
    ///
    /// # Errors
    ///
    /// Returns an error if the definition is invalid, the key is taken, or the request fails.
    pub async fn create_job(&self, job: &NewJob) -> Result<Job, ClientError> {
        self.post(&["jobs"], job).await
    }

    /// Returns a job.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn job(&self, id: JobId) -> Result<Job, ClientError> {
        self.get(&["jobs", &id.to_string()], &()).await
    }

    /// Returns the job with a key.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn job_by_key(&self, key: &str) -> Result<Job, ClientError> {
        self.get(&["jobs", "by-key", segment(JOB_KEY, key)?], &()).await
    }

    /// Returns the job with an id or a key.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn find_job(&self, reference: &JobReference) -> Result<Job, ClientError> {
        match reference {
            JobReference::Id(id) => self.job(*id).await,
            JobReference::Key(key) => self.job_by_key(key).await,
        }
    }

    /// Changes the definition of a job, of which `expected` is the version if it is given. Its `is_active` pauses or resumes
    /// the job.
    ///
    /// # Errors
    ///
    /// Returns an error if the definition is invalid, the job has another version, or the request fails.
    pub async fn update_job(&self, id: JobId, job: &JobInput, expected: Option<i32>) -> Result<Job, ClientError> {
        self.put(&["jobs", &id.to_string()], job, expected).await?.json()
    }

    /// Creates the job with a key, or changes its definition, of which `expected` is the version if it is given. Its
    /// `is_active` pauses or resumes the job.
    ///
    /// # Errors
    ///
    /// Returns an error if the definition is invalid, the job has another version, or the request fails.
    pub async fn save_job(&self, key: &str, job: &JobInput, expected: Option<i32>) -> Result<SavedJob, ClientError> {
        let answer = self.put(&["jobs", "by-key", segment(JOB_KEY, key)?], job, expected).await?;
        Ok(SavedJob { job: answer.json()?, is_new: answer.status == StatusCode::CREATED })
    }

    /// Deletes a job, of which `expected` is the version if it is given.
    ///
    /// # Errors
    ///
    /// Returns an error if the job has another version, there is no such job, or the request fails.
    pub async fn delete_job(&self, id: JobId, expected: Option<i32>) -> Result<(), ClientError> {
        self.delete(&["jobs", &id.to_string()], expected).await
    }

    /// Deletes the job with a key, of which `expected` is the version if it is given.
    ///
    /// # Errors
    ///
    /// Returns an error if the job has another version, there is no such job, or the request fails.
    pub async fn delete_job_by_key(&self, key: &str, expected: Option<i32>) -> Result<(), ClientError> {
        self.delete(&["jobs", "by-key", segment(JOB_KEY, key)?], expected).await
    }

    /// Runs a job now and returns the new occurrence.
    ///
    /// # Errors
    ///
    /// Returns an error if the job cannot run now or the request fails.
    pub async fn run_job(&self, id: JobId, run: &RunJob) -> Result<OccurrenceDetail, ClientError> {
        self.post(&["jobs", &id.to_string(), "run"], run).await
    }

    /// Pauses a job.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn pause_job(&self, id: JobId, request: &PauseRequest) -> Result<Job, ClientError> {
        self.post(&["jobs", &id.to_string(), "pause"], request).await
    }

    /// Resumes a job.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn resume_job(&self, id: JobId) -> Result<Job, ClientError> {
        self.post_empty(&["jobs", &id.to_string(), "resume"]).await
    }

    /// Skips the next due time of a job.
    ///
    /// # Errors
    ///
    /// Returns an error if the job is not due next at the named time, if that cannot be skipped now, or if the request
    /// fails.
    pub async fn skip_due(&self, id: JobId, request: &SkipDue) -> Result<Job, ClientError> {
        self.post(&["jobs", &id.to_string(), "skip-due"], request).await
    }

    /// Makes a job be as the code of its worker declares again, after an edit has detached it.
    ///
    /// # Errors
    ///
    /// Returns an error if no code declares the job or the request fails.
    pub async fn attach_job(&self, id: JobId) -> Result<Job, ClientError> {
        self.post_empty(&["jobs", &id.to_string(), "attach"]).await
    }

    /// Cancels delayed occurrences of a job, at most 10,000, oldest first. The result says whether another request is needed.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn cancel_delayed(&self, id: JobId, request: &CancelDelayed) -> Result<CancelDelayedResult, ClientError> {
        self.post(&["jobs", &id.to_string(), "cancel-delayed"], request).await
    }

    /// Creates a paused copy of a job.
    ///
    /// # Errors
    ///
    /// Returns an error if the key of the copy is taken or the request fails.
    pub async fn duplicate_job(&self, id: JobId, copy: &DuplicateJob) -> Result<Job, ClientError> {
        self.post(&["jobs", &id.to_string(), "duplicate"], copy).await
    }

    /// Returns a page of the versions of a job, newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn job_versions(&self, id: JobId, query: &VersionQuery) -> Result<Page<VersionStep>, ClientError> {
        self.get(&["jobs", &id.to_string(), "versions"], query).await
    }

    /// Returns the differences between two versions of a job.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such version or the request fails.
    pub async fn compare_job_versions(&self, id: JobId, versions: &CompareQuery) -> Result<VersionDiff, ClientError> {
        self.get(&["jobs", &id.to_string(), "versions", "compare"], versions).await
    }

    /// Restores the definition of an earlier version as a new version.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such version or the request fails.
    pub async fn restore_job_version(&self, id: JobId, version: i32) -> Result<RestoreVersionResult, ClientError> {
        self.post_empty(&["jobs", &id.to_string(), "versions", &version.to_string(), "restore"]).await
    }

    /// Returns a page of the audit log of a job, newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such job or the request fails.
    pub async fn job_audit(&self, id: JobId, query: &JobAuditQuery) -> Result<Page<AuditRow>, ClientError> {
        self.get(&["jobs", &id.to_string(), "audit"], query).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_an_id_or_a_key() {
        let id = "01980000-0000-7000-8000-000000000001";
        assert_eq!(id.parse(), Ok(JobReference::Id(id.parse().expect("a valid id"))));
        for key in ["mail.send", "7z", "01980000000070008000000000000001"] {
            assert_eq!(key.parse(), Ok(JobReference::Key(key.into())), "{key}");
        }
        for text in ["", "Mail", "..", "a/b", "a b", "ä", &"a".repeat(101)] {
            assert!(text.parse::<JobReference>().is_err(), "{text}");
        }
    }
}
