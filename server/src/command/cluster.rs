//! Everything at once: pause and resume.

use std::sync::Arc;

use milvaion_api::{
    events::LiveEvent,
    views::{ClusterPause, CurrentUser},
};
use milvaion_app::error::AppError;
use tokio::sync::Notify;

use crate::{
    cache::Cache,
    clock::Clock,
    live::Hub,
    store::{Store, jobs::AuditStamp},
};

/// The longest reason, in characters.
const MAX_REASON_CHARS: usize = 500;

/// What pausing needs.
#[derive(Clone, Debug)]
pub struct ClusterCommands {
    /// The truth.
    pub store: Store,
    /// Tells the other servers.
    pub cache: Cache,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Wakes this server's dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// Wakes whoever hands out slots.
    pub activate_slot_granter: Arc<Notify>,
}

impl ClusterCommands {
    /// Whether everything is paused.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn state(&self) -> Result<Option<ClusterPause>, AppError> {
        Ok(self.store.cluster_pause().await?)
    }

    /// Pauses everything: nothing is fired or released from now on; what runs, runs on. When it is paused already it stays
    /// as it was, with the name of whoever did it first.
    ///
    /// # Errors
    ///
    /// `Fields` for `reason`.
    pub async fn pause(&self, me: &CurrentUser, reason: &str) -> Result<(), AppError> {
        let reason = reason.trim().replace('\0', "");
        if reason.is_empty() {
            return Err(AppError::field("reason", "say why: others will see nothing run and ask themselves"));
        }
        if reason.chars().count() > MAX_REASON_CHARS {
            return Err(AppError::field("reason", format!("at most {MAX_REASON_CHARS} characters")));
        }
        if self.store.pause_cluster(&reason, AuditStamp { by: &me.email, at: self.clock.now() }).await? {
            tracing::warn!(user.id = %me.id, reason, "everything is paused: nothing is fired until somebody resumes it");
            self.told().await;
        }
        Ok(())
    }

    /// Resumes everything. What was due meanwhile is handled as each job's misfire policy says. What is not paused is no
    /// mistake.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn resume(&self, me: &CurrentUser) -> Result<(), AppError> {
        let now = self.clock.now();
        if let Some(since) = self.store.resume_cluster(AuditStamp { by: &me.email, at: now }).await? {
            tracing::warn!(user.id = %me.id, paused_s = (now - since).num_seconds(), "everything goes on");
            self.told().await;
        }
        Ok(())
    }

    /// Tells the dispatchers and the browsers. Whoever does not hear it finds out at the next statement.
    async fn told(&self) {
        self.activate_dispatcher.notify_one();
        self.activate_slot_granter.notify_one();
        if let Err(error) = self.cache.announce_schedule_change().await {
            tracing::debug!(error = %error, "other servers did not hear that everything was paused or resumed");
        }
        self.hub.publish(self.clock.now(), vec![LiveEvent::Cluster]);
    }
}
