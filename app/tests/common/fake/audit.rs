//! The [`AuditBackend`] implementation of [`FakeBackend`]: the audit log.

use async_trait::async_trait;
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditObject, AuditResult, AuditRow},
    page::ListPage,
    permissions::Permission,
};
use milvaion_app::{
    backend::{AuditBackend, RequestUser},
    error::AppError,
};
use serde_json::json;

use super::FakeBackend;
use crate::common::samples;

/// The number of rows on a page of the fake, so that its few rows fill two pages.
const PAGE_ROWS: usize = 6;

/// Returns the row that was written at `second`, done by Ada.
fn row(second: i64, action: &str, object: String) -> AuditRow {
    AuditRow {
        cursor: AuditCursor { at: samples::at(second), id: second },
        who: "ada@example.org".into(),
        token: None,
        action: action.into(),
        object,
        object_name: None,
        result: AuditResult::Done,
        reason: None,
        address: Some("192.0.2.7".into()),
        has_other_addresses: false,
        before: None,
        after: None,
        repeats: 1,
        last_at: None,
    }
}

/// Returns one row of each kind, newest first.
pub(crate) fn audit_rows() -> Vec<AuditRow> {
    let job = format!("job:{}", samples::job_id());
    let me = format!("user:{}", samples::me(milvaion_api::permissions::Role::Admin).id);
    let run = samples::occurrence_id(0);
    let named = |row: AuditRow| AuditRow { object_name: Some("nightly report".into()), ..row };
    let long = format!("{}the end", "long ".repeat(60));
    vec![
        AuditRow {
            who: "<script>alert(1)</script>".into(),
            object_name: Some("<b>bold</b>".into()),
            reason: Some("\"><img src=x onerror=alert(2)>".into()),
            address: Some("<i>1</i>".into()),
            after: Some(json!({ "<u>field</u>": "<s>value</s>" })),
            ..row(90, "job.<em>teleport</em>", job.clone())
        },
        AuditRow {
            who: "unknown".into(),
            result: AuditResult::Refused,
            has_other_addresses: true,
            after: Some(json!({ "tries": 37 })),
            repeats: 37,
            last_at: Some(samples::at(120)),
            ..row(80, "sign-in.refuse", "account:unknown".into())
        },
        AuditRow {
            who: "vera@example.org".into(),
            result: AuditResult::Refused,
            after: Some(json!({ "action": "run jobs", "role": "viewer" })),
            ..row(70, "refuse", me.clone())
        },
        named(AuditRow { reason: Some("the disk is full".into()), ..row(60, "job.pause", job.clone()) }),
        named(AuditRow {
            before: Some(
                json!({ "displayName": "report", "rules": { "maxRetries": 1, "overlap": "skip" }, "jobData": "x" }),
            ),
            after: Some(
                json!({ "displayName": "nightly report", "rules": { "maxRetries": 3, "overlap": "skip" }, "jobData": long }),
            ),
            ..row(50, "job.update", job.clone())
        }),
        named(AuditRow { after: Some(json!({ "occurrence": run, "forced": false })), ..row(40, "job.run", job) }),
        AuditRow {
            who: "oscar@example.org".into(),
            object_name: Some("nightly report".into()),
            before: Some(json!({ "status": 1 })),
            after: Some(json!({ "status": 4 })),
            ..row(30, "occurrence.cancel", format!("occurrence:{run}"))
        },
        AuditRow {
            object_name: Some("Holidays".into()),
            before: Some(json!({ "zone": "UTC" })),
            ..row(20, "calendar.delete", format!("calendar:{}", samples::calendar_id()))
        },
        AuditRow { object_name: Some("Ada".into()), ..row(10, "sign-in", me) },
        AuditRow { who: "system".into(), address: None, ..row(0, "galaxy.align", "planet:9".into()) },
    ]
}

/// Returns the page of `rows` that follows `before`.
fn page(rows: impl Iterator<Item = AuditRow>, before: Option<AuditCursor>) -> ListPage<AuditRow> {
    let mut rows: Vec<_> = rows.filter(|row| before.is_none_or(|before| row.cursor.at < before.at)).collect();
    let has_more = rows.len() > PAGE_ROWS;
    rows.truncate(PAGE_ROWS);
    let next = rows.last().filter(|_| has_more).map(|row| row.cursor.to_string());
    ListPage { rows, next }
}

#[async_trait]
impl AuditBackend for FakeBackend {
    async fn audit(&self, _me: &RequestUser, filter: AuditFilter) -> Result<ListPage<AuditRow>, AppError> {
        let rows = if self.empty { Vec::new() } else { audit_rows() };
        let is_kind = filter.action.ends_with('.');
        let matches = |row: &AuditRow| {
            let day = row.cursor.at.date_naive();
            (filter.who.is_empty() || row.who == filter.who)
                && (filter.action.is_empty()
                    || row.action == filter.action
                    || is_kind && row.action.starts_with(&filter.action))
                && (filter.object.is_empty() || row.object == filter.object)
                && filter.result.is_none_or(|result| row.result == result)
                && filter.since.is_none_or(|since| day >= since)
                && filter.until.is_none_or(|until| day <= until)
        };
        Ok(page(rows.into_iter().filter(matches), filter.before))
    }

    async fn object_audit(
        &self,
        me: &RequestUser,
        object: AuditObject,
        before: Option<AuditCursor>,
    ) -> Result<ListPage<AuditRow>, AppError> {
        self.reads.lock().expect("the mutex is not poisoned").push(object.key());
        let reads_all = me.role.allows(Permission::ReadAudit);
        if self.empty || matches!(object, AuditObject::User(_)) && !reads_all {
            return Ok(ListPage { rows: Vec::new(), next: None });
        }
        let rows = audit_rows().into_iter().filter(|row| row.object == object.key());
        let without_address = |row: AuditRow| AuditRow { address: None, has_other_addresses: false, ..row };
        Ok(page(rows.map(|row| if reads_all { row } else { without_address(row) }), before))
    }

    async fn own_audit(&self, me: &RequestUser, before: Option<AuditCursor>) -> Result<ListPage<AuditRow>, AppError> {
        let own = format!("user:{}", me.id);
        let rows = if self.empty { Vec::new() } else { audit_rows() };
        Ok(page(rows.into_iter().filter(|row| row.who == me.email || row.object == own), before))
    }
}
