//! The sources of jobs: edits of jobs from files, and the jobs that a file no longer has.

use std::collections::HashMap;

use milvaion_api::sources::EditSinceSource;
use milvaion_protocol::id::JobId;
use uuid::Uuid;

use super::{Result, Store};

/// A job from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOfFile {
    /// Identifier.
    pub id: JobId,
    /// Key.
    pub key: Option<String>,
    /// Name.
    pub display_name: String,
    /// File.
    pub file: String,
    /// Number of edits.
    pub version: i32,
    /// Tags.
    pub tags: Vec<String>,
}

impl Store {
    /// Returns the first edit of each job after which it differs from its file or from the code that declares it. Pausing
    /// and resuming are no edits. Jobs that are as their source are left out, also if they differed meanwhile.
    pub async fn edits_since_source(&self, ids: &[JobId]) -> Result<HashMap<JobId, EditSinceSource>> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            r#"SELECT j.id AS "id!", e.changed_at AS "at!", e.changed_by AS "by!"
                 FROM jobs j
                 JOIN job_versions f ON f.job_id = j.id AND f.version = j.source_version
                 JOIN job_versions p ON p.job_id = j.id AND p.version = j.version
                CROSS JOIN LATERAL (
                    SELECT v.changed_at, v.changed_by FROM job_versions v
                     WHERE v.job_id = j.id AND v.version > j.source_version
                       AND v.definition - 'isActive' <> f.definition - 'isActive'
                     ORDER BY v.version LIMIT 1) e
                WHERE j.id = ANY($1) AND j.source IN ('file', 'code') AND j.version > j.source_version
                  AND p.definition - 'isActive' <> f.definition - 'isActive'"#,
            &ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.id), EditSinceSource { at: row.at, by: row.by })).collect())
    }

    /// Returns the jobs from files that have a tag or came from one of `files`, except those with the ids in `kept`, in the
    /// order of ids, at most `limit`.
    pub async fn jobs_of_files(
        &self,
        tag: Option<&str>,
        files: &[String],
        kept: &[JobId],
        limit: i64,
    ) -> Result<Vec<JobOfFile>> {
        let kept: Vec<Uuid> = kept.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            r#"SELECT id AS "id!", key, display_name AS "display_name!", source_file AS "file!", version AS "version!",
                      tags AS "tags!"
                 FROM (SELECT id, key, display_name, source_file, version, tags FROM jobs
                        WHERE cardinality(tags) > 0 AND tags @> ARRAY[$1::text] AND source = 'file'
                          AND source_file IS NOT NULL
                       UNION
                       SELECT id, key, display_name, source_file, version, tags FROM jobs
                        WHERE source = 'file' AND source_file = ANY($2)) of_files
                WHERE id <> ALL($3)
                ORDER BY id LIMIT $4"#,
            tag,
            files,
            &kept,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        let jobs = rows.into_iter().map(|row| JobOfFile {
            id: JobId(row.id),
            key: row.key,
            display_name: row.display_name,
            file: row.file,
            version: row.version,
            tags: row.tags,
        });
        Ok(jobs.collect())
    }
}
