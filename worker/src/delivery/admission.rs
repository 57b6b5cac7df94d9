//! Decides whether a delivery may start.
//!
//! A possible duplicate is first checked with the server. Then the delivery waits for a permit and for a writable
//! outbox. This is the only place where deliveries wait. After that, the attempt is claimed. If it may not start, this
//! module decides how its message is answered instead:
//!
//! | Finding | Consequence |
//! |---|---|
//! | the claim is free, or belongs to an earlier attempt | it runs |
//! | the occurrence has a cancel request | it is reported as cancelled |
//! | another instance has claimed this attempt and is alive | a duplicate: acknowledged |
//! | another instance has claimed this attempt and renews no claim | reported as lost once the lease has expired |
//! | this attempt has ended, or a later one was claimed | a duplicate: acknowledged |
//! | a possible duplicate, and Redis or the server does not answer | returned to its queue |
//! | a possible duplicate, and Redis lost its data less than a lease ago | claimed again until a lease has passed |
//! | not a duplicate, and Redis does not answer, or did not a moment ago | runs once the server has recorded its start, unless the server denies it |
//! | not a duplicate, and neither Redis nor a server answers within a second | runs once the broker has confirmed its *Running* report |
//! | not a duplicate, but Redis has lost its data since the message was published | as a possible duplicate: runs if the server permits it |
//!
//! The fourth row prevents a second start of an attempt whose worker dies in the first milliseconds of the run. It
//! cannot be known whether such a run began: its process is gone, and its report was never sent. Starting the same
//! attempt again would be a second start that no fencing token can distinguish from the first. The attempt is therefore
//! given up, and the server decides, as for every lost run, whether another attempt follows. The two rows about a Redis that
//! does not answer prevent the same without a claim: when the code of the job begins, the start is recorded outside this
//! process.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use hashlink::LruCache;
use milvaion_protocol::{
    message::{ClaimDenial, JobMessage},
    topology::MAX_PRIORITY,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::log_text,
    control::metrics::WorkerMetrics,
    delivery::cancel_request::CancelRequest,
    delivery::claim::{AttemptKey, ClaimRequest, ClaimResult},
    delivery::claim_batcher::ClaimBatcher,
    delivery::claim_check::ClaimChecker,
    delivery::lru_set::AttemptLruSet,
    delivery::permits::{Permit, PrioritySemaphore},
    faults::seams::{SEAMS, Seams},
    net::redis::RedisUnavailable,
    reporting::outbox::WriteGate,
};

/// Maximum wait for a permit before a delivery is returned to its queue for the first time. Runs can take hours, and
/// another instance may have a free permit. If none has, the message is redelivered at once and waits again, which costs
/// one message each time. Each wait is therefore twice as long as the previous one.
const PERMIT_WAIT: Duration = Duration::from_secs(2);
/// Maximum wait for a permit of a delivery that was returned again and again. For so long it may wait here although another
/// instance has a free permit.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(8);
/// Maximum number of runs whose waits are remembered. With the default capacity, the prefetch windows have at most a hundred
/// messages, and so a thousand runs in bundles. Of more, those that were refused longest ago wait as at the first time.
const MAX_REMEMBERED_WAITS: usize = 10_000;
/// Delay before a possible duplicate that could not be checked is returned to its queue.
const RETURN_DELAY: Duration = Duration::from_secs(1);
/// Interval at which a possible duplicate checks whether the holder of its claim is alive.
const CLAIM_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the answer to a claim check that is in flight when the worker stops.
const SHUTDOWN_CLAIM_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait of a first delivery for the server's answer if Redis does not answer.
const FALLBACK_CLAIM_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause of fallback claim checks after one was not answered.
const FALLBACK_CLAIM_CHECK_PAUSE: Duration = Duration::from_secs(10);
/// Time after a claim without an answer for which first deliveries do not wait for Redis: each would hold its permit for a
/// second. Then one of them tries again.
const SILENT_REDIS_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time within which a delivery that was returned for lack of a permit must be redelivered to count as the same
/// delivery. The broker restores its position in the queue and delivers it to the next free consumer, which takes
/// milliseconds. A message that is redelivered later may have started elsewhere.
const REDELIVERY_WINDOW: Duration = Duration::from_secs(5);
/// Time for which the result of a claim check is valid while the delivery waits for a permit.
const CLAIM_CHECK_VALIDITY: Duration = Duration::from_secs(5);

