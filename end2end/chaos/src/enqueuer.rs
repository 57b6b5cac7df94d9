//! A program outside the workers that enqueues occurrences through the client crate, over the broker, and records each
//! of them.
//!
//! The client publishes through a link of its own. What it does not get confirmed or answered, it enqueues again with
//! the same ids, as its error demands. So every occurrence is confirmed in the end, and the checker demands each of them
//! exactly once.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use milvaion_client::{BrokerClient, Enqueue, EnqueueError};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{IngestOutcome, NewOccurrence},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    evidence::{EvidenceWriter, now},
    workload::WORKER_ID,
    workload_driver::RequestLoop,
};

/// The job type of the occurrences.
const JOB_TYPE: &str = "quick";
/// The duration of their runs in milliseconds: short, so that thousands of them end soon.
const RUN_MS: u64 = 20;
/// The number of times that the same occurrences are enqueued; the client itself repeats each for 30 s.
const MAX_ENQUEUE_ATTEMPTS: usize = 5;
/// The number of occurrences in each message of a loop.
const LOOP_BATCH: usize = 5;

/// What a program waits for before an occurrence counts as enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The confirm of the broker.
    Confirm,
    /// The answer of a server.
    Answer,
}

/// The program. Clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct Enqueuer {
    client: BrokerClient,
    evidence: Arc<EvidenceWriter>,
}

impl Enqueuer {
    /// Creates a client of the broker at `amqp_url`.
    pub(crate) fn new(amqp_url: &str, prefix: &str, evidence: Arc<EvidenceWriter>) -> anyhow::Result<Self> {
        Ok(Self { client: BrokerClient::new(amqp_url, prefix)?.with_producer("client-1"), evidence })
    }

    /// Returns new occurrences. The first is the parent of the others, and every tenth is delayed.
    pub(crate) fn occurrences(count: usize, delay: Duration) -> anyhow::Result<Vec<NewOccurrence>> {
        let mut parent: Option<OccurrenceId> = None;
        let mut occurrences = Vec::with_capacity(count);
        for number in 1..=count {
            let mut one = Enqueue::job_type(WORKER_ID, JOB_TYPE).input(json!({ "milliseconds": RUN_MS }));
            if let Some(parent) = parent {
                one = one.parent(parent);
            }
            if number % 10 == 0 {
                one = one.after(delay);
            }
            let one = one.build()?;
            parent = parent.or(Some(one.id));
            occurrences.push(one);
        }
        Ok(occurrences)
    }

    /// Enqueues occurrences until all of them are confirmed or answered. Records each with its outcome.
    pub(crate) async fn enqueue(&self, occurrences: Vec<NewOccurrence>, awaited: Awaited) -> anyhow::Result<()> {
        let mut last = None;
        for _ in 0..MAX_ENQUEUE_ATTEMPTS {
            let invoked = now();
            let outcome = match awaited {
                Awaited::Confirm => self.client.publish(occurrences.clone()).await.map(|()| None),
                Awaited::Answer => self.client.enqueue(occurrences.clone()).await.map(Some),
            };
            match outcome {
                Ok(results) => {
                    for (number, occurrence) in occurrences.iter().enumerate() {
                        let result = results.as_ref().and_then(|results| results.get(number));
                        let is_refused = result.is_some_and(|result| result.outcome != IngestOutcome::Accepted);
                        let detail = result.and_then(|result| result.reason.clone());
                        self.record(occurrence, invoked, if is_refused { "refused" } else { "ok" }, detail);
                    }
                    return Ok(());
                }
                // Those that were answered are enqueued again with the others; the server creates each id once.
                Err(EnqueueError::Unanswered(unanswered)) => {
                    for occurrence in &occurrences {
                        self.record(occurrence, invoked, "unknown", Some(unanswered.reason.clone()));
                    }
                    last = Some(unanswered.reason);
                }
                Err(error) => bail!("occurrences cannot be enqueued: {error}"),
            }
        }
        bail!("{} occurrences have no answer: {}", occurrences.len(), last.unwrap_or_default())
    }

    /// Starts a task that enqueues some occurrences each `period` and waits for the answer, until `stop` is cancelled.
    pub(crate) fn spawn_loop(&self, period: Duration, stop: &CancellationToken) -> RequestLoop {
        let (enqueuer, until) = (self.clone(), stop.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = until.cancelled() => return,
                    () = tokio::time::sleep(period) => {}
                }
                let occurrences = Self::occurrences(LOOP_BATCH, Duration::ZERO).expect("the occurrences are valid");
                // Without an answer they are recorded as unknown, and the checker accepts both.
                let _ = enqueuer.enqueue(occurrences, Awaited::Answer).await;
            }
        })
    }

    fn record(&self, occurrence: &NewOccurrence, invoked: i64, outcome: &str, detail: Option<String>) {
        let line = json!({
            "op": "enqueue", "job": null, "occurrence": occurrence.id, "key": null, "invoked": invoked,
            "returned": if outcome == "unknown" { Value::Null } else { now().into() }, "outcome": outcome,
            "parent": occurrence.parent_id, "not_before": occurrence.not_before.map(|at| at.timestamp_micros()),
            "detail": detail,
        });
        self.evidence.append("ops.jsonl", &line);
    }
}
