//! The behaviour of a loop on a paused clock, with the election of the SDK's tests.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chrono::TimeDelta;
use milvaion_worker::{
    JobError, LoopMisfire, Tick, Worker,
    testing::{TestLoop, TestLoopReport},
};
use tokio::time::{Instant, sleep};

const PERIOD: Duration = Duration::from_millis(100);

fn milliseconds(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn due_offsets(report: &TestLoopReport) -> Vec<i64> {
    report.runs.iter().map(|run| run.due.timestamp_millis()).collect()
}

#[tokio::test(start_paused = true)]
async fn interval_loop_pauses_between_runs() {
    let worker = Worker::builder().singleton("loop").every(PERIOD).run(|_| async {
        sleep(milliseconds(50)).await;
        Ok(())
    });
    let report = TestLoop::new(worker, "loop").run_for(milliseconds(500)).await;
    assert_eq!(due_offsets(&report), [0, 150, 300, 450]);
    assert_eq!((report.ticks, report.dropped), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn fixed_rate_loop_drops_ticks_during_a_run() {
    let worker = Worker::builder().singleton("loop").fixed_rate(PERIOD).run(|_| async {
        sleep(milliseconds(450)).await;
        Ok(())
    });
    let report = TestLoop::new(worker, "loop").run_for(milliseconds(2250)).await;
    assert_eq!(due_offsets(&report), [100, 600, 1100, 1600, 2100]);
    assert_eq!(report.ticks, 22);
    assert_eq!(report.dropped + report.runs.len() as u64, report.ticks, "each tick ran or was dropped");
}

#[tokio::test(start_paused = true)]
async fn stalled_process_continues_without_a_burst() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let worker = Worker::builder().singleton("loop").fixed_rate(PERIOD).run(move |_| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                // Nothing of the process runs meanwhile, as if it had been stopped.
                tokio::time::advance(milliseconds(2030)).await;
            }
            Ok(())
        }
    });
    let report = TestLoop::new(worker, "loop").run_for(milliseconds(2350)).await;
    assert_eq!(due_offsets(&report), [100, 2200, 2300]);
}

#[tokio::test(start_paused = true)]
async fn interval_of_fifty_days_is_kept() {
    let day = Duration::from_secs(24 * 3600);
    let worker =
        Worker::builder().singleton("loop").every(50 * day).lease(milliseconds(120_000)).run(|_| async { Ok(()) });
    let report = TestLoop::new(worker, "loop").run_for(51 * day).await;
    assert_eq!(due_offsets(&report), [0, 50].map(|days| days * 24 * 3_600_000));
}

#[tokio::test(start_paused = true)]
async fn errors_and_panics_do_not_end_the_loop() {
    let worker =
        Worker::builder().singleton("loop").fixed_rate(PERIOD).timeout(milliseconds(50)).run(|tick: Tick| async move {
            match tick.number() {
                1 => Err(JobError::new("no price")),
                2 => panic!("broken"),
                3 => {
                    sleep(PERIOD).await;
                    Ok(())
                }
                _ => Ok(()),
            }
        });
    let report = TestLoop::new(worker, "loop").run_for(milliseconds(450)).await;
    let errors: Vec<_> = report.runs.iter().map(|run| run.error.clone().unwrap_or_default()).collect();
    assert_eq!(errors[0], "no price");
    assert!(errors[1].contains("broken"), "{errors:?}");
    assert!(errors[2].contains("timeout of 50ms"), "{errors:?}");
    assert_eq!(errors[3], "");
}

/// Runs a loop whose only run never ends by itself, and returns the times at which it was asked to end and was dropped.
async fn ends_of_an_endless_run(cut_off: Duration, cancels: bool) -> (Option<Duration>, Option<Duration>) {
    struct DropTime(Instant, Arc<Mutex<Option<Duration>>>);
    impl Drop for DropTime {
        fn drop(&mut self) {
            *self.1.lock().expect("not poisoned") = Some(self.0.elapsed());
        }
    }
    let (asked, dropped) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let (asked_at, dropped_at) = (asked.clone(), dropped.clone());
    let begin = Instant::now();
    let worker = Worker::builder()
        .singleton("loop")
        .every(PERIOD)
        .lease(Duration::from_secs(12))
        .heartbeat(Duration::from_secs(3))
        .cancel_on_lost_leadership(cancels)
        .run(move |tick| {
            let (asked, drop_time) = (asked_at.clone(), DropTime(begin, dropped_at.clone()));
            async move {
                let _drop_time = drop_time;
                tick.cancelled().await;
                *asked.lock().expect("not poisoned") = Some(begin.elapsed());
                std::future::pending().await
            }
        });
    let report = TestLoop::new(worker, "loop").cut_off_after(cut_off).run_for(Duration::from_secs(30)).await;
    assert!(report.runs.iter().all(|run| run.is_cancelled), "{report:?}");
    let (asked, dropped) = (asked.lock().expect("not poisoned"), dropped.lock().expect("not poisoned"));
    (*asked, *dropped)
}

