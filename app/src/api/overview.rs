//! The server functions of the overview page.

use leptos::prelude::*;
use milvaion_api::{page::TimeWindow, views::ClusterOverview};
use milvaion_protocol::id::OccurrenceId;
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Returns the data of the overview page, with what ended in `window`.
#[server(input = GetUrl, output = JsonText, endpoint = "overview")]
pub async fn get_overview(#[server(default)] window: TimeWindow) -> Result<ClusterOverview, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.overview(&me, window).await.map_err(super::with_error_status)
}

/// Runs the sample job, which is created if it does not exist. A repeated `idempotency_key` returns the same
/// occurrence.
///
/// # Errors
///
/// `Conflict` if no live worker offers the job type of the sample job, or if schedules are paused; `Denied` below
/// Operator.
#[server(output = JsonText, endpoint = "run_sample_job")]
pub async fn run_sample_job(#[server(default)] idempotency_key: String) -> Result<OccurrenceId, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::DefineJob).await?;
    let result = backend.run_sample_job(&me, &idempotency_key).await;
    super::respond("cluster", result, |run| format!("/occurrences/{run}"), SAMPLE_JOB_NOTICE, "/", ()).await
}

/// Notice after [`run_sample_job`].
pub const SAMPLE_JOB_NOTICE: &str = "The sample job is queued to run now.";