/// Maximum difference between the clocks of the server, which dates messages, and of Redis.
const MAX_CLOCK_DIFFERENCE: chrono::Duration = chrono::Duration::seconds(2);

/// The checks that a delivery passes before it may run.
pub(crate) struct Admission {
    /// The permits, in the order of the job types.
    pub(crate) permits: PrioritySemaphore,
    /// Closed while the outbox cannot be written, because a run could not be recorded.
    pub(crate) outbox: WriteGate,
    pub(crate) claim_batcher: ClaimBatcher,
    pub(crate) claim_checker: ClaimChecker,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) stop: CancellationToken,
    /// The recently returned deliveries, and the pause of fallback claim checks.
    pub(crate) state: Mutex<AdmissionState>,
}

/// State that outlives a single delivery.
pub(crate) struct AdmissionState {
    fallback_paused_until: Option<Instant>,
    /// The time until which Redis counts as unavailable, since a claim was not answered; `None` after an answer.
    redis_silent_until: Option<Instant>,
    returned: AttemptLruSet,
    /// The next wait for a permit of deliveries that were returned for lack of one.
    permit_waits: LruCache<AttemptKey, Duration>,
}

impl Default for AdmissionState {
    fn default() -> Self {
        Self {
            fallback_paused_until: None,
            redis_silent_until: None,
            returned: AttemptLruSet::default(),
            permit_waits: LruCache::new(MAX_REMEMBERED_WAITS),
        }
    }
}

impl AdmissionState {
    /// Returns true if a first delivery tries to claim its attempt at `now`. Of the deliveries after a pause, one tries.
    fn tries_redis(&mut self, now: Instant) -> bool {
        match self.redis_silent_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                self.redis_silent_until = Some(now + SILENT_REDIS_PAUSE);
                true
            }
        }
    }

    /// Records at `now` whether Redis has left a claim without an answer.
    fn record_claim(&mut self, is_unanswered: bool, now: Instant) {
        self.redis_silent_until = is_unanswered.then(|| now + SILENT_REDIS_PAUSE);
    }
}

/// The origin of a delivery, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryOrigin {
    /// The first delivery of the message.
    First,
    /// A redelivery that this instance has returned for lack of a permit. It may have begun elsewhere in the meantime.
    Returned,
    /// A redelivery, a republished message or an old one: another delivery may have run, or the occurrence may have ended.
    PossibleDuplicate,
}

/// The decision about a delivery.
pub(crate) enum AdmissionDecision {
    /// It runs with this permit.
    Start(Permit, RunBegin),
    /// It is reported as cancelled, with this reason.
    Cancelled(String),
    /// It is reported as lost, with the instance that claimed it, if that is known.
    Lost(Option<String>),
    /// It does not run here, and the broker receives this answer.
    Refuse(DeliveryAnswer),
}

/// The time at which the code of a job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunBegin {
    /// At once: a claim or the server has the start.
    AtOnce,
    /// After the broker has confirmed the *Running* report, which alone has the start.
    AfterConfirm,
}

/// The answer to the broker about a delivery that does not run here.
pub(crate) enum DeliveryAnswer {
    /// Acknowledges it.
    Ack,
    /// Returns it to its queue, or rejects the bundle that it is part of.
    ReturnToQueue,
}

impl Admission {
    /// Determines the origin of a delivery from the mark of the broker. `is_doubtful` is true if the publisher has marked it
    /// as sent again, or if it is old.
    ///
    /// The broker marks a delivery that this instance returned like every other redelivery. If it counted as a possible
    /// duplicate, a busy job type would need a claim check before each start, and could start nothing while Redis is
    /// down.
    pub(crate) fn origin(&self, attempt: AttemptKey, is_redelivered: bool, is_doubtful: bool) -> DeliveryOrigin {
        match (is_doubtful, is_redelivered) {
            (true, _) => DeliveryOrigin::PossibleDuplicate,
            (false, true) if self.state().returned.take(attempt, REDELIVERY_WINDOW) => DeliveryOrigin::Returned,
            (false, true) => DeliveryOrigin::PossibleDuplicate,
            (false, false) => DeliveryOrigin::First,
        }
    }

