//! The server function of the workers page.

use leptos::prelude::*;
use milvaion_api::views::WorkerView;
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Lists every worker seen in the last day.
#[server(input = GetUrl, output = JsonText, endpoint = "workers")]
pub async fn list_workers() -> Result<Vec<WorkerView>, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.workers(&me).await.map_err(super::with_error_status)
}
