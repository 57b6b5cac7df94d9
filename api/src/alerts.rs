//! Alerts: rules, channels, and what fires.
//!
//! A *rule* names a condition. While the condition holds for one job, worker, queue or service, one *alert* of the rule
//! fires; it is resolved when the condition is over. The bell on every page counts the firing alerts. A rule with
//! *channels* also sends a message when its alerts fire, and another one when they are resolved.
//!
//! A channel holds no secret. It names secrets, and each server reads their values from its environment, so that no
//! page, API answer, backup or file contains one.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{AlertChannelId, AlertId, AlertRuleId, JobId, OccurrenceId},
    singleton::MAX_LOOP_NAME_BYTES,
    topology::is_valid_name,
};
use milvaion_schedule::printable::check_printable;
use serde::{Deserialize, Serialize};

use crate::{failures::FailureCause, requests::FieldError};

/// The maximum length of the name of a rule or a channel, in characters.
pub const MAX_ALERT_NAME_CHARS: usize = 100;
/// The maximum number of alert rules.
pub const MAX_ALERT_RULES: i64 = 200;
/// The maximum number of alert channels.
pub const MAX_ALERT_CHANNELS: i64 = 50;
/// The maximum number of jobs, and of tags, that a rule selects.
pub const MAX_ALERT_SELECTORS: usize = 50;
/// The maximum number of singleton loops that a rule selects.
pub const MAX_ALERT_LOOPS: usize = 50;
/// The maximum number of channels of a rule.
pub const MAX_RULE_CHANNELS: usize = 10;
/// The maximum number of recipients of an e-mail channel.
pub const MAX_ALERT_RECIPIENTS: usize = 20;
/// The maximum length of the URL of a webhook, in characters.
pub const MAX_ALERT_URL_CHARS: usize = 2_000;
/// The longest time for which a rule can be muted, in days.
pub const MAX_MUTE_DAYS: i64 = 365;
/// The maximum value of a condition's time, in seconds: seven days.
pub const MAX_ALERT_SECONDS: u32 = 604_800;
/// The start of the environment variable with the value of a secret; the name of the secret follows.
pub const ALERT_SECRET_VARIABLE: &str = "ALERT_SECRET_";
/// The maximum length of the name of a secret, in characters.
pub const MAX_SECRET_NAME_CHARS: usize = 64;

/// The condition of an alert rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AlertCondition {
    /// An occurrence failed for good. Resolved when an occurrence of the job completes, or when its failures are
    /// resolved.
    OccurrenceFailed {
        /// The causes; empty means every cause.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(feature = "schema", schemars(length(max = 7)))]
        causes: Vec<FailureCause>,
    },
    /// Too large a share of a job's occurrences failed.
    FailureRate {
        /// The least share of failed occurrences, in percent, 1 to 100.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
        percent: u32,
        /// The window, in minutes, 1 to 1,440.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_440)))]
        window_minutes: u32,
        /// The least number of ended occurrences in the window, 1 to 10,000.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
        minimum_runs: u32,
    },
    /// A run takes longer than usual, or longer than a limit.
    LongRun {
        /// The multiple of the median duration of the job's last 20 completed runs, 2 to 100. A job with fewer than five
        /// completed runs has no median.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 100)))]
        times_median: Option<u32>,
        /// The limit, in seconds, 1 to 604,800.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800)))]
        limit_seconds: Option<u32>,
    },
    /// An occurrence has not started this long after its due time.
    LateStart {
        /// The time after the due time, in seconds, 1 to 604,800.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800)))]
        seconds: u32,
    },
    /// A due time passed while the scheduler was away. Resolved after 15 minutes without another one.
    Misfire {},
    /// The worker of a run stopped sending heartbeats. Resolved after 15 minutes without another lost run of the job.
    LostRun {},
    /// A job was disabled automatically. Resolved when it is enabled again.
    AutoDisabled {},
    /// An occurrence is due, and no live worker instance has its job type.
    NoLiveWorker {
        /// The time after the due time, in seconds, 1 to 604,800.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800)))]
        seconds: u32,
    },
    /// A worker instance stopped sending heartbeats without an orderly stop.
    WorkerGone {},
    /// The oldest occurrence in the queue of a job type has waited this long for a worker.
    QueueAge {
        /// The age, in seconds, 1 to 604,800.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800)))]
        seconds: u32,
    },
    /// A message that no consumer could read was stored. Resolved with the dead letter.
    DeadLetter {},
    /// A background task of a server fails again and again, or has stalled.
    ServiceUnhealthy {},
    /// An enabled singleton loop has had no leader for this long. Resolved when it has one again, or when the loop is
    /// disabled or forgotten.
    LoopWithoutLeader {
        /// The time without a leader, in seconds, 1 to 604,800. Twice the lease of the loop without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800)))]
        loop_seconds: Option<u32>,
        /// The names of the loops; empty means every loop.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(feature = "schema", schemars(length(max = 50)))]
        loops: Vec<String>,
    },
}

