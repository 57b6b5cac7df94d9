//! The ends of an attempt: the actions of a job, and the status, result, error and log lines that are reported.

use std::time::Duration;

use milvaion_protocol::{
    message::{LogLevel, LogLine, MAX_LOG_LINE_BYTES, MAX_RESULT_BYTES, first_log_seq},
    status::OccurrenceStatus,
};
use milvaion_worker::{
    CancellationToken, Job, JobContext, JobError, JobOptions,
    testing::{TestContext, TestReport, TestRun},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A job that performs the action in its input.
struct ScriptedJob;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScriptedInput {
    action: ScriptedAction,
    #[serde(default)]
    count: u16,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ScriptedAction {
    Greet,
    Nothing,
    Add,
    Fail,
    GiveUp,
    Panic,
    Hang,
    CleanUp,
    FinishAnyway,
    FireToken,
    Snooze,
    Cancel,
    WriteLog,
    ReturnLongText,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ScriptedOutput {
    Text(String),
    Sum { sum: u16 },
    Nothing(()),
}

impl Job for ScriptedJob {
    const TYPE: &'static str = "scripted";
    const DESCRIPTION: &'static str = "Performs the action in its input.";
    type Input = ScriptedInput;
    type Output = ScriptedOutput;

    async fn run(&self, ctx: &JobContext, input: ScriptedInput) -> Result<ScriptedOutput, JobError> {
        match input.action {
            ScriptedAction::Greet => Ok(ScriptedOutput::Text("Hello".to_owned())),
            ScriptedAction::Nothing => Ok(ScriptedOutput::Nothing(())),
            ScriptedAction::Add => Ok(ScriptedOutput::Sum { sum: input.count + 1 }),
            ScriptedAction::Fail => {
                let number: u8 = "many".parse()?;
                Ok(ScriptedOutput::Sum { sum: number.into() })
            }
            ScriptedAction::GiveUp => Err(JobError::permanent("the account is closed")),
            ScriptedAction::Panic => panic!("no {} left", "tea"),
            ScriptedAction::Hang => {
                std::future::pending::<()>().await;
                Ok(ScriptedOutput::Nothing(()))
            }
            ScriptedAction::CleanUp => {
                ctx.cancelled().cancelled().await;
                ctx.info("cleaned up");
                Err(JobError::new("stopped"))
            }
            ScriptedAction::FinishAnyway => {
                ctx.cancelled().cancelled().await;
                Ok(ScriptedOutput::Text("finished after all".to_owned()))
            }
            ScriptedAction::FireToken => {
                ctx.cancelled().cancel();
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(JobError::new("the job fired its token"))
            }
            ScriptedAction::Snooze => Err(JobError::snooze(Duration::from_secs(90), "the shop is closed")),
            ScriptedAction::Cancel => Err(JobError::cancelled("the order was withdrawn")),
            ScriptedAction::WriteLog => {
                ctx.progress(50, "half");
                for n in 0..input.count {
                    ctx.log(LogLevel::Info, format!("line {n}"));
                }
                ctx.warn("x".repeat(2 * MAX_LOG_LINE_BYTES));
                Ok(ScriptedOutput::Nothing(()))
            }
            ScriptedAction::ReturnLongText => Ok(ScriptedOutput::Text("x".repeat(2 * MAX_RESULT_BYTES))),
        }
    }
}

async fn run(input: Value) -> TestReport {
    TestRun::new(ScriptedJob, input).timeout_seconds(1).run().await
}

#[tokio::test]
async fn each_end_is_reported_with_its_status() {
    use OccurrenceStatus::{Completed, Failed};
    for (input, status, result, exception) in [
        (json!({"action": "greet"}), Completed, Some("Hello"), None),
        (json!({"action": "snooze"}), OccurrenceStatus::Queued, None, Some("snoozed: the shop is closed")),
        (json!({"action": "cancel"}), OccurrenceStatus::Cancelled, None, Some("the order was withdrawn")),
        (json!({"action": "nothing"}), Completed, None, None),
        (json!({"action": "add", "count": 2}), Completed, Some(r#"{"sum":3}"#), None),
        (json!({"action": "fail"}), Failed, None, Some("invalid digit found in string")),
        (json!({"action": "giveUp"}), Failed, None, Some("the account is closed")),
        (json!({"action": "panic"}), Failed, None, Some("panicked: no tea left")),
        (
            json!({"action": "add", "count": -1}),
            Failed,
            None,
            Some("the input's field `count` does not fit the job type"),
        ),
        (json!({"action": "dance"}), Failed, None, Some("the input's field `action` does not fit the job type")),
        (json!({"count": 1}), Failed, None, Some("missing field `action`")),
        (json!({"action": "greet", "speed": 1}), Failed, None, Some("the input's field `speed`")),
        (json!("greet"), Failed, None, Some("the input does not fit the job type")),
        (Value::Null, Failed, None, Some("missing field `action`")),
    ] {
        let record = run(input.clone()).await;
        assert_eq!(record.reports.len(), 2, "{input}");
        assert_eq!(record.reports[0].status, OccurrenceStatus::Running, "{input}");
        let end = record.end();
        assert_eq!(end.status, status, "{input}: {end:?}");
        assert_eq!(end.result.as_deref(), result, "{input}");
        match exception {
            Some(part) => assert!(end.exception.as_deref().is_some_and(|text| text.contains(part)), "{input}: {end:?}"),
            None => assert_eq!(end.exception, None, "{input}"),
        }
        assert!(end.duration_ms.is_some_and(|ms| ms < 900), "{input}: {end:?}");
        assert!(end.timestamp >= record.reports[0].timestamp);
    }
}

#[tokio::test]
async fn run_ends_at_its_timeout() {
    let record = run(json!({"action": "hang"})).await;
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
    assert!(record.end().exception.as_deref().is_some_and(|text| text.contains("after 1 s")));
}

/// A job that runs until its token fires, with a timeout of two seconds.
struct TimeoutJob;

impl Job for TimeoutJob {
    const TYPE: &'static str = "wait";
    const DESCRIPTION: &'static str = "Waits for its token.";
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(2));
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: Value) -> Result<(), JobError> {
        ctx.cancelled().cancelled().await;
        Err(JobError::new("stopped"))
    }
}

#[tokio::test]
async fn job_timeout_overrides_the_timeout_of_its_type() {
    let (job_timeout, type_timeout) = tokio::join!(
        TestRun::new(TimeoutJob, json!({})).timeout_seconds(1).run(),
        TestRun::new(TimeoutJob, json!({})).run(),
    );
    for (record, text) in [(job_timeout, "after 1 s"), (type_timeout, "after 2 s")] {
        assert_eq!(record.status(), OccurrenceStatus::TimedOut);
        assert!(record.end().exception.as_deref().is_some_and(|found| found.contains(text)), "{:?}", record.end());
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_of_a_test_may_be_less_than_a_second() {
    let started = tokio::time::Instant::now();
    let context = TestContext::new().timeout(Duration::from_millis(500));
    let record = TestRun::new(TimeoutJob, json!({})).context(context).run().await;
    assert_eq!((record.status(), started.elapsed()), (OccurrenceStatus::TimedOut, Duration::from_millis(500)));
}

#[tokio::test]
async fn timed_out_run_may_clean_up() {
    let record = run(json!({"action": "cleanUp"})).await;
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
    assert_eq!(record.lines[0].message, "cleaned up");
}

#[tokio::test(start_paused = true)]
async fn completed_work_counts_after_a_timeout_and_a_cancellation() {
    let timed_out = run(json!({"action": "finishAnyway"})).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let input = json!({"action": "finishAnyway"});
    let cancelled = TestRun::new(ScriptedJob, input).cancelled_by(cancel, "by ann: wrong customer").run().await;
    for (record, reason) in [(timed_out, "the timeout of 1 s has expired"), (cancelled, "by ann: wrong customer")] {
        assert_eq!(record.output::<String>(), "finished after all");
        assert!(record.has_line(&format!("asked to end: {reason}")), "{:?}", record.lines);
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_a_stopped_run_is_in_its_log_or_its_timeout() {
    async fn import(ctx: JobContext, (cleans_up, adds_nothing): (bool, bool)) -> Result<(), JobError> {
        ctx.cancelled().cancelled().await;
        if cleans_up {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let reason = ctx.stop_reason().expect("it was asked to end");
        Err(if adds_nothing { JobError::new(reason) } else { JobError::new("stopped at row 7") })
    }
    type End = fn(&TestContext);
    let ends: [(End, OccurrenceStatus); 4] = [
        (|context| context.cancel("by ann"), OccurrenceStatus::Cancelled),
        (TestContext::time_out, OccurrenceStatus::TimedOut),
        (TestContext::revoke, OccurrenceStatus::Queued),
        (TestContext::shut_down, OccurrenceStatus::Queued),
    ];
    for (end, status) in ends {
        for (cleans_up, adds_nothing) in [(false, false), (true, false), (false, true)] {
            let context = TestContext::new().timeout(Duration::from_secs(3_600));
            let run = TestRun::of("import", import, (cleans_up, adds_nothing)).context(context.clone());
            let (record, ()) = tokio::join!(run.run(), async { end(&context) });
            assert_eq!(record.status(), status);
            let (is_timeout, expected) = (
                status == OccurrenceStatus::TimedOut,
                "the run returned an error after it was asked to end: stopped at row 7",
            );
            let quotes = record.error().is_some_and(|error| error.lines().nth(1) == Some(expected));
            assert_eq!(quotes, is_timeout && !adds_nothing, "{:?}", record.error());
            let warnings = record.lines.iter().filter(|line| line.level == LogLevel::Warn);
            let warnings: Vec<&str> = warnings.map(|line| line.message.as_str()).collect();
            assert_eq!(warnings, if adds_nothing || is_timeout { vec![] } else { vec![expected] }, "{status:?}");
        }
    }
    // A run that was not asked to end.
    let record = TestRun::of("fail", async |_, ()| Err::<(), _>(JobError::new("no milk")), ()).run().await;
    assert!(record.lines.iter().all(|line| line.level == LogLevel::Error), "{:?}", record.lines);
}

/// A job whose options declare three retries.
struct RetriedJob;

impl Job for RetriedJob {
    const TYPE: &'static str = "retried";
    type Input = Value;
    type Output = (u32, bool, u32);

    fn options(&self, options: JobOptions<Value>) -> JobOptions<Value> {
        options.retries(3)
    }

    async fn run(&self, ctx: &JobContext, _: Value) -> Result<(u32, bool, u32), JobError> {
        Ok((ctx.max_retries(), ctx.is_last_attempt(), ctx.attempt()))
    }
}

#[tokio::test]
async fn test_run_has_declared_retries_and_setters_in_any_order() {
    let run = || TestRun::new(RetriedJob, json!({}));
    let of = async |run: TestRun| run.run().await.output::<(u32, bool, u32)>();
    assert_eq!(of(run()).await, (3, false, 1));
    assert_eq!(of(run().context(TestContext::new().attempt(2))).await, (3, false, 2));
    assert_eq!(of(run().context(TestContext::new().retries(0, 0))).await, (0, true, 1));
    let context = || TestContext::new().attempt(2).retries(1, 5);
    assert_eq!(of(run().context(context()).attempt(4).retries(3, 3)).await, (3, true, 4));
    assert_eq!(of(run().attempt(4).retries(3, 3).context(context())).await, (3, true, 4));

    let hang = || TestRun::new(ScriptedJob, json!({"action": "hang"}));
    let context = || TestContext::new().timeout(Duration::from_secs(3_600));
    for run in [hang().timeout_seconds(1).context(context()), hang().context(context()).timeout_seconds(1)] {
        assert!(run.run().await.error().is_some_and(|error| error.contains("after 1 s")));
    }
}

#[tokio::test]
async fn stopping_worker_interrupts_runs_that_do_not_end() {
    for (action, status, text) in [
        ("hang", OccurrenceStatus::Queued, "interrupted: the worker stopped"),
        ("finishAnyway", OccurrenceStatus::Completed, "finished after all"),
    ] {
        let stop = CancellationToken::new();
        let run = TestRun::new(ScriptedJob, json!({"action": action})).interrupted_by(stop.clone());
        let (record, ()) = tokio::join!(run.run(), async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            stop.cancel();
        });
        assert_eq!(record.status(), status);
        assert_eq!(record.end().exception.as_deref().or(record.end().result.as_deref()), Some(text));
    }
}

#[tokio::test]
async fn cancelled_run_is_dropped_unless_it_cleans_up() {
    for (action, line, ignored) in [
        ("hang", None, " (the run did not stop when requested and was dropped after 1 s)"),
        ("cleanUp", Some("cleaned up"), ""),
    ] {
        let cancel = CancellationToken::new();
        let run =
            TestRun::new(ScriptedJob, json!({"action": action})).cancelled_by(cancel.clone(), "by ann: wrong customer");
        cancel.cancel();
        let record = run.run().await;
        assert_eq!(record.status(), OccurrenceStatus::Cancelled, "{action}");
        let reason = format!("by ann: wrong customer{ignored}");
        assert_eq!(record.end().exception.as_deref(), Some(reason.as_str()), "{action}");
        assert_eq!(record.end().result, None, "{action}");
        assert_eq!(record.lines.first().map(|line| line.message.as_str()), line, "{action}");
    }
}

/// A job that needs 1.2 seconds to clean up, with a grace of 30 seconds.
struct SlowCleanupJob;

impl Job for SlowCleanupJob {
    const TYPE: &'static str = "slow-cleanup";
    const DESCRIPTION: &'static str = "Cleans up slowly.";
    const GRACE: Duration = Duration::from_secs(30);
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: Value) -> Result<(), JobError> {
        ctx.cancelled().cancelled().await;
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        ctx.info("cleaned up");
        Err(JobError::new("stopped"))
    }
}

#[tokio::test]
async fn grace_of_a_job_type_applies_unless_worker_stops() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let record = TestRun::new(SlowCleanupJob, json!({})).cancelled_by(cancel, "by ann").run().await;
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
    assert_eq!(record.end().exception.as_deref(), Some("by ann"));
    assert_eq!(record.lines.first().map(|line| line.message.as_str()), Some("cleaned up"));

    let stop = CancellationToken::new();
    stop.cancel();
    let record = TestRun::new(SlowCleanupJob, json!({})).interrupted_by(stop).run().await;
    assert_eq!(record.status(), OccurrenceStatus::Queued);
    assert_eq!(record.lines, []);
    assert!(record.end().duration_ms.is_some_and(|ms| (1_000..2_000).contains(&ms)), "{:?}", record.end());
}

#[tokio::test]
async fn job_that_fires_its_own_token_is_not_cancelled() {
    let record = run(json!({"action": "fireToken"})).await;
    assert_eq!(record.status(), OccurrenceStatus::Failed);
    assert_eq!(record.end().exception.as_deref(), Some("the job fired its token"));
}

#[tokio::test]
async fn oversized_result_is_truncated() {
    let record = run(json!({"action": "returnLongText"})).await;
    let result = record.end().result.as_deref().expect("a result");
    assert!(result.len() <= MAX_RESULT_BYTES && result.ends_with("bytes cut]"));
}

#[tokio::test]
async fn log_lines_are_numbered_by_attempt_and_bounded() {
    let record = TestRun::new(ScriptedJob, json!({"action": "writeLog", "count": 3})).attempt(2).run().await;
    let seqs: Vec<i64> = record.lines.iter().map(|line| line.seq - first_log_seq(2)).collect();
    assert_eq!(seqs, [0, 1, 2, 3]);
    assert!(record.lines[3].message.len() <= MAX_LOG_LINE_BYTES);
    assert_eq!(record.lines[3].level, LogLevel::Warn);
    assert_eq!(record.reports[1].progress.as_ref().map(|progress| progress.percent), Some(50));

    // One more line than `count` is written. The first 10,000 are sent at once, and the newest 8,000 of the others before the end.
    let record = run(json!({"action": "writeLog", "count": 20_000})).await;
    let seqs = |lines: &[LogLine]| lines.iter().map(|line| line.seq - first_log_seq(1)).collect::<Vec<_>>();
    assert_eq!(seqs(&record.lines[..10_000]), (0..10_000).collect::<Vec<_>>());
    assert_eq!(seqs(&record.lines[10_000..]), (12_000..20_001).collect::<Vec<_>>());
    let note = &record.lines[10_000].message;
    assert!(note.starts_with("2001 lines before this one are not kept"), "{note}");
    assert_eq!(record.lines.last().map(|line| line.level), Some(LogLevel::Warn), "the last line of the run is kept");
}
