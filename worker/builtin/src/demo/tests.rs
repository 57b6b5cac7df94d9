//! Tests of sample runs.

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};

use super::*;
use crate::context::tests::test_run;

async fn run(input: Value) -> TestReport {
    test_run(Demo, &[], input).run().await
}

fn exception(record: &TestReport) -> &str {
    record.end().exception.as_deref().unwrap_or_else(|| panic!("must fail: {record:?}"))
}

#[tokio::test]
async fn sample_run_reports_progress_and_every_step() {
    let record = run(json!({"steps": 4, "durationSeconds": 0, "message": "hello"})).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
    let result: Value = serde_json::from_str(record.end().result.as_deref().expect("a result")).expect("JSON");
    assert_eq!((&result["message"], &result["steps"]), (&json!("hello"), &json!(4)));
    for step in 1..=4 {
        let done = format!("step {step} of 4 is done");
        assert!(record.lines.iter().any(|line| line.message == done), "{:?}", record.lines);
    }
    // Reports that follow each other at once are thinned out; the first one is always sent.
    let first = record.reports.iter().find_map(|report| report.progress.as_ref());
    assert_eq!(first.map(|progress| (progress.percent, progress.message.as_str())), Some((25, "step 1 of 4")));
}

#[tokio::test]
async fn defaults_need_no_input() {
    let input: DemoInput = serde_json::from_value(json!({})).expect("every field has a default");
    assert_eq!((input.steps, input.duration_seconds, input.message.as_str()), (5, 10, "Sample run"));
    assert!(input.failure_rate.abs() < f64::EPSILON);
}

#[tokio::test]
async fn failure_rate_of_one_always_fails() {
    let record = run(json!({"steps": 3, "durationSeconds": 0, "failureRate": 1})).await;
    assert_eq!(record.status(), OccurrenceStatus::Failed);
    assert!(exception(&record).contains("step 2 of 3 failed on purpose"), "{record:?}");
    assert!(record.lines.iter().any(|line| line.level == LogLevel::Error));
}

#[tokio::test]
async fn all_log_levels_are_written() {
    let mut lines = run(json!({"steps": 1, "durationSeconds": 0})).await.lines;
    lines.extend(run(json!({"steps": 1, "durationSeconds": 0, "failureRate": 1})).await.lines);
    for level in [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error] {
        assert!(lines.iter().any(|line| line.level == level), "{level:?}: {lines:?}");
    }
}

#[tokio::test]
async fn cancelled_sample_run_ends_at_once() {
    let token = CancellationToken::new();
    token.cancel();
    let input = json!({"steps": 1, "durationSeconds": 3600});
    let record = test_run(Demo, &[], input).cancelled_by(token, "by ann").run().await;
    assert_eq!(record.status(), OccurrenceStatus::Cancelled, "{record:?}");
}

#[tokio::test]
async fn values_out_of_bounds_are_refused() {
    for (input, field) in [
        (json!({"steps": 0}), "`steps` is 0"),
        (json!({"steps": 101}), "`steps` is 101"),
        (json!({"durationSeconds": 3601}), "`durationSeconds` is 3601"),
        (json!({"failureRate": 1.5}), "`failureRate` is 1.5"),
        (json!({"failureRate": -0.5}), "`failureRate` is -0.5"),
        (json!({"message": "x".repeat(201)}), "`message` has more"),
    ] {
        let record = run(input).await;
        assert!(exception(&record).contains(field), "{field}: {record:?}");
    }
}
