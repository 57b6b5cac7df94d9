//! The overview's numbers.

use leptos::prelude::*;
use protocol::view::Overview;
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// Everything on the overview page.
///
/// # Errors
///
/// `SignedOut`, or a service that is away.
#[server(input = GetUrl, endpoint = "overview")]
pub async fn get_overview() -> Result<Overview, AppError> {
    let (backend, me) = super::allowed(protocol::access::Action::Read).await?;
    backend.overview(&me).await.map_err(super::failed)
}
