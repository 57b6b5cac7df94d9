//! Everything at once: whether it is paused, pausing and resuming it.

use leptos::prelude::*;
use milvaion_api::views::ClusterPause;
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// Since when, by whom and why everything is paused; none while it is not.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "cluster")]
pub async fn get_cluster() -> Result<Option<ClusterPause>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.cluster_state(&me).await.map_err(super::with_error_status)
}

/// Pauses everything: nothing is fired until somebody resumes.
///
/// # Errors
///
/// A `reason` that is missing or has more than 500 characters; `Denied` below Operator.
#[server(endpoint = "pause_cluster")]
pub async fn pause_cluster(#[server(default)] reason: String) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::PauseCluster).await?;
    let result = backend.pause_cluster(&me, &reason).await;
    let typed = serde_json::json!({ "reason": reason });
    super::respond("cluster", result, |()| "/".into(), CLUSTER_PAUSED_NOTICE, "/", typed).await
}

/// Lets everything go on.
///
/// # Errors
///
/// `Denied` below Operator, or a service that is away.
#[server(endpoint = "resume_cluster")]
pub async fn resume_cluster() -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::PauseCluster).await?;
    let result = backend.resume_cluster(&me).await;
    super::respond("cluster", result, |()| "/".into(), CLUSTER_RESUMED_NOTICE, "/", ()).await
}

/// What is said after pausing.
pub const CLUSTER_PAUSED_NOTICE: &str = "All schedules are paused.";
/// What is said after resuming.
pub const CLUSTER_RESUMED_NOTICE: &str = "All schedules are resumed.";
