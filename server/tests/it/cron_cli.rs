//! The command `milvaion cron`: its standard output, its standard error and its exit status.

use std::process::{Command, Output};

fn cron(arguments: &[&str]) -> Output {
    // The command needs no services: nothing listens on these addresses.
    Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("cron")
        .args(arguments)
        .env("DATABASE_URL", "postgres://none@127.0.0.1:1/none")
        .env("REDIS_URL", "redis://127.0.0.1:1")
        .env("AMQP_URL", "amqp://127.0.0.1:1")
        .output()
        .expect("the program starts")
}

fn lines(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn refusal(arguments: &[&str]) -> String {
    let output = cron(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn next_prints_one_due_time_per_line() {
    let output =
        cron(&["next", "30 2 * * *", "--tz", "Europe/Warsaw", "--after", "2026-10-24T12:00:00+02:00", "--count", "2"]);
    assert_eq!(lines(&output), ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]);
    assert_eq!(output.stdout.last(), Some(&b'\n'));
    let output = cron(&["next", "--after", "2026-01-01T00:00:00Z", "*/20 * * * * *"]);
    assert_eq!(lines(&output), ["2026-01-01T00:00:20+00:00"]);
}

#[test]
fn offset_with_seconds_is_printed_in_utc() {
    let output = cron(&["next", "0 0 * * *", "--tz", "Europe/Amsterdam", "--after", "1800-06-01T00:00:00Z"]);
    let line = &lines(&output)[0];
    assert!(line.ends_with("+00:00") && line.contains("T23:4"), "{line}");
}

#[test]
fn start_is_included_with_inclusive_only() {
    let arguments = ["next", "0 7 * * *", "--after", "2026-05-20T07:00:00Z"];
    assert_eq!(lines(&cron(&arguments)), ["2026-05-21T07:00:00+00:00"]);
    assert_eq!(lines(&cron(&[&arguments[..], &["--inclusive"]].concat())), ["2026-05-20T07:00:00+00:00"]);
    let later = ["next", "0 7 * * *", "--after", "2026-05-20T07:00:00.001Z", "--inclusive"];
    assert_eq!(lines(&cron(&later)), ["2026-05-21T07:00:00+00:00"]);
}

#[test]
fn schedule_that_ends_prints_fewer_lines() {
    let output = cron(&["next", "0 0 * * *", "--after", "9999-12-29T12:00:00Z", "--count", "10000"]);
    assert_eq!(lines(&output), ["9999-12-30T00:00:00+00:00", "9999-12-31T00:00:00+00:00"]);
    assert!(lines(&cron(&["next", "0 0 * * *", "--after", "9999-12-31T12:00:00Z"])).is_empty());
}

#[test]
fn count_is_limited_to_10000() {
    let output = cron(&["next", "* * * * * *", "--after", "2026-01-01T00:00:00Z", "--count", "10000"]);
    assert_eq!(lines(&output).len(), 10_000);
    refusal(&["next", "* * * * *", "--count", "10001"]);
    refusal(&["next", "* * * * *", "--count", "0"]);
}

#[test]
fn invalid_input_exits_with_status_2() {
    assert_eq!(refusal(&["next", "0 0 * * 8"]), "milvaion: day-of-week takes 0–7 or SUN–SAT: got 8\n");
    assert_eq!(refusal(&["next", "-1 * * * *"]), "milvaion: minute takes 0–59: got -1\n");
    assert!(refusal(&["next", "0 0 30 2 *"]).contains("never matches"));
    assert!(refusal(&["next", ""]).contains("empty"));
    assert!(refusal(&["next", "* * * * *", "--tz", "Europe/Nowhere"]).contains("Europe/Nowhere is not a time zone"));
    assert!(refusal(&["next", "* * * * *", "--after", "yesterday"]).contains("RFC 3339"));
    assert!(refusal(&["explain", "* * * *"]).contains("day-of-week is missing"));
    refusal(&["next"]);
}

#[test]
fn explain_prints_words_warnings_and_due_times() {
    let output = lines(&cron(&["explain", "0 0 13 * FRI", "--tz", "Europe/Warsaw"]));
    assert_eq!(output[0], "At 00:00, on day 13 if it is also Friday. Time zone: Europe/Warsaw.");
    assert!(output[1].starts_with("Warning: Day-of-month and day-of-week are both restricted"));
    assert_eq!(output[2], "Next:");
    assert_eq!(output.len(), 6);
    assert!(output[3..].iter().all(|line| line.contains("-13T00:00:00+0")), "{output:?}");
}
