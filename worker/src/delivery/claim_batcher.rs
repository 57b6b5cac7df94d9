//! Settles the claims and ends of many deliveries together.
//!
//! Each occurrence needs Redis twice: before it starts and after it has ended. A separate round trip for each would
//! cost more in system calls and wake-ups than a short job costs itself. The batcher therefore works like a group
//! commit: one round trip is in flight at a time, and operations that arrive in the meantime form the next one. A
//! single claim is sent at once. A claim among thousands waits for the round trip in flight, less than a millisecond.
//!
//! Later batches do not wait for a slow round trip. If Redis is unavailable, each claim must fail after the same
//! second, and not after a second for every batch before its own.

use std::{future::Future, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

use crate::{
    delivery::claim::{AttemptKey, ClaimRequest, ClaimResult, ClaimStore},
    net::redis::RedisUnavailable,
};

/// Maximum number of operations in one round trip. More would block Redis for its other clients.
const MAX_CLAIM_BATCH: usize = 256;

/// Time after which the next round trip starts in parallel to a slow one.
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(20);

enum ClaimOperation {
    Claim(ClaimRequest, oneshot::Sender<Result<ClaimResult, RedisUnavailable>>),
    End(AttemptKey),
    Release(AttemptKey),
    Flush(oneshot::Sender<()>),
}

/// A handle that queues claims and ends for the batching task.
pub(crate) struct ClaimBatcher(mpsc::UnboundedSender<ClaimOperation>);

impl ClaimBatcher {
    /// Creates the handle and the batching task, which ends when the handle is dropped.
    pub(crate) fn new(claims: ClaimStore) -> (Self, impl Future<Output = ()>) {
        // Unbounded, because there are no more operations than deliveries, which the prefetch bounds.
        let (sender, operations) = mpsc::unbounded_channel();
        (Self(sender), run(claims, operations))
    }

    /// Claims an attempt.
    ///
    /// # Errors
    /// Returns [`RedisUnavailable`] if Redis does not answer. The claim may or may not have been written.
    pub(crate) async fn claim(&self, claim: ClaimRequest) -> Result<ClaimResult, RedisUnavailable> {
        let (sender, answer) = oneshot::channel();
        let _ = self.0.send(ClaimOperation::Claim(claim, sender));
        answer.await.unwrap_or(Err(RedisUnavailable::Timeout))
    }

    /// Marks an attempt as ended, so that a late duplicate is dropped. Does not wait for the mark: without it the lease
    /// expires, and the server detects a late duplicate.
    pub(crate) fn end(&self, attempt: AttemptKey) {
        let _ = self.0.send(ClaimOperation::End(attempt));
    }

    /// Releases a claim if this instance holds it. Does not wait for the release.
    pub(crate) fn release(&self, attempt: AttemptKey) {
        let _ = self.0.send(ClaimOperation::Release(attempt));
    }

    /// Waits until all earlier operations have been settled or have failed.
    pub(crate) async fn flush(&self) {
        let (sender, done) = oneshot::channel();
        if self.0.send(ClaimOperation::Flush(sender)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn run(claims: ClaimStore, mut operations: mpsc::UnboundedReceiver<ClaimOperation>) {
    let mut batch = Vec::with_capacity(MAX_CLAIM_BATCH);
    let mut slow = JoinSet::new();
    while operations.recv_many(&mut batch, MAX_CLAIM_BATCH).await > 0 {
        let (mut requested, mut ended, mut callers, mut flushes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for operation in batch.drain(..) {
            match operation {
                ClaimOperation::Claim(claim, caller) => {
                    requested.push(claim);
                    callers.push(caller);
                }
                ClaimOperation::End(attempt) => ended.push(attempt),
                ClaimOperation::Release(attempt) => {
                    let claims = claims.clone();
                    slow.spawn(async move { claims.release(attempt).await });
                }
                ClaimOperation::Flush(done) => flushes.push(done),
            }
        }
        if !requested.is_empty() || !ended.is_empty() {
            let mut settling = Box::pin(settle(claims.clone(), requested, ended, callers));
            if timeout(SLOW_ROUND_TRIP, &mut settling).await.is_err() {
                slow.spawn(settling);
            }
        }
        while slow.try_join_next().is_some() {}
        // Operations before a flush are in the same batch or in an earlier one.
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
    requested: Vec<ClaimRequest>,
    ended: Vec<AttemptKey>,
    callers: Vec<oneshot::Sender<Result<ClaimResult, RedisUnavailable>>>,
) {
    match claims.settle(&requested, &ended).await {
        Ok(results) => {
            for (result, caller) in results.into_iter().zip(callers) {
                let _ = caller.send(Ok(result));
            }
        }
        Err(error) => {
            if !ended.is_empty() {
                tracing::warn!(
                    occurrences = ended.len(),
                    error = %error,
                    "cannot mark {} occurrences as ended in Redis; their claims expire with the lease", ended.len()
                );
            }
            for caller in callers {
                let _ = caller.send(Err(error.clone()));
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
    async fn later_batches_do_not_wait_for_unavailable_redis() {
        // No server listens on this port.
        let claims = ClaimStore::new("redis://127.0.0.1:1/0", RedisKeys::default(), "w-1").expect("a valid address");
        let (claim_batcher, batching) = ClaimBatcher::new(claims);
        tokio::spawn(batching);
        let attempt = (OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]), 1);
        let since = Instant::now();
        // Four round trips of other operations, each of which fails after a second.
        for _ in 0..4 * MAX_CLAIM_BATCH {
            claim_batcher.end(attempt);
        }
        let claim = ClaimRequest { attempt, may_be_duplicate: false };
        assert!(claim_batcher.claim(claim).await.is_err());
        assert!(since.elapsed() < Duration::from_secs(3), "answered after {:?}", since.elapsed());
        claim_batcher.flush().await;
        assert!(since.elapsed() < Duration::from_secs(3), "flushed after {:?}", since.elapsed());
    }
}
