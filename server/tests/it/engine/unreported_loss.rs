//! A run whose worker died before anybody heard that it began: another worker met its claim, and says that it is lost.

use milvaion_protocol::{
    id::OccurrenceId,
    message::StatusReport,
    status::OccurrenceStatus::{self, Completed, Queued, Unknown},
};
use milvaion_schedule::{
    rules::{LostRunPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{
    clock::Clock,
    domain::{retry, transition::fold},
    store::{Store, jobs::AuditStamp, manual_runs::NewManualRun},
};

use milvaion_test_support as common;

struct UnreportedLossHarness {
    store: Store,
    clock: Clock,
    id: OccurrenceId,
}

impl UnreportedLossHarness {
    async fn new(on_lost: LostRunPolicy) -> Self {
        let (store, ()) = common::database().await;
        let clock = Clock::system();
        let job_id = clock.job_id();
        let mut job = common::job(Schedule::Manual);
        job.rules = Rules { on_lost, ..Rules::default() };
        let edit = AuditStamp { by: "test", at: clock.now() };
        store.insert_job(job_id, &job, None, edit).await.expect("stored");
        let asked = NewManualRun { id: clock.occurrence_id(), job_id, by: "test".into(), ..NewManualRun::default() };
        store.insert_manual_run(&asked, clock.now()).await.expect("answered").into_created().expect("made");
        Self { store, clock, id: asked.id }
    }

    /// What the intake does with a report.
    async fn tell(&self, attempt: u32, status: OccurrenceStatus) -> bool {
        let report = StatusReport::new(self.id, attempt, "w-dead", status, self.clock.now());
        let mut changes = fold(vec![report]);
        let asked: Vec<_> = changes.iter().map(|change| (change.occurrence_id, change.attempt)).collect();
        let standings = self.store.retry_contexts(&asked).await.expect("answered");
        for change in &mut changes {
            if let Some(standing) = standings.get(&change.occurrence_id) {
                retry::decide(change, standing, self.clock.now());
            }
        }
        !self.store.apply(&changes, self.clock.now()).await.expect("answered").rows.is_empty()
    }

    async fn stands(&self) -> (OccurrenceStatus, i32) {
        let view = self.store.occurrence(self.id, 10, self.clock.now()).await.expect("answered").expect("there");
        (view.row.status, view.row.attempt)
    }
}

#[tokio::test]
async fn what_was_lost_before_anybody_heard_of_it_is_queued_again_as_the_next_attempt_or_unknown() {
    let again = UnreportedLossHarness::new(LostRunPolicy::Requeue).await;
    assert!(again.tell(1, Unknown).await);
    assert_eq!(again.stands().await, (Queued, 2));
    assert!(!again.tell(1, Unknown).await, "said twice, it counts once");
    assert!(!again.tell(1, Completed).await, "the attempt was given up");
    assert_eq!(again.stands().await, (Queued, 2));

    let strict = UnreportedLossHarness::new(LostRunPolicy::Fail).await;
    assert!(strict.tell(1, Unknown).await);
    assert_eq!(strict.stands().await, (Unknown, 1), "it must not be run twice, and perhaps it ran");
    assert!(!strict.tell(1, Unknown).await);
    assert!(strict.tell(1, Completed).await, "a late report settles it");
    assert_eq!(strict.stands().await, (Completed, 1));
}
