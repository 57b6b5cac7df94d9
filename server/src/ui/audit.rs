//! The [`AuditBackend`] implementation of [`ServerBackend`]: the audit log.

use async_trait::async_trait;
use milvaion_api::{
    audit::{AUDIT_PAGE_ROWS, AuditCursor, AuditFilter, AuditObject, AuditRow},
    page::ListPage,
    permissions::Permission,
    requests::FieldError,
};
use milvaion_app::{
    backend::{AuditBackend, RequestUser},
    error::AppError,
};
use milvaion_protocol::id::UserId;

use super::backend::ServerBackend;

/// The longest text of a filter, in bytes. No author, action or object is longer.
const MAX_FILTER_BYTES: usize = 300;

/// The author of a failed sign-in to an unknown account.
const UNKNOWN_AUTHOR: &str = "unknown";

/// Checks the texts and the period of a filter.
///
/// # Errors
///
/// Returns `Fields` for a text that is too long and for a period that ends before it begins.
pub(crate) fn check_filter(filter: &AuditFilter) -> Result<(), AppError> {
    let texts = [("who", &filter.who), ("action", &filter.action), ("object", &filter.object)];
    let mut errors: Vec<_> = texts
        .into_iter()
        .filter(|(_, text)| text.len() > MAX_FILTER_BYTES)
        .map(|(field, _)| FieldError::new(field, format!("use at most {MAX_FILTER_BYTES} bytes")))
        .collect();
    if filter.since.zip(filter.until).is_some_and(|(since, until)| since > until) {
        errors.push(FieldError::new("until", "the last day must not be before the first day"));
    }
    if errors.is_empty() { Ok(()) } else { Err(AppError::Fields(errors)) }
}

impl ServerBackend {
    /// Returns a page of the rows by or about a user. A removed user has no e-mail address any more; the rows about the
    /// user remain.
    async fn audit_of(&self, id: UserId, before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError> {
        let object = format!("user:{id}");
        let page = match self.store.user(id).await? {
            Some(user) => {
                let since = Some(user.created_at.date_naive());
                self.store.audit_of_user(&user.email, &object, since, before, AUDIT_PAGE_ROWS).await
            }
            None => {
                let filter = AuditFilter { object, before, ..AuditFilter::default() };
                self.store.audit_page(&filter, AUDIT_PAGE_ROWS).await
            }
        };
        Ok(page?)
    }
}

#[async_trait]
impl AuditBackend for ServerBackend {
    async fn audit(&self, _me: &RequestUser, filter: AuditFilter) -> Result<ListPage<AuditRow>, AppError> {
        check_filter(&filter)?;
        Ok(self.store.audit_page(&filter, AUDIT_PAGE_ROWS).await?)
    }

    async fn object_audit(
        &self,
        me: &RequestUser,
        object: AuditObject,
        before: Option<AuditCursor>,
    ) -> Result<ListPage<AuditRow>, AppError> {
        let reads_all = me.role.allows(Permission::ReadAudit);
        let object = match object {
            AuditObject::Job(id) => format!("job:{id}"),
            AuditObject::Occurrence(id) => format!("occurrence:{id}"),
            AuditObject::User(id) if reads_all => return self.audit_of(id, before).await,
            AuditObject::User(_) => {
                return Err(AppError::Denied("Only an Admin may view the audit log of a user.".into()));
            }
        };
        let filter = AuditFilter { object, before, ..AuditFilter::default() };
        let mut page = self.store.audit_page(&filter, AUDIT_PAGE_ROWS).await?;
        if !reads_all {
            for row in &mut page.rows {
                row.address = None;
                row.has_other_addresses = false;
            }
        }
        Ok(page)
    }

    async fn own_audit(&self, me: &RequestUser, before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError> {
        let mut page = self.audit_of(me.id, before).await?;
        if !me.role.allows(Permission::ReadAudit) {
            // The address of an Admin who changed this user is not the user's concern.
            for row in page.rows.iter_mut().filter(|row| row.who != me.email && row.who != UNKNOWN_AUTHOR) {
                row.address = None;
            }
        }
        Ok(page)
    }
}
