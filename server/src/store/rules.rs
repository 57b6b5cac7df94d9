//! The mapping between a job's rules and the columns of its row.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::rules::{
    BlackoutPolicy, ConcurrencyKeyLimit, LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules,
};
use serde_json::Value;
use uuid::Uuid;

/// The rules as column values.
#[derive(Clone, Debug)]
pub(crate) struct RuleColumns {
    pub(crate) start_at: Option<DateTime<Utc>>,
    pub(crate) end_at: Option<DateTime<Utc>>,
    pub(crate) jitter_seconds: i32,
    pub(crate) calendars: Vec<Uuid>,
    pub(crate) blackout: String,
    pub(crate) misfire: String,
    pub(crate) catch_up_limit: i32,
    pub(crate) catch_up_window_seconds: i32,
    pub(crate) overlap: i16,
    pub(crate) max_concurrent: Option<i16>,
    pub(crate) key: Option<String>,
    pub(crate) key_limit: Option<i16>,
    pub(crate) max_retries: i16,
    pub(crate) base_retry_delay_seconds: i32,
    pub(crate) retry_jitter_percent: i16,
    pub(crate) heartbeat_timeout_seconds: Option<i32>,
    pub(crate) unreachable_timeout_seconds: Option<i32>,
    pub(crate) on_lost: String,
    pub(crate) auto_disable: Value,
}

impl RuleColumns {
    /// Converts rules to columns. The rules' own validation keeps every number within its column.
    pub(crate) fn of(rules: &Rules) -> Self {
        let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let small = |n: u16| i16::try_from(n).unwrap_or(i16::MAX);
        Self {
            start_at: rules.start_at,
            end_at: rules.end_at,
            jitter_seconds: int(rules.jitter_seconds),
            calendars: rules.calendars.iter().map(|id| id.0).collect(),
            blackout: rules.blackout.as_str().to_owned(),
            misfire: rules.misfire.as_str().to_owned(),
            catch_up_limit: int(rules.catch_up_limit),
            catch_up_window_seconds: int(rules.catch_up_window_seconds),
            overlap: rules.overlap.code(),
            max_concurrent: rules.max_concurrent.map(small),
            key: rules.key_limit.as_ref().map(|key| key.key.clone()),
            key_limit: rules.key_limit.as_ref().map(|key| small(key.limit)),
            max_retries: small(rules.max_retries),
            base_retry_delay_seconds: int(rules.base_retry_delay_seconds),
            retry_jitter_percent: small(rules.retry_jitter_percent),
            heartbeat_timeout_seconds: rules.heartbeat_timeout_seconds.map(int),
            unreachable_timeout_seconds: rules.unreachable_timeout_seconds.map(int),
            on_lost: rules.on_lost.as_str().to_owned(),
            auto_disable: rules
                .auto_disable
                .and_then(|rule| serde_json::to_value(rule).ok())
                .unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        }
    }

    /// Returns the columns that limit how many occurrences of the job run at once. Each occurrence has a copy of them.
    pub(crate) fn limits(&self) -> (i16, Option<i16>, Option<&str>, Option<i16>) {
        (self.overlap, self.max_concurrent, self.key.as_deref(), self.key_limit)
    }

    /// Converts columns to rules. A word that this version does not define means the default, and is returned beside the
    /// rules: a caller that starts runs must not use them then.
    pub(crate) fn into_rules(self) -> (Rules, Option<String>) {
        let unreadable = self.unreadable_word();
        let default = Rules::default();
        let number = |n: i32, default: u32| u32::try_from(n).unwrap_or(default);
        let small = |n: Option<i16>| n.and_then(|n| u16::try_from(n).ok());
        let rules = Rules {
            start_at: self.start_at,
            end_at: self.end_at,
            jitter_seconds: number(self.jitter_seconds, 0),
            calendars: self.calendars.into_iter().map(CalendarId).collect(),
            blackout: BlackoutPolicy::parse(&self.blackout).unwrap_or_default(),
            misfire: MisfirePolicy::parse(&self.misfire).unwrap_or_default(),
            catch_up_limit: number(self.catch_up_limit, default.catch_up_limit),
            catch_up_window_seconds: number(self.catch_up_window_seconds, default.catch_up_window_seconds),
            overlap: OverlapPolicy::from_code(self.overlap),
            max_concurrent: small(self.max_concurrent),
            key_limit: self.key.zip(small(self.key_limit)).map(|(key, limit)| ConcurrencyKeyLimit { key, limit }),
            max_retries: u16::try_from(self.max_retries).unwrap_or(0),
            base_retry_delay_seconds: number(self.base_retry_delay_seconds, default.base_retry_delay_seconds),
            retry_jitter_percent: u16::try_from(self.retry_jitter_percent).unwrap_or(0),
            heartbeat_timeout_seconds: self.heartbeat_timeout_seconds.and_then(|n| u32::try_from(n).ok()),
            unreachable_timeout_seconds: self.unreachable_timeout_seconds.and_then(|n| u32::try_from(n).ok()),
            on_lost: LostRunPolicy::parse(&self.on_lost).unwrap_or_default(),
            auto_disable: serde_json::from_value(self.auto_disable).ok(),
        };
        (rules, unreadable)
    }

