//! The filters, pages and cursors of lists.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// The maximum number of rows in a page.
pub const MAX_PAGE_ROWS: u32 = 200;

/// One page of a list, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// The cursor of the next page, if there is one: the value for `before`.
    pub next: Option<String>,
}

/// A period that ends now, by whole minutes of the server's clock.
///
/// The overview counts what ended in it, and the list of occurrences shows what was counted. Both start at
/// [`start`](Self::start), so that the number on a tile and the rows behind its link are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TimeWindow {
    /// One hour.
    #[default]
    #[serde(rename = "1h")]
    Hour,
    /// 24 hours.
    #[serde(rename = "24h")]
    Day,
    /// Seven days.
    #[serde(rename = "7d")]
    Week,
}

impl TimeWindow {
    /// Every window, the shortest first.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    /// Returns the name in addresses.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    /// Returns the window of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.slug() == slug)
    }

    /// Returns the name for display, which also fits after "in the".
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hour => "last hour",
            Self::Day => "last 24 hours",
            Self::Week => "last 7 days",
        }
    }

    /// Returns the length in minutes, including the current minute.
    #[must_use]
    pub const fn minutes(self) -> i64 {
        match self {
            Self::Hour => 60,
            Self::Day => 24 * 60,
            Self::Week => 7 * 24 * 60,
        }
    }

    /// Returns the length of a bar of its chart, in minutes. Bars start at multiples of it in UTC.
    #[must_use]
    pub const fn bar_minutes(self) -> i64 {
        match self {
            Self::Hour => 1,
            Self::Day => 15,
            Self::Week => 120,
        }
    }

    /// Returns the start of the window that ends at `now`: the start of a minute.
    #[must_use]
    pub fn start(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now) - TimeDelta::minutes(self.minutes() - 1)
    }
}

/// A filter for occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OccurrenceFilter {
    /// Only occurrences of this job.
    pub job_id: Option<JobId>,
    /// Only occurrences with this status.
    pub status: Option<OccurrenceStatus>,
    /// Only occurrences that are delayed.
    pub delayed: bool,
    /// Only occurrences that this one has enqueued.
    pub parent_id: Option<OccurrenceId>,
    /// The cursor: only occurrences older than this one. Ids sort by time.
    pub before: Option<OccurrenceId>,
    /// The earliest time of creation.
    pub since: Option<DateTime<Utc>>,
    /// Only occurrences that are open or ended in this window.
    pub window: Option<TimeWindow>,
    /// The start of `window`. The server sets it by its clock; a value in a request has no effect.
    pub ended_since: Option<DateTime<Utc>>,
    /// The maximum number of rows, at most [`MAX_PAGE_ROWS`]; 0 means 50.
    pub limit: u32,
}

/// A filter for jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobFilter {
    /// A text that must occur in the name, the description or a tag.
    pub text: Option<String>,
    /// Only jobs with this tag.
    pub tag: Option<String>,
    /// Only active or only paused jobs.
    pub active: Option<bool>,
    /// The cursor: only jobs after this name and id. It is the `next` of the previous page.
    pub after: Option<String>,
    /// The maximum number of rows, as in [`OccurrenceFilter::limit`].
    pub limit: u32,
}

/// Returns the number of rows for a requested limit.
#[must_use]
pub fn effective_limit(requested: u32) -> u32 {
    match requested {
        0 => 50,
        n => n.min(MAX_PAGE_ROWS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_starts_with_a_minute_and_includes_the_current_one() {
        let now = "2026-11-21T14:00:30Z".parse().expect("a valid instant");
        let start = |window: TimeWindow| window.start(now).to_rfc3339();
        assert_eq!(start(TimeWindow::Hour), "2026-11-21T13:01:00+00:00");
        assert_eq!(start(TimeWindow::Day), "2026-11-20T14:01:00+00:00");
        assert_eq!(start(TimeWindow::Week), "2026-11-14T14:01:00+00:00");
    }

    #[test]
    fn window_slugs_round_trip() {
        for window in TimeWindow::ALL {
            assert_eq!(TimeWindow::from_slug(window.slug()), Some(window));
            assert_eq!(serde_json::to_value(window).expect("JSON"), window.slug());
        }
        assert_eq!(TimeWindow::from_slug("2h"), None);
    }
}
