//! The names of all exchanges, queues and Redis keys.
//!
//! ```text
//!  server ──► milvaion.jobs (topic) ──{worker}.{type}.{occurrence}──► milvaion.jobs.{worker}.{type} ──► worker
//!                                                                           │ rejected
//!                                                                           ▼
//!                                               milvaion.dlx (fanout) ──► milvaion.dlq ──► server
//!
//!  server ──► milvaion.jobs ──{worker}.{type}.{occurrence}.critical──► milvaion.jobs.{worker}.{type}.critical ──► worker
//!
//!  worker ──► milvaion.status, milvaion.logs, milvaion.registration (direct, queues of the same names) ──► server
//!  worker ──► milvaion.claims (direct, queue of the same name) ──► server ──► the queue named in `reply_to`
//!  worker or program ──► milvaion.ingest (direct, queue of the same name) ──► server ──► the queue named in `reply_to`
//! ```
//!
//! Workers never publish through the default exchange, so that the broker account of a worker can be restricted to the
//! five exchanges that it needs. Each pair of worker and job type has a queue, so that a slow job type does not block
//! another. It has a second one for critical runs while an instance reserves slots for them; that instance declares it.

/// The default prefix of every exchange and queue.
pub const DEFAULT_BROKER_PREFIX: &str = "milvaion";
/// The default prefix of every Redis key.
pub const DEFAULT_REDIS_KEY_PREFIX: &str = "Milvaion:JobScheduler:";
/// The highest priority; priorities start at 1. It is also the `x-max-priority` of the job queues.
pub const MAX_PRIORITY: u8 = 5;

/// The maximum length of a worker id and a job type together, in bytes, as they are encoded in names on the broker: `_`
/// and `.` count twice. With it, the names of their queues under a prefix of 50 bytes and the routing keys are within the
/// 255 bytes that AMQP allows.
pub const MAX_TARGET_BYTES: usize = 189;

/// Header: the number of failed attempts before this one.
pub const HEADER_RETRY_COUNT: &str = "x-retry-count";
/// Header: the maximum number of retries.
pub const HEADER_MAX_RETRIES: &str = "x-max-retries";
/// Header: the occurrence, kept when the message is republished or dead-lettered.
pub const HEADER_CORRELATION_ID: &str = "x-original-correlation-id";
/// Header: 1 if the server cannot tell whether an earlier copy was delivered.
pub const HEADER_REPUBLISH: &str = "x-republish";

/// Header: the reason why a worker dead-letters an occurrence's message: `permanent`, `exhausted` or `poison`. Without
/// it the dead letter was rejected, because no worker could read it.
pub const HEADER_CAUSE: &str = "x-milvaion-cause";

