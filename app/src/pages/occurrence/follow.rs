//! The updates of an open page: of the occurrence after each change, and of its log as it is written.
//!
//! Two reads share the work. The one of the log reads the lines after those on the page, and nothing else. The one of
//! the page reads everything but lines, unless the read of the log would not be sufficient: after events were missed,
//! and once after the run has ended. The read of the log then asks for nothing, so that no line is read twice.

use std::time::Duration;

use leptos::prelude::*;
use milvaion_api::{
    events::{EventEnvelope, LiveEvent},
    views::OccurrenceView,
};
use milvaion_protocol::{id::OccurrenceId, message::LogLine};

use crate::{
    api::occurrences::{get_occurrence, log_range},
    browser,
    components::{log_lines::LogLines, log_view::LOG_PAGE_LINES},
    error::AppError,
    format,
    live::{LiveUpdates, ThrottledRefresh, live_page, throttled_refresh},
};

/// The delay before the page is read again after an event. The event is shown at once, but it holds only the row.
const REFRESH_DELAY: Duration = Duration::from_millis(150);
/// The delay before new lines of the log are read after an event about them, and so the least time between two reads.
const LOG_READ_DELAY: Duration = Duration::from_millis(400);
/// The most pages of lines that are read at once: as many lines as are kept of an attempt by default.
const MAX_READ_PAGES: usize = 20;

/// The start of a range without log lines, for a read that needs none: a page with earlier lines shows only those.
pub(super) const LOG_END: i64 = i64::MAX;

/// The reads of the page so far. They decide whether the read of the log has to ask for lines.
#[derive(Clone, Copy, Debug, Default)]
struct PageReads {
    /// The number of interruptions of the stream.
    interruptions: u32,
    /// The number of them before the last read. An interruption during a read is not made up by it.
    made_up: u32,
    /// True if the page has read its log since the run ended.
    has_read_end: bool,
}

impl PageReads {
    const fn has_missed_events(self) -> bool {
        self.interruptions != self.made_up
    }

    /// Returns true if the next read of the page includes the lines that it lacks.
    const fn includes_log(self, is_ended: bool) -> bool {
        self.has_missed_events() || (is_ended && !self.has_read_end)
    }
}

/// The result of one read of the page.
struct PageRead {
    /// The state before the read.
    before: PageReads,
    is_ended: bool,
    view: OccurrenceView,
    /// The number of the line after which the lines of `view` start.
    after: i64,
    /// The lines between those on the page and those of `view`, after the line `start`.
    between: Vec<LogLine>,
    start: i64,
}

/// Follows the stream: shows the row of an event at once and reads everything else again after [`REFRESH_DELAY`]. An event
/// about log lines makes the page read those that it lacks, and nothing else.
pub(super) fn keep_current(
    id: OccurrenceId,
    data: RwSignal<OccurrenceView>,
    event_at: RwSignal<Option<String>>,
    lines: Option<LogLines>,
) -> ThrottledRefresh {
    let is_ended = move || data.with_untracked(|data| data.row.status.is_final());
    let reads = StoredValue::new(PageReads { has_read_end: is_ended(), ..PageReads::default() });
    let includes_log = move || reads.get_value().includes_log(is_ended());
    let read = move || {
        let (before, is_ended) = (reads.get_value(), is_ended());
        let start = lines.map_or(LOG_END, LogLines::read_start);
        let first = untrack(|| lines.and_then(LogLines::first_seq));
        let after = match lines {
            // After a pause or a lost connection there may be too many lines to read them all: then the page reads the
            // newest of those that it lacks, and the number of the others.
            Some(_) if before.has_missed_events() => start,
            // The read after the end compares all lines, so that one that another server stored very late leaves a gap.
            Some(_) if is_ended => first.map_or(start, |first| first - 1),
            _ => LOG_END,
        };
        async move {
            let mut view = get_occurrence(id, Some(after)).await?;
            let first_unread = unread_before(&view.log, start).filter(|_| !before.has_missed_events());
            let between = match first_unread {
                Some(first) => lines_between(id, start, first).await?,
                None => Vec::new(),
            };
            let mut after = after;
            if between.len() >= MAX_READ_PAGES * LOG_PAGE_LINES {
                after = between.last().map_or(start, |line| line.seq);
                view = get_occurrence(id, Some(after)).await?;
            }
            Ok::<_, AppError>(PageRead { before, is_ended, view, after, between, start })
        }
    };
    let apply = move |mut read: PageRead| {
        reads.update_value(|reads| {
            reads.made_up = read.before.interruptions;
            reads.has_read_end |= read.is_ended;
        });
        let log = std::mem::take(&mut read.view.log);
        if let Some(lines) = lines {
            lines.merge_read(&read.between, read.start, 0);
            lines.merge_read(&log, read.after, read.view.log_skipped);
        }
        if read.view.row.version >= data.with_untracked(|data| data.row.version) {
            data.set(read.view);
        }
    };
    let follow = lines.map(|lines| follow_log(id, lines, includes_log));
    let on_event = move |envelope: &EventEnvelope| match &envelope.event {
        LiveEvent::Occurrences { rows } => {
            let Some(row) = rows.iter().find(|row| row.id == id) else { return false };
            if row.version >= data.with_untracked(|data| data.row.version) {
                event_at.set(Some(format::iso(envelope.at)));
                data.update(|data| {
                    // The view was read for another instance. This one has just reported.
                    data.instance_alive |= row.instance_id != data.row.instance_id;
                    data.row = row.clone();
                });
            }
            true
        }
        event if event.concerns_log(id) => match &follow {
            // The present read of the page may have begun before these lines were stored.
            Some(_) if includes_log() => true,
            Some(follow) if !browser::is_hidden() => {
                follow.request();
                false
            }
            _ => false,
        },
        // The availability of a worker is part of the explanation for a queued and a running occurrence.
        LiveEvent::Workers => !is_ended(),
        LiveEvent::Resync => {
            reads.update_value(|reads| reads.interruptions += 1);
            true
        }
        _ => false,
    };
    live_page(REFRESH_DELAY, read, on_event, apply)
}