impl AlertCondition {
    /// Returns the word of the kind, as in JSON.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::OccurrenceFailed { .. } => "occurrence_failed",
            Self::FailureRate { .. } => "failure_rate",
            Self::LongRun { .. } => "long_run",
            Self::LateStart { .. } => "late_start",
            Self::Misfire {} => "misfire",
            Self::LostRun {} => "lost_run",
            Self::AutoDisabled {} => "auto_disabled",
            Self::NoLiveWorker { .. } => "no_live_worker",
            Self::WorkerGone {} => "worker_gone",
            Self::QueueAge { .. } => "queue_age",
            Self::DeadLetter {} => "dead_letter",
            Self::ServiceUnhealthy {} => "service_unhealthy",
            Self::LoopWithoutLeader { .. } => "loop_without_leader",
        }
    }

    /// Returns true if the condition is about single jobs, so that a rule may select jobs and tags.
    #[must_use]
    pub const fn is_about_jobs(&self) -> bool {
        !matches!(
            self,
            Self::WorkerGone {}
                | Self::QueueAge { .. }
                | Self::DeadLetter {}
                | Self::ServiceUnhealthy {}
                | Self::LoopWithoutLeader { .. }
        )
    }

    /// Returns the condition as a sentence for pages and messages.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::OccurrenceFailed { causes } if causes.is_empty() => "An occurrence fails for good.".into(),
            Self::OccurrenceFailed { causes } => {
                let words: Vec<_> = causes.iter().map(|cause| cause.as_str().replace('_', " ")).collect();
                format!("An occurrence fails for good: {}.", words.join(" or "))
            }
            Self::FailureRate { percent, window_minutes, minimum_runs } => format!(
                "At least {percent}% of a job's occurrences fail within {window_minutes} min (at least {minimum_runs} ended)."
            ),
            Self::LongRun { times_median, limit_seconds } => {
                let median = times_median.map(|times| format!("{times} times its median duration"));
                let limit = limit_seconds.map(|seconds| format!("{seconds} s"));
                let parts: Vec<_> = median.into_iter().chain(limit).collect();
                format!("A run takes longer than {}.", parts.join(" or "))
            }
            Self::LateStart { seconds } => format!("An occurrence has not started {seconds} s after its due time."),
            Self::Misfire {} => "A due time passes while the scheduler is away.".into(),
            Self::LostRun {} => "The worker of a run stops sending heartbeats.".into(),
            Self::AutoDisabled {} => "A job is disabled automatically.".into(),
            Self::NoLiveWorker { seconds } => {
                format!("An occurrence has been due for {seconds} s, and no live worker has its job type.")
            }
            Self::WorkerGone {} => "A worker instance stops sending heartbeats without an orderly stop.".into(),
            Self::QueueAge { seconds } => {
                format!("The oldest occurrence in the queue of a job type has waited {seconds} s for a worker.")
            }
            Self::DeadLetter {} => "A message that no consumer could read is stored.".into(),
            Self::ServiceUnhealthy {} => "A background task of a server fails again and again, or has stalled.".into(),
            Self::LoopWithoutLeader { loop_seconds, loops } => {
                let limit = loop_seconds.map_or_else(|| "twice its lease".to_owned(), |seconds| format!("{seconds} s"));
                let which = if loops.is_empty() {
                    "An enabled singleton loop".to_owned()
                } else {
                    format!("The singleton loop {}", loops.join(" or "))
                };
                format!("{which} has had no leader for {limit}.")
            }
        }
    }

    fn check(&self, errors: &mut Vec<FieldError>) {
        let mut range = |field: &str, value: u32, from: u32, to: u32, unit: &str| {
            if !(from..=to).contains(&value) {
                errors.push(FieldError::new(format!("condition.{field}"), format!("enter {unit} from {from} to {to}")));
            }
        };
        match self {
            Self::OccurrenceFailed { .. }
            | Self::Misfire {}
            | Self::LostRun {}
            | Self::AutoDisabled {}
            | Self::WorkerGone {}
            | Self::DeadLetter {}
            | Self::ServiceUnhealthy {} => {}
            Self::FailureRate { percent, window_minutes, minimum_runs } => {
                range("percent", *percent, 1, 100, "a percentage");
                range("windowMinutes", *window_minutes, 1, 1_440, "a number of minutes");
                range("minimumRuns", *minimum_runs, 1, 10_000, "a number of occurrences");
            }
            Self::LongRun { times_median, limit_seconds } => {
                if let Some(times) = times_median {
                    range("timesMedian", *times, 2, 100, "a multiple");
                }
                if let Some(seconds) = limit_seconds {
                    range("limitSeconds", *seconds, 1, MAX_ALERT_SECONDS, "a number of seconds");
                }
                if times_median.is_none() && limit_seconds.is_none() {
                    let message = "enter a multiple of the median, a limit in seconds, or both";
                    errors.push(FieldError::new("condition.timesMedian", message));
                }
            }
            Self::LateStart { seconds } | Self::NoLiveWorker { seconds } | Self::QueueAge { seconds } => {
                range("seconds", *seconds, 1, MAX_ALERT_SECONDS, "a number of seconds");
            }
            Self::LoopWithoutLeader { loop_seconds, loops } => {
                if let Some(seconds) = loop_seconds {
                    range("loopSeconds", *seconds, 1, MAX_ALERT_SECONDS, "a number of seconds");
                }
                if loops.len() > MAX_ALERT_LOOPS {
                    errors.push(FieldError::new("condition.loops", format!("enter at most {MAX_ALERT_LOOPS}")));
                } else if let Some(name) = loops.iter().find(|name| !is_loop_name(name)) {
                    let message = format!("{name:?} is no name of a singleton loop: use letters, digits, -, _ and .");
                    errors.push(FieldError::new("condition.loops", message));
                }
            }
        }
    }
}

