//! The overview's numbers.

use leptos::prelude::*;
use milvaion_api::view::Overview;
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// Everything on the overview page.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "overview")]
pub async fn get_overview() -> Result<Overview, AppError> {
    let (backend, me) = super::allowed(milvaion_api::access::Action::Read).await?;
    backend.overview(&me).await.map_err(super::failed)
}
