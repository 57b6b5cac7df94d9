//! From wall clocks to instants, and what a day with 23 or 25 hours does to a schedule.
//!
//! The matcher knows nothing of zones: it is asked about *local time*, and this layer decides what a local time means on
//! the days when the clock is moved.
//!
//! * A local time that does not exist (the gap in spring) fires at the first instant after the gap, once, however many
//!   matches fell into the gap; a match at that very instant is the same run.
//! * A local time that exists twice (the fold in autumn) fires once, on its first pass, for a *fixed* pattern, and on
//!   both passes for an *interval* pattern: one whose second, minute or hour has `*`, `-` or `/`. "At 02:30" is an
//!   appointment; "every 15 minutes" is a rhythm, and a rhythm must not pause for an hour.
//!
//! Both rules are one once the wall clock is seen as a hand with a *high mark*, the latest local time it has shown so
//! far. A fixed pattern fires whenever the mark reaches or passes a match; an interval pattern fires whenever the hand
//! shows a match, and when the hand jumps over one. So the answer depends on the instant only, never on where the search
//! began, and the width of a change, its hour, a date line or two changes close together need no case of their own.
//!
//! The zone database does not list its changes to us; it only answers which offset holds at an instant. Changes are
//! therefore found by asking every [`OFFSET_SCAN_STEP`] and halving where two answers differ.

use chrono::{DateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;

use crate::cron::matcher::{CronMatcher, MAX_LOCAL_TIME, MIN_LOCAL_TIME};

/// Seconds between two looks at a zone's offset. The two changes closest to each other in the whole database are
/// 95 hours apart (Freetown, 1939), so none hides between two looks.
const OFFSET_SCAN_STEP: i64 = 24 * 3600;

/// No zone's offset is further from UTC than this, in seconds (Manila once had nearly 16 hours).
const MAX_UTC_OFFSET: i64 = 24 * 3600;

/// How far before the search the clock's movements are looked at, in seconds: after the widest fold (a day, Alaska in
/// 1867) the high mark is reached again.
const SCAN_BEFORE: i64 = 2 * 24 * 3600;

/// How far from the search's start one look reaches, in seconds.
const SCAN_AFTER: i64 = 3 * 24 * 3600;

/// The most windows one search may need: the one it starts in, and one more for each time its match turns out to lie in
/// a second pass.
const MAX_SCANS: usize = 16;

/// A stretch of time with one offset.
#[derive(Clone, Copy)]
struct OffsetSpan {
    /// First and one past the last second, UTC.
    start: i64,
    end: i64,
    offset: i64,
}

/// The first instant strictly after `after` at which the pattern fires in `zone`; none when it never fires again.
pub(crate) fn next_after(
    matcher: &CronMatcher,
    interval: bool,
    zone: Tz,
    after: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    // Fires are whole seconds.
    next(matcher, interval, zone, after.timestamp() + 1, true)
}

/// The first instant at or after `from`. At `from` itself only the wall clock counts: a fire that stands in there for
/// times the clock has just jumped over belongs to who asked before the jump.
pub(crate) fn next_from(matcher: &CronMatcher, interval: bool, zone: Tz, from: DateTime<Utc>) -> Option<DateTime<Utc>> {
    if from.timestamp_subsec_nanos() > 0 {
        return next_after(matcher, interval, zone, from);
    }
    next(matcher, interval, zone, from.timestamp(), false)
}

/// The first fire at or after the second `from`; `jumped` says whether one counts that stands in for a gap ending there.
fn next(matcher: &CronMatcher, interval: bool, zone: Tz, from: i64, mut jumped: bool) -> Option<DateTime<Utc>> {
    // Offsets of absurd instants are nobody's business: nothing fires before the calendar begins or after it ends.
    let mut from = from.max(MIN_LOCAL_TIME);
    for _ in 0..MAX_SCANS {
        if from > MAX_LOCAL_TIME {
            return None;
        }
        let mut spans = spans(zone, from - SCAN_BEFORE, from + SCAN_AFTER);
        // Nothing fires before the hand reaches the first match above the lowest local time still to come.
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

/// The first second at or after `from` within `spans` at which the pattern fires.
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

/// The stretches of one offset that `[low, high)` falls into.
fn spans(zone: Tz, low: i64, high: i64) -> Vec<OffsetSpan> {
    let mut spans = Vec::with_capacity(2);
    let mut start = low;
    let mut held = offset(zone, low);
    let mut looked = low;
    while looked < high {
        let next = (looked + OFFSET_SCAN_STEP).min(high);
        let found = offset(zone, next);
        if found != held {
            let change = change(zone, looked, next, held);
            spans.push(OffsetSpan { start, end: change, offset: held });
            (start, held) = (change, found);
        }
        looked = next;
    }
    spans.push(OffsetSpan { start, end: high, offset: held });
    spans
}

/// The first second in `(low, high]` whose offset is not `held`.
fn change(zone: Tz, mut low: i64, mut high: i64, held: i64) -> i64 {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if offset(zone, middle) == held { low = middle } else { high = middle }
    }
    high
}

/// Seconds to add to UTC at a second of UTC.
fn offset(zone: Tz, at: i64) -> i64 {
    let at = DateTime::from_timestamp(at, 0).unwrap_or_default().naive_utc();
    i64::from(zone.offset_from_utc_datetime(&at).fix().local_minus_utc())
}
