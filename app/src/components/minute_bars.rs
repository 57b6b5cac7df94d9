//! Bars: one for each minute of the last hour, made of what became of its occurrences.
//!
//! The picture is drawn by the server and needs no script. It is never the only way to read the numbers: a table with
//! the same ones lies below it.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use leptos::prelude::*;
use milvaion_api::views::MinuteCount;
use milvaion_protocol::status::{ALL_STATUSES, OccurrenceStatus};

use super::time::Time;
use crate::format;

/// How many minutes the picture shows.
const CHART_MINUTES: i64 = 60;
/// The picture's own units: one bar is 10 wide, of which 8 are drawn.
const BAR_WIDTH: i64 = 10;
const CHART_HEIGHT: i64 = 100;
/// No count is drawn lower than this, so that one failure among thousands is still seen.
const MIN_SEGMENT_HEIGHT: i64 = 3;

/// A piece of a bar, in the picture's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BarSegment {
    status: OccurrenceStatus,
    count: i64,
    x: i64,
    y: i64,
    height: i64,
}

/// The pieces of all bars. `now` is where the last minute ends; minutes outside the window are left out.
fn pieces(minutes: &[MinuteCount], now: DateTime<Utc>) -> Vec<BarSegment> {
    let last = now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now);
    let first = last - TimeDelta::minutes(CHART_MINUTES - 1);
    let most = minutes.iter().map(total).max().unwrap_or(0).max(1);
    let mut pieces = Vec::new();
    for minute in minutes.iter().filter(|minute| (first..=last).contains(&minute.minute)) {
        let x = (minute.minute - first).num_minutes() * BAR_WIDTH;
        let mut top = CHART_HEIGHT;
        for status in ALL_STATUSES {
            let count = minute.counts.iter().filter(|(of, _)| *of == status).map(|(_, n)| n).sum::<i64>();
            if count > 0 {
                let height = (count * CHART_HEIGHT / most).max(MIN_SEGMENT_HEIGHT);
                top -= height;
                pieces.push(BarSegment { status, count, x, y: top, height });
            }
        }
    }
    pieces
}

fn total(minute: &MinuteCount) -> i64 {
    minute.counts.iter().map(|(_, n)| n).sum()
}

/// The last hour by minute.
#[component]
pub fn MinuteBars(
    /// What became of how many, minute by minute.
    minutes: Vec<MinuteCount>,
    /// The server's clock when that was counted.
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
    let rects = pieces(&minutes, now)
        .into_iter()
        .map(|piece| {
            let title = format!("{}: {}", piece.status.label(), format::count(piece.count));
            view! {
                <rect
                    data-status=piece.status.slug()
                    x=piece.x + 1
                    y=piece.y
                    width=BAR_WIDTH - 2
                    height=piece.height
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
        text.parse().expect("an instant")
    }

    #[test]
    fn a_bar_grows_from_the_ground_and_a_single_failure_is_seen() {
        let minutes = [MinuteCount {
            minute: at("2026-11-21T14:00:00Z"),
            counts: vec![(OccurrenceStatus::Completed, 999), (OccurrenceStatus::Failed, 1)],
        }];
        let drawn = pieces(&minutes, at("2026-11-21T14:00:30Z"));
        assert_eq!(drawn.len(), 2);
        assert_eq!((drawn[0].y + drawn[0].height, drawn[0].height), (CHART_HEIGHT, 99));
        assert_eq!((drawn[1].status, drawn[1].height), (OccurrenceStatus::Failed, MIN_SEGMENT_HEIGHT));
        assert_eq!(drawn[1].y + drawn[1].height, drawn[0].y);
        assert_eq!(drawn[0].x, (CHART_MINUTES - 1) * BAR_WIDTH);
    }

    #[test]
    fn minutes_before_the_window_are_not_drawn() {
        let minutes =
            [MinuteCount { minute: at("2026-11-21T12:59:00Z"), counts: vec![(OccurrenceStatus::Completed, 1)] }];
        assert!(pieces(&minutes, at("2026-11-21T14:00:30Z")).is_empty());
    }
}