/// Returns true for a name that a singleton loop can have.
#[must_use]
pub fn is_loop_name(name: &str) -> bool {
    is_valid_name(name, MAX_LOOP_NAME_BYTES)
}

/// The severity of an alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AlertSeverity {
    /// Worth a look during working hours.
    #[default]
    Warning,
    /// Needs a person now.
    Critical,
}

impl AlertSeverity {
    /// Every severity, the lowest first.
    pub const ALL: [Self; 2] = [Self::Warning, Self::Critical];

    /// Returns the word in JSON and in the database.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Warning => "Warning",
            Self::Critical => "Critical",
        }
    }

    /// Returns the severity of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|severity| severity.slug() == slug)
    }
}

const fn enabled() -> bool {
    true
}

/// The definition of an alert rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlertRule {
    /// The name, unique, 1 to 100 printable characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The condition.
    pub condition: AlertCondition,
    /// The keys or ids of the jobs; empty means every job. Only for conditions about jobs.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 50)))]
    pub jobs: Vec<String>,
    /// Tags: the rule applies to jobs with one of them; empty means every job. Only for conditions about jobs.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 50)))]
    pub tags: Vec<String>,
    /// The severity.
    #[serde(default)]
    pub severity: AlertSeverity,
    /// The names of the channels that get a message; empty means that the alert shows on the dashboard only.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 10)))]
    pub channels: Vec<String>,
    /// False to switch the rule off.
    #[serde(default = "enabled")]
    pub is_enabled: bool,
}

