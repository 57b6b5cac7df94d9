//! The cluster: pause and resume.

use std::sync::Arc;

use milvaion_api::{events::LiveEvent, views::ClusterPause};
use milvaion_app::{backend::RequestUser, error::AppError};
use tokio::sync::Notify;

use crate::{
    cache::Cache,
    clock::Clock,
    live::Hub,
    store::{Store, jobs::AuditStamp},
};

/// The commands that pause and resume the cluster.
#[derive(Clone, Debug)]
pub struct ClusterCommands {
    /// Access to PostgreSQL.
    pub store: Store,
    /// Access to Redis, for the announcement to the other servers.
    pub cache: Cache,
    /// The live events for browsers.
    pub hub: Hub,
    /// The clock of this server.
    pub clock: Clock,
    /// The activator of this server's dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// The activator of this server's slot granter.
    pub activate_slot_granter: Arc<Notify>,
}

impl ClusterCommands {
    /// Returns the pause of the cluster, or `None` if it is not paused.
    pub async fn state(&self) -> Result<Option<ClusterPause>, AppError> {
        Ok(self.store.cluster_pause().await?)
    }

    /// Pauses the cluster: no runs are created and no slots are granted. Running jobs continue. If the cluster is
    /// already paused, the first pause stays, with its user and its reason.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an invalid `reason`.
    pub async fn pause(&self, me: &RequestUser, reason: &str) -> Result<(), AppError> {
        let Some(reason) = super::reason(reason)? else {
            return Err(AppError::field("reason", "give a reason: other users see it while all schedules are paused"));
        };
        if self
            .store
            .pause_cluster(&reason, AuditStamp { by: &me.email, at: self.clock.now(), address: me.address })
            .await?
        {
            tracing::warn!(
                user.id = %me.id, reason,
                "user {} paused the cluster; no runs are created until it is resumed", me.id
            );
            self.announce().await;
        }
        Ok(())
    }

    /// Resumes the cluster. Due times that passed during the pause are handled by the misfire policy of each job.
    /// Succeeds if the cluster is not paused.
    pub async fn resume(&self, me: &RequestUser) -> Result<(), AppError> {
        let now = self.clock.now();
        if let Some(since) =
            self.store.resume_cluster(AuditStamp { by: &me.email, at: now, address: me.address }).await?
        {
            let paused_s = (now - since).num_seconds();
            tracing::warn!(user.id = %me.id, paused_s, "user {} resumed the cluster after {paused_s} s", me.id);
            self.announce().await;
        }
        Ok(())
    }

    /// Notifies the dispatchers and the browsers. A server that misses the announcement finds the change with its next
    /// statement.
    async fn announce(&self) {
        self.activate_dispatcher.notify_one();
        self.activate_slot_granter.notify_one();
        if let Err(error) = self.cache.announce_schedule_change().await {
            tracing::debug!(error = %error, "a pause or resume of the cluster was not announced to other servers");
        }
        self.hub.publish(self.clock.now(), vec![LiveEvent::Cluster]);
    }
}
