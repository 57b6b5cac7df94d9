//! What several servers must agree on, and what is counted.

use std::collections::BTreeMap;

use chrono::Duration;
use milvaion_api::event::Event;
use milvaion_protocol::status::OccurrenceStatus::{self, Completed, Failed, Queued, Running, Skipped};
use milvaion_schedule::{
    rules::{Overlap, Rules},
    schedule::Schedule,
};
use milvaion_server::store::{asked::Asked, jobs::Edit};

use super::bench::{Bench, insert, rows};
use milvaion_test_support::{self as common, stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv28_a_pause_stops_every_server_and_its_end_lets_one_of_them_fire_once() {
    let config = stack::config().await;
    let (one, two) = (stack::server(&config).await, stack::server(&config).await);
    let clock = one.clock.clone();
    let edit = || Edit { by: "ana", at: clock.now() };
    assert!(two.store.pause_cluster("the disk is full", edit()).await.expect("answered"));
    let now = clock.now();
    let job = insert(&one.store, &clock, common::job(Schedule::Once { at: now }), now).await;
    // Whichever leads looks at what is due and lets it be; the other does not even look.
    stack::eventually("a look that finds the pause", || async {
        let (first, second) = tokio::join!(one.dispatcher.tick(), two.dispatcher.tick());
        let (first, second) = (first.ok()?, second.ok()?);
        assert!(first.fired.is_empty() && second.fired.is_empty(), "{first:?} {second:?}");
        (first.is_paused || second.is_paused).then_some(())
    })
    .await;
    assert!(rows(&one, job).await.is_empty());
    one.store.resume_cluster(edit()).await.expect("answered").expect("it was paused");
    one.cache.wake().await.expect("Redis answers");
    stack::eventually("the fire", || async { rows(&two, job).await.pop() }).await;
    let again = tokio::join!(one.dispatcher.tick(), two.dispatcher.tick());
    assert!(again.0.expect("answered").fired.is_empty() && again.1.expect("answered").fired.is_empty());
    assert_eq!(rows(&one, job).await.len(), 1);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv28_what_happens_at_one_server_is_heard_at_the_other() {
    let config = stack::config().await;
    let (one, two) = (stack::server(&config).await, stack::server(&config).await);
    let (_, mut heard) = two.hub.listen(None);
    let id = one.clock.job_id();
    // Said again until both servers have opened their channels.
    stack::eventually("the word of the other server", || {
        one.hub.publish(one.clock.now(), vec![Event::Job { id }]);
        let mut found = None;
        while let Ok(frame) = heard.try_recv() {
            found = found.or((frame.envelope.event == Event::Job { id }).then_some(()));
        }
        async move { found }
    })
    .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn mv29_the_roll_up_says_what_the_rows_say() {
    let bench = Bench::open().await;
    let rules = Rules { overlap: Overlap::Skip, ..Rules::default() };
    let job = bench.job(Schedule::every(60), rules).await;
    let first = bench.occurrences(job, 1).await[0].id;
    bench.pass(Duration::seconds(60)).await;
    assert_eq!(bench.occurrences(job, 2).await[1].status, Skipped);
    for status in [Running, Completed, Completed, Running, Failed] {
        bench.tell(first, status).await;
    }
    bench.pass(Duration::seconds(60)).await;
    let third = bench.occurrences(job, 3).await[2].id;
    // Its start is never heard of on its own.
    bench.tell(third, Failed).await;
    let store = &bench.server.store;
    let asked = Asked { id: bench.clock.occurrence_id(), job_id: job, by: "ana".into(), ..Asked::default() };
    store.make_asked(&asked, bench.clock.now()).await.expect("answered").new_row().expect("made");
    store.cancel(&[asked.id], None, Edit { by: "ana", at: bench.clock.now() }).await.expect("answered");

    let mut by_rows: BTreeMap<OccurrenceStatus, i64> = BTreeMap::new();
    for row in rows(&bench.server, job).await {
        let view = store.occurrence(row.id, 1, bench.clock.now()).await.expect("answered").expect("there");
        for change in view.changes {
            *by_rows.entry(change.status).or_default() += 1;
        }
    }
    let numbers = store.numbers(bench.clock.now(), bench.clock.now()).await.expect("answered");
    let counted: BTreeMap<_, _> = numbers.last_hour.into_iter().collect();
    assert_eq!(counted, by_rows);
    assert_eq!((counted[&Queued], counted[&Skipped], counted[&Failed]), (3, 1, 1));
    bench.server.stop().await;
}
