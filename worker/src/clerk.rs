//! Claims and ends of many deliveries, settled together.
//!
//! Each occurrence needs Redis twice, before it starts and after it ended. Asking for each alone costs a round trip's
//! worth of system calls and wake-ups, which is more than a short job costs itself. The clerk therefore works as group
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

use crate::claim::{Answer, Attempt, Claims, Unreachable};

/// The most deliveries in one round trip; more would hold up Redis for everybody else.
const BATCH: usize = 256;

/// How long a round trip may take before the next one begins beside it.
const SLOW: Duration = Duration::from_millis(20);

enum Ask {
    Claim(Attempt, oneshot::Sender<Result<Answer, Unreachable>>),
    End(Attempt),
    Release(Attempt),
    Flush(oneshot::Sender<()>),
}

/// The counter deliveries come to.
pub(crate) struct Clerk(mpsc::UnboundedSender<Ask>);

impl Clerk {
    /// The counter, and the task behind it, which ends with the counter.
    pub(crate) fn new(claims: Claims) -> (Self, impl Future<Output = ()>) {
        // Unbounded, because there are no more asks than deliveries, and those are bounded by the prefetch.
        let (sender, asks) = mpsc::unbounded_channel();
        (Self(sender), work(claims, asks))
    }

    /// Claims an attempt.
    ///
    /// # Errors
    /// When Redis does not answer. The claim may then be ours or not.
    pub(crate) async fn claim(&self, attempt: Attempt) -> Result<Answer, Unreachable> {
        let (sender, answer) = oneshot::channel();
        let _ = self.0.send(Ask::Claim(attempt, sender));
        answer.await.unwrap_or(Err(Unreachable::Silent))
    }

    /// Marks an attempt as ended, so that a late copy is dropped. Nobody waits for it: without the mark the lease runs
    /// out, and a late copy is recognised by the server.
    pub(crate) fn end(&self, attempt: Attempt) {
        let _ = self.0.send(Ask::End(attempt));
    }

    /// Gives a claim back, if it is ours. Nobody waits for it.
    pub(crate) fn release(&self, attempt: Attempt) {
        let _ = self.0.send(Ask::Release(attempt));
    }

    /// Waits until everything asked so far has been settled or given up.
    pub(crate) async fn flush(&self) {
        let (sender, done) = oneshot::channel();
        if self.0.send(Ask::Flush(sender)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn work(claims: Claims, mut asks: mpsc::UnboundedReceiver<Ask>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut slow = JoinSet::new();
    while asks.recv_many(&mut batch, BATCH).await > 0 {
        let (mut wanted, mut ended, mut waiting, mut flushes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ask in batch.drain(..) {
            match ask {
                Ask::Claim(attempt, answer) => {
                    wanted.push(attempt);
                    waiting.push(answer);
                }
                Ask::End(attempt) => ended.push(attempt),
                Ask::Release(attempt) => {
                    let claims = claims.clone();
                    slow.spawn(async move { claims.release(attempt).await });
                }
                Ask::Flush(done) => flushes.push(done),
            }
        }
        if !wanted.is_empty() || !ended.is_empty() {
            let mut settling = Box::pin(settle(claims.clone(), wanted, ended, waiting));
            if timeout(SLOW, &mut settling).await.is_err() {
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
    claims: Claims,
    wanted: Vec<Attempt>,
    ended: Vec<Attempt>,
    waiting: Vec<oneshot::Sender<Result<Answer, Unreachable>>>,
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
    use milvaion_protocol::{id::OccurrenceId, topology::Keys};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn behind_a_silent_redis_nobody_waits_for_those_before() {
        // Nothing listens there.
        let claims = Claims::new("redis://127.0.0.1:1/0", Keys::default(), "w-1").expect("a valid address");
        let (clerk, at_work) = Clerk::new(claims);
        tokio::spawn(at_work);
        let attempt = (OccurrenceId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]), 1);
        let since = Instant::now();
        // Four round trips' worth of others; each is given up after a second.
        for _ in 0..4 * BATCH {
            clerk.end(attempt);
        }
        assert!(clerk.claim(attempt).await.is_err());
        assert!(since.elapsed() < Duration::from_secs(3), "answered after {:?}", since.elapsed());
        clerk.flush().await;
        assert!(since.elapsed() < Duration::from_secs(3), "flushed after {:?}", since.elapsed());
    }
}