/// The AMQP property `type` of a job message that is a [bundle](crate::message::JobBundle). Other job messages have none.
pub const BUNDLE_TYPE: &str = "bundle";

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
    /// Builds the names under `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Returns the topic exchange for job messages.
    #[must_use]
    pub fn jobs_exchange(&self) -> String {
        format!("{}.jobs", self.prefix)
    }

    /// Returns the fanout exchange for rejected job messages.
    #[must_use]
    pub fn dead_letter_exchange(&self) -> String {
        format!("{}.dlx", self.prefix)
    }

    /// Returns the queue of dead letters.
    #[must_use]
    pub fn dead_letter_queue(&self) -> String {
        format!("{}.dlq", self.prefix)
    }

    /// Returns the exchange and the queue of status reports, which have one name.
    #[must_use]
    pub fn status(&self) -> String {
        format!("{}.status", self.prefix)
    }

    /// Returns the exchange and the queue of log lines, which have one name.
    #[must_use]
    pub fn logs(&self) -> String {
        format!("{}.logs", self.prefix)
    }

    /// Returns the exchange and the queue of registrations and heartbeats, which have one name.
    #[must_use]
    pub fn registration(&self) -> String {
        format!("{}.registration", self.prefix)
    }

    /// Returns the exchange and the queue of claim checks, which have one name.
    #[must_use]
    pub fn claims(&self) -> String {
        format!("{}.claims", self.prefix)
    }

    /// Returns the exchange and the queue of new occurrences, which have one name.
    #[must_use]
    pub fn ingest(&self) -> String {
        format!("{}.ingest", self.prefix)
    }

    /// Returns the queue that instances of a worker consume for a job type.
    #[must_use]
    pub fn job_queue(&self, worker_id: &str, job_type: &str) -> String {
        format!("{}.jobs.{}.{}", self.prefix, word(worker_id), word(job_type))
    }

    /// Returns true if the names for this pair are within [`MAX_TARGET_BYTES`].
    #[must_use]
    pub fn fits(worker_id: &str, job_type: &str) -> bool {
        word(worker_id).len() + word(job_type).len() <= MAX_TARGET_BYTES
    }

    /// Returns the binding key of that queue.
    #[must_use]
    pub fn job_binding(worker_id: &str, job_type: &str) -> String {
        format!("{}.{}.*", word(worker_id), word(job_type))
    }

    /// Returns the routing key of an occurrence's message.
    #[must_use]
    pub fn routing_key(worker_id: &str, job_type: &str, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}.{}.{occurrence}", word(worker_id), word(job_type))
    }

    /// Returns the queue that instances with reserved slots consume for the critical runs of a job type: those of
    /// [`MAX_PRIORITY`]. It has the arguments of the job queue.
    #[must_use]
    pub fn critical_queue(&self, worker_id: &str, job_type: &str) -> String {
        format!("{}.critical", self.job_queue(worker_id, job_type))
    }

    /// Returns the binding key of that queue. It has a word more than [`job_binding`](Self::job_binding), so no message
    /// reaches both queues.
    #[must_use]
    pub fn critical_binding(worker_id: &str, job_type: &str) -> String {
        format!("{}.critical", Self::job_binding(worker_id, job_type))
    }

    /// Returns the routing key of an occurrence's message to that queue.
    #[must_use]
    pub fn critical_routing_key(worker_id: &str, job_type: &str, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}.critical", Self::routing_key(worker_id, job_type, occurrence))
    }
}