    /// Waits until a delivery may start, and claims it. `type_index` is the index of its job type.
    pub(crate) async fn admit(
        &self,
        type_index: usize,
        message: &JobMessage,
        origin: DeliveryOrigin,
    ) -> AdmissionDecision {
        let attempt = (message.occurrence_id, message.attempt);
        let priority = message.priority.min(MAX_PRIORITY);
        let permit_wait = self.state().permit_waits.remove(&attempt).unwrap_or(PERMIT_WAIT);
        let mut may_be_duplicate = SEAMS.may_be_duplicate(origin == DeliveryOrigin::PossibleDuplicate);
        let (mut last_lease, mut checked_at): (_, Option<Instant>) = (None, None);
        let mut is_wait_logged = false;
        loop {
            // Checked before the wait for a permit, which other deliveries could use in the meantime, and before the
            // claim, which would replace the claim of the instance that runs it.
            if may_be_duplicate && checked_at.is_none_or(|at| at.elapsed() >= CLAIM_CHECK_VALIDITY) {
                if let Some(answer) = self.check(message).await {
                    if matches!(answer, DeliveryAnswer::ReturnToQueue) {
                        self.pause(RETURN_DELAY).await;
                    }
                    return AdmissionDecision::Refuse(answer);
                }
                checked_at = Some(Instant::now());
            }
            let permit = tokio::select! {
                biased;
                permit = self.acquire_permit(type_index, priority) => Some(permit),
                () = self.stop.cancelled() => None,
                () = sleep(permit_wait) => None,
            };
            // A worker that stops starts nothing, even if a permit became free. A delivery that has waited long enough
            // may find a free permit in another instance.
            let Some(permit) = permit.filter(|_| !self.stop.is_cancelled()) else {
                let mut state = self.state();
                state.permit_waits.insert(attempt, (permit_wait * 2).min(MAX_PERMIT_WAIT));
                if !may_be_duplicate {
                    state.returned.insert(attempt);
                }
                return AdmissionDecision::Refuse(DeliveryAnswer::ReturnToQueue);
            };
            // The delivery may have waited for so long that another one has run.
            if may_be_duplicate && checked_at.is_none_or(|at| at.elapsed() >= CLAIM_CHECK_VALIDITY) {
                if let Some(answer) = self.check(message).await {
                    drop(permit);
                    if matches!(answer, DeliveryAnswer::ReturnToQueue) {
                        self.pause(RETURN_DELAY).await;
                    }
                    return AdmissionDecision::Refuse(answer);
                }
                checked_at = Some(Instant::now());
            }
            // A returned delivery may have begun elsewhere too. It needs no claim check, because the claim would show that;
            // a Redis that lost its data shows it when the holder has renewed the claim.
            let claim = ClaimRequest { attempt, may_be_duplicate: may_be_duplicate || origin != DeliveryOrigin::First };
            match SEAMS.claim_answer(self.claim(claim).await) {
                Ok(ClaimResult::Granted { cancel, since }) => {
                    let request = cancel.map(|text| CancelRequest::read(&text));
                    if let Some(request) = request.filter(|request| request.applies_to(message.attempt)) {
                        return AdmissionDecision::Cancelled(request.reason().to_owned());
                    }
                    // The claim is kept meanwhile, so that no other instance starts the attempt.
                    if !may_be_duplicate
                        && is_forgotten(message, since)
                        && let Some(answer) = self.check(message).await
                    {
                        drop(permit);
                        self.claim_batcher.release(attempt);
                        if matches!(answer, DeliveryAnswer::ReturnToQueue) {
                            self.pause(RETURN_DELAY).await;
                        }
                        return AdmissionDecision::Refuse(answer);
                    }
                    return AdmissionDecision::Start(permit, RunBegin::AtOnce);
                }
                Ok(ClaimResult::TooEarly { wait }) => {
                    if !is_wait_logged {
                        is_wait_logged = true;
                        tracing::info!(
                            occurrence.id = %message.occurrence_id,
                            "occurrence {} may be a duplicate and Redis has just lost its data: waiting {} s for the \
                             claims of living instances", message.occurrence_id, wait.as_secs() + 1
                        );
                    }
                    drop(permit);
                    self.pause(CLAIM_RECHECK_INTERVAL).await;
                }
                // Another instance received the message in between.
                Ok(_) if origin == DeliveryOrigin::Returned && !may_be_duplicate => may_be_duplicate = true,
                Ok(ClaimResult::Ended) => {
                    self.log_duplicate(message, "it has ended, or a later attempt was claimed");
                    return AdmissionDecision::Refuse(DeliveryAnswer::Ack);
                }
                Ok(ClaimResult::Held { by, lease }) => {
                    // A redelivery that was caused by the death of its holder must not be dropped. Only a renewed lease
                    // shows that the holder is alive; a lease that is not renewed expires.
                    let renewed = last_lease.is_some_and(|last| lease > last);
                    if renewed || !may_be_duplicate {
                        self.log_duplicate(message, &format!("instance {by} runs it"));
                        return AdmissionDecision::Refuse(DeliveryAnswer::Ack);
                    }
                    last_lease = Some(lease);
                    drop(permit);
                    self.pause(CLAIM_RECHECK_INTERVAL).await;
                }
                // A live instance may have no heartbeat in Redis, so a claim check must come first.
                Ok(ClaimResult::Abandoned { .. } | ClaimResult::EndedUnreported) if !may_be_duplicate => {
                    may_be_duplicate = true
                }
                Ok(ClaimResult::Abandoned { by }) => return AdmissionDecision::Lost(Some(by)),
                Ok(ClaimResult::EndedUnreported) => return AdmissionDecision::Lost(None),
                Err(error) if may_be_duplicate => {
                    tracing::warn!(
                        occurrence.id = %message.occurrence_id,
                        error = %error,
                        "occurrence {} may be a duplicate and Redis does not answer: returning it to its queue",
                        message.occurrence_id
                    );
                    drop(permit);
                    // The claim may have been granted although no answer arrived, and would block other instances.
                    self.claim_batcher.release(attempt);
                    self.pause(RETURN_DELAY).await;
                    return AdmissionDecision::Refuse(DeliveryAnswer::ReturnToQueue);
                }
                Err(error) => {
                    let begin = match self.announce_start(message).await {
                        Ok(begin) => begin,
                        Err(reason) => {
                            self.log_duplicate(message, &reason);
                            return AdmissionDecision::Refuse(DeliveryAnswer::Ack);
                        }
                    };
                    tracing::warn!(
                        occurrence.id = %message.occurrence_id,
                        error = %error,
                        "Redis does not answer: occurrence {} starts without a claim",
                        message.occurrence_id
                    );
                    return AdmissionDecision::Start(permit, begin);
                }
            }
        }
    }

