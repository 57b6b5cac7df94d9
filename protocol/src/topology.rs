//! Every exchange, queue and key, in one place.
//!
//! ```text
//!  server ──► milvaion.jobs (topic) ──{worker}.{type}.{occurrence}──► milvaion.jobs.{worker}.{type} ──► worker
//!                                                                           │ rejected
//!                                                                           ▼
//!                                               milvaion.dlx (fanout) ──► milvaion.dlq ──► server
//!
//!  worker ──► milvaion.status, milvaion.logs, milvaion.registration (direct, each with the queue of its name) ──► server
//!  worker ──► milvaion.claims (direct, the same) ──► server ──► the queue the worker named in `reply_to`
//! ```
//!
//! Workers never publish through the default exchange, so that a worker's broker account can be fenced in to the four
//! exchanges it needs. One queue for each worker and job type keeps a slow type from blocking another.

/// The prefix of every exchange and queue, unless configured otherwise.
pub const DEFAULT_BROKER_PREFIX: &str = "milvaion";
/// The prefix of every Redis key, unless configured otherwise.
pub const DEFAULT_REDIS_KEY_PREFIX: &str = "Milvaion:JobScheduler:";
/// Priorities run from 1 to this; it is also the job queues' `x-max-priority`.
pub const MAX_PRIORITY: u8 = 5;

/// Header: which try this is, counted from 0.
pub const HEADER_RETRY_COUNT: &str = "x-retry-count";
/// Header: how many retries there are.
pub const HEADER_MAX_RETRIES: &str = "x-max-retries";
/// Header: the occurrence, also when the message was dead-lettered or copied.
pub const HEADER_CORRELATION_ID: &str = "x-original-correlation-id";
/// Header: set to 1 when the server could not know whether an earlier copy arrived.
pub const HEADER_REPUBLISH: &str = "x-republish";

/// Header: why a worker dead-letters an occurrence's message itself: `permanent`, `exhausted` or `poison`. Without it, a
/// dead letter was rejected: no worker could make anything of it.
pub const HEADER_CAUSE: &str = "x-milvaion-cause";

/// The names on the broker under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    prefix: String,
}

impl Default for Topology {
    fn default() -> Self {
        Self::new(DEFAULT_BROKER_PREFIX)
    }
}

impl Topology {
    /// The names under `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Topic exchange job messages are published to.
    #[must_use]
    pub fn jobs_exchange(&self) -> String {
        format!("{}.jobs", self.prefix)
    }

    /// Fanout exchange rejected job messages go to.
    #[must_use]
    pub fn dead_letter_exchange(&self) -> String {
        format!("{}.dlx", self.prefix)
    }

    /// The dead letters.
    #[must_use]
    pub fn dead_letter_queue(&self) -> String {
        format!("{}.dlq", self.prefix)
    }

    /// Exchange and queue of status reports.
    #[must_use]
    pub fn status(&self) -> String {
        format!("{}.status", self.prefix)
    }

    /// Exchange and queue of log lines.
    #[must_use]
    pub fn logs(&self) -> String {
        format!("{}.logs", self.prefix)
    }

    /// Exchange and queue of registrations and heartbeats.
    #[must_use]
    pub fn registration(&self) -> String {
        format!("{}.registration", self.prefix)
    }

    /// Exchange and queue of questions whether an attempt may start.
    #[must_use]
    pub fn claims(&self) -> String {
        format!("{}.claims", self.prefix)
    }

    /// The queue a worker's job type is consumed from.
    #[must_use]
    pub fn job_queue(&self, worker_id: &str, job_type: &str) -> String {
        format!("{}.jobs.{}.{}", self.prefix, word(worker_id), word(job_type))
    }

    /// What that queue is bound with.
    #[must_use]
    pub fn job_binding(worker_id: &str, job_type: &str) -> String {
        format!("{}.{}.*", word(worker_id), word(job_type))
    }

    /// What one occurrence's message is published with.
    #[must_use]
    pub fn routing_key(worker_id: &str, job_type: &str, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}.{}.{occurrence}", word(worker_id), word(job_type))
    }
}

/// One word of a routing key: lower case, and without the dot that separates words. `_` itself is doubled, so that two
/// names never meet in one word.
fn word(name: &str) -> String {
    name.to_lowercase().replace('_', "__").replace('.', "_d")
}

/// The keys in Redis under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisKeys {
    prefix: String,
}

impl Default for RedisKeys {
    fn default() -> Self {
        Self::new(DEFAULT_REDIS_KEY_PREFIX)
    }
}

impl RedisKeys {
    /// The keys under `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Sorted set of job ids by their next fire time, in unix seconds with a fraction.
    #[must_use]
    pub fn schedule(&self) -> String {
        format!("{}schedule", self.prefix)
    }

    /// Channel on which servers tell each other that the schedule changed.
    #[must_use]
    pub fn wake_channel(&self) -> String {
        format!("{}wake", self.prefix)
    }

    /// Channel on which servers tell each other what browsers should hear.
    #[must_use]
    pub fn events_channel(&self) -> String {
        format!("{}events", self.prefix)
    }

    /// Channel on which workers hear of cancellations.
    #[must_use]
    pub fn cancellation_channel(&self) -> String {
        format!("{}cancellation_channel", self.prefix)
    }

    /// Who holds a role that only one server has at a time.
    #[must_use]
    pub fn lease(&self, role: &str) -> String {
        format!("{}locks:{role}", self.prefix)
    }

    /// Channel on which a server says that it has given such a role back.
    #[must_use]
    pub fn lease_channel(&self, role: &str) -> String {
        format!("{}locks:{role}:free", self.prefix)
    }

    /// A worker instance's sign of life.
    #[must_use]
    pub fn heartbeat(&self, instance_id: &str) -> String {
        format!("{}heartbeat:{instance_id}", self.prefix)
    }

    /// The claim on a running occurrence.
    #[must_use]
    pub fn running(&self, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}running:{occurrence}", self.prefix)
    }

    /// The wish that an occurrence be cancelled, which stays when nobody heard it on the channel.
    #[must_use]
    pub fn cancel_request(&self, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}cancel:{occurrence}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_in_a_name_cannot_reach_another_queue() {
        assert_eq!(Topology::job_binding("Mail.EU", "send"), "mail_deu.send.*");
        assert_ne!(Topology::job_binding("a.b", "c"), Topology::job_binding("a", "b.c"));
        assert_ne!(Topology::job_binding("a_d", "c"), Topology::job_binding("a.", "c"));
    }

    #[test]
    fn names_carry_the_prefix() {
        let topology = Topology::new("t1");
        assert_eq!(topology.job_queue("w", "http-request"), "t1.jobs.w.http-request");
        assert_eq!(topology.status(), "t1.status");
    }
}
