//! Jobs that delayed other jobs.

use chrono::Duration;
use milvaion_api::requests::JobInput;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::schedule::Schedule;
use milvaion_test_support::{jobs, manual_clock::GatedJob, runs, server_env, wait, worker_env};
use tokio_util::sync::CancellationToken;

/// Inserts `count` jobs of an absent worker, two batches of the dispatcher, and measures how late other jobs start.
async fn dispatch_beside_an_absent_worker(count: usize) {
    let mut config = server_env::config().await;
    config.background.dispatch_batch = i64::try_from(count / 2).expect("a small number");
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let (clock, now) = (server.clock.clone(), server.clock.now());
    let absent = JobInput { worker_id: "absent".into(), ..jobs::echo_job(Schedule::every(3_600)) };
    // They are due the longest, so they are the first of every list.
    let before = Some(now - Duration::seconds(30));
    futures::future::join_all((0..count).map(|_| jobs::insert_job(&server.store, &clock, &absent, before))).await;
    let due = clock.now();
    let present = jobs::insert(&server.store, &clock, Schedule::once(due), Some(due)).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let row = wait::eventually("the occurrence", || async { runs::of_job(&server, present).await.pop() }).await;
    assert_eq!(runs::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
    let late = row.id.created_at() - due;
    assert!(late < Duration::seconds(5), "the occurrence was {} ms late", late.num_milliseconds());

    // They also delay no job when they are queued for the absent worker.
    wait::eventually("the absent worker's occurrences", || async {
        (runs::all(&server, None).await.len() == count + 1).then_some(())
    })
    .await;
    let due = clock.now();
    let later = jobs::insert(&server.store, &clock, Schedule::once(due), Some(due)).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let row = wait::eventually("the occurrence", || async { runs::of_job(&server, later).await.pop() }).await;
    assert_eq!(runs::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
    let late = row.id.created_at() - due;
    assert!(late < Duration::seconds(3), "the occurrence was {} ms late", late.num_milliseconds());
    assert_eq!(runs::all(&server, Some(OccurrenceStatus::Queued)).await.len(), count, "none of them is lost");
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_workers_jobs_delay_no_others() {
    dispatch_beside_an_absent_worker(100).await;
}

mod exhaustive {
    use super::*;

    /// The delivery that a busy instance has prefetched comes back after seconds.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_instances_double_the_concurrency() {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        let (gate, stop) = (GatedJob::default(), CancellationToken::new());
        for _ in 0..2 {
            worker_env::start_with(&config, &stop, |worker| worker.capacity(1).job(gate.clone()));
        }
        let now = server.clock.now();
        for _ in 0..3 {
            jobs::insert(&server.store, &server.clock, Schedule::once(now), Some(now)).await;
        }
        server.dispatcher.activate_dispatcher.notify_one();
        let started = async |count: usize| {
            wait::eventually(&format!("start number {count}"), || async {
                (gate.started().len() >= count).then_some(())
            })
            .await;
        };
        started(2).await;
        // The third may be prefetched by the instance that stays busy, and must reach the other one.
        gate.complete_one().expect("two runs");
        started(3).await;
        assert_eq!(gate.max_concurrent(), 2, "one in each instance");
        while gate.complete_one().is_some() {}
        stop.cancel();
        server.stop().await;
    }

    /// Of ten runs in a bundle, the only instance has permits for two. The others are sent again, and start elsewhere.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn rest_of_a_bundle_starts_in_another_instance() {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        let (gate, stop) = (GatedJob::default(), CancellationToken::new());
        worker_env::start_with(&config, &stop, |worker| worker.job(gate.clone()));
        let key = ("w".to_owned(), "echo".to_owned());
        wait::eventually("an instance that takes bundles", async || {
            let offers = server.store.bundle_offers(std::slice::from_ref(&key), server.clock.now()).await.ok()?;
            (offers.first()?.1.size(10) == 10).then_some(())
        })
        .await;
        let dispatch = async |count: usize| {
            // All are created at once.
            let due = server.clock.now() + Duration::seconds(1);
            for _ in 0..count {
                jobs::insert(&server.store, &server.clock, Schedule::once(due), Some(due)).await;
            }
            server.dispatcher.activate_dispatcher.notify_one();
        };
        let started = async |count: usize| {
            wait::eventually(&format!("start number {count}"), || async {
                (gate.started().len() >= count).then_some(())
            })
            .await;
        };
        dispatch(8).await;
        started(8).await;
        dispatch(10).await;
        started(10).await;
        worker_env::start_with(&config, &stop, |worker| worker.job(gate.clone()));
        started(18).await;
        let mut all = gate.started();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), gate.started().len()), (18, 18), "each has started once");
        assert_eq!(runs::all(&server, Some(OccurrenceStatus::Failed)).await.len(), 0);
        while gate.complete_one().is_some() {}
        stop.cancel();
        server.stop().await;
    }

    /// Low runs take all permits of two instances for as long as the test lasts. Critical runs start in the reserved slots at
    /// once, and those that wait for a slot when the instances stop start in one that reserves none.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn critical_runs_start_although_low_runs_fill_the_fleet() {
        let mut config = server_env::config().await;
        config.lost_runs.requeue_after = std::time::Duration::from_secs(2);
        let server = server_env::start(&config).await;
        let (gate, stop) = (GatedJob::default(), CancellationToken::new());
        let instances = [0, 1].map(|_| {
            worker_env::start_with(&config, &stop, |worker| {
                worker.capacity(1).critical_slots(1).shutdown_grace(std::time::Duration::ZERO).job(gate.clone())
            })
        });
        let key = ("w".to_owned(), "echo".to_owned());
        wait::eventually("two instances with reserved slots", async || {
            let offers = server.store.bundle_offers(std::slice::from_ref(&key), server.clock.now()).await.ok()?;
            (offers.first()?.1.critical_instances == 2).then_some(())
        })
        .await;
        let dispatch = async |count: usize, priority: u8| {
            let now = server.clock.now();
            let job = JobInput { priority, ..jobs::echo_job(Schedule::once(now)) };
            for _ in 0..count {
                jobs::insert_job(&server.store, &server.clock, &job, Some(now)).await;
            }
            server.dispatcher.activate_dispatcher.notify_one();
        };
        let started = async |count: usize| {
            wait::eventually(&format!("start number {count}"), || async {
                let mut all = gate.started();
                all.sort_unstable();
                all.dedup();
                (all.len() >= count).then_some(())
            })
            .await;
        };
        let queued = async |count: usize| {
            wait::eventually(&format!("{count} queued runs"), || async {
                (runs::all(&server, Some(OccurrenceStatus::Queued)).await.len() == count).then_some(())
            })
            .await;
        };
        dispatch(3, 1).await;
        started(2).await;
        dispatch(2, 5).await;
        started(4).await;
        queued(1).await;
        dispatch(2, 5).await;
        queued(3).await;
        stop.cancel();
        for instance in instances {
            instance.await.expect("the worker stops");
        }
        let stop = CancellationToken::new();
        worker_env::start_with(&config, &stop, |worker| worker.capacity(10).job(gate.clone()));
        started(7).await;
        while gate.complete_one().is_some() {}
        stop.cancel();
        server.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn thousand_jobs_of_an_absent_worker_delay_no_others() {
        dispatch_beside_an_absent_worker(1_000).await;
    }
}
