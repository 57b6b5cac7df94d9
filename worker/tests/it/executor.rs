//! How an attempt can end, as a table: what the job does, what is reported.

use std::time::Duration;

use milvaion_protocol::{
    message::{LogLevel, MAX_LOG_LINE_BYTES, MAX_RESULT_BYTES, first_log_seq},
    status::OccurrenceStatus,
};
use milvaion_worker::{
    CancellationToken, Job, JobContext, JobError,
    testing::{TestReport, TestRun},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Does what its input says.
struct ScriptedJob;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScriptedInput {
    act: ScriptedAct,
    #[serde(default)]
    count: u16,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ScriptedAct {
    Greet,
    Nothing,
    Add,
    Fail,
    GiveUp,
    Panic,
    Hang,
    Tidy,
    Fire,
    TooEarly,
    Withdraw,
    Write,
    Long,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ScriptedOutput {
    Text(String),
    Sum { sum: u16 },
    Nothing(()),
}

impl Job for ScriptedJob {
    const TYPE: &'static str = "puppet";
    const DESCRIPTION: &'static str = "Does what its input says.";
    type Input = ScriptedInput;
    type Output = ScriptedOutput;

    async fn run(&self, ctx: &JobContext, orders: ScriptedInput) -> Result<ScriptedOutput, JobError> {
        match orders.act {
            ScriptedAct::Greet => Ok(ScriptedOutput::Text("Hello".to_owned())),
            ScriptedAct::Nothing => Ok(ScriptedOutput::Nothing(())),
            ScriptedAct::Add => Ok(ScriptedOutput::Sum { sum: orders.count + 1 }),
            ScriptedAct::Fail => {
                let number: u8 = "many".parse()?;
                Ok(ScriptedOutput::Sum { sum: number.into() })
            }
            ScriptedAct::GiveUp => Err(JobError::permanent("the account is closed")),
            ScriptedAct::Panic => panic!("no {} left", "tea"),
            ScriptedAct::Hang => {
                std::future::pending::<()>().await;
                Ok(ScriptedOutput::Nothing(()))
            }
            ScriptedAct::Tidy => {
                ctx.cancelled().cancelled().await;
                ctx.info("tidied up");
                Ok(ScriptedOutput::Text("finished after all".to_owned()))
            }
            ScriptedAct::Fire => {
                ctx.cancelled().cancel();
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(JobError::new("fired"))
            }
            ScriptedAct::TooEarly => Err(JobError::snooze(Duration::from_secs(90), "the shop is closed")),
            ScriptedAct::Withdraw => Err(JobError::cancelled("the order was withdrawn")),
            ScriptedAct::Write => {
                ctx.progress(50, "half");
                for n in 0..orders.count {
                    ctx.log(LogLevel::Info, format!("line {n}"));
                }
                ctx.warn("x".repeat(2 * MAX_LOG_LINE_BYTES));
                Ok(ScriptedOutput::Nothing(()))
            }
            ScriptedAct::Long => Ok(ScriptedOutput::Text("x".repeat(2 * MAX_RESULT_BYTES))),
        }
    }
}

async fn run(input: Value) -> TestReport {
    TestRun::new(ScriptedJob, input).timeout_seconds(1).run().await
}

#[tokio::test]
async fn every_way_to_end_is_reported_as_what_it_is() {
    use OccurrenceStatus::{Completed, Failed};
    for (input, status, result, exception) in [
        (json!({"act": "greet"}), Completed, Some("Hello"), None),
        (json!({"act": "tooEarly"}), OccurrenceStatus::Queued, None, Some("snoozed: the shop is closed")),
        (json!({"act": "withdraw"}), OccurrenceStatus::Cancelled, None, Some("the order was withdrawn")),
        (json!({"act": "nothing"}), Completed, None, None),
        (json!({"act": "add", "count": 2}), Completed, Some(r#"{"sum":3}"#), None),
        (json!({"act": "fail"}), Failed, None, Some("invalid digit found in string")),
        (json!({"act": "giveUp"}), Failed, None, Some("the account is closed")),
        (json!({"act": "panic"}), Failed, None, Some("panicked: no tea left")),
        (json!({"act": "add", "count": -1}), Failed, None, Some("the input's field `count` does not fit the job type")),
        (json!({"act": "dance"}), Failed, None, Some("the input's field `act` does not fit the job type")),
        (json!({"count": 1}), Failed, None, Some("missing field `act`")),
        (json!({"act": "greet", "speed": 1}), Failed, None, Some("the input's field `speed`")),
        (json!("greet"), Failed, None, Some("the input does not fit the job type")),
        (Value::Null, Failed, None, Some("missing field `act`")),
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
async fn a_run_ends_when_its_time_is_up() {
    let record = run(json!({"act": "hang"})).await;
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
    assert!(record.end().exception.as_deref().is_some_and(|text| text.contains("after 1 s")));
}

/// Goes on until it is told to end.
struct TimeoutJob;

impl Job for TimeoutJob {
    const TYPE: &'static str = "patient";
    const DESCRIPTION: &'static str = "Waits.";
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(2));
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: Value) -> Result<(), JobError> {
        ctx.cancelled().cancelled().await;
        Ok(())
    }
}

#[tokio::test]
async fn what_the_job_says_of_its_time_goes_before_what_its_type_says() {
    let (jobs, types) = tokio::join!(
        TestRun::new(TimeoutJob, json!({})).timeout_seconds(1).run(),
        TestRun::new(TimeoutJob, json!({})).run(),
    );
    for (record, text) in [(jobs, "after 1 s"), (types, "after 2 s")] {
        assert_eq!(record.status(), OccurrenceStatus::TimedOut);
        assert!(record.end().exception.as_deref().is_some_and(|said| said.contains(text)), "{:?}", record.end());
    }
}

#[tokio::test]
async fn a_run_out_of_time_may_tidy_up_but_has_timed_out() {
    let record = run(json!({"act": "tidy"})).await;
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
    assert_eq!(record.lines[0].message, "tidied up");
}

#[tokio::test]
async fn a_stopping_worker_interrupts_what_does_not_end_by_itself() {
    for (act, status, text) in [
        ("hang", OccurrenceStatus::Queued, "interrupted: the worker stopped"),
        ("tidy", OccurrenceStatus::Completed, "finished after all"),
    ] {
        let stop = CancellationToken::new();
        let trial = TestRun::new(ScriptedJob, json!({"act": act})).interrupted_by(stop.clone());
        let (record, ()) = tokio::join!(trial.run(), async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            stop.cancel();
        });
        assert_eq!(record.status(), status);
        assert_eq!(record.end().exception.as_deref().or(record.end().result.as_deref()), Some(text));
    }
}

#[tokio::test]
async fn a_cancelled_run_may_tidy_up_is_dropped_otherwise_and_says_why() {
    for (act, line, ignored) in [
        ("hang", None, " (the run did not stop when requested and was dropped after 1 s)"),
        ("tidy", Some("tidied up"), ""),
    ] {
        let cancel = CancellationToken::new();
        let trial =
            TestRun::new(ScriptedJob, json!({"act": act})).cancelled_by(cancel.clone(), "by ann: wrong customer");
        cancel.cancel();
        let record = trial.run().await;
        assert_eq!(record.status(), OccurrenceStatus::Cancelled, "{act}");
        let reason = format!("by ann: wrong customer{ignored}");
        assert_eq!(record.end().exception.as_deref(), Some(reason.as_str()), "{act}");
        assert_eq!(record.end().result, None, "{act}");
        assert_eq!(record.lines.first().map(|line| line.message.as_str()), line, "{act}");
    }
}

/// Needs a little more than a second to tidy up, and has said so.
struct SlowCleanupJob;

impl Job for SlowCleanupJob {
    const TYPE: &'static str = "careful";
    const DESCRIPTION: &'static str = "Tidies up at length.";
    const GRACE: Duration = Duration::from_secs(30);
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: Value) -> Result<(), JobError> {
        ctx.cancelled().cancelled().await;
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        ctx.info("tidied up");
        Ok(())
    }
}

#[tokio::test]
async fn a_job_type_may_take_longer_to_tidy_up_unless_the_worker_stops() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let record = TestRun::new(SlowCleanupJob, json!({})).cancelled_by(cancel, "by ann").run().await;
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
    assert_eq!(record.end().exception.as_deref(), Some("by ann"));
    assert_eq!(record.lines.first().map(|line| line.message.as_str()), Some("tidied up"));

    let stop = CancellationToken::new();
    stop.cancel();
    let record = TestRun::new(SlowCleanupJob, json!({})).interrupted_by(stop).run().await;
    assert_eq!(record.status(), OccurrenceStatus::Queued);
    assert_eq!(record.lines, []);
    assert!(record.end().duration_ms.is_some_and(|ms| (1_000..2_000).contains(&ms)), "{:?}", record.end());
}

#[tokio::test]
async fn a_job_that_fires_its_own_token_is_neither_cancelled_nor_interrupted() {
    let record = run(json!({"act": "fire"})).await;
    assert_eq!(record.status(), OccurrenceStatus::Failed);
    assert_eq!(record.end().exception.as_deref(), Some("fired"));
}

#[tokio::test]
async fn what_is_too_long_is_cut_and_says_so() {
    let record = run(json!({"act": "long"})).await;
    let result = record.end().result.as_deref().expect("a result");
    assert!(result.len() <= MAX_RESULT_BYTES && result.ends_with("bytes cut]"));
}

#[tokio::test]
async fn lines_are_numbered_by_attempt_and_bounded() {
    let record = TestRun::new(ScriptedJob, json!({"act": "write", "count": 3})).attempt(2).run().await;
    let seqs: Vec<i64> = record.lines.iter().map(|line| line.seq - first_log_seq(2)).collect();
    assert_eq!(seqs, [0, 1, 2, 3]);
    assert!(record.lines[3].message.len() <= MAX_LOG_LINE_BYTES);
    assert_eq!(record.lines[3].level, LogLevel::Warn);
    assert_eq!(record.reports[1].progress.as_ref().map(|progress| progress.percent), Some(50));

    let record = run(json!({"act": "write", "count": 10_500})).await;
    assert_eq!(record.lines.len(), 10_001);
    assert!(record.lines[10_000].message.contains("not kept"));
}
