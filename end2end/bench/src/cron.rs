//! The worst case of a cron expression: the longest time that it takes to parse one and to find its next due time, over
//! unusual expressions, all time zones and unusual instants.

use std::{hint::black_box, time::Instant};

use anyhow::Context;
use chrono::{DateTime, Utc};
use chrono_tz::TZ_VARIANTS;
use milvaion_schedule::cron::CronExpression;

use crate::samples::RunSample;

/// Start instants at which zones, calendars or years are unusual.
const START_INSTANTS: [&str; 6] = [
    "0001-01-01T00:00:00Z",
    "1583-10-15T00:00:00Z",
    "1899-12-31T23:59:59Z",
    "2011-12-30T09:59:59Z",
    "2026-10-25T00:30:00Z",
    "9999-12-31T23:59:58Z",
];

/// Measures the longest of all cases, in milliseconds. An expression that never matches is rejected, and the search
/// before the rejection counts too.
pub(crate) fn worst(runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let minutes = (0..60).map(|minute| minute.to_string()).collect::<Vec<_>>().join(",");
    let long = format!("{minutes}{} * * * *", ",0-59/3".repeat(11));
    let expressions =
        ["* * * * *", "0 9 * * MON-FRI", "0 0 29 2 MON", "0 0 31 12 1#5", "0 0 30 2 *", "59 59 23 L-30 2 *", &long];
    let instants: Vec<DateTime<Utc>> = START_INSTANTS
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()
        .context("a start instant is invalid")?;
    let mut samples = Vec::with_capacity(runs);
    for _ in 0..runs {
        let mut worst = 0.0_f64;
        for expression in expressions {
            for zone in TZ_VARIANTS {
                for after in &instants {
                    let began = Instant::now();
                    let _ = black_box(
                        CronExpression::parse(black_box(expression)).map(|cron| cron.next_after(zone, *after)),
                    );
                    worst = worst.max(began.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
        samples.push(vec![("cron-worst", worst)]);
    }
    Ok(samples)
}
