//! The forms of rules and channels as definitions, and back. Only the server converts them.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use milvaion_api::{
    alerts::{AlertChannel, AlertChannelRow, AlertCondition, AlertRule, AlertRuleRow, AlertSeverity, AlertTarget},
    failures::FailureCause,
};
use milvaion_protocol::id::AlertChannelId;

use super::{AlertChannelForm, AlertRuleForm, CHECKED, MUTE_CHOICES, MUTE_UNTIL, channel_field};
use crate::error::AppError;

/// Returns the end of a mute that starts now: after one of [`MUTE_CHOICES`], or at the start of the day `until`.
///
/// # Errors
///
/// Returns an error if `length` is no choice, or `until` is no day.
pub(super) fn mute_end(now: DateTime<Utc>, length: &str, until: &str) -> Result<DateTime<Utc>, AppError> {
    if let Some((_, _, hours)) = MUTE_CHOICES.into_iter().find(|(value, _, _)| *value == length) {
        return Ok(now + TimeDelta::hours(hours));
    }
    if length != MUTE_UNTIL {
        return Err(AppError::field("length", "choose how long the rule is muted"));
    }
    let day = NaiveDate::parse_from_str(until.trim(), "%Y-%m-%d")
        .map_err(|_| AppError::field("until", "enter a day such as 2026-12-24"))?;
    Ok(day.and_time(NaiveTime::MIN).and_utc())
}

/// Splits a text at commas and line ends.
fn words(text: &str) -> Vec<String> {
    let words = text.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
    words.map(ToOwned::to_owned).collect()
}

