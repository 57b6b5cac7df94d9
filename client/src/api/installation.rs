//! The installation: workers, the cluster, statistics, the audit log, users and the own account.

use milvaion_api::{
    audit::AuditRow,
    rest::{AuditQuery, Cluster, Page, PauseRequest, Statistics, StatisticsQuery, TeamQuery, WorkerQuery},
    team::TeamRow,
    views::{CurrentUser, HealthItem, JobTypeView, WorkerView},
};

use crate::{Client, ClientError};

impl Client {
    /// Returns the workers with their instances.
    pub async fn workers(&self, query: &WorkerQuery) -> Result<Page<WorkerView>, ClientError> {
        self.get(&["workers"], query).await
    }

    /// Returns the job types that workers have announced.
    pub async fn job_types(&self) -> Result<Page<JobTypeView>, ClientError> {
        self.get(&["job-types"], &()).await
    }

    /// Returns the state of the cluster.
    pub async fn cluster(&self) -> Result<Cluster, ClientError> {
        self.get(&["cluster"], &()).await
    }

    /// Pauses the cluster: no job starts until it is resumed.
    pub async fn pause_cluster(&self, request: &PauseRequest) -> Result<Cluster, ClientError> {
        self.post(&["cluster", "pause"], request).await
    }

    /// Resumes the cluster.
    pub async fn resume_cluster(&self) -> Result<Cluster, ClientError> {
        self.post_empty(&["cluster", "resume"]).await
    }

    /// Returns the statistics of a window.
    pub async fn statistics(&self, query: &StatisticsQuery) -> Result<Statistics, ClientError> {
        self.get(&["statistics"], query).await
    }

    /// Returns the health of every part of the installation.
    pub async fn health(&self) -> Result<Page<HealthItem>, ClientError> {
        self.get(&["health"], &()).await
    }

    /// Returns a page of the audit log, newest first.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Page<AuditRow>, ClientError> {
        self.get(&["audit"], query).await
    }

    /// Returns the users and the invitations.
    pub async fn users(&self, query: &TeamQuery) -> Result<Page<TeamRow>, ClientError> {
        self.get(&["users"], query).await
    }

    /// Returns the user of the token.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the token or cannot be reached.
    pub async fn account(&self) -> Result<CurrentUser, ClientError> {
        self.get(&["account"], &()).await
    }
}
