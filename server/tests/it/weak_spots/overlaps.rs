//! The windows of a rule that says "never two at once".

use chrono::Duration;
use milvaion_protocol::{
    id::JobId,
    status::OccurrenceStatus::{self, Completed, Queued, Running, Skipped},
};
use milvaion_schedule::{
    rules::{Overlap, Rules},
    schedule::Schedule,
};
use milvaion_server::store::{asked::Asked, jobs::Edit};

use super::bench::Bench;

const MINUTE: Duration = Duration::seconds(60);

async fn skipping(bench: &Bench) -> JobId {
    bench.job(Schedule::every(60), Rules { overlap: Overlap::Skip, ..Rules::default() }).await
}

/// Lets the next fire come, and says what became of each so far.
async fn next(bench: &Bench, job: JobId) -> Vec<OccurrenceStatus> {
    let already = bench.occurrences(job, 1).await.len();
    bench.pass(MINUTE).await;
    bench.occurrences(job, already + 1).await.iter().map(|row| row.status).collect()
}

#[tokio::test]
async fn mv18_skip_holds_between_the_fire_and_the_workers_first_word() {
    let bench = Bench::open().await;
    let job = skipping(&bench).await;
    let first = bench.occurrences(job, 1).await[0].id;
    assert_eq!(next(&bench, job).await, [Queued, Skipped], "nobody has said that the first one runs");
    assert!(bench.tell(first, Running).await);
    assert_eq!(next(&bench, job).await, [Running, Skipped, Skipped]);
    assert!(bench.tell(first, Completed).await);
    assert_eq!(next(&bench, job).await, [Completed, Skipped, Skipped, Queued]);
    bench.server.stop().await;
}

#[tokio::test]
async fn mv18_the_end_of_another_occurrence_and_the_wish_to_end_this_one_open_no_window() {
    let bench = Bench::open().await;
    let job = skipping(&bench).await;
    let first = bench.occurrences(job, 1).await[0].id;
    assert!(bench.tell(first, Running).await);

    // Somebody insists on a run beside it, and that one ends.
    bench.clock.advance(Duration::seconds(1));
    let asked =
        Asked { id: bench.clock.occurrence_id(), job_id: job, by: "ana".into(), force: true, ..Asked::default() };
    let store = &bench.server.store;
    store.make_asked(&asked, bench.clock.now()).await.expect("answered").new_row().expect("made");
    assert!(bench.tell(asked.id, Running).await);
    assert!(bench.tell(asked.id, Completed).await);
    assert_eq!(next(&bench, job).await, [Running, Completed, Skipped]);

    // Somebody wants the first one to end; its worker has not ended it yet.
    let edit = Edit { by: "ana", at: bench.clock.now() };
    store.cancel(&[first], None, edit).await.expect("answered");
    assert_eq!(next(&bench, job).await, [Running, Completed, Skipped, Skipped]);
    assert!(bench.tell(first, OccurrenceStatus::Cancelled).await);
    assert_eq!(next(&bench, job).await.last(), Some(&Queued));
    bench.server.stop().await;
}