/// Returns a number; 0, which every range refuses, for another text.
fn number(texts: &BTreeMap<String, String>, name: &str) -> u32 {
    texts.get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn optional_number(texts: &BTreeMap<String, String>, name: &str) -> Option<u32> {
    texts.get(name).filter(|text| !text.trim().is_empty()).map(|_| number(texts, name))
}

impl AlertRuleForm {
    /// Returns the form of a new rule.
    pub(super) fn new_rule() -> Self {
        let first = AlertCondition::OccurrenceFailed { causes: Vec::new() };
        Self {
            kind: first.kind().into(),
            condition: suggested_numbers(),
            severity: AlertSeverity::default().slug().into(),
            is_enabled: CHECKED.into(),
            ..Self::default()
        }
    }

    /// Returns the form that changes a rule. `channels` are all channels.
    pub(super) fn of(row: &AlertRuleRow, channels: &[(AlertChannelId, String)]) -> Self {
        let AlertRule { name, condition, jobs, tags, severity, channels: chosen, is_enabled } = &row.definition;
        let mut numbers = suggested_numbers();
        let mut causes = BTreeMap::new();
        let mut set = |name: &str, value: String| {
            numbers.insert(name.to_owned(), value);
        };
        match condition {
            AlertCondition::OccurrenceFailed { causes: chosen } => {
                causes = chosen.iter().map(|cause| (cause.as_str().to_owned(), CHECKED.to_owned())).collect();
            }
            AlertCondition::FailureRate { percent, window_minutes, minimum_runs } => {
                set("percent", percent.to_string());
                set("windowMinutes", window_minutes.to_string());
                set("minimumRuns", minimum_runs.to_string());
            }
            AlertCondition::LongRun { times_median, limit_seconds } => {
                let text = |number: &Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
                set("timesMedian", text(times_median));
                set("limitSeconds", text(limit_seconds));
            }
            AlertCondition::LateStart { seconds }
            | AlertCondition::NoLiveWorker { seconds }
            | AlertCondition::QueueAge { seconds } => set("seconds", seconds.to_string()),
            AlertCondition::Misfire {}
            | AlertCondition::LostRun {}
            | AlertCondition::AutoDisabled {}
            | AlertCondition::WorkerGone {}
            | AlertCondition::DeadLetter {}
            | AlertCondition::ServiceUnhealthy {} => {}
            AlertCondition::LoopWithoutLeader { loop_seconds, loops } => {
                set("loopSeconds", loop_seconds.map(|seconds| seconds.to_string()).unwrap_or_default());
                set("loops", loops.join(", "));
            }
        }
        let chosen = channels.iter().filter(|(_, name)| chosen.contains(name));
        Self {
            id: row.id.to_string(),
            version: row.version.to_string(),
            name: name.clone(),
            kind: condition.kind().into(),
            condition: numbers,
            causes,
            jobs: jobs.join(", "),
            tags: tags.join(", "),
            severity: severity.slug().into(),
            channels: chosen.map(|(id, name)| (channel_field(*id), name.clone())).collect(),
            is_enabled: if *is_enabled { CHECKED.into() } else { String::new() },
        }
    }

    /// Converts the texts to a rule, whose values the backend checks.
    pub(super) fn rule(&self) -> Result<AlertRule, AppError> {
        let severity =
            AlertSeverity::from_slug(&self.severity).ok_or_else(|| AppError::field("severity", "choose a severity"))?;
        Ok(AlertRule {
            name: self.name.trim().to_owned(),
            condition: self.condition()?,
            jobs: words(&self.jobs),
            tags: words(&self.tags),
            severity,
            channels: self.channels.values().cloned().collect(),
            is_enabled: !self.is_enabled.is_empty(),
        })
    }

    fn condition(&self) -> Result<AlertCondition, AppError> {
        let number = |name: &str| number(&self.condition, name);
        Ok(match self.kind.as_str() {
            "occurrence_failed" => AlertCondition::OccurrenceFailed {
                causes: FailureCause::ALL
                    .into_iter()
                    .filter(|cause| self.causes.contains_key(cause.as_str()))
                    .collect(),
            },
            "failure_rate" => AlertCondition::FailureRate {
                percent: number("percent"),
                window_minutes: number("windowMinutes"),
                minimum_runs: number("minimumRuns"),
            },
            "long_run" => AlertCondition::LongRun {
                times_median: optional_number(&self.condition, "timesMedian"),
                limit_seconds: optional_number(&self.condition, "limitSeconds"),
            },
            "late_start" => AlertCondition::LateStart { seconds: number("seconds") },
            "misfire" => AlertCondition::Misfire {},
            "lost_run" => AlertCondition::LostRun {},
            "auto_disabled" => AlertCondition::AutoDisabled {},
            "no_live_worker" => AlertCondition::NoLiveWorker { seconds: number("seconds") },
            "worker_gone" => AlertCondition::WorkerGone {},
            "queue_age" => AlertCondition::QueueAge { seconds: number("seconds") },
            "dead_letter" => AlertCondition::DeadLetter {},
            "service_unhealthy" => AlertCondition::ServiceUnhealthy {},
            "loop_without_leader" => AlertCondition::LoopWithoutLeader {
                loop_seconds: optional_number(&self.condition, "loopSeconds"),
                loops: self.condition.get("loops").map(|names| words(names)).unwrap_or_default(),
            },
            _ => return Err(AppError::field("kind", "choose a condition")),
        })
    }
}

/// Returns the numbers that a form suggests.
fn suggested_numbers() -> BTreeMap<String, String> {
    let numbers =
        [("percent", "50"), ("windowMinutes", "60"), ("minimumRuns", "4"), ("timesMedian", "3"), ("seconds", "300")];
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number.to_owned())).collect()
}

impl AlertChannelForm {
    /// Returns the form that changes a channel.
    pub(super) fn of(row: &AlertChannelRow) -> Self {
        let fields: Vec<(&str, String)> = match &row.definition.target {
            AlertTarget::Email { to } => vec![("to", to.join("\n"))],
            AlertTarget::Webhook { url, signing_secret } => {
                vec![("url", url.clone()), ("signingSecret", signing_secret.clone().unwrap_or_default())]
            }
            AlertTarget::Slack { url_secret } => vec![("urlSecret", url_secret.clone())],
        };
        Self {
            id: row.id.to_string(),
            version: row.version.to_string(),
            name: row.definition.name.clone(),
            kind: row.definition.target.kind().into(),
            target: fields.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
            is_enabled: if row.definition.is_enabled { CHECKED.into() } else { String::new() },
        }
    }

