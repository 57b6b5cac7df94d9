//! Unreported lost runs: the worker died before its start report arrived. Another worker receives the message, finds the
//! claim of the dead one, and reports the run as lost.

use milvaion_protocol::{
    id::OccurrenceId,
    message::StatusReport,
    status::OccurrenceStatus::{self, Completed, Queued, Unknown},
};
use milvaion_schedule::{
    rules::{LostRunPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{clock::Clock, store::Store};
use milvaion_test_support::{database, jobs, runs};

struct UnreportedLossHarness {
    store: Store,
    clock: Clock,
    id: OccurrenceId,
}

impl UnreportedLossHarness {
    async fn new(on_lost: LostRunPolicy) -> Self {
        let store = database::fresh().await;
        let clock = Clock::system();
        let mut job = jobs::echo_job(Schedule::Manual);
        job.rules = Rules { on_lost, ..Rules::default() };
        let job_id = jobs::insert_job(&store, &clock, &job, None).await;
        let id = runs::insert_manual(&store, &clock, job_id).await;
        Self { store, clock, id }
    }

    /// Reports the status of an attempt. Returns true if that changed the occurrence.
    async fn report(&self, attempt: u32, status: OccurrenceStatus) -> bool {
        let report = StatusReport::new(self.id, attempt, "w-dead", status, self.clock.now());
        !runs::report_with_retries(&self.store, &self.clock, vec![report]).await.rows.is_empty()
    }

    async fn state(&self) -> (OccurrenceStatus, i32) {
        let view = self.store.occurrence(self.id, 10, self.clock.now()).await;
        let row = view.expect("the query succeeds").expect("it exists").row;
        (row.status, row.attempt)
    }
}

#[tokio::test]
async fn unreported_lost_run_is_requeued_or_unknown() {
    let requeue = UnreportedLossHarness::new(LostRunPolicy::Requeue).await;
    assert!(requeue.report(1, Unknown).await);
    assert_eq!(requeue.state().await, (Queued, 2));
    assert!(!requeue.report(1, Unknown).await, "a repeated report changes nothing");
    assert!(!requeue.report(1, Completed).await, "the attempt was given up");
    assert_eq!(requeue.state().await, (Queued, 2));

    let fail = UnreportedLossHarness::new(LostRunPolicy::Fail).await;
    assert!(fail.report(1, Unknown).await);
    assert_eq!(fail.state().await, (Unknown, 1), "it must not run twice, and it may have run");
    assert!(!fail.report(1, Unknown).await);
    assert!(fail.report(1, Completed).await, "a late report decides");
    assert_eq!(fail.state().await, (Completed, 1));
}
