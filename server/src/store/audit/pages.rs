//! Pages of the audit log.
//!
//! A page is the rows before a cursor, newest first, in the order of time and number. Each filter has an index that
//! begins with its column and continues with that order, so a page costs the same at any size of the log. The statement
//! is built from the filters that are set, and planned for their values: one statement with optional conditions could
//! use none of these indexes.
//!
//! All actions of one noun, as in `job.`, are read action by action: a range of actions is not in the order of time, so
//! the whole range would be sorted for each page.

use std::collections::HashMap;

use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use milvaion_api::{
    audit::{AuditCursor, AuditFilter, AuditResult, AuditRow},
    page::ListPage,
};
use milvaion_protocol::id::OccurrenceId;
use serde_json::Value;
use sqlx::{Executor, FromRow, Postgres, QueryBuilder};
use uuid::Uuid;

use crate::store::{Result, Store, StoreError, occurrences::filed_since};

/// The columns of a row.
const COLUMNS: &str =
    "id, at, who, token, action, object, result, before, after, address, repeats, last_at, has_other_addresses";

/// The keys under which a definition holds the name of its object.
const NAME_KEYS: [&str; 2] = ["displayName", "name"];

#[derive(FromRow)]
struct RawRow {
    id: i64,
    at: DateTime<Utc>,
    who: String,
    token: Option<String>,
    action: String,
    object: String,
    result: String,
    before: Option<Value>,
    after: Option<Value>,
    address: Option<String>,
    repeats: i32,
    last_at: Option<DateTime<Utc>>,
    has_other_addresses: bool,
}

impl TryFrom<RawRow> for AuditRow {
    type Error = StoreError;

    fn try_from(mut raw: RawRow) -> Result<Self> {
        let result = AuditResult::from_slug(&raw.result).ok_or_else(|| StoreError::Corrupt {
            table: "audit_log",
            column: "result",
            detail: raw.result.clone(),
        })?;
        let object_name = [&raw.after, &raw.before].into_iter().flatten().find_map(name_in);
        // The reason has a field of its own. A change that consists of a reason only is no change.
        let reason = take_reason(&mut raw.after).or_else(|| take_reason(&mut raw.before));
        Ok(Self {
            cursor: AuditCursor { at: raw.at, id: raw.id },
            who: raw.who,
            token: raw.token,
            action: raw.action,
            object: raw.object,
            object_name,
            result,
            reason,
            address: raw.address,
            has_other_addresses: raw.has_other_addresses,
            before: raw.before,
            after: raw.after,
            repeats: u32::try_from(raw.repeats).unwrap_or(1),
            last_at: raw.last_at,
        })
    }
}

fn name_in(definition: &Value) -> Option<String> {
    NAME_KEYS.into_iter().find_map(|key| definition.get(key)?.as_str().map(str::to_owned))
}

/// Removes the reason from a state, and the state if nothing else remains in it.
fn take_reason(state: &mut Option<Value>) -> Option<String> {
    let fields = state.as_mut()?.as_object_mut()?;
    let reason = fields.remove("reason");
    if fields.is_empty() {
        *state = None;
    }
    reason?.as_str().filter(|reason| !reason.is_empty()).map(str::to_owned)
}

/// Returns true if an action stands for all actions of its noun.
fn is_noun(action: &str) -> bool {
    action.ends_with('.')
}

/// Adds the conditions of a filter and of the cursor.
fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &AuditFilter) {
    query.push(" WHERE true");
    if let Some(AuditCursor { at, id }) = filter.before {
        query.push(" AND (at, id) < (").push_bind(at).push(", ").push_bind(id).push(")");
    }
    if !filter.who.is_empty() {
        query.push(" AND who = ").push_bind(filter.who.clone());
    }
    if !filter.action.is_empty() {
        query.push(" AND action = ").push_bind(filter.action.clone());
    }
    if !filter.object.is_empty() {
        query.push(" AND object = ").push_bind(filter.object.clone());
    }
    match filter.result {
        // The words are part of the statement, so that the partial index of refusals can serve it.
        Some(AuditResult::Refused) => drop(query.push(" AND result = 'refused'")),
        Some(AuditResult::Done) => drop(query.push(" AND result = 'done'")),
        None => {}
    }
    if let Some(since) = filter.since {
        query.push(" AND at >= ").push_bind(since.and_time(NaiveTime::MIN).and_utc());
    }
    if let Some(day_after) = filter.until.and_then(|until| until.checked_add_days(Days::new(1))) {
        query.push(" AND at < ").push_bind(day_after.and_time(NaiveTime::MIN).and_utc());
    }
}

impl Store {
    /// Returns at most `limit` rows that match a filter, newest first, with the names of their objects.
    pub async fn audit_page(&self, filter: &AuditFilter, limit: u32) -> Result<ListPage<AuditRow>> {
        let filters = if is_noun(&filter.action) {
            let actions = self.audit_actions(&filter.action).await?;
            actions.into_iter().map(|action| AuditFilter { action, ..filter.clone() }).collect()
        } else {
            vec![filter.clone()]
        };
        self.newest_of(&filters, None, limit).await
    }

    /// Returns at most `limit` rows by the author `who` or about `object`, newest first, from the day `since` on. An
    /// e-mail address can belong to another user after its first one was removed, so the rows start with the user.
    pub async fn audit_of_user(
        &self,
        who: &str,
        object: &str,
        since: Option<NaiveDate>,
        before: Option<AuditCursor>,
        limit: u32,
    ) -> Result<ListPage<AuditRow>> {
        let filter = AuditFilter { since, before, ..AuditFilter::default() };
        let by_user = AuditFilter { who: who.to_owned(), ..filter.clone() };
        let about_user = AuditFilter { object: object.to_owned(), ..filter };
        // The second part leaves out the rows of the first.
        self.newest_of(&[by_user, about_user], Some(who), limit).await
    }

