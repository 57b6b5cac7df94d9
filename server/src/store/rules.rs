//! The rules of a job as the columns of its row.
//!
//! `jobs.rules` has all rules as JSON, which only Rust reads ([`readable::rules`](super::readable::rules)). A rule that
//! statements read has a column too.

use chrono::{DateTime, Utc};
use milvaion_schedule::rules::Rules;
use serde_json::{Value, json};
use uuid::Uuid;

/// The rules as column values.
#[derive(Clone, Debug)]
pub(super) struct RuleColumns {
    /// All rules.
    pub(super) rules: Value,
    pub(super) start_at: Option<DateTime<Utc>>,
    pub(super) end_at: Option<DateTime<Utc>>,
    pub(super) calendars: Vec<Uuid>,
    pub(super) overlap: i16,
    pub(super) max_concurrent: Option<i16>,
    pub(super) key: Option<String>,
    pub(super) key_limit: Option<i16>,
    pub(super) max_retries: i16,
    pub(super) heartbeat_timeout_seconds: Option<i32>,
    pub(super) unreachable_timeout_seconds: Option<i32>,
    pub(super) on_lost: &'static str,
    /// The auto-disable rule; an empty object means the default of the installation.
    pub(super) auto_disable: Value,
    pub(super) start_within_seconds: Option<i32>,
}

impl RuleColumns {
    /// Converts rules to columns. The rules' own validation keeps every number within its column.
    pub(super) fn of(rules: &Rules) -> Self {
        let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let small = |n: u16| i16::try_from(n).unwrap_or(i16::MAX);
        Self {
            rules: json!(rules),
            start_at: rules.start_at,
            end_at: rules.end_at,
            calendars: rules.calendars.iter().map(|id| id.0).collect(),
            overlap: rules.overlap.code(),
            max_concurrent: rules.max_concurrent.map(small),
            key: rules.key_limit.as_ref().map(|key| key.key.clone()),
            key_limit: rules.key_limit.as_ref().map(|key| small(key.limit)),
            max_retries: small(rules.max_retries),
            heartbeat_timeout_seconds: rules.heartbeat_timeout_seconds.map(int),
            unreachable_timeout_seconds: rules.unreachable_timeout_seconds.map(int),
            on_lost: rules.on_lost.as_str(),
            auto_disable: rules.auto_disable.map_or_else(|| json!({}), |rule| json!(rule)),
            start_within_seconds: rules.start_within_seconds.map(int),
        }
    }

    /// Returns the columns that limit how many occurrences of the job run at once. Each occurrence has a copy of them.
    pub(super) fn limits(&self) -> (i16, Option<i16>, Option<&str>, Option<i16>) {
        (self.overlap, self.max_concurrent, self.key.as_deref(), self.key_limit)
    }
}