    /// Converts the texts to a channel, whose values the backend checks.
    pub(super) fn channel(&self) -> Result<AlertChannel, AppError> {
        let text = |name: &str| self.target.get(name).map(|text| text.trim().to_owned()).unwrap_or_default();
        let target = match self.kind.as_str() {
            "email" => AlertTarget::Email { to: words(&text("to")) },
            "webhook" => AlertTarget::Webhook {
                url: text("url"),
                signing_secret: Some(text("signingSecret")).filter(|name| !name.is_empty()),
            },
            "slack" => AlertTarget::Slack { url_secret: text("urlSecret") },
            _ => return Err(AppError::field("kind", "choose a kind")),
        };
        Ok(AlertChannel { name: self.name.trim().to_owned(), target, is_enabled: !self.is_enabled.is_empty() })
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::AlertRuleId;

    use super::*;

    fn row(condition: AlertCondition) -> AlertRuleRow {
        AlertRuleRow {
            id: AlertRuleId::default(),
            version: 3,
            definition: AlertRule {
                name: "Late".into(),
                condition,
                jobs: vec!["nightly".into(), "weekly".into()],
                tags: vec!["web".into()],
                severity: AlertSeverity::Critical,
                channels: vec!["Ops".into()],
                is_enabled: false,
            },
            muted_until: None,
            firing: 0,
            last_fired_at: None,
            modified_at: DateTime::UNIX_EPOCH,
            modified_by: "ada@example.org".into(),
        }
    }

    #[test]
    fn form_of_every_condition_is_read_back() {
        let seconds = 90;
        for condition in [
            AlertCondition::OccurrenceFailed { causes: vec![] },
            AlertCondition::OccurrenceFailed { causes: vec![FailureCause::TimedOut, FailureCause::Lost] },
            AlertCondition::FailureRate { percent: 20, window_minutes: 5, minimum_runs: 2 },
            AlertCondition::LongRun { times_median: None, limit_seconds: Some(60) },
            AlertCondition::LongRun { times_median: Some(4), limit_seconds: None },
            AlertCondition::LateStart { seconds },
            AlertCondition::Misfire {},
            AlertCondition::LostRun {},
            AlertCondition::AutoDisabled {},
            AlertCondition::NoLiveWorker { seconds },
            AlertCondition::WorkerGone {},
            AlertCondition::QueueAge { seconds },
            AlertCondition::DeadLetter {},
            AlertCondition::ServiceUnhealthy {},
            AlertCondition::LoopWithoutLeader { loop_seconds: None, loops: vec![] },
            AlertCondition::LoopWithoutLeader {
                loop_seconds: Some(30),
                loops: vec!["price-feed".into(), "orders".into()],
            },
        ] {
            let row = row(condition);
            let channels = [(AlertChannelId::default(), "Ops".to_owned())];
            assert_eq!(AlertRuleForm::of(&row, &channels).rule(), Ok(row.definition));
        }
    }

    #[test]
    fn text_that_is_no_number_is_refused_by_the_check() {
        let mut form = AlertRuleForm { name: "Rate".into(), kind: "failure_rate".into(), ..AlertRuleForm::new_rule() };
        form.condition.insert("percent".into(), "half".into());
        let errors = form.rule().expect("a rule").check().expect_err("a percentage from 1 to 100");
        assert_eq!(errors[0].field, "condition.percent");
        let unknown = AlertRuleForm { kind: "doom".into(), ..form };
        assert_eq!(unknown.rule(), Err(AppError::field("kind", "choose a condition")));
    }

    #[test]
    fn recipients_are_lines_and_an_empty_secret_is_none() {
        let form = |kind: &str, fields: &[(&str, &str)]| AlertChannelForm {
            name: " Ops ".into(),
            kind: kind.into(),
            target: fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
            ..AlertChannelForm::default()
        };
        let mail = form("email", &[("to", "a@example.org\r\n\r\nb@example.org\r\n")]).channel().expect("a channel");
        assert_eq!(mail.target, AlertTarget::Email { to: vec!["a@example.org".into(), "b@example.org".into()] });
        assert_eq!((mail.name.as_str(), mail.is_enabled), ("Ops", false));
        let url = "https://example.org/hook";
        let hook = form("webhook", &[("url", url), ("signingSecret", " ")]).channel().expect("a channel");
        assert_eq!(hook.target, AlertTarget::Webhook { url: url.into(), signing_secret: None });
    }

    #[test]
    fn mute_ends_after_a_length_or_at_the_start_of_a_day() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().expect("an instant");
        let now = at("2026-11-21T14:02:30Z");
        assert_eq!(mute_end(now, "8h", "2027-01-01"), Ok(at("2026-11-21T22:02:30Z")));
        assert_eq!(mute_end(now, MUTE_UNTIL, " 2026-12-24 "), Ok(at("2026-12-24T00:00:00Z")));
        assert_eq!(mute_end(now, "", ""), Err(AppError::field("length", "choose how long the rule is muted")));
        assert!(mute_end(now, MUTE_UNTIL, "soon").is_err());
    }
}