    /// Describes a word that this version does not define, and that may keep a run from starting.
    fn unreadable_word(&self) -> Option<String> {
        let words = [
            ("blackout policy", &self.blackout, BlackoutPolicy::parse(&self.blackout).is_some()),
            ("misfire policy", &self.misfire, MisfirePolicy::parse(&self.misfire).is_some()),
            ("policy for lost runs", &self.on_lost, LostRunPolicy::parse(&self.on_lost).is_some()),
        ];
        if let Some((rule, word, _)) = words.iter().find(|(.., is_known)| !is_known) {
            return Some(format!("the {rule} “{word}”"));
        }
        let is_known = OverlapPolicy::from_code(self.overlap).code() == self.overlap;
        (!is_known).then(|| format!("the overlap policy {}", self.overlap))
    }
}

/// Converts a row of a statement to a job's rules and the description of a word that this version cannot read. It is a macro because every checked statement has its own row type.
macro_rules! rules_in {
    ($row:expr) => {
        $crate::store::rules::RuleColumns {
            start_at: $row.start_at,
            end_at: $row.end_at,
            jitter_seconds: $row.jitter_seconds,
            calendars: $row.calendars,
            blackout: $row.blackout,
            misfire: $row.misfire_policy,
            catch_up_limit: $row.catch_up_limit,
            catch_up_window_seconds: $row.catch_up_window_seconds,
            overlap: $row.overlap_policy,
            max_concurrent: $row.max_concurrent,
            key: $row.concurrency_key,
            key_limit: $row.concurrency_key_limit,
            max_retries: $row.max_retries,
            base_retry_delay_seconds: $row.base_retry_delay_seconds,
            retry_jitter_percent: $row.retry_jitter_percent,
            heartbeat_timeout_seconds: $row.heartbeat_timeout_seconds,
            unreachable_timeout_seconds: $row.unreachable_timeout_seconds,
            on_lost: $row.on_lost,
            auto_disable: $row.auto_disable,
        }
        .into_rules()
    };
}
pub(super) use rules_in;

#[cfg(test)]
mod tests {
    use milvaion_schedule::rules::AutoDisable;

    use super::*;

    #[test]
    fn rules_round_trip_through_columns() {
        let rules = Rules {
            jitter_seconds: 9,
            overlap: OverlapPolicy::Queue,
            key_limit: Some(ConcurrencyKeyLimit { key: "db".into(), limit: 3 }),
            retry_jitter_percent: 20,
            unreachable_timeout_seconds: Some(600),
            on_lost: LostRunPolicy::Fail,
            auto_disable: Some(AutoDisable { threshold: 3, window_seconds: 60, cool_down_seconds: None }),
            ..Rules::default()
        };
        assert_eq!(RuleColumns::of(&rules).into_rules(), (rules, None));
        assert_eq!(RuleColumns::of(&Rules::default()).into_rules(), (Rules::default(), None));
    }

    #[test]
    fn word_of_a_newer_server_is_named() {
        let own = RuleColumns::of(&Rules::default());
        let unreadable = |columns: RuleColumns| columns.into_rules().1.expect("unreadable");
        assert_eq!(unreadable(RuleColumns { misfire: "later".into(), ..own.clone() }), "the misfire policy “later”");
        assert_eq!(unreadable(RuleColumns { blackout: "ask".into(), ..own.clone() }), "the blackout policy “ask”");
        assert_eq!(unreadable(RuleColumns { on_lost: "ask".into(), ..own.clone() }), "the policy for lost runs “ask”");
        assert_eq!(unreadable(RuleColumns { overlap: 7, ..own }), "the overlap policy 7");
    }
}
