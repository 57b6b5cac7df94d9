//! The path from a broker delivery to the start of at most one run, and to the acknowledgement of the delivery.
//!
//! Everything that decides whether a delivery runs, when it runs, and how the broker is answered belongs here:
//! consumers, duplicate detection, claims in Redis, concurrency limits and acknowledgements. The execution of the run
//! itself is in [`run`](crate::run), and the confirmation of its reports in [`reporting`](crate::reporting).
//!
//! | File | Content |
//! |---|---|
//! | [`consumer`] | One consumer per queue, and the handling of each delivery |
//! | [`reading`] | The messages of deliveries: single ones and bundles |
//! | [`admission`] | The checks that a delivery passes before it may run |
//! | [`run_ack`] | The answer about one run, also for those that share a message |
//! | [`run_table`] | The attempts of this process; drops duplicates within the process |
//! | [`claim`] | Claims in Redis; drop duplicates between processes |
//! | [`claim_batcher`] | Claims and ends of many deliveries in one round trip |
//! | [`claim_check`] | The claim check: a request to the server whether a possible duplicate may start |
//! | [`permits`] | The priority semaphore: concurrency limit per job type, capacity of the worker, reserved slots |
//! | [`cancel_request`] | The format of a cancel request in Redis |
//! | [`acks`] | Acknowledgements of many deliveries in one frame |
//! | [`lru_set`] | The attempts that ended or were returned most recently |
//! | [`watchdog`] | Detection of consumers that receive nothing although messages wait |

pub(crate) mod acks;
pub(crate) mod admission;
pub(crate) mod cancel_request;
pub(crate) mod claim;
pub(crate) mod claim_batcher;
pub(crate) mod claim_check;
pub(crate) mod consumer;
pub(crate) mod lru_set;
pub(crate) mod permits;
pub(crate) mod reading;
pub(crate) mod refused_queues;
pub(crate) mod run_ack;
pub(crate) mod run_table;
pub(crate) mod watchdog;