    /// Claims an attempt. A first delivery does not wait for a Redis that has just left another claim without an answer.
    async fn claim(&self, claim: ClaimRequest) -> Result<ClaimResult, RedisUnavailable> {
        if !claim.may_be_duplicate && !self.state().tries_redis(Instant::now()) {
            return Err(RedisUnavailable::Timeout);
        }
        let answer = self.claim_batcher.claim(claim).await;
        let is_unanswered = answer.as_ref().is_err_and(RedisUnavailable::is_timeout);
        self.state().record_claim(is_unanswered, Instant::now());
        answer
    }

    /// Marks an attempt as ended, so that a late duplicate is dropped.
    pub(crate) fn end(&self, attempt: AttemptKey) {
        self.claim_batcher.end(attempt);
    }

    /// Counts and logs a duplicate delivery that is dropped.
    pub(crate) fn log_duplicate(&self, message: &JobMessage, reason: &str) {
        self.metrics.duplicate_dropped();
        tracing::info!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            reason,
            "dropping a duplicate delivery of occurrence {}: {reason}", message.occurrence_id
        );
    }

    /// Checks a possible duplicate with the server, because Redis may have lost the claim of the first delivery, or a
    /// message of which Redis may have lost the cancel request.
    /// Returns `None` if the server permits the start.
    async fn check(&self, message: &JobMessage) -> Option<DeliveryAnswer> {
        let checking = self.claim_checker.check((message.occurrence_id, message.attempt));
        tokio::pin!(checking);
        let reply = tokio::select! {
            reply = &mut checking => reply,
            // A worker that stops starts nothing, but a known duplicate need not be redelivered.
            () = self.stop.cancelled() => match timeout(SHUTDOWN_CLAIM_CHECK_TIMEOUT, checking).await {
                Ok(reply) => reply,
                Err(_) => return Some(DeliveryAnswer::ReturnToQueue),
            },
        };
        match reply {
            Ok(reply) if reply.granted => self.stop.is_cancelled().then_some(DeliveryAnswer::ReturnToQueue),
            Ok(reply) => {
                let reason = reply.reason.map_or("the server denied the attempt", ClaimDenial::describe);
                self.log_duplicate(
                    message,
                    &reply.by.map_or_else(|| reason.to_owned(), |by| format!("{reason}: {by}")),
                );
                Some(DeliveryAnswer::Ack)
            }
            Err(error) => {
                tracing::warn!(
                    occurrence.id = %message.occurrence_id,
                    error = log_text(&error),
                    "occurrence {} may be a duplicate and the server does not answer: returning it to its queue",
                    message.occurrence_id
                );
                Some(DeliveryAnswer::ReturnToQueue)
            }
        }
    }

    /// Announces the start of a first delivery to the server because Redis does not answer. Redis would have held the claim
    /// and a cancel request; without Redis only the server has them.
    ///
    /// # Errors
    /// Returns the reason if the delivery must not start.
    async fn announce_start(&self, message: &JobMessage) -> Result<RunBegin, String> {
        if self.state().fallback_paused_until.is_some_and(|until| Instant::now() < until) {
            return Ok(RunBegin::AfterConfirm);
        }
        let announcing = self.claim_checker.announce_start((message.occurrence_id, message.attempt));
        match timeout(FALLBACK_CLAIM_CHECK_TIMEOUT, announcing).await {
            Ok(Ok(reply)) if reply.granted => Ok(RunBegin::AtOnce),
            Ok(Ok(reply)) => {
                Err(reply.reason.map_or("the server denied the attempt", ClaimDenial::describe).to_owned())
            }
            // Later deliveries do not wait for another timeout.
            Ok(Err(_)) | Err(_) => {
                self.state().fallback_paused_until = Some(Instant::now() + FALLBACK_CLAIM_CHECK_PAUSE);
                Ok(RunBegin::AfterConfirm)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the outbox can record a run and a permit is free.
    async fn acquire_permit(&self, type_index: usize, priority: u8) -> Permit {
        self.outbox.open().await;
        self.permits.acquire(type_index, priority).await
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// Returns true if Redis may have lost what it held about a message, which it remembers since `since`: the occurrence may
/// have been cancelled or have ended while the message waited in its queue.
fn is_forgotten(message: &JobMessage, since: DateTime<Utc>) -> bool {
    message.timestamp < since.checked_add_signed(MAX_CLOCK_DIFFERENCE).unwrap_or(since)
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::topology::{RedisKeys, Topology};
    use milvaion_test_support::{broker_env, messages};
    use tokio::sync::watch;

    use super::*;
    use crate::delivery::claim::ClaimStore;

    /// Returns the checks of a worker with one permit. The broker is not reached.
    fn admission(claim_batcher: ClaimBatcher) -> Admission {
        let amqp = "amqp://127.0.0.1:1/%2f".parse().expect("a valid address");
        Admission {
            permits: PrioritySemaphore::new(1, [1]),
            outbox: WriteGate::new(watch::channel(true).1),
            claim_batcher,
            claim_checker: ClaimChecker::new(amqp, Topology::new("t"), "w-1".to_owned()),
            metrics: WorkerMetrics::default(),
            stop: CancellationToken::new(),
            state: Mutex::default(),
        }
    }

    fn message() -> JobMessage {
        let id = milvaion_protocol::id::OccurrenceId::default();
        messages::job_message(id, "t", broker_env::no_input(), broker_env::now())
    }

    /// It may have begun elsewhere meanwhile, although it needs no claim check.
    #[tokio::test]
    async fn returned_delivery_waits_after_redis_lost_its_data() {
        let url = std::env::var("REDIS_URL").expect("REDIS_URL names a Redis for tests");
        let keys = RedisKeys::new(format!("t_{}:", crate::clock::random_id()));
        let (claim_batcher, batching) =
            ClaimBatcher::new(ClaimStore::new(&url, keys.clone(), "w-1").expect("a valid address"));
        tokio::spawn(batching);
        let admission = admission(claim_batcher);
        let message = message();
        let client = redis::Client::open(url.as_str()).expect("a valid URL");
        let mut redis = client.get_multiplexed_async_connection().await.expect("Redis responds");
        let returned = admission.admit(0, &message, DeliveryOrigin::Returned);
        tokio::pin!(returned);
        // The first claim sets the time since when Redis holds claims. Then it is answered within milliseconds.
        let mut exists = redis::cmd("EXISTS");
        exists.arg(keys.claims_since());
        let claimed = async {
            while !exists.query_async::<bool>(&mut redis).await.expect("read") {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = &mut returned => panic!("it does not wait"),
            () = claimed => {}
        }
        assert!(timeout(Duration::from_millis(200), &mut returned).await.is_err(), "it waits");
        let mut set = redis::cmd("SET");
        set.arg(keys.claims_since()).arg(0).query_async::<()>(&mut redis).await.expect("written");
        assert!(matches!(returned.await, AdmissionDecision::Start(..)));
        let mut delete = redis::cmd("DEL");
        delete.arg(keys.claims_since()).arg(keys.running(message.occurrence_id));
        delete.query_async::<()>(&mut redis).await.expect("deleted");
    }

    #[test]
    fn one_delivery_at_a_time_waits_for_a_silent_redis() {
        let (mut state, now) = (AdmissionState::default(), Instant::now());
        let after = |tenths: u32| now + tenths * Duration::from_millis(100);
        assert!(state.tries_redis(now) && state.tries_redis(now), "Redis has always answered");
        state.record_claim(true, now);
        assert!(!state.tries_redis(now) && !state.tries_redis(after(9)));
        assert!(state.tries_redis(after(10)), "the pause is over");
        assert!(!state.tries_redis(after(10)), "another delivery tries");
        state.record_claim(true, after(20));
        assert!(!state.tries_redis(after(29)));
        assert!(state.tries_redis(after(30)));
        state.record_claim(false, after(30));
        assert!(state.tries_redis(after(30)) && state.tries_redis(after(30)), "Redis has answered");
    }

    #[tokio::test(start_paused = true)]
    async fn first_delivery_does_not_wait_for_a_silent_redis() {
        let claims = ClaimStore::new("redis://127.0.0.1:1/0", RedisKeys::default(), "w-1").expect("a valid address");
        // Nothing settles claims, so none is ever answered.
        let (claim_batcher, _batching) = ClaimBatcher::new(claims);
        let admission = admission(claim_batcher);
        let later = Some(Instant::now() + Duration::from_secs(60));
        admission.state().redis_silent_until = later;
        admission.state().fallback_paused_until = later;
        let message = message();
        let admit =
            async |origin: DeliveryOrigin| timeout(Duration::from_secs(1), admission.admit(0, &message, origin)).await;
        let decision = admit(DeliveryOrigin::First).await.expect("it does not wait");
        assert!(matches!(decision, AdmissionDecision::Start(_, RunBegin::AfterConfirm)));
        drop(decision);
        assert!(admit(DeliveryOrigin::Returned).await.is_err(), "a delivery that may have begun elsewhere waits");
    }

    #[tokio::test(start_paused = true)]
    async fn delivery_of_a_full_type_waits_longer_each_time() {
        // It is not reached either: no delivery gets a permit.
        let claims = ClaimStore::new("redis://127.0.0.1:1/0", RedisKeys::default(), "w-1").expect("a valid address");
        let admission = admission(ClaimBatcher::new(claims).0);
        let permit = admission.permits.acquire(0, 1).await;
        let message = message();
        let mut waits = Vec::new();
        let mut origin = DeliveryOrigin::First;
        for _ in 0..6 {
            let since = tokio::time::Instant::now();
            let decision = admission.admit(0, &message, origin).await;
            assert!(matches!(decision, AdmissionDecision::Refuse(DeliveryAnswer::ReturnToQueue)));
            waits.push(since.elapsed().as_secs());
            origin = admission.origin((message.occurrence_id, message.attempt), true, false);
            assert_eq!(origin, DeliveryOrigin::Returned, "the redelivery needs no claim check");
        }
        assert_eq!(waits, [2, 4, 8, 8, 8, 8]);
        drop(permit);
    }
}
