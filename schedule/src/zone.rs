//! The mapping from local times to instants, and the effect of days with 23 or 25 hours on a schedule.
//!
//! The matcher works on *local time* and has no zones. This module decides what a local time means on a day with a
//! clock change.
//!
//! * A local time that does not exist (the gap in spring) is due at the first instant after the gap. It is due once,
//!   however many matches lie in the gap, and a match at that very instant is the same due time.
//! * A local time that occurs twice (the fold in autumn) is due once, in the first pass, for a *fixed* pattern. For an
//!   *interval* pattern, whose second, minute or hour has `*`, `-` or `/`, it is due in both passes. "At 02:30" means
//!   one point of the day; "every 15 minutes" means an interval, which must not pause for an hour.
//!
//! Both rules follow from one model. The local clock has a *high-water mark*: the latest local time that it has shown
//! so far. A fixed pattern is due whenever the mark reaches or passes a match. An interval pattern is due whenever the
//! clock shows a match, and when the clock jumps over one. So the result depends only on the instant, never on where
//! the search began. The width of a change, its hour, a date line or two changes close together need no special case.
//!
//! The zone database does not list the changes of a zone; it only returns the offset at an instant. Therefore the
//! search samples the offset every [`OFFSET_SCAN_STEP`] and bisects where two samples differ.

use chrono::{DateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;

use crate::cron::matcher::{CronMatcher, MAX_LOCAL_TIME, MIN_LOCAL_TIME};

/// The time between two samples of a zone's offset, in seconds. The two closest changes in the whole database are
/// 95 hours apart (Freetown, 1939), so no change is missed.
const OFFSET_SCAN_STEP: i64 = 24 * 3600;

/// The bound on every zone's offset from UTC, in seconds. The largest one was nearly 16 hours (Manila).
const MAX_UTC_OFFSET: i64 = 24 * 3600;

/// The time before the start of a search for which clock changes are examined, in seconds. After the widest fold (a
/// day, Alaska in 1867) the clock has reached the high-water mark again within it.
const SCAN_BEFORE: i64 = 2 * 24 * 3600;

/// The time after the start of a search that one scan covers, in seconds.
const SCAN_AFTER: i64 = 3 * 24 * 3600;

/// The maximum number of scans of one search: the one at its start, and one more each time the match turns out to lie
/// in a second pass.
const MAX_SCANS: usize = 16;

/// A period with a constant offset.
#[derive(Clone, Copy)]
struct OffsetSpan {
    /// The first second and the one after the last, UTC.
    start: i64,
    end: i64,
    offset: i64,
}

/// Returns the first instant strictly after `after` at which the pattern is due in `zone`; none if there is none.
pub(crate) fn next_after(
    matcher: &CronMatcher,
    interval: bool,
    zone: Tz,
    after: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    // Due times are whole seconds.
    next(matcher, interval, zone, after.timestamp() + 1, true)
}

/// Returns the first due time at or after `from`. `from` itself counts only if the local time matches. A due time there
/// that replaces the times in a gap belongs to a search that began before the gap.
pub(crate) fn next_from(matcher: &CronMatcher, interval: bool, zone: Tz, from: DateTime<Utc>) -> Option<DateTime<Utc>> {
    if from.timestamp_subsec_nanos() > 0 {
        return next_after(matcher, interval, zone, from);
    }
    next(matcher, interval, zone, from.timestamp(), false)
}

/// Returns the first due time at or after the second `from`. `jumped` is true if a due time at `from` that replaces the
/// times in a gap counts.
fn next(matcher: &CronMatcher, interval: bool, zone: Tz, from: i64, mut jumped: bool) -> Option<DateTime<Utc>> {
    // No due time is outside the supported calendar, so the offsets there are not needed.
    let mut from = from.max(MIN_LOCAL_TIME);
    for _ in 0..MAX_SCANS {
        if from > MAX_LOCAL_TIME {
            return None;
        }
        let mut spans = spans(zone, from - SCAN_BEFORE, from + SCAN_AFTER);
        // No match can come before the local clock reaches the first match above its lowest time from now on.
        let lowest = spans.iter().map(|span| span.offset).min().unwrap_or(0);
        let earliest = matcher.next(from - 1 + lowest)? - MAX_UTC_OFFSET;
        if earliest > from {
            (from, jumped) = (earliest, true);
            spans = self::spans(zone, from - SCAN_BEFORE, from + SCAN_AFTER);
        }
        if let Some(at) = first_in(matcher, interval, &spans, from, jumped) {
            return DateTime::from_timestamp(at, 0).filter(|_| at <= MAX_LOCAL_TIME);
        }
        (from, jumped) = (from + SCAN_AFTER, true);
    }
    None
}

/// Returns the first second at or after `from` within `spans` at which the pattern is due.
fn first_in(matcher: &CronMatcher, interval: bool, spans: &[OffsetSpan], from: i64, jumped: bool) -> Option<i64> {
    let mut mark = i64::MIN;
    for span in spans {
        let shown = span.start + span.offset;
        let within = span.start > from || (span.start == from && jumped);
        if within && mark > i64::MIN && shown > mark && matcher.next(mark).is_some_and(|hit| hit < shown) {
            return Some(span.start);
        }
        let mut local = span.start.max(from) + span.offset;
        if !interval {
            local = local.max(mark);
        }
        let end = span.end + span.offset;
        if span.end > from
            && local < end
            && let Some(hit) = matcher.next(local).filter(|hit| *hit < end)
        {
            return Some(hit - span.offset);
        }
        mark = mark.max(end);
    }
    None
}

/// Returns the clock changes after `low` and before `high`: the instant, and the offsets before and after it.
pub(crate) fn changes(zone: Tz, low: i64, high: i64) -> Vec<(i64, i64, i64)> {
    let spans = spans(zone, low, high.max(low));
    spans.windows(2).map(|pair| (pair[1].start, pair[0].offset, pair[1].offset)).collect()
}

/// Returns the periods of constant offset in `[low, high)`.
fn spans(zone: Tz, low: i64, high: i64) -> Vec<OffsetSpan> {
    let mut spans = Vec::with_capacity(2);
    let mut start = low;
    let mut current = offset(zone, low);
    let mut scanned = low;
    while scanned < high {
        let next = (scanned + OFFSET_SCAN_STEP).min(high);
        let found = offset(zone, next);
        if found != current {
            let change = change(zone, scanned, next, current);
            spans.push(OffsetSpan { start, end: change, offset: current });
            (start, current) = (change, found);
        }
        scanned = next;
    }
    spans.push(OffsetSpan { start, end: high, offset: current });
    spans
}

/// Returns the first second in `(low, high]` whose offset differs from `current`.
fn change(zone: Tz, mut low: i64, mut high: i64, current: i64) -> i64 {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if offset(zone, middle) == current { low = middle } else { high = middle }
    }
    high
}

/// Returns the offset from UTC at a second of UTC, in seconds.
fn offset(zone: Tz, at: i64) -> i64 {
    let at = DateTime::from_timestamp(at, 0).unwrap_or_default().naive_utc();
    i64::from(zone.offset_from_utc_datetime(&at).fix().local_minus_utc())
}
