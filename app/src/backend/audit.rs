//! The part of the backend that reads the audit log.

use async_trait::async_trait;
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditObject, AuditRow},
    page::ListPage,
};

use super::RequestUser;
use crate::error::AppError;

/// The views of the audit log, newest first, one page of 50 rows at a time.
#[async_trait]
pub trait AuditBackend: Send + Sync + 'static {
    /// Returns a page of the rows that match a filter.
    async fn audit(&self, me: &RequestUser, filter: AuditFilter) -> Result<ListPage<AuditRow>, AppError>;
    /// Returns a page of the rows about one object. Users without the right to read the whole log get no network
    /// addresses, and nothing about users.
    async fn object_audit(
        &self,
        me: &RequestUser,
        object: AuditObject,
        before: Option<AuditCursor>,
    ) -> Result<ListPage<AuditRow>, AppError>;
    /// Returns a page of the rows by the user or about the user who asks.
    async fn own_audit(&self, me: &RequestUser, before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError>;
}
