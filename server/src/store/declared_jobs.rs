//! The jobs of schedules that the code of workers declares, and the declarations of live instances.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::{id::JobId, message::HelloProblem};
use serde_json::json;

use super::{DefinitionBatch, Result, Store};
use crate::domain::declarations::{DeclarationKey, DeclaredJob, InstanceDeclaration};

impl Store {
    /// Returns what live instances declare: those with a heartbeat since `alive_since`. Instances of one worker with the same
    /// version and the same declarations are one entry.
    pub async fn declarations(&self, alive_since: DateTime<Utc>) -> Result<Vec<InstanceDeclaration>> {
        let rows = sqlx::query!(
            r#"SELECT worker_id, version, declared, problems, max(started_at) AS "started_at!"
                 FROM worker_instances
                WHERE stopped_at IS NULL AND last_heartbeat_at >= $1
                GROUP BY worker_id, version, declared, problems"#,
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        let declarations = rows.into_iter().map(|row| {
            // A job type that a newer server has stored in another form is left out here, and by `problems` kept as it is.
            let (mut declared, mut unreadable) = (BTreeMap::new(), Vec::new());
            for (job_type, value) in row.declared.as_object().cloned().unwrap_or_default() {
                match serde_json::from_value(value) {
                    Ok(declaration) => drop(declared.insert(job_type, declaration)),
                    Err(error) => unreadable.push(HelloProblem {
                        job_type: Some(job_type),
                        schedule: None,
                        text: error.to_string(),
                    }),
                }
            }
            let mut problems: Vec<HelloProblem> = serde_json::from_value(row.problems).unwrap_or_default();
            problems.extend(unreadable);
            InstanceDeclaration {
                worker_id: row.worker_id,
                version: row.version,
                started_at: row.started_at,
                declared,
                problems,
            }
        });
        Ok(declarations.collect())
    }

    /// Returns all jobs that the server keeps for the job types of workers.
    pub async fn declared_jobs(&self) -> Result<Vec<DeclaredJob>> {
        let rows = sqlx::query!(
            r#"SELECT worker_id, job_type, name, job_id, declared, version, retired_at IS NOT NULL AS "is_retired!"
                 FROM declared_jobs"#
        )
        .fetch_all(self.pool())
        .await?;
        let jobs = rows.into_iter().map(|row| DeclaredJob {
            key: DeclarationKey { worker_id: row.worker_id, job_type: row.job_type, name: row.name },
            job_id: JobId(row.job_id),
            declared: row.declared,
            version: row.version,
            is_retired: row.is_retired,
        });
        Ok(jobs.collect())
    }

    /// Returns the declaration of a job; none if no code declares it.
    pub async fn declared_job(&self, id: JobId) -> Result<Option<DeclaredJob>> {
        let row = sqlx::query!(
            r#"SELECT worker_id, job_type, name, declared, version, retired_at IS NOT NULL AS "is_retired!"
                 FROM declared_jobs WHERE job_id = $1"#,
            id.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| DeclaredJob {
            key: DeclarationKey { worker_id: row.worker_id, job_type: row.job_type, name: row.name },
            job_id: id,
            declared: row.declared,
            version: row.version,
            is_retired: row.is_retired,
        }))
    }

    /// Records what the code declares for a job, without a change of the job.
    pub async fn note_declaration(&self, id: JobId, declared: &JobInput, version: &str) -> Result<()> {
        sqlx::query!(
            "UPDATE declared_jobs SET declared = $2, version = $3, retired_at = NULL WHERE job_id = $1",
            id.0,
            json!(declared),
            version
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Records that the code no longer declares a job.
    pub async fn note_retirement(&self, id: JobId, now: DateTime<Utc>) -> Result<()> {
        sqlx::query!("UPDATE declared_jobs SET retired_at = $2 WHERE job_id = $1 AND retired_at IS NULL", id.0, now)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Adds a problem with a declared schedule to the instances of a version, for the page *Workers*, once. Returns true if
    /// an instance did not have it yet.
    pub async fn add_declaration_problem(
        &self,
        worker_id: &str,
        version: &str,
        problem: &HelloProblem,
    ) -> Result<bool> {
        let done = sqlx::query!(
            "UPDATE worker_instances SET problems = problems || jsonb_build_array($3::jsonb)
              WHERE id = ANY (ARRAY (
                    SELECT id FROM worker_instances
                     WHERE worker_id = $1 AND version = $2 AND stopped_at IS NULL
                       AND NOT problems @> jsonb_build_array($3::jsonb) AND jsonb_array_length(problems) < 100
                     ORDER BY id FOR NO KEY UPDATE))",
            worker_id,
            version,
            json!(problem)
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() > 0)
    }
}

impl DefinitionBatch {
    /// Records that a job is, at its present version, as the code of a worker declares.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails or a constraint is violated.
    pub async fn set_declared(
        &mut self,
        id: JobId,
        key: &DeclarationKey,
        declared: &JobInput,
        version: &str,
    ) -> Result<()> {
        sqlx::query!(
            "WITH marked AS (
                UPDATE jobs SET source = 'code', source_file = NULL, source_version = version WHERE id = $1
             )
             INSERT INTO declared_jobs (worker_id, job_type, name, job_id, declared, version)
             VALUES ($2, $3, $4, $1, $5, $6)
             ON CONFLICT (worker_id, job_type, name)
             DO UPDATE SET declared = excluded.declared, version = excluded.version, retired_at = NULL",
            id.0,
            key.worker_id,
            key.job_type,
            key.name,
            json!(declared),
            version
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
