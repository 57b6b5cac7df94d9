//! From a delivery to the leave to start it.
//!
//! What may be a second copy is asked about at the server. Then a delivery waits here for a permit and for an outbox that
//! can be written, and nowhere else, and is claimed. Whoever may not start it says what becomes of its
//! message instead:
//!
//! | What is found | What follows |
//! |---|---|
//! | the claim is free, or of an earlier attempt | it runs |
//! | somebody wished it to end | it is reported as cancelled |
//! | another instance has claimed this attempt, and lives | a copy: acknowledged |
//! | another instance has claimed this attempt, and does not renew it | it is waited for; then it is reported as lost |
//! | this attempt has ended, or a later one was claimed | a copy: acknowledged |
//! | perhaps a copy, and Redis or the server does not answer | handed back |
//! | no copy, and Redis does not answer | the server is asked, for a second at most: what it denies is dropped, everything else runs |
//!
//! The fourth row is what keeps an attempt from being started twice by a worker that dies in a run's first
//! milliseconds. Whether such a run began is known to nobody: its process is gone, its report never left. To start the
//! same attempt again would be a second start that no fence can tell from the first; so the attempt is given up, and the
//! server decides, as about every lost run, whether another follows.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use milvaion_protocol::{
    message::{ClaimDenial, JobMessage},
    topology::MAX_PRIORITY,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    control::metrics::WorkerMetrics,
    delivery::cancel_request::CancelRequest,
    delivery::claim::{AttemptKey, ClaimResult},
    delivery::claim_batcher::ClaimBatcher,
    delivery::claim_check::ClaimChecker,
    delivery::lru_set::AttemptLruSet,
    delivery::permits::{Permit, PrioritySemaphore},
    faults,
    reporting::outbox::WriteGate,
};

/// How long a delivery waits for a permit here before it is handed back. Runs may take hours, and another instance may have
/// a permit; if none has, it comes back at once and waits again, which costs a message each time.
const PERMIT_WAIT: Duration = Duration::from_secs(2);
/// How long a delivery stays away after it was handed back because nobody could say whether it is a copy.
const HAND_BACK_DELAY: Duration = Duration::from_secs(1);
/// How often a copy looks whether the holder of its claim is alive.
const CLAIM_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a server may take that was asked when the worker stops.
const SHUTDOWN_CLAIM_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a first copy waits for the server's word in place of Redis's.
const FALLBACK_CLAIM_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nobody is asked for a second opinion after there was none.
const FALLBACK_CLAIM_CHECK_PAUSE: Duration = Duration::from_secs(10);
/// How soon what was sent back for want of a permit comes back as what it was. The broker puts it where it had been and
/// gives it to whoever has room, which takes milliseconds; what stays away for longer may have begun elsewhere.
const REDELIVERY_WINDOW: Duration = Duration::from_secs(5);
/// How long the server's leave for a copy holds while it waits for a permit.
const CLAIM_CHECK_VALIDITY: Duration = Duration::from_secs(5);

/// Whom a delivery has to pass.
pub(crate) struct Admission {
    /// In the order of the job types.
    pub(crate) permits: PrioritySemaphore,
    /// Shut while a run could not be remembered.
    pub(crate) outbox: WriteGate,
    pub(crate) claim_batcher: ClaimBatcher,
    pub(crate) claim_checker: ClaimChecker,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) stop: CancellationToken,
    /// What was sent back, and until when the server is not asked for a second opinion.
    pub(crate) state: Mutex<AdmissionState>,
}

/// What the room remembers from one delivery to another.
#[derive(Default)]
pub(crate) struct AdmissionState {
    fallback_paused_until: Option<Instant>,
    sent_back: AttemptLruSet,
}

/// Where a delivery may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryOrigin {
    /// No other was before it.
    First,
    /// This instance had it and sent it back for want of a permit; elsewhere it may have begun meanwhile.
    SentBack,
    /// Another may have been before it.
    PossibleDuplicate,
}

/// What becomes of a delivery whose turn has come.
pub(crate) enum AdmissionDecision {
    /// It runs.
    Start(Permit),
    /// It is reported as cancelled instead, with this reason.
    Cancelled(String),
    /// It is reported as lost instead, with the instance that claimed it, if that is known.
    Lost(Option<String>),
    /// It does not run here; what to tell the broker.
    Refuse(DeliveryAnswer),
}