#[tokio::test(start_paused = true)]
async fn run_ends_before_a_lease_that_is_not_renewed() {
    // The heartbeat at 6 s is the last one that Redis answers.
    let (asked, dropped) = ends_of_an_endless_run(milliseconds(6500), true).await;
    assert_eq!(asked, Some(Duration::from_secs(6 + 8)), "two thirds of the lease");
    assert_eq!(dropped, Some(Duration::from_secs(6 + 10)), "five sixths of the lease");
}

#[tokio::test(start_paused = true)]
async fn run_continues_without_a_lease_if_the_option_is_off() {
    let (asked, _) = ends_of_an_endless_run(milliseconds(6500), false).await;
    assert_eq!(asked, Some(Duration::from_secs(30)), "only the end of the process asks it to end");
}

#[tokio::test(start_paused = true)]
async fn leader_that_cannot_reach_redis_does_not_forfeit_its_lease() {
    // Redis is away from 3.5 s to 8.5 s, less than two thirds of the lease after the last renewal at 3 s.
    let worker = Worker::builder()
        .singleton("loop")
        .fixed_rate(PERIOD)
        .lease(Duration::from_secs(9))
        .heartbeat(Duration::from_secs(3))
        .run(|tick: Tick| async move {
            assert_eq!(tick.epoch(), 1, "the lease was lost");
            Ok(())
        });
    let loop_ = TestLoop::new(worker, "loop").cut_off_between(milliseconds(3500), milliseconds(8500));
    let report = loop_.run_for(Duration::from_secs(20)).await;
    assert!(report.runs.iter().all(|run| run.error.is_none()), "{report:?}");
    assert_eq!(report.runs.len(), 199, "no tick was left out");
}

#[tokio::test(start_paused = true)]
async fn lost_lease_drops_the_run_at_once() {
    let worker = Worker::builder().singleton("loop").every(PERIOD).run(|_| std::future::pending());
    let report =
        TestLoop::new(worker, "loop").lose_leadership_after(milliseconds(4000)).run_for(Duration::from_secs(8)).await;
    assert_eq!(report.runs.len(), 1);
    assert!(report.runs[0].is_cancelled);
    assert_eq!(report.runs[0].took, Duration::from_secs(6), "the heartbeat at 6 s notices it");
}

#[tokio::test(start_paused = true)]
async fn stop_gives_the_run_a_sixth_of_the_lease() {
    let worker = Worker::builder().singleton("loop").every(PERIOD).run(|tick| async move {
        tick.cancelled().await;
        sleep(milliseconds(1500)).await;
        Ok(())
    });
    let begin = Instant::now();
    let report = TestLoop::new(worker, "loop").run_for(Duration::from_secs(1)).await;
    assert_eq!(begin.elapsed(), milliseconds(2500));
    assert_eq!((report.runs.len(), report.runs[0].is_cancelled), (1, false), "it ended by itself");
}

#[tokio::test(start_paused = true)]
async fn cron_loop_follows_its_zone() {
    let worker = Worker::builder()
        .singleton("loop")
        .cron("30 0 9 * * *")
        .zone("Asia/Singapore")
        .misfire(LoopMisfire::Once)
        .run(|_| async { Ok(()) });
    let start = "2026-11-25T00:00:00Z".parse().expect("a time");
    let report = TestLoop::new(worker, "loop").start_at(start).run_for(Duration::from_secs(2 * 24 * 3600)).await;
    let due: Vec<_> = report.runs.iter().map(|run| run.due - start).collect();
    let first = TimeDelta::seconds(3600 + 30);
    assert_eq!(due, [first, first + TimeDelta::days(1)]);
}

#[tokio::test(start_paused = true)]
async fn run_of_an_earlier_term_delays_the_next_one() {
    // Without `cancel_on_lost_leadership`, the first run goes on over the loss of the lease at 6 s and the new term.
    let worker = Worker::builder().singleton("loop").every(PERIOD).cancel_on_lost_leadership(false).run(
        |tick: Tick| async move {
            if tick.epoch() == 1 {
                sleep(Duration::from_secs(8)).await;
            }
            Ok(())
        },
    );
    let loop_ = TestLoop::new(worker, "loop").restart_redis_after(Duration::from_secs(5));
    let report = loop_.run_for(milliseconds(8350)).await;
    assert_eq!(due_offsets(&report), [0, 8100, 8200, 8300]);
}
