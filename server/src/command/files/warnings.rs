//! The warnings of a plan about jobs from files that no document names.

use milvaion_api::rest::{
    ApplyFiles, DocumentKind, DocumentPlan,
    files::{MAX_PRUNED, STANDARD_INPUT},
};
use milvaion_protocol::id::JobId;

use super::{FilesCaller, FilesError, PlannedFile};
use crate::{
    command::jobs::JobCommands,
    domain::file_plan::{left_job_warnings, rename_warning},
    store::sources::JobOfFile,
};

impl JobCommands {
    /// Adds warnings to the reports of jobs that are created, and returns those about jobs that no document names and that
    /// are not deleted. A token that is limited to a tag sees its jobs only.
    pub(super) async fn add_warnings(
        &self,
        caller: FilesCaller<'_>,
        request: &ApplyFiles,
        files: &mut [PlannedFile],
        deleted: &[JobOfFile],
    ) -> Result<Vec<String>, FilesError> {
        let planned = files.iter().flat_map(|file| &file.jobs);
        let kept: Vec<JobId> = planned.map(|job| job.id).chain(deleted.iter().map(|job| job.id)).collect();
        let limit = i64::try_from(MAX_PRUNED).unwrap_or(i64::MAX);
        let tag = caller.selected_tag(request);
        // What comes from standard input has no name of its own, so a later text says nothing about an earlier one.
        let named = request.files.iter().filter(|file| file.name != STANDARD_INPUT);
        let names: Vec<String> = named.map(|file| file.name.clone()).collect();
        let mut left = self.store.jobs_of_files(tag, &names, &kept, limit).await?;
        left.retain(|job| is_visible(caller, &job.tags));
        if !left.is_empty() && files.iter().flat_map(|file| &file.jobs).any(|job| job.before.is_none()) {
            self.add_rename_warnings(files, &left).await?;
        }
        let names: Vec<String> = left.iter().map(|job| name_of(job.key.as_deref(), job.id)).collect();
        let (mut with_tag, mut of_files) = (Vec::new(), Vec::new());
        for (job, name) in left.iter().zip(&names) {
            let has_tag = tag.is_some_and(|tag| job.tags.iter().any(|own| own == tag));
            let list = if has_tag { &mut with_tag } else { &mut of_files };
            list.push(name.as_str());
        }
        Ok(left_job_warnings(tag, &with_tag, &of_files))
    }

    /// Adds a warning to each job that is created and may be one of the jobs in `left` under a new key.
    async fn add_rename_warnings(&self, files: &mut [PlannedFile], left: &[JobOfFile]) -> Result<(), FilesError> {
        let ids: Vec<JobId> = left.iter().map(|job| job.id).collect();
        let mut left = self.store.jobs_to_show(&ids).await?;
        left.retain(|job| job.definition.is_active);
        let names: Vec<String> = left.iter().map(|job| name_of(job.key.as_deref(), job.id)).collect();
        for PlannedFile { jobs, report, .. } in files {
            for job in jobs.iter().filter(|job| job.before.is_none()) {
                let left = names.iter().map(String::as_str).zip(left.iter().map(|job| &job.definition));
                let is_own =
                    |document: &&mut DocumentPlan| document.kind == DocumentKind::Job && document.name == job.key;
                if let Some(document) = report.documents.iter_mut().find(is_own) {
                    document.warnings.extend(rename_warning(&job.job, left));
                }
            }
        }
        Ok(())
    }
}

/// Returns true if the caller may see a job with these tags.
fn is_visible(caller: FilesCaller<'_>, tags: &[String]) -> bool {
    caller.tag.is_none_or(|tag| tags.iter().any(|own| own == tag))
}

/// Returns the name of a job in a warning.
fn name_of(key: Option<&str>, id: JobId) -> String {
    key.map_or_else(|| id.to_string(), str::to_owned)
}
