//! Claims and ends of many deliveries, settled together.
//!
//! Each occurrence needs Redis twice, before it starts and after it ended. Asking for each alone costs a round trip's
//! worth of system calls and wake-ups, which is more than a short job costs itself. The clerk therefore works as group
//! commits do: one round trip is under way at a time, and what comes meanwhile makes the next. A claim that comes alone
//! goes out at once; one that comes among thousands waits for the round trip under way, less than a millisecond.
//!
//! When Redis is silent, the round trip under way is given up after a second, with all in it; what came meanwhile has a
//! second of its own. A claim is thus answered within two.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};

use crate::claim::{Answer, Attempt, Claims, Unreachable};

/// The most deliveries in one round trip; more would hold up Redis for everybody else.
const BATCH: usize = 256;

enum Ask {
    Claim(Attempt, oneshot::Sender<Result<Answer, Unreachable>>),
    End(Attempt),
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
    while asks.recv_many(&mut batch, BATCH).await > 0 {
        let (mut wanted, mut ended, mut waiting, mut flushes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ask in batch.drain(..) {
            match ask {
                Ask::Claim(attempt, answer) => {
                    wanted.push(attempt);
                    waiting.push(answer);
                }
                Ask::End(attempt) => ended.push(attempt),
                Ask::Flush(done) => flushes.push(done),
            }
        }
        if !wanted.is_empty() || !ended.is_empty() {
            settle(&claims, &wanted, &ended, waiting).await;
        }
        // All that came before a flush is in its batch or in an earlier one. Nobody may be waiting any more.
        for done in flushes {
            let _ = done.send(());
        }
    }
}

async fn settle(
    claims: &Claims,
    wanted: &[Attempt],
    ended: &[Attempt],
    waiting: Vec<oneshot::Sender<Result<Answer, Unreachable>>>,
) {
    match claims.settle(wanted, ended).await {
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
