//! Who runs the work.

use leptos::prelude::*;
use milvaion_api::views::WorkerView;
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// Every worker seen in the last day.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "workers")]
pub async fn list_workers() -> Result<Vec<WorkerView>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.workers(&me).await.map_err(super::with_error_status)
}
