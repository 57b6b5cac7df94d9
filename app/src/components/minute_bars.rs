//! A bar chart of what ended in a window: one bar per minute, quarter of an hour or two hours, divided by status.
//!
//! The server draws the chart, which needs no script. A table with the same numbers below it is the accessible
//! alternative. The bars start at multiples of their length in UTC, so that they keep their shape while time passes; the
//! first and the last one may therefore cover less time than the others.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use leptos::prelude::*;
use milvaion_api::{page::TimeWindow, views::BarCount};
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use super::time::Time;
use crate::format;

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

/// Returns the start of the first bar, and the number of bars up to the one that contains `now`.
fn bar_range(window: TimeWindow, now: DateTime<Utc>) -> (DateTime<Utc>, i64) {
    let length = TimeDelta::minutes(window.bar_minutes());
    let start_of_bar = |at: DateTime<Utc>| at.duration_trunc(length).unwrap_or(at);
    let first = start_of_bar(window.start(now));
    (first, (start_of_bar(now) - first).num_minutes() / window.bar_minutes() + 1)
}

/// Computes the segments of all bars. `now` is in the last bar; bars outside the chart are omitted.
fn bar_segments(bars: &[BarCount], window: TimeWindow, now: DateTime<Utc>) -> Vec<BarSegment> {
    let (first, number) = bar_range(window, now);
    let most = bars.iter().map(total).max().unwrap_or(0).max(1);
    let mut segments = Vec::new();
    for bar in bars {
        let index = (bar.start - first).num_minutes().div_euclid(window.bar_minutes());
        if !(0..number).contains(&index) {
            continue;
        }
        let mut top = CHART_HEIGHT;
        for status in ALL_STATUSES {
            let count = count_of(bar, status);
            if count > 0 {
                let height = (count * CHART_HEIGHT / most).max(MIN_SEGMENT_HEIGHT);
                top -= height;
                segments.push(BarSegment { status, count, x: index * BAR_WIDTH, y: top, height });
            }
        }
    }
    segments
}

fn count_of(bar: &BarCount, status: OccurrenceStatus) -> i64 {
    bar.counts.iter().filter(|(of, _)| *of == status).map(|(_, n)| n).sum()
}

fn total(bar: &BarCount) -> i64 {
    bar.counts.iter().map(|(_, n)| n).sum()
}

/// Returns the length of a bar in words.
const fn bar_length(window: TimeWindow) -> &'static str {
    match window {
        TimeWindow::Hour => "minute",
        TimeWindow::Day => "quarter of an hour",
        TimeWindow::Week => "two hours",
    }
}

/// The chart of a window with its legend and table.
#[component]
pub fn OutcomeBars(
    /// Counts of ended occurrences per bar, oldest first, without empty bars.
    bars: Vec<BarCount>,
    /// The window of the counts.
    window: TimeWindow,
    /// The server's clock at the time of the counts.
    now: DateTime<Utc>,
) -> impl IntoView {
    let all: i64 = bars.iter().map(total).sum();
    let most = bars.iter().map(total).max().unwrap_or(0);
    let label = format!(
        "{} ended in the {}, at most {} in one {}",
        format::plural(all, "occurrence"),
        window.label(),
        format::count(most),
        bar_length(window).replace("two hours", "period of two hours"),
    );
    let statuses: Vec<OccurrenceStatus> =
        ALL_STATUSES.into_iter().filter(|status| bars.iter().any(|bar| count_of(bar, *status) > 0)).collect();
    let rects = bar_segments(&bars, window, now)
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
    let width = bar_range(window, now).1 * BAR_WIDTH;
    let legend =
        statuses.iter().map(|status| view! { <li data-status=status.slug()>{status.label()}</li> }).collect::<Vec<_>>();
    view! {
        <svg
            class="bars"
            role="img"
            aria-label=label
            viewBox=format!("0 0 {width} {CHART_HEIGHT}")
            preserveAspectRatio="none"
        >
            <line x1="0" y1=CHART_HEIGHT x2=width y2=CHART_HEIGHT></line>
            {rects}
        </svg>
        <ul class="legend">{legend}</ul>
        <details>
            <summary>"View as table"</summary>
            <BarTable bars statuses window/>
        </details>
    }
}

#[component]
fn BarTable(bars: Vec<BarCount>, statuses: Vec<OccurrenceStatus>, window: TimeWindow) -> impl IntoView {
    let heads =
        statuses.iter().map(|status| view! { <th scope="col" class="num">{status.label()}</th> }).collect::<Vec<_>>();
    let rows = bars
        .into_iter()
        .rev()
        .map(|bar| {
            let cells = statuses
                .iter()
                .map(|status| view! { <td class="num">{format::count(count_of(&bar, *status))}</td> })
                .collect::<Vec<_>>();
            view! {
                <tr>
                    <th scope="row"><Time at=bar.start/></th>
                    {cells}
                </tr>
            }
        })
        .collect::<Vec<_>>();
    let name = format!("Occurrences that ended in the {}, by {}", window.label(), bar_length(window));
    let caption = format!("{name}, newest first");
    view! {
        <div class="table-wrap" tabindex="0" role="region" aria-label=name>
            <table class="table">
                <caption class="sr-only">{caption}</caption>
                <thead>
                    <tr>
                        <th scope="col">"Start"</th>
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
        let bars = [BarCount {
            start: at("2026-11-21T14:00:00Z"),
            counts: vec![(OccurrenceStatus::Completed, 999), (OccurrenceStatus::Failed, 1)],
        }];
        let drawn = bar_segments(&bars, TimeWindow::Hour, at("2026-11-21T14:00:30Z"));
        assert_eq!(drawn.len(), 2);
        assert_eq!((drawn[0].y + drawn[0].height, drawn[0].height), (CHART_HEIGHT, 99));
        assert_eq!((drawn[1].status, drawn[1].height), (OccurrenceStatus::Failed, MIN_SEGMENT_HEIGHT));
        assert_eq!(drawn[1].y + drawn[1].height, drawn[0].y);
        assert_eq!(drawn[0].x, 59 * BAR_WIDTH);
    }

    #[test]
    fn bars_before_the_chart_are_omitted() {
        let bars = [BarCount { start: at("2026-11-21T12:59:00Z"), counts: vec![(OccurrenceStatus::Completed, 1)] }];
        assert!(bar_segments(&bars, TimeWindow::Hour, at("2026-11-21T14:00:30Z")).is_empty());
    }

    #[test]
    fn bars_cover_the_window_and_start_at_multiples() {
        let range = |window, now| bar_range(window, at(now));
        assert_eq!(range(TimeWindow::Hour, "2026-11-21T14:00:30Z"), (at("2026-11-21T13:01:00Z"), 60));
        assert_eq!(range(TimeWindow::Day, "2026-11-21T14:07:30Z"), (at("2026-11-20T14:00:00Z"), 97));
        assert_eq!(range(TimeWindow::Week, "2026-11-21T14:07:30Z"), (at("2026-11-14T14:00:00Z"), 85));
    }
}
