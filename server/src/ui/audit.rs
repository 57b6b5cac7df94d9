//! The [`AuditBackend`] implementation of [`ServerBackend`]: the audit log.

use async_trait::async_trait;
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditObject, AuditRow},
    page::ListPage,
};
use milvaion_app::{
    backend::{AuditBackend, RequestUser},
    error::AppError,
};

use super::backend::ServerBackend;

#[async_trait]
impl AuditBackend for ServerBackend {
    async fn audit(&self, _me: &RequestUser, _filter: AuditFilter) -> Result<ListPage<AuditRow>, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn object_audit(
        &self,
        _me: &RequestUser,
        _object: AuditObject,
        _before: Option<AuditCursor>,
    ) -> Result<ListPage<AuditRow>, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }

    async fn own_audit(&self, _me: &RequestUser, _before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError> {
        Err(AppError::Failed("Not built yet.".into()))
    }
}
