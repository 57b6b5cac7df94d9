//! Server functions that read, set and clear the cluster pause.

use leptos::prelude::*;
use milvaion_api::views::ClusterPause;
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Returns the cluster pause with its start, user and reason; `None` while the cluster is not paused.
///
/// # Errors
///
/// `SignedOut`; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "cluster")]
pub async fn get_cluster() -> Result<Option<ClusterPause>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.cluster_state(&me).await.map_err(super::with_error_status)
}

/// Pauses the cluster: no occurrence is dispatched until a user resumes it.
///
/// # Errors
///
/// `Fields` if `reason` is missing or longer than 500 characters; `Denied` below Operator.
#[server(output = JsonText, endpoint = "pause_cluster")]
pub async fn pause_cluster(#[server(default)] reason: String) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::PauseCluster).await?;
    let result = backend.pause_cluster(&me, &reason).await;
    let typed = serde_json::json!({ "reason": reason });
    super::respond("cluster", result, |()| "/".into(), CLUSTER_PAUSED_NOTICE, "/", typed).await
}

/// Resumes the cluster.
///
/// # Errors
///
/// `Denied` below Operator; `Unavailable` if a service is down.
#[server(output = JsonText, endpoint = "resume_cluster")]
pub async fn resume_cluster() -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::PauseCluster).await?;
    let result = backend.resume_cluster(&me).await;
    super::respond("cluster", result, |()| "/".into(), CLUSTER_RESUMED_NOTICE, "/", ()).await
}

/// Notice after pausing the cluster.
pub const CLUSTER_PAUSED_NOTICE: &str = "All schedules are paused.";
/// Notice after resuming the cluster.
pub const CLUSTER_RESUMED_NOTICE: &str = "All schedules are resumed.";