impl AlertRule {
    /// Checks the constraints that need no service.
    ///
    /// # Errors
    ///
    /// Returns one error per invalid field, with the names in JSON.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        check_name(&self.name, &mut errors);
        self.condition.check(&mut errors);
        for (field, values, limit, longest) in [
            ("jobs", &self.jobs, MAX_ALERT_SELECTORS, 100),
            ("tags", &self.tags, MAX_ALERT_SELECTORS, 50),
            ("channels", &self.channels, MAX_RULE_CHANNELS, MAX_ALERT_NAME_CHARS),
        ] {
            if values.len() > limit {
                errors.push(FieldError::new(field, format!("enter at most {limit}")));
            } else if values
                .iter()
                .any(|value| !(1..=longest).contains(&value.trim().chars().count()) || check_printable(value).is_err())
            {
                errors.push(FieldError::new(field, format!("enter texts of 1 to {longest} printable characters")));
            }
            if field != "channels" && !values.is_empty() && !self.condition.is_about_jobs() {
                errors.push(FieldError::new(field, "leave it empty: this condition is not about single jobs"));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns true if the rule applies to a job.
    #[must_use]
    pub fn selects(&self, id: JobId, key: Option<&str>, tags: &[String]) -> bool {
        let id = id.to_string();
        let is_named = |name: &String| Some(name.as_str()) == key || name.eq_ignore_ascii_case(&id);
        (self.jobs.is_empty() || self.jobs.iter().any(is_named))
            && (self.tags.is_empty() || self.tags.iter().any(|tag| tags.contains(tag)))
    }
}

fn check_name(name: &str, errors: &mut Vec<FieldError>) {
    let chars = name.trim().chars().count();
    if !(1..=MAX_ALERT_NAME_CHARS).contains(&chars) {
        errors.push(FieldError::new("name", "enter a name of 1 to 100 printable characters"));
    } else if let Err(message) = check_printable(name.trim()) {
        errors.push(FieldError::new("name", message));
    }
}

/// The destination of an alert channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AlertTarget {
    /// An e-mail over the SMTP server in the settings.
    Email {
        /// The addresses of the recipients, 1 to 20.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 20)))]
        to: Vec<String>,
    },
    /// A POST of a JSON document.
    Webhook {
        /// The address, which starts with `https://` or `http://` and contains no secret.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 2_000)))]
        url: String,
        /// The name of the secret that signs the document; none means no signature.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))]
        signing_secret: Option<String>,
    },
    /// A message to a webhook that is compatible with Slack.
    Slack {
        /// The name of the secret that holds the address of the webhook: the address is all that a sender needs.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))]
        url_secret: String,
    },
}

impl AlertTarget {
    /// Returns the word of the kind, as in JSON.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Email { .. } => "email",
            Self::Webhook { .. } => "webhook",
            Self::Slack { .. } => "slack",
        }
    }

    /// Returns the kind for display.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Email { .. } => "E-mail",
            Self::Webhook { .. } => "Webhook",
            Self::Slack { .. } => "Slack",
        }
    }

    /// Returns the name of the secret that it needs, with the field that holds the name.
    #[must_use]
    pub fn secret(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Email { .. } => None,
            Self::Webhook { signing_secret, .. } => Some(("target.signingSecret", signing_secret.as_deref()?)),
            Self::Slack { url_secret } => Some(("target.urlSecret", url_secret)),
        }
    }
}

/// The definition of an alert channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlertChannel {
    /// The name, unique, 1 to 100 printable characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The destination.
    pub target: AlertTarget,
    /// False to switch the channel off: its messages are dropped.
    #[serde(default = "enabled")]
    pub is_enabled: bool,
}

