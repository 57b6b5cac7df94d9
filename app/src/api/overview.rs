//! The server function of the overview page.

use leptos::prelude::*;
use milvaion_api::views::ClusterOverview;
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::error::AppError;

/// Returns the data of the overview page.
///
/// # Errors
///
/// `SignedOut`; `Unavailable` if a service is down.
#[server(input = GetUrl, output = JsonText, endpoint = "overview")]
pub async fn get_overview() -> Result<ClusterOverview, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.overview(&me).await.map_err(super::with_error_status)
}
