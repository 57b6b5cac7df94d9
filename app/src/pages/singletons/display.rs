//! The words and numbers of a loop's card.

use milvaion_api::singletons::{LoopStatus, SingletonLoop};
use milvaion_protocol::singleton::{LoopKind, LoopOutcome};

use crate::format;

/// Returns the status of the badge's colour and its icon.
pub(super) const fn badge_of(status: LoopStatus) -> (&'static str, &'static str) {
    match status {
        LoopStatus::Leading => ("active", "heart-pulse"),
        LoopStatus::NoLeader => ("failed", "octagon-x"),
        LoopStatus::NotOffered => ("unknown", "wifi-off"),
        LoopStatus::Disabled => ("paused", "circle-pause"),
    }
}

/// Returns the status, the icon and the word of the end of a run.
pub(super) const fn outcome_of(outcome: LoopOutcome) -> (&'static str, &'static str, &'static str) {
    match outcome {
        LoopOutcome::Ok => ("completed", "circle-check", "succeeded"),
        LoopOutcome::Error => ("failed", "octagon-x", "failed"),
        LoopOutcome::Cancelled => ("cancelled", "ban", "cancelled"),
    }
}

/// Formats milliseconds: `0.25 ms`, `12.5 ms`, `412 ms`, `4.2 s`.
pub(super) fn millis(number: f64) -> String {
    let number = number.max(0.0);
    match number {
        n if n < 10.0 => format!("{n:.2} ms"),
        n if n < 100.0 => format!("{n:.1} ms"),
        n => format::duration(n.round() as i64),
    }
}

/// Formats a counter with separators.
pub(super) fn number(count: u64) -> String {
    format::count(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Returns the rhythm in words; the kind if the leader did not publish it.
pub(super) fn rhythm(row: &SingletonLoop) -> String {
    if !row.schedule.is_empty() {
        return row.schedule.clone();
    }
    match row.kind {
        _ if row.lease_ms == 0 => "Unknown until an instance leads it".into(),
        LoopKind::Interval => "Interval".into(),
        LoopKind::FixedRate => "Fixed rate".into(),
        LoopKind::Cron => "Cron".into(),
    }
}

/// Returns the remaining lease in percent and in words; none without a leader.
pub(super) fn lease(row: &SingletonLoop) -> Option<(u64, String)> {
    let leader = row.leader.as_ref()?;
    let remaining = leader.lease_remaining_ms;
    let percent = (remaining.min(row.lease_ms) * 100).checked_div(row.lease_ms).unwrap_or_default();
    let seconds = |ms: u64| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100);
    Some((percent, format!("{} of {}", seconds(remaining), seconds(row.lease_ms))))
}

/// Returns the instances that do not lead; those beyond the listed ones as a number.
pub(super) fn standby(row: &SingletonLoop) -> String {
    let ids: Vec<&str> = row.standby().map(|instance| instance.id.as_str()).collect();
    let unlisted = row.instance_count.saturating_sub(row.instances.len() as u64);
    match (ids.is_empty(), unlisted) {
        (true, 0) => "None".into(),
        (true, more) => format!("{} instances", number(more)),
        (false, 0) => ids.join(", "),
        (false, more) => format!("{} and {} more", ids.join(", "), number(more)),
    }
}

#[cfg(test)]
mod tests {
    use milvaion_api::singletons::{LoopInstance, LoopLeader};

    use super::*;

    #[test]
    fn short_times_have_fractions() {
        let texts: Vec<_> = [0.25, 12.54, 412.4, 4_250.0, -1.0].into_iter().map(millis).collect();
        assert_eq!(texts, ["0.25 ms", "12.5 ms", "412 ms", "4.2 s", "0.00 ms"]);
    }

    #[test]
    fn lease_is_a_share_of_its_length() {
        let leader = LoopLeader { lease_remaining_ms: 7_500, ..LoopLeader::default() };
        let row = SingletonLoop { leader: Some(leader), lease_ms: 10_000, ..SingletonLoop::default() };
        assert_eq!(lease(&row), Some((75, "7.5 s of 10.0 s".into())));
        assert_eq!(lease(&SingletonLoop { lease_ms: 0, ..row }).map(|(percent, _)| percent), Some(0));
        assert_eq!(lease(&SingletonLoop::default()), None);
    }

    #[test]
    fn standby_names_the_other_instances() {
        let instance = |id: &str| LoopInstance { id: id.into(), ..LoopInstance::default() };
        let row = SingletonLoop {
            instances: vec![instance("a"), instance("b")],
            instance_count: 2,
            ..SingletonLoop::default()
        };
        assert_eq!(standby(&row), "a, b");
        assert_eq!(standby(&SingletonLoop { instance_count: 1_002, ..row }), "a, b and 1,000 more");
        assert_eq!(standby(&SingletonLoop::default()), "None");
    }
}
