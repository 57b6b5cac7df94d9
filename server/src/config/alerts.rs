//! What is done about jobs that keep failing, and who is told.

use milvaion_schedule::rules::{AutoDisable, MAX_AUTO_DISABLE_THRESHOLD, MAX_CATCH_UP_WINDOW_SECONDS};

use super::EnvReader;

/// The installation's breaker, and where alerts go.
#[derive(Clone, Debug, Default)]
pub struct AlertsConfig {
    /// When a job without a rule of its own is disabled; none means never.
    ///
    /// `AUTO_DISABLE_THRESHOLD`: after how many failures in a row, 0 to 100. Default 0: never.
    /// `AUTO_DISABLE_WINDOW_SECONDS`: within how many seconds they must have ended, 1 to 2,592,000. Default 3,600.
    /// `AUTO_DISABLE_COOL_DOWN_SECONDS`: after how many seconds the job is enabled again, 0 to 2,592,000. Default 0: by
    /// hand only.
    pub auto_disable: Option<AutoDisable>,
    /// `ALERT_WEBHOOK_URL`: an address that is sent a JSON document when a job is disabled. Default none.
    pub webhook_url: Option<String>,
}

impl AlertsConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        let threshold = read.number("AUTO_DISABLE_THRESHOLD", 0, 0, MAX_AUTO_DISABLE_THRESHOLD);
        let window_seconds = read.number("AUTO_DISABLE_WINDOW_SECONDS", 3_600, 1, MAX_CATCH_UP_WINDOW_SECONDS);
        let cool_down = read.number("AUTO_DISABLE_COOL_DOWN_SECONDS", 0, 0, MAX_CATCH_UP_WINDOW_SECONDS);
        let webhook_url = read.text("ALERT_WEBHOOK_URL");
        if webhook_url.as_deref().is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
            read.wrong("ALERT_WEBHOOK_URL", "it must start with http:// or https://");
        }
        let cool_down_seconds = Some(cool_down).filter(|seconds| *seconds > 0);
        Self {
            auto_disable: (threshold > 0).then_some(AutoDisable { threshold, window_seconds, cool_down_seconds }),
            webhook_url,
        }
    }
}
