//! The due times that code declares: a cron expression or an interval.
//!
//! With the feature `cron` the SDK checks an expression with the rules of the server, so that a mistake ends the start of the
//! worker. Without it the server checks it, and answers the registration with the reason.

use std::time::Duration;

use milvaion_protocol::message::DeclaredTiming;

use crate::api::error::ConfigErrors;

/// Upper bound of an interval.
const MAX_INTERVAL: Duration = Duration::from_secs(366 * 86_400);

/// The cron expression of a schedule, in UTC unless [`zone`](Self::zone) names a time zone.
///
/// An expression has five fields, or six with the seconds first, as in the dashboard. A local time that a clock change
/// skips runs at the first instant after it, and one that exists twice runs once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    expression: String,
    zone: String,
}

impl Cron {
    /// Creates the due times of an expression, in UTC.
    #[must_use]
    pub fn new(expression: impl Into<String>) -> Self {
        Self { expression: expression.into(), zone: "UTC".to_owned() }
    }

    /// Sets the time zone by its IANA name, such as `Europe/Berlin`.
    #[must_use]
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }
}

/// The due times of a schedule: a [`Cron`] expression, or a [`Duration`] for a fixed interval of whole seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing(TimingKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TimingKind {
    Cron(Cron),
    Every(Duration),
}

impl From<Cron> for Timing {
    fn from(cron: Cron) -> Self {
        Self(TimingKind::Cron(cron))
    }
}

impl From<Duration> for Timing {
    fn from(interval: Duration) -> Self {
        Self(TimingKind::Every(interval))
    }
}

impl Timing {
    pub(super) fn check(&self, label: &str, errors: &mut ConfigErrors) {
        match &self.0 {
            TimingKind::Cron(cron) => check_cron(cron, label, errors),
            TimingKind::Every(interval) => {
                if interval.subsec_nanos() != 0 || !(Duration::from_secs(1)..=MAX_INTERVAL).contains(interval) {
                    errors.add(format!(
                        "{label} has an interval of {interval:?}: give whole seconds, 1 second to 366 days. A singleton loop can run more often."
                    ));
                }
            }
        }
    }

    pub(super) fn into_wire(self) -> DeclaredTiming {
        match self.0 {
            TimingKind::Cron(Cron { expression, zone }) => DeclaredTiming::Cron { expression, zone },
            TimingKind::Every(interval) => DeclaredTiming::Every { seconds: interval.as_secs() },
        }
    }
}

/// Checks an expression and its zone with the rules of the server.
#[cfg(feature = "cron")]
fn check_cron(cron: &Cron, label: &str, errors: &mut ConfigErrors) {
    let schedule =
        milvaion_schedule::schedule::Schedule::Cron { expression: cron.expression.clone(), zone: cron.zone.clone() };
    if let Err((field, reason)) = schedule.check_new() {
        errors.add(format!("{label} has an invalid {field}: {reason}."));
    }
}

/// Leaves the check to the server, whose answer to the registration names the mistake: without the feature `cron` this
/// crate has no parser.
#[cfg(not(feature = "cron"))]
fn check_cron(cron: &Cron, label: &str, errors: &mut ConfigErrors) {
    if cron.expression.trim().is_empty() || cron.zone.is_empty() {
        errors.add(format!("{label} has an empty cron expression or zone: give both."));
    }
}
