//! Server functions that read the state of the cluster, and set and clear the cluster pause.

use leptos::prelude::*;
use milvaion_api::views::ClusterStatus;
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Returns the cluster pause and the health of every part. It succeeds while PostgreSQL is down, so that a page can
/// report that.
///
/// # Errors
///
/// `SignedOut`.
#[server(input = GetUrl, output = JsonText, endpoint = "cluster_status")]
pub async fn get_cluster_status() -> Result<ClusterStatus, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    let is_page = !parts.uri.path().starts_with("/api/");
    // The status of a page is that of its own data.
    backend.cluster_status(&parts).await.map_err(|error| if is_page { error } else { super::with_error_status(error) })
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
