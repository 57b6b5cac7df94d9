//! A bar chart of the last hour: one bar per minute, divided by the resulting status of its occurrences.
//!
//! The server draws the chart, which needs no script. A table with the same numbers below it is the accessible
//! alternative.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use leptos::prelude::*;
use milvaion_api::views::MinuteCount;
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use super::time::Time;
use crate::format;

/// The number of minutes in the chart.
const CHART_MINUTES: i64 = 60;
/// The width of one bar in chart units, including a gap of 2.
const BAR_WIDTH: i64 = 10;
/// The height of the tallest bar in chart units.
const CHART_HEIGHT: i64 = 100;
/// The minimum height of a count, so that one failure among thousands stays visible.
const MIN_SEGMENT_HEIGHT: i64 = 3;

/// A part of a bar, in chart units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BarSegment {
    status: OccurrenceStatus,
    count: i64,
    x: i64,
    y: i64,
    height: i64,
}

/// Computes the segments of all bars. `now` is in the last minute; minutes outside the chart are omitted.
fn bar_segments(minutes: &[MinuteCount], now: DateTime<Utc>) -> Vec<BarSegment> {
    let last = now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now);
    let first = last - TimeDelta::minutes(CHART_MINUTES - 1);
    let most = minutes.iter().map(total).max().unwrap_or(0).max(1);
    let mut segments = Vec::new();
    for minute in minutes.iter().filter(|minute| (first..=last).contains(&minute.minute)) {
        let x = (minute.minute - first).num_minutes() * BAR_WIDTH;
        let mut top = CHART_HEIGHT;
        for status in ALL_STATUSES {
            let count = minute.counts.iter().filter(|(of, _)| *of == status).map(|(_, n)| n).sum::<i64>();
            if count > 0 {
                let height = (count * CHART_HEIGHT / most).max(MIN_SEGMENT_HEIGHT);
                top -= height;
                segments.push(BarSegment { status, count, x, y: top, height });
            }
        }
    }
    segments
}

fn total(minute: &MinuteCount) -> i64 {
    minute.counts.iter().map(|(_, n)| n).sum()
}

/// The chart of the last hour with its legend and table.
#[component]
pub fn MinuteBars(
    /// Counts of status changes per minute.
    minutes: Vec<MinuteCount>,
    /// The server's clock at the time of the counts.
    now: DateTime<Utc>,
) -> impl IntoView {
    let all: i64 = minutes.iter().map(total).sum();
    let most = minutes.iter().map(total).max().unwrap_or(0);
    let label = format!(
        "{} in the last hour by minute, at most {} in one minute",
        format::plural(all, "status change"),
        format::count(most)
    );
    let statuses: Vec<OccurrenceStatus> = ALL_STATUSES
        .into_iter()
        .filter(|status| minutes.iter().any(|minute| minute.counts.iter().any(|(of, n)| of == status && *n > 0)))
        .collect();
    let rects = bar_segments(&minutes, now)
        .into_iter()
        .map(|segment| {
            let title = format!("{}: {}", segment.status.label(), format::count(segment.count));
            view! {
                <rect
                    data-status=segment.status.slug()
                    x=segment.x + 1
                    y=segment.y
                    width=BAR_WIDTH - 2
                    height=segment.height
                >
                    <title>{title}</title>
                </rect>
            }
        })
        .collect::<Vec<_>>();
    let legend =
        statuses.iter().map(|status| view! { <li data-status=status.slug()>{status.label()}</li> }).collect::<Vec<_>>();
    view! {
        <svg
            class="bars"
            role="img"
            aria-label=label
            viewBox=format!("0 0 {} {CHART_HEIGHT}", CHART_MINUTES * BAR_WIDTH)
            preserveAspectRatio="none"
        >
            <line x1="0" y1=CHART_HEIGHT x2=CHART_MINUTES * BAR_WIDTH y2=CHART_HEIGHT></line>
            {rects}
        </svg>
        <ul class="legend">{legend}</ul>
        <details>
            <summary>"View as table"</summary>
            <MinuteTable minutes statuses/>
        </details>
    }
}

#[component]
fn MinuteTable(minutes: Vec<MinuteCount>, statuses: Vec<OccurrenceStatus>) -> impl IntoView {
    let heads =
        statuses.iter().map(|status| view! { <th scope="col" class="num">{status.label()}</th> }).collect::<Vec<_>>();
    let rows = minutes
        .into_iter()
        .rev()
        .map(|minute| {
            let cells = statuses
                .iter()
                .map(|status| {
                    let count = minute.counts.iter().filter(|(of, _)| of == status).map(|(_, n)| n).sum::<i64>();
                    view! { <td class="num">{format::count(count)}</td> }
                })
                .collect::<Vec<_>>();
            view! {
                <tr>
                    <th scope="row"><Time at=minute.minute/></th>
                    {cells}
                </tr>
            }
        })
        .collect::<Vec<_>>();
    view! {
        <div class="table-wrap" tabindex="0" role="region" aria-label="The last hour by minute">
            <table class="table">
                <caption class="sr-only">"The last hour by minute, newest first"</caption>
                <thead>
                    <tr>
                        <th scope="col">"Minute"</th>
                        {heads}
                    </tr>
                </thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a valid instant")
    }

    #[test]
    fn segments_stack_upwards_with_a_minimum_height() {
        let minutes = [MinuteCount {
            minute: at("2026-11-21T14:00:00Z"),
            counts: vec![(OccurrenceStatus::Completed, 999), (OccurrenceStatus::Failed, 1)],
        }];
        let drawn = bar_segments(&minutes, at("2026-11-21T14:00:30Z"));
        assert_eq!(drawn.len(), 2);
        assert_eq!((drawn[0].y + drawn[0].height, drawn[0].height), (CHART_HEIGHT, 99));
        assert_eq!((drawn[1].status, drawn[1].height), (OccurrenceStatus::Failed, MIN_SEGMENT_HEIGHT));
        assert_eq!(drawn[1].y + drawn[1].height, drawn[0].y);
        assert_eq!(drawn[0].x, (CHART_MINUTES - 1) * BAR_WIDTH);
    }

    #[test]
    fn minutes_before_the_chart_are_omitted() {
        let minutes =
            [MinuteCount { minute: at("2026-11-21T12:59:00Z"), counts: vec![(OccurrenceStatus::Completed, 1)] }];
        assert!(bar_segments(&minutes, at("2026-11-21T14:00:30Z")).is_empty());
    }
}
