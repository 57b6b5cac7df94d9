//! The source of a job: the door through which it was defined.
//!
//! A job from a file belongs to that file: the next `milvaion apply` makes it be as the file says. So its page names the
//! file and says if the job was edited since. An edit does not change the source, because the file still exists. A job whose
//! schedule the code of a worker declares belongs to the code in the same way, except that an edit detaches it: code is
//! deployed often and without a look at the job, so it must not overwrite what a user has changed.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The door through which a job was defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum JobSourceKind {
    /// The dashboard.
    #[default]
    Dashboard,
    /// A request to the REST API.
    Api,
    /// A worker that declares its jobs.
    Code,
    /// A file that was applied.
    File,
}

impl JobSourceKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Dashboard, Self::Api, Self::Code, Self::File];

    /// Returns the word in the database and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dashboard => "dashboard",
            Self::Api => "api",
            Self::Code => "code",
            Self::File => "file",
        }
    }

    /// Returns the kind of an [`as_str`](Self::as_str) word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The source of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobSource {
    /// The door through which the job was defined.
    pub kind: JobSourceKind,
    /// The name of the file, if the job comes from one.
    #[serde(default)]
    pub file: Option<String>,
    /// The first edit after which the job differs from its file, or from the code that declares it. A pause is none.
    #[serde(default)]
    pub edited: Option<EditSinceSource>,
    /// The schedule in the code, if the code of a worker declares the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<CodeSource>,
}

/// The schedule in the code of a worker that declares a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CodeSource {
    /// The worker.
    pub worker_id: String,
    /// The job type.
    pub job_type: String,
    /// The name of the schedule. Empty for the job of the occurrences that are enqueued by job type.
    pub schedule: String,
    /// True if the code no longer declares it.
    pub is_retired: bool,
}

/// An edit of a job outside the file or the code that it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EditSinceSource {
    /// The time of the edit.
    pub at: DateTime<Utc>,
    /// The user who made the edit.
    pub by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_source_is_the_same_everywhere() {
        for kind in JobSourceKind::ALL {
            assert_eq!(serde_json::to_value(kind).ok(), Some(kind.as_str().into()));
            assert_eq!(JobSourceKind::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(JobSourceKind::parse("ftp"), None);
    }
}
