//! The overview's numbers.

use leptos::prelude::*;
use milvaion_api::views::ClusterOverview;
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// Everything on the overview page.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "overview")]
pub async fn get_overview() -> Result<ClusterOverview, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::Read).await?;
    backend.overview(&me).await.map_err(super::with_error_status)
}