/// Returns true if a name has 1 to `max` letters, digits, `-`, `_` and `.`, as worker ids, job types, prefixes and singleton
/// loops must.
#[must_use]
pub fn is_valid_name(name: &str, max: usize) -> bool {
    (1..=max).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Encodes a name as one word of a routing key: lower case, without the dot that separates words. `_` is doubled, so
/// that two names never have the same encoding.
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
    /// Builds the keys under `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Returns the sorted set of job ids by their next due time, in Unix seconds with a fraction.
    #[must_use]
    pub fn schedule(&self) -> String {
        format!("{}schedule", self.prefix)
    }

    /// Returns the channel on which a server announces to the others that the schedule has changed.
    #[must_use]
    pub fn wake_channel(&self) -> String {
        format!("{}wake", self.prefix)
    }

    /// Returns the channel on which servers exchange the live events for browsers.
    #[must_use]
    pub fn events_channel(&self) -> String {
        format!("{}events", self.prefix)
    }

    /// Returns the channel on which workers receive cancellations.
    #[must_use]
    pub fn cancellation_channel(&self) -> String {
        format!("{}cancellation_channel", self.prefix)
    }

    /// Returns the key of the lease for a role that one server has at a time.
    #[must_use]
    pub fn lease(&self, role: &str) -> String {
        format!("{}locks:{role}", self.prefix)
    }

    /// Returns the channel on which a server announces that it has released the lease of a role.
    #[must_use]
    pub fn lease_channel(&self, role: &str) -> String {
        format!("{}locks:{role}:free", self.prefix)
    }

    /// Returns the key of an instance's heartbeat.
    #[must_use]
    pub fn heartbeat(&self, instance_id: &str) -> String {
        format!("{}heartbeat:{instance_id}", self.prefix)
    }

    /// Returns the key of the claim on a running occurrence.
    #[must_use]
    pub fn running(&self, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}running:{occurrence}", self.prefix)
    }

    /// Returns the key by which the server revokes a run from its worker. Its value is the first attempt that may run.
    #[must_use]
    pub fn revocation(&self, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}revoke:{occurrence}", self.prefix)
    }

    /// Returns the key by which a server notices that Redis has lost data since it looked last.
    #[must_use]
    pub fn sight(&self, detector: &str) -> String {
        format!("{}sight:{detector}", self.prefix)
    }

    /// Returns the key of the time since when this Redis remembers claims and cancel requests, in milliseconds since 1970.
    /// It does not expire, so it is missing if Redis has lost its data.
    #[must_use]
    pub fn claims_since(&self) -> String {
        format!("{}claims_since", self.prefix)
    }

    /// Returns the key that contains the run id of the Redis that the servers saw last.
    #[must_use]
    pub fn claims_run(&self) -> String {
        format!("{}claims_run", self.prefix)
    }

    /// Returns the key of the lease of a singleton loop. Its value is `{instance}:{epoch}`.
    #[must_use]
    pub fn singleton_lease(&self, name: &str) -> String {
        self.lease(&format!("singleton:{name}"))
    }

    /// Returns the key of the highest epoch of a singleton loop. It does not expire.
    #[must_use]
    pub fn singleton_epoch(&self, name: &str) -> String {
        format!("{}singleton:{name}:epoch", self.prefix)
    }

    /// Returns the hash in which the leader of a singleton loop publishes its state.
    #[must_use]
    pub fn singleton_state(&self, name: &str) -> String {
        format!("{}singleton:{name}", self.prefix)
    }

    /// Returns the key that disables a singleton loop while it exists, whatever its value.
    #[must_use]
    pub fn singleton_disabled(&self, name: &str) -> String {
        format!("{}singleton:{name}:disabled", self.prefix)
    }

    /// Returns the key that asks the instance in its value to hand a singleton loop over to another one.
    #[must_use]
    pub fn singleton_yield(&self, name: &str) -> String {
        format!("{}singleton:{name}:yield", self.prefix)
    }

    /// Returns the sorted set of the instances that offer a singleton loop, by the time of their last heartbeat in
    /// milliseconds since 1970.
    #[must_use]
    pub fn singleton_instances(&self, name: &str) -> String {
        format!("{}singleton:{name}:instances", self.prefix)
    }

    /// Returns the sorted set of the names of all singleton loops, by the time of the last heartbeat of any instance in
    /// milliseconds since 1970.
    #[must_use]
    pub fn singletons(&self) -> String {
        format!("{}singletons", self.prefix)
    }

    /// Returns the channel on which the name of a singleton loop is published when its lease was released, or when it was
    /// enabled, disabled or asked to yield. Its instances send a heartbeat at once.
    #[must_use]
    pub fn singleton_channel(&self) -> String {
        format!("{}singleton_channel", self.prefix)
    }

    /// Returns the key of a cancellation request, which persists if no worker received it on the channel.
    #[must_use]
    pub fn cancel_request(&self, occurrence: crate::id::OccurrenceId) -> String {
        format!("{}cancel:{occurrence}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_in_a_name_does_not_reach_another_queue() {
        assert_eq!(Topology::job_binding("Mail.EU", "send"), "mail_deu.send.*");
        assert_ne!(Topology::job_binding("a.b", "c"), Topology::job_binding("a", "b.c"));
        assert_ne!(Topology::job_binding("a_d", "c"), Topology::job_binding("a.", "c"));
    }

    #[test]
    fn names_have_letters_digits_and_three_signs() {
        assert!(is_valid_name("mail.EU-1_b", 11));
        for name in ["", "mail.EU-1_bb", "a b", "a/b", "ä"] {
            assert!(!is_valid_name(name, 11), "{name:?}");
        }
    }

    #[test]
    fn names_within_the_limit_fit_the_broker() {
        let longest = "a".repeat(MAX_TARGET_BYTES - 100);
        let worker = "w".repeat(100);
        assert!(Topology::fits(&worker, &longest));
        assert!(!Topology::fits(&worker, &format!("{longest}a")));
        assert!(!Topology::fits(&worker, &longest.replacen('a', ".", 1)), "a dot counts twice");
        assert!(Topology::new("p".repeat(50)).critical_queue(&worker, &longest).len() <= 255);
        assert!(Topology::critical_routing_key(&worker, &longest, crate::id::OccurrenceId::default()).len() <= 255);
    }

    #[test]
    fn names_have_the_prefix() {
        let topology = Topology::new("t1");
        assert_eq!(topology.job_queue("w", "http-request"), "t1.jobs.w.http-request");
        assert_eq!(topology.status(), "t1.status");
    }
}
