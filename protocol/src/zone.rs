//! From wall clocks to instants, and what a day with 23 or 25 hours does to a schedule.
//!
//! The matcher underneath knows nothing of zones: it is asked about *naive local time*, and this layer decides what a
//! local time means on the days when the clock is moved.
//!
//! * A local time that does not exist (the gap in spring) fires at the first instant after the gap, once, however many
//!   matches fell into the gap.
//! * A local time that exists twice (the fold in autumn) fires once, on its first pass, for a *fixed* pattern, and on
//!   both passes for an *interval* pattern: one whose second, minute or hour has `*`, `-` or `/`. "At 02:30" is an
//!   appointment; "every 15 minutes" is a rhythm, and a rhythm must not pause for an hour.

use chrono::{DateTime, Duration, LocalResult, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;
use croner::Cron;

/// How many candidates are tried before a pattern counts as exhausted. Only a pathological zone could need more than a
/// handful.
const TRIES: usize = 10_000;

/// The first instant strictly after `after` at which `cron` fires in `zone`; none when it never fires again.
pub(crate) fn next_after(cron: &Cron, interval: bool, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let local = after.with_timezone(&zone);
    // Inside a fold, an interval pattern must first finish the pass it is in and then run the second one; both look the
    // same to the matcher, so each pass is searched with its own offset.
    if interval && let Some(hit) = next_in_fold(cron, zone, after) {
        return Some(hit);
    }
    let mut from = local.naive_local();
    let mut inclusive = false;
    if let LocalResult::Ambiguous(first, second) = zone.from_local_datetime(&from)
        && after.with_timezone(&zone) == second
        && first != second
    {
        // Second pass of a fold, fixed pattern: everything inside the fold has had its chance. Interval patterns that
        // come here have no hit left in it either.
        from = end_of_fold(zone, after)?;
        inclusive = true;
    }
    for _ in 0..TRIES {
        let hit = cron.find_next_occurrence(&from, inclusive).ok()?;
        let instant = match zone.from_local_datetime(&hit) {
            LocalResult::Single(at) => at.with_timezone(&Utc),
            LocalResult::Ambiguous(first, second) => {
                let first = first.with_timezone(&Utc);
                let second = second.with_timezone(&Utc);
                if first > after || !interval { first } else { second }
            }
            LocalResult::None => end_of_gap(zone, hit)?,
        };
        if instant > after {
            return Some(instant);
        }
        from = hit;
        inclusive = false;
    }
    None
}

/// The next hit of an interval pattern when `after` lies inside a fold (or just before its second pass).
fn next_in_fold(cron: &Cron, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let local = after.with_timezone(&zone);
    let naive = local.naive_local();
    let (first, second) = match zone.from_local_datetime(&naive) {
        LocalResult::Ambiguous(first, second) => (first, second),
        _ => return None,
    };
    let change = transition_between(zone, first.with_timezone(&Utc), second.with_timezone(&Utc))?;
    if local.offset().fix() == first.offset().fix() {
        // First pass: is there another hit before the clock is put back?
        let hit = cron.find_next_occurrence(&naive, false).ok()?;
        let instant = to_utc(hit, first.offset().fix().local_minus_utc());
        if instant < change {
            return Some(instant);
        }
        // None left: the second pass starts at the local time the clock is put back to.
        let start = change.with_timezone(&zone).naive_local();
        let hit = cron.find_next_occurrence(&start, true).ok()?;
        return Some(to_utc(hit, second.offset().fix().local_minus_utc())).filter(|at| still_local(zone, *at, hit));
    }
    let hit = cron.find_next_occurrence(&naive, false).ok()?;
    Some(to_utc(hit, second.offset().fix().local_minus_utc())).filter(|at| still_local(zone, *at, hit))
}

fn to_utc(local: NaiveDateTime, offset_seconds: i32) -> DateTime<Utc> {
    (local - Duration::seconds(i64::from(offset_seconds))).and_utc()
}

fn still_local(zone: Tz, at: DateTime<Utc>, local: NaiveDateTime) -> bool {
    at.with_timezone(&zone).naive_local() == local
}

/// The first instant in `(low, high]` whose offset differs from `low`'s, to the second.
fn transition_between(zone: Tz, low: DateTime<Utc>, high: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let offset = |at: DateTime<Utc>| at.with_timezone(&zone).offset().fix().local_minus_utc();
    let before = offset(low);
    let (mut low, mut high) = (low.timestamp(), high.timestamp());
    if offset(DateTime::from_timestamp(high, 0)?) == before {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if offset(DateTime::from_timestamp(middle, 0)?) == before { low = middle } else { high = middle }
    }
    DateTime::from_timestamp(high, 0)
}

/// The local time right after the fold that `after` lies in.
fn end_of_fold(zone: Tz, after: DateTime<Utc>) -> Option<NaiveDateTime> {
    let naive = after.with_timezone(&zone).naive_local();
    let LocalResult::Ambiguous(first, second) = zone.from_local_datetime(&naive) else { return None };
    let change = transition_between(zone, first.with_timezone(&Utc), second.with_timezone(&Utc))?;
    let width = first.offset().fix().local_minus_utc() - second.offset().fix().local_minus_utc();
    Some(change.with_timezone(&zone).naive_local() + Duration::seconds(i64::from(width)))
}

/// The first instant after the gap in which the local time `missing` would have been.
fn end_of_gap(zone: Tz, missing: NaiveDateTime) -> Option<DateTime<Utc>> {
    // No gap known is wider than a day (Samoa skipped one in 2011).
    let low = (missing - Duration::days(2)).and_utc();
    let high = (missing + Duration::days(2)).and_utc();
    let mut low = low;
    loop {
        let change = transition_between(zone, low, high)?;
        let before = (change - Duration::seconds(1)).with_timezone(&zone).naive_local();
        let after = change.with_timezone(&zone).naive_local();
        if before < missing && missing < after {
            return Some(change);
        }
        low = change;
    }
}
