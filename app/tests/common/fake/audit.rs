//! The [`AuditBackend`] implementation of [`FakeBackend`]: the audit log.

use async_trait::async_trait;
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditObject, AuditRow},
    page::ListPage,
};
use milvaion_app::{
    backend::{AuditBackend, RequestUser},
    error::AppError,
};

use super::FakeBackend;

#[async_trait]
impl AuditBackend for FakeBackend {
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
