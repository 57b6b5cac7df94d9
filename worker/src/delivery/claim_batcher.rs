//! Claims and ends of many deliveries, settled together.
//!
//! Each occurrence needs Redis twice, before it starts and after it ended. Asking for each alone costs a round trip's
//! worth of system calls and wake-ups, which is more than a short job costs itself. The claim_batcher therefore works as group
//! commits do: one round trip is under way at a time, and what comes meanwhile makes the next. A claim that comes alone
//! goes out at once; one that comes among thousands waits for the round trip under way, less than a millisecond.
//!
//! A round trip that takes long is not waited for by those behind it: when Redis is away, each claim must have its
//! answer, that there is none, after the same second, and not after a second for every batch before its own.

use std::{future::Future, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

use crate::delivery::claim::{AttemptKey, ClaimResult, ClaimStore, RedisUnavailable};

/// The most deliveries in one round trip; more would hold up Redis for everybody else.
const MAX_CLAIM_BATCH: usize = 256;

/// How long a round trip may take before the next one begins beside it.
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(20);

enum ClaimOperation {
    Claim(AttemptKey, oneshot::Sender<Result<ClaimResult, RedisUnavailable>>),
    End(AttemptKey),
    Release(AttemptKey),
    Flush(oneshot::Sender<()>),
}

/// The counter deliveries come to.
pub(crate) struct ClaimBatcher(mpsc::UnboundedSender<ClaimOperation>);

impl ClaimBatcher {
    /// The counter, and the task behind it, which ends with the counter.
    pub(crate) fn new(claims: ClaimStore) -> (Self, impl Future<Output = ()>) {
        // Unbounded, because there are no more operations than deliveries, and those are bounded by the prefetch.
        let (sender, operations) = mpsc::unbounded_channel();
        (Self(sender), work(claims, operations))
    }

    /// Claims an attempt.
    ///
    /// # Errors
    /// When Redis does not answer. The claim may then be ours or not.
    pub(crate) async fn claim(&self, attempt: AttemptKey) -> Result<ClaimResult, RedisUnavailable> {
        let (sender, answer) = oneshot::channel();
        let _ = self.0.send(ClaimOperation::Claim(attempt, sender));
        answer.await.unwrap_or(Err(RedisUnavailable::Timeout))
    }

    /// Marks an attempt as ended, so that a late copy is dropped. Nobody waits for it: without the mark the lease runs
    /// out, and a late copy is recognised by the server.
    pub(crate) fn end(&self, attempt: AttemptKey) {
        let _ = self.0.send(ClaimOperation::End(attempt));
    }

    /// Gives a claim back, if it is ours. Nobody waits for it.
    pub(crate) fn release(&self, attempt: AttemptKey) {
        let _ = self.0.send(ClaimOperation::Release(attempt));
    }

    /// Waits until everything asked so far has been settled or given up.
    pub(crate) async fn flush(&self) {
        let (sender, done) = oneshot::channel();
        if self.0.send(ClaimOperation::Flush(sender)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn work(claims: ClaimStore, mut operations: mpsc::UnboundedReceiver<ClaimOperation>) {
    let mut batch = Vec::with_capacity(MAX_CLAIM_BATCH);
    let mut slow = JoinSet::new();
    while operations.recv_many(&mut batch, MAX_CLAIM_BATCH).await > 0 {
        let (mut wanted, mut ended, mut waiting, mut flushes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for operation in batch.drain(..) {
            match operation {
                ClaimOperation::Claim(attempt, answer) => {
                    wanted.push(attempt);
                    waiting.push(answer);
                }
                ClaimOperation::End(attempt) => ended.push(attempt),
                ClaimOperation::Release(attempt) => {
                    let claims = claims.clone();
                    slow.spawn(async move { claims.release(attempt).await });
                }
                ClaimOperation::Flush(done) => flushes.push(done),
            }
        }
        if !wanted.is_empty() || !ended.is_empty() {
            let mut settling = Box::pin(settle(claims.clone(), wanted, ended, waiting));
            if timeout(SLOW_ROUND_TRIP, &mut settling).await.is_err() {
                slow.spawn(settling);
            }
        }
        while slow.try_join_next().is_some() {}
        // All that came before a flush is in its batch or in an earlier one.
        if !flushes.is_empty() {
            while slow.join_next().await.is_some() {}
        }
        for done in flushes {
            let _ = done.send(());
        }
    }
}

async fn settle(
    claims: ClaimStore,
    wanted: Vec<AttemptKey>,
    ended: Vec<AttemptKey>,
    waiting: Vec<oneshot::Sender<Result<ClaimResult, RedisUnavailable>>>,
) {
    match claims.settle(&wanted, &ended).await {
        Ok(answers) => {
            for (answer, waiting) in answers.into_iter().zip(waiting) {
                let _ = waiting.send(Ok(answer));
            }
        }
        Err(error) => {
            if !ended.is_empty() {
                tracing::warn!(occurrences = ended.len(), error = %error, "ends could not be noted in Redis");
            }
            for waiting in waiting {
                let _ = waiting.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::{id::OccurrenceId, topology::RedisKeys};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn behind_a_silent_redis_nobody_waits_for_those_before() {
        // Nothing listens there.
        let claims = ClaimStore::new("redis://127.0.0.1:1/0", RedisKeys::default(), "w-1").expect("a valid address");
        let (claim_batcher, at_work) = ClaimBatcher::new(claims);
        tokio::spawn(at_work);
        let attempt = (OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]), 1);
        let since = Instant::now();
        // Four round trips' worth of others; each is given up after a second.
        for _ in 0..4 * MAX_CLAIM_BATCH {
            claim_batcher.end(attempt);
        }
        assert!(claim_batcher.claim(attempt).await.is_err());
        assert!(since.elapsed() < Duration::from_secs(3), "answered after {:?}", since.elapsed());
        claim_batcher.flush().await;
        assert!(since.elapsed() < Duration::from_secs(3), "flushed after {:?}", since.elapsed());
    }
}
