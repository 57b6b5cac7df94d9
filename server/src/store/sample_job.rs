//! The sample job: the lock that serializes its creation, and the search for it.

use milvaion_protocol::id::JobId;

use super::{Result, Store, pool::StoreTransaction};

/// The lock on the creation of the sample job, held until it is released or dropped.
#[derive(Debug)]
pub struct SampleJobLock(StoreTransaction);

impl SampleJobLock {
    /// Releases the lock.
    pub async fn release(self) -> Result<()> {
        Ok(self.0.commit().await?)
    }
}

impl Store {
    /// Waits for the lock on the creation of the sample job, across all servers.
    pub async fn lock_sample_job(&self) -> Result<SampleJobLock> {
        let mut transaction = self.pool().begin().await?;
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.sample_job'))").execute(&mut transaction).await?;
        Ok(SampleJobLock(transaction))
    }

    /// Returns the oldest job with this name and job type on one of these workers.
    pub async fn job_by_name(&self, name: &str, job_type: &str, workers: &[String]) -> Result<Option<JobId>> {
        let id = sqlx::query_scalar!(
            "SELECT id FROM jobs WHERE display_name = $1 AND job_type = $2 AND worker_id = ANY($3) ORDER BY id LIMIT 1",
            name,
            job_type,
            workers
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(id.map(JobId))
    }
}