impl AlertChannel {
    /// Checks the constraints that need no service.
    ///
    /// # Errors
    ///
    /// Returns one error per invalid field, with the names in JSON.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        check_name(&self.name, &mut errors);
        match &self.target {
            AlertTarget::Email { to } => {
                if !(1..=MAX_ALERT_RECIPIENTS).contains(&to.len()) || !to.iter().all(|address| is_address(address)) {
                    let message = "enter 1 to 20 e-mail addresses, such as team@example.org";
                    errors.push(FieldError::new("target.to", message));
                }
            }
            AlertTarget::Webhook { url, .. } => {
                let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
                let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
                if host.is_empty()
                    || url.chars().count() > MAX_ALERT_URL_CHARS
                    || url.contains(|c: char| c.is_control() || c.is_whitespace())
                {
                    let message = "enter an address such as https://example.org/hook, at most 2,000 characters";
                    errors.push(FieldError::new("target.url", message));
                } else if host.contains('@') {
                    let message = "leave out the user name and the password: sign the document with signingSecret";
                    errors.push(FieldError::new("target.url", message));
                }
            }
            AlertTarget::Slack { .. } => {}
        }
        if let Some((field, name)) = self.target.secret()
            && !is_secret_name(name)
        {
            let message = "enter a name of 1 to 64 capital letters, digits and underscores, such as SLACK_OPS";
            errors.push(FieldError::new(field, message));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

fn is_secret_name(name: &str) -> bool {
    (1..=MAX_SECRET_NAME_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

fn is_address(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    text.len() <= 254
        && !local.is_empty()
        && !domain.is_empty()
        && !text.contains(|c: char| c.is_control() || c.is_whitespace() || matches!(c, '<' | '>' | ',' | ';'))
}

/// An alert: one episode in which a rule fires for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// The id.
    pub id: AlertId,
    /// The rule.
    pub rule_id: AlertRuleId,
    /// The name of the rule.
    pub rule_name: String,
    /// The severity of the rule.
    pub severity: AlertSeverity,
    /// The event in one line, with the name of the job, worker, queue or service.
    pub title: String,
    /// Details of the latest event; may be empty.
    pub detail: String,
    /// The job, if the alert is about one.
    pub job_id: Option<JobId>,
    /// The name of that job.
    pub job_name: Option<String>,
    /// The latest occurrence, if the alert is about one.
    pub occurrence_id: Option<OccurrenceId>,
    /// The number of events; 1 for a condition that lasts.
    pub count: i64,
    /// The time of the first event.
    pub first_at: DateTime<Utc>,
    /// The time of the latest event, or of the last check that found the condition true.
    pub last_at: DateTime<Utc>,
    /// The time of the resolution; none while it fires.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The reason for the resolution as a sentence.
    pub resolution: Option<String>,
    /// The messages about it.
    pub messages: Vec<AlertMessageStatus>,
}

/// The state of a message about an alert to one channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AlertMessageStatus {
    /// The name of the channel.
    pub channel: String,
    /// True for the message about the resolution.
    pub is_resolution: bool,
    /// The time at which the receiver accepted it.
    pub sent_at: Option<DateTime<Utc>>,
    /// The time at which the server gave up.
    pub failed_at: Option<DateTime<Utc>>,
    /// The number of attempts.
    pub attempts: i32,
    /// The error of the last attempt that failed.
    pub error: Option<String>,
}

/// An alert rule with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AlertRuleRow {
    /// The id.
    pub id: AlertRuleId,
    /// The version, which each change increments. The header `ETag` has it too.
    pub version: i32,
    /// The definition. A request that changes the rule sends the whole of it.
    pub definition: AlertRule,
    /// The time until which the rule sends no messages.
    pub muted_until: Option<DateTime<Utc>>,
    /// The number of alerts that fire now.
    pub firing: i64,
    /// The time at which it last started to fire.
    pub last_fired_at: Option<DateTime<Utc>>,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
}

/// An alert channel with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AlertChannelRow {
    /// The id.
    pub id: AlertChannelId,
    /// The version, which each change increments. The header `ETag` has it too.
    pub version: i32,
    /// The definition. A request that changes the channel sends the whole of it.
    pub definition: AlertChannel,
    /// The number of rules that use it.
    pub rules: i64,
    /// The time at which a receiver last accepted a message.
    pub last_sent_at: Option<DateTime<Utc>>,
    /// The error of the last attempt, if it failed.
    pub last_error: Option<String>,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
}

/// The number of alerts that fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FiringAlerts {
    /// Those with the severity *critical*.
    pub critical: i64,
    /// Those with the severity *warning*.
    pub warning: i64,
}

impl FiringAlerts {
    /// Returns the number of all.
    #[must_use]
    pub const fn total(self) -> i64 {
        self.critical + self.warning
    }
}

/// A filter for alerts, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct AlertFilter {
    /// Only firing or only resolved alerts.
    pub firing: Option<bool>,
    /// Only alerts of this rule.
    pub rule: Option<AlertRuleId>,
    /// The cursor: only alerts older than this one.
    pub before: Option<AlertId>,
    /// The maximum number of rows, at most 200; 0 means 50.
    #[cfg_attr(feature = "schema", schemars(range(max = 200)))]
    pub limit: u32,
}

/// A request to mute a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MuteAlertRule {
    /// The time until which the rule sends no messages, at most 365 days from now; null ends the mute.
    pub until: Option<DateTime<Utc>>,
}