/// Returns a refresh that reads the lines that the page lacks, unless the read of the page includes them. A hidden tab
/// reads none until it is visible again.
fn follow_log(
    id: OccurrenceId,
    lines: LogLines,
    is_included: impl Fn() -> bool + Copy + Send + Sync + 'static,
) -> ThrottledRefresh {
    let follow = throttled_refresh(
        LOG_READ_DELAY,
        move || {
            let start = lines.read_start();
            let is_included = is_included();
            async move {
                let new = if is_included { Vec::new() } else { lines_between(id, start, LOG_END).await? };
                Ok::<_, AppError>((start, new))
            }
        },
        move |(start, new): (i64, Vec<LogLine>)| lines.merge_read(&new, start, 0),
    );
    if use_context::<LiveUpdates>().is_some_and(LiveUpdates::received_log_recently) {
        follow.request();
    }
    let handle = follow.clone();
    Effect::new(move |_| {
        let follow = follow.clone();
        let seen = window_event_listener_untyped("visibilitychange", move |_| {
            if !browser::is_hidden() {
                follow.request();
            }
        });
        on_cleanup(move || seen.remove());
    });
    handle
}

/// Reads the lines between two lines in pages, at most [`MAX_READ_PAGES`].
async fn lines_between(id: OccurrenceId, mut after: i64, before: i64) -> Result<Vec<LogLine>, AppError> {
    let mut lines = Vec::new();
    for _ in 0..MAX_READ_PAGES {
        let page = log_range(id, after, before).await?;
        let is_last = page.len() < LOG_PAGE_LINES;
        after = page.last().map_or(after, |line| line.seq);
        lines.extend(page);
        if is_last {
            break;
        }
    }
    Ok(lines)
}

/// Returns the number of the first of the newest lines if there may be lines between it and the line `start`.
fn unread_before(newest: &[LogLine], start: i64) -> Option<i64> {
    newest.first().map(|line| line.seq).filter(|first| first.saturating_sub(start) > 1)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use milvaion_protocol::message::LogLevel;

    use super::*;

    #[test]
    fn log_of_an_ended_run_is_read_with_the_page_once() {
        let mut reads = PageReads::default();
        assert!(!reads.includes_log(false), "an open run has its own read of the log");
        assert!(reads.includes_log(true), "the page reads the log after the end");
        reads.has_read_end = true;
        assert!(!reads.includes_log(true), "late lines have their own read again");
        reads.interruptions += 1;
        assert!(reads.includes_log(true) && reads.includes_log(false), "missed lines are read with the page");
    }

    #[test]
    fn newest_lines_that_reach_the_page_are_read_once() {
        let line =
            |seq| LogLine { seq, at: DateTime::UNIX_EPOCH, level: LogLevel::Info, message: String::new(), data: None };
        for (first, start, unread) in [(0, -1, None), (100, 99, None), (50, 99, None), (101, 99, Some(101))] {
            assert_eq!(unread_before(&[line(first)], start), unread, "{first} after {start}");
        }
        assert_eq!(unread_before(&[], -1), None);
        assert_eq!(unread_before(&[line(700)], LOG_END), None, "an earlier part of the log");
    }
}
