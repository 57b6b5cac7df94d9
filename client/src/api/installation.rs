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
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn workers(&self, query: &WorkerQuery) -> Result<Page<WorkerView>, ClientError> {
        self.get(&["workers"], query).await
    }

    /// Returns the job types that workers have announced.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn job_types(&self) -> Result<Page<JobTypeView>, ClientError> {
        self.get(&["job-types"], &()).await
    }

    /// Returns the state of the cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn cluster(&self) -> Result<Cluster, ClientError> {
        self.get(&["cluster"], &()).await
    }

    /// Pauses the cluster: no job starts until it is resumed.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn pause_cluster(&self, request: &PauseRequest) -> Result<Cluster, ClientError> {
        self.post(&["cluster", "pause"], request).await
    }

    /// Resumes the cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn resume_cluster(&self) -> Result<Cluster, ClientError> {
        self.post_empty(&["cluster", "resume"]).await
    }

    /// Returns the statistics of a window.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn statistics(&self, query: &StatisticsQuery) -> Result<Statistics, ClientError> {
        self.get(&["statistics"], query).await
    }

    /// Returns the health of every part of the installation.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn health(&self) -> Result<Page<HealthItem>, ClientError> {
        self.get(&["health"], &()).await
    }

    /// Returns a page of the audit log, newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Page<AuditRow>, ClientError> {
        self.get(&["audit"], query).await
    }

    /// Returns the users and the invitations.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
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