/// The result of a test message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AlertTestResult {
    /// True if the receiver accepted the message.
    pub was_accepted: bool,
    /// The error with its remedy, if it did not.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(condition: AlertCondition) -> AlertRule {
        AlertRule {
            name: "Failures".into(),
            condition,
            jobs: vec![],
            tags: vec![],
            severity: AlertSeverity::Critical,
            channels: vec![],
            is_enabled: true,
        }
    }

    fn channel(target: AlertTarget) -> AlertChannel {
        AlertChannel { name: "Ops".into(), target, is_enabled: true }
    }

    fn fields(result: Result<(), Vec<FieldError>>) -> Vec<String> {
        result.err().unwrap_or_default().into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn rule_selects_jobs_by_key_id_and_tag() {
        let (id, tags) = (JobId::default(), vec!["finance".to_owned()]);
        let all = rule(AlertCondition::LostRun {});
        assert!(all.selects(id, None, &[]));
        let by_key = AlertRule { jobs: vec!["nightly".into()], ..all.clone() };
        assert!(by_key.selects(id, Some("nightly"), &[]) && !by_key.selects(id, None, &tags));
        let by_id = AlertRule { jobs: vec![id.to_string()], ..all.clone() };
        assert!(by_id.selects(id, None, &[]));
        let by_tag = AlertRule { tags: vec!["web".into(), "finance".into()], ..by_key };
        assert!(by_tag.selects(id, Some("nightly"), &tags) && !by_tag.selects(id, Some("nightly"), &[]));
    }

    #[test]
    fn numbers_of_a_condition_are_bounded() {
        let rate = |percent| AlertCondition::FailureRate { percent, window_minutes: 0, minimum_runs: 1 };
        assert_eq!(fields(rule(rate(101)).check()), ["condition.percent", "condition.windowMinutes"]);
        let none = AlertCondition::LongRun { times_median: None, limit_seconds: None };
        assert_eq!(fields(rule(none).check()), ["condition.timesMedian"]);
        assert_eq!(fields(rule(AlertCondition::QueueAge { seconds: 0 }).check()), ["condition.seconds"]);
    }

    #[test]
    fn loops_of_a_condition_are_checked() {
        let of = |loops: &[&str]| AlertCondition::LoopWithoutLeader {
            loop_seconds: None,
            loops: loops.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(rule(of(&["price-feed", "a.b_c"])).check().is_ok());
        assert_eq!(fields(rule(of(&["price feed"])).check()), ["condition.loops"]);
        assert_eq!(fields(rule(of(&["a"; 51])).check()), ["condition.loops"]);
        let none = AlertCondition::LoopWithoutLeader { loop_seconds: Some(0), loops: vec![] };
        assert_eq!(fields(rule(none).check()), ["condition.loopSeconds"]);
        assert_eq!(serde_json::to_string(&of(&[])).expect("JSON"), r#"{"kind":"loop_without_leader"}"#);
    }

    #[test]
    fn only_conditions_about_jobs_select_jobs() {
        let dead = AlertRule { tags: vec!["web".into()], ..rule(AlertCondition::DeadLetter {}) };
        assert_eq!(fields(dead.check()), ["tags"]);
        let long = AlertRule { jobs: vec!["x".repeat(101)], ..rule(AlertCondition::Misfire {}) };
        assert_eq!(fields(long.check()), ["jobs"]);
    }

    #[test]
    fn channel_holds_no_secret() {
        let webhook = |url: &str| AlertTarget::Webhook { url: url.into(), signing_secret: None };
        assert!(channel(webhook("https://example.org/hook?x=1")).check().is_ok());
        for url in ["", "ftp://a", "https://", "https:///x", "https://user:pw@example.org/", "https://a b"] {
            assert_eq!(fields(channel(webhook(url)).check()), ["target.url"], "{url}");
        }
        let slack = AlertTarget::Slack { url_secret: "https://hooks".into() };
        assert_eq!(fields(channel(slack).check()), ["target.urlSecret"]);
        let mail = |to: &[&str]| AlertTarget::Email { to: to.iter().map(|to| (*to).to_owned()).collect() };
        assert!(channel(mail(&["a@example.org", "b@example.org"])).check().is_ok());
        for to in [&[][..], &["a"], &["a@b, c@d"], &["@b"]] {
            assert_eq!(fields(channel(mail(to)).check()), ["target.to"], "{to:?}");
        }
    }

    #[test]
    fn condition_is_tagged_by_its_kind() {
        let text = r#"{"kind":"failure_rate","percent":50,"windowMinutes":10,"minimumRuns":4}"#;
        let condition: AlertCondition = serde_json::from_str(text).expect("a condition");
        assert_eq!(serde_json::to_string(&condition).expect("JSON"), text);
        assert_eq!(condition.kind(), "failure_rate");
        assert_eq!(serde_json::to_string(&AlertCondition::Misfire {}).expect("JSON"), r#"{"kind":"misfire"}"#);
        assert!(serde_json::from_str::<AlertCondition>(r#"{"kind":"misfire","seconds":1}"#).is_err());
    }
}