/// What to tell the broker about a delivery that does not run here.
pub(crate) enum DeliveryAnswer {
    Ack,
    HandBack,
}

impl Admission {
    /// Where a delivery may come from that the broker, or its sender, says things of.
    ///
    /// The broker marks what this instance sent back itself like everything else that comes again. Were that taken for
    /// a copy, a busy type would ask the server before each start, and could start nothing while Redis is away.
    pub(crate) fn origin(&self, attempt: AttemptKey, is_redelivered: bool, is_republished: bool) -> DeliveryOrigin {
        match (is_republished, is_redelivered) {
            (true, _) => DeliveryOrigin::PossibleDuplicate,
            (false, true) if self.state().sent_back.take(attempt, REDELIVERY_WINDOW) => DeliveryOrigin::SentBack,
            (false, true) => DeliveryOrigin::PossibleDuplicate,
            (false, false) => DeliveryOrigin::First,
        }
    }

    /// Waits for a delivery's turn and claims it. `type_index` is the permit of its job type.
    pub(crate) async fn admit(
        &self,
        type_index: usize,
        message: &JobMessage,
        origin: DeliveryOrigin,
    ) -> AdmissionDecision {
        let priority = message.priority.min(MAX_PRIORITY);
        let mut may_be_a_copy = origin == DeliveryOrigin::PossibleDuplicate;
        let (mut last_lease, mut granted_at): (_, Option<Instant>) = (None, None);
        let is_unguarded = faults::sabotaged("skip_claim");
        loop {
            // Before a permit is waited for, which others could use meanwhile, and before the claim, which would take the
            // place of the one of whoever runs it.
            if may_be_a_copy && !is_unguarded && granted_at.is_none_or(|at| at.elapsed() >= CLAIM_CHECK_VALIDITY) {
                if let Some(verdict) = self.check(message).await {
                    if matches!(verdict, DeliveryAnswer::HandBack) {
                        self.pause(HAND_BACK_DELAY).await;
                    }
                    return AdmissionDecision::Refuse(verdict);
                }
                granted_at = Some(Instant::now());
            }
            let permit = tokio::select! {
                biased;
                permit = self.turn(type_index, priority) => Some(permit),
                () = self.stop.cancelled() => None,
                () = sleep(PERMIT_WAIT) => None,
            };
            // A worker that stops starts nothing, whatever became free; and what has waited long enough may find a free
            // permit in another instance.
            let Some(permit) = permit.filter(|_| !self.stop.is_cancelled()) else {
                if !may_be_a_copy {
                    self.state().sent_back.insert((message.occurrence_id, message.attempt));
                }
                return AdmissionDecision::Refuse(DeliveryAnswer::HandBack);
            };
            match self.claim_batcher.claim((message.occurrence_id, message.attempt)).await {
                Ok(ClaimResult::Granted { cancel: None }) => return AdmissionDecision::Start(permit),
                Ok(ClaimResult::Granted { cancel: Some(text) }) => {
                    let request = CancelRequest::read(&text);
                    return if request.applies_to(message.attempt) {
                        AdmissionDecision::Cancelled(request.reason().to_owned())
                    } else {
                        AdmissionDecision::Start(permit)
                    };
                }
                Ok(_) if is_unguarded => return AdmissionDecision::Start(permit),
                // Somebody else had it in between.
                Ok(_) if origin == DeliveryOrigin::SentBack && !may_be_a_copy => may_be_a_copy = true,
                Ok(ClaimResult::Ended) => {
                    self.log_duplicate(message, "it has ended, or a later attempt was claimed");
                    return AdmissionDecision::Refuse(DeliveryAnswer::Ack);
                }
                Ok(ClaimResult::Held { by, lease }) => {
                    // A copy that came because its holder died must not be dropped: only a renewed lease is a sign of
                    // life, and an unrenewed one ends.
                    let renewed = last_lease.is_some_and(|last| lease > last);
                    if renewed || !may_be_a_copy {
                        self.log_duplicate(message, &format!("{by} runs it"));
                        return AdmissionDecision::Refuse(DeliveryAnswer::Ack);
                    }
                    last_lease = Some(lease);
                    drop(permit);
                    self.pause(CLAIM_RECHECK_INTERVAL).await;
                }
                // Redis does not hear of everybody who lives: the server must have been asked.
                Ok(ClaimResult::Abandoned { .. } | ClaimResult::EndedUnreported) if !may_be_a_copy => {
                    may_be_a_copy = true
                }
                Ok(ClaimResult::Abandoned { by }) => return AdmissionDecision::Lost(Some(by)),
                Ok(ClaimResult::EndedUnreported) => return AdmissionDecision::Lost(None),
                Err(error) if may_be_a_copy && !is_unguarded => {
                    tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "perhaps a copy, and nobody to ask: handed back");
                    drop(permit);
                    // It may be ours without our knowing, and would keep others from it.
                    self.claim_batcher.release((message.occurrence_id, message.attempt));
                    self.pause(HAND_BACK_DELAY).await;
                    return AdmissionDecision::Refuse(DeliveryAnswer::HandBack);
                }
                Err(error) => {
                    if let Some(reason) = self.second_opinion(message).await {
                        self.log_duplicate(message, &reason);
                        return AdmissionDecision::Refuse(DeliveryAnswer::Ack);
                    }
                    tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "starts without a claim");
                    return AdmissionDecision::Start(permit);
                }
            }
        }
    }

    /// Marks an attempt as ended, so that a late copy is dropped.
    pub(crate) fn end(&self, attempt: AttemptKey) {
        self.claim_batcher.end(attempt);
    }

    /// Counts a copy that is dropped, and says why it is.
    pub(crate) fn log_duplicate(&self, message: &JobMessage, reason: &str) {
        self.metrics.duplicate_dropped();
        tracing::info!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            reason,
            "a copy of a message is dropped"
        );
    }

    /// Asks the server about what may be a second copy: Redis may have forgotten the first one. None when it may start,
    /// as far as the server knows.
    async fn check(&self, message: &JobMessage) -> Option<DeliveryAnswer> {
        let asking = self.claim_checker.check((message.occurrence_id, message.attempt));
        tokio::pin!(asking);
        let answer = tokio::select! {
            answer = &mut asking => answer,
            // A worker that stops starts nothing, but what is known to be a copy need not go round again.
            () = self.stop.cancelled() => match timeout(SHUTDOWN_CLAIM_CHECK_TIMEOUT, asking).await {
                Ok(answer) => answer,
                Err(_) => return Some(DeliveryAnswer::HandBack),
            },
        };
        match answer {
            Ok(reply) if reply.granted => self.stop.is_cancelled().then_some(DeliveryAnswer::HandBack),
            Ok(reply) => {
                let reason = reply.reason.map_or("the server denies it", ClaimDenial::describe);
                self.log_duplicate(
                    message,
                    &reply.by.map_or_else(|| reason.to_owned(), |by| format!("{reason}: {by}")),
                );
                Some(DeliveryAnswer::Ack)
            }
            Err(error) => {
                tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "perhaps a copy, and no server to ask: handed back");
                Some(DeliveryAnswer::HandBack)
            }
        }
    }

    /// Why a first copy is not to start that Redis says nothing of; none if it is, or nobody can say. Redis would have
    /// known of a cancellation; without it only the server does.
    async fn second_opinion(&self, message: &JobMessage) -> Option<String> {
        if self.state().fallback_paused_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        match timeout(FALLBACK_CLAIM_CHECK_TIMEOUT, self.claim_checker.check((message.occurrence_id, message.attempt)))
            .await
        {
            Ok(Ok(reply)) if reply.granted => None,
            Ok(Ok(reply)) => Some(reply.reason.map_or("the server denies it", ClaimDenial::describe).to_owned()),
            // Those behind it need not wait for the same silence.
            Ok(Err(_)) | Err(_) => {
                self.state().fallback_paused_until = Some(Instant::now() + FALLBACK_CLAIM_CHECK_PAUSE);
                None
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a run could be remembered and has a permit.
    async fn turn(&self, type_index: usize, priority: u8) -> Permit {
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