    /// Returns the actions of a noun, as in `job.`, that the log contains. Each step finds the next one in the index.
    async fn audit_actions(&self, noun: &str) -> Result<Vec<String>> {
        // A slash follows the dot in the order of characters, so it is above all verbs.
        let end = format!("{}/", noun.trim_end_matches('.'));
        Ok(sqlx::query_scalar!(
            r#"WITH RECURSIVE actions AS (
                   SELECT min(action) AS action FROM audit_log WHERE action > $1 AND action < $2
                   UNION ALL
                   SELECT (SELECT min(a.action) FROM audit_log a WHERE a.action > actions.action AND a.action < $2)
                     FROM actions WHERE actions.action IS NOT NULL
               )
               SELECT action AS "action!" FROM actions WHERE action IS NOT NULL"#,
            noun,
            end
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Returns the newest rows that match one of several filters. All filters but the first leave out the rows of the
    /// author `not_by`.
    async fn newest_of(&self, filters: &[AuditFilter], not_by: Option<&str>, limit: u32) -> Result<ListPage<AuditRow>> {
        if filters.is_empty() {
            return Ok(ListPage { rows: Vec::new(), next: None });
        }
        let fetched = i64::from(limit) + 1;
        let mut query = QueryBuilder::new("SELECT * FROM (");
        for (position, filter) in filters.iter().enumerate() {
            // One index scan for each filter: a condition with OR could use no index for the order.
            query.push(if position == 0 { "(SELECT " } else { " UNION ALL (SELECT " });
            query.push(COLUMNS).push(" FROM audit_log");
            push_filter(&mut query, filter);
            if let Some(not_by) = not_by.filter(|_| position > 0) {
                query.push(" AND who <> ").push_bind(not_by.to_owned());
            }
            query.push(" ORDER BY at DESC, id DESC LIMIT ").push_bind(fetched).push(")");
        }
        query.push(") AS rows ORDER BY at DESC, id DESC LIMIT ").push_bind(fetched);
        let mut tx = self.pool().begin().await?;
        // Planned for its values: a rare author or action needs another index than a common one.
        tx.execute("SET LOCAL plan_cache_mode = force_custom_plan").await?;
        let rows = query.build_query_as::<RawRow>().fetch_all(&mut tx).await?;
        tx.commit().await?;
        self.page_of(rows, limit).await
    }

    /// Returns the newest `limit` rows about `object`, or about all objects, newest first.
    pub async fn audit_entries(&self, object: Option<&str>, limit: u32) -> Result<Vec<AuditRow>> {
        let filter = AuditFilter { object: object.unwrap_or_default().to_owned(), ..AuditFilter::default() };
        Ok(self.audit_page(&filter, limit).await?.rows)
    }

    async fn page_of(&self, mut rows: Vec<RawRow>, limit: u32) -> Result<ListPage<AuditRow>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let mut rows = rows.into_iter().map(AuditRow::try_from).collect::<Result<Vec<_>>>()?;
        self.add_names(&mut rows).await?;
        let next = rows.last().filter(|_| has_more).map(|row| row.cursor.to_string());
        Ok(ListPage { rows, next })
    }

    /// Sets the present names of the objects. An object that no longer exists keeps the name in its definition, if the
    /// row has one.
    async fn add_names(&self, rows: &mut [AuditRow]) -> Result<()> {
        let ids = |kind: &str| -> Vec<Uuid> {
            let object = |row: &AuditRow| row.object.strip_prefix(kind)?.strip_prefix(':')?.parse().ok();
            rows.iter().filter_map(object).collect()
        };
        let (jobs, users, calendars, occurrences) = (ids("job"), ids("user"), ids("calendar"), ids("occurrence"));
        let mut names = HashMap::new();
        if !(jobs.is_empty() && users.is_empty() && calendars.is_empty()) {
            let found = sqlx::query!(
                r#"SELECT 'job:' || id::text AS "object!", display_name AS "name!" FROM jobs WHERE id = ANY($1)
                   UNION ALL SELECT 'user:' || id::text, name FROM users WHERE id = ANY($2)
                   UNION ALL SELECT 'calendar:' || id::text, name FROM calendars WHERE id = ANY($3)"#,
                &jobs,
                &users,
                &calendars
            )
            .fetch_all(self.pool())
            .await?;
            names.extend(found.into_iter().map(|row| (row.object, row.name)));
        }
        if !occurrences.is_empty() {
            let created: Vec<_> = occurrences.iter().map(|id| filed_since(OccurrenceId(*id))).collect();
            let found = sqlx::query!(
                r#"SELECT 'occurrence:' || o.id::text AS "object!", o.job_name AS "name!"
                     FROM unnest($1::uuid[], $2::timestamptz[]) AS wanted (id, filed_since)
                    CROSS JOIN LATERAL (
                          SELECT id, job_name FROM occurrences o
                           WHERE o.id = wanted.id AND o.filed_at >= wanted.filed_since) o"#,
                &occurrences,
                &created
            )
            .fetch_all(self.pool())
            .await?;
            names.extend(found.into_iter().map(|row| (row.object, row.name)));
        }
        for row in rows {
            if let Some(name) = names.get(&row.object) {
                row.object_name = Some(name.clone());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_reason_leaves_the_change() {
        let mut only_reason = Some(json!({ "reason": "broken" }));
        assert_eq!(take_reason(&mut only_reason).as_deref(), Some("broken"));
        assert_eq!(only_reason, None);
        let mut with_more = Some(json!({ "reason": null, "forced": true }));
        assert_eq!(take_reason(&mut with_more), None);
        assert_eq!(with_more, Some(json!({ "forced": true })));
    }
}
