//! Settings for auto-disable and for alerts.

use milvaion_schedule::rules::{AutoDisable, MAX_AUTO_DISABLE_THRESHOLD, MAX_CATCH_UP_WINDOW_SECONDS};

use super::EnvReader;

/// The default auto-disable rule and the address of the alert webhook.
#[derive(Clone, Debug, Default)]
pub struct AlertsConfig {
    /// The auto-disable rule for jobs without a rule of their own; none means that they are never disabled
    /// automatically.
    ///
    /// `AUTO_DISABLE_THRESHOLD`: number of consecutive failures after which a job is disabled. From 0 to 100. Default
    /// 0: never.
    ///
    /// `AUTO_DISABLE_WINDOW_SECONDS`: window, in seconds, within which these failures must have ended. From 1 to
    /// 2,592,000. Default 3,600.
    ///
    /// `AUTO_DISABLE_COOL_DOWN_SECONDS`: time, in seconds, after which a disabled job is enabled again. From 0 to
    /// 2,592,000. Default 0: only a user enables it.
    pub auto_disable: Option<AutoDisable>,
    /// `ALERT_WEBHOOK_URL`: address that receives a POST with a JSON document when a job is disabled automatically.
    /// Starts with `http://` or `https://`. Default none: no alerts.
    pub webhook_url: Option<String>,
}

impl AlertsConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let threshold = read.number("AUTO_DISABLE_THRESHOLD", 0, 0, MAX_AUTO_DISABLE_THRESHOLD);
        let window_seconds = read.number("AUTO_DISABLE_WINDOW_SECONDS", 3_600, 1, MAX_CATCH_UP_WINDOW_SECONDS);
        let cool_down = read.number("AUTO_DISABLE_COOL_DOWN_SECONDS", 0, 0, MAX_CATCH_UP_WINDOW_SECONDS);
        let webhook_url = read.text("ALERT_WEBHOOK_URL");
        if webhook_url.as_deref().is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
            read.add_error("ALERT_WEBHOOK_URL", "it must start with http:// or https://");
        }
        let cool_down_seconds = Some(cool_down).filter(|seconds| *seconds > 0);
        Self {
            auto_disable: (threshold > 0).then_some(AutoDisable { threshold, window_seconds, cool_down_seconds }),
            webhook_url,
        }
    }
}
