//! From a broker delivery to the start of at most one run, and to the acknowledgement of the delivery.
//!
//! | File | Content |
//! |---|---|
//! | [`consumer`] | One consumer per job type; what becomes of each delivery |
//! | [`admission`] | The checks a delivery passes before it may run |
//! | [`run_table`] | The attempts this process runs, which drops duplicates within one process |
//! | [`claim`] | Claims in Redis, which drop duplicates between processes |
//! | [`claim_batcher`] | Claims and ends of many deliveries in one round trip |
//! | [`claim_check`] | The question to the server whether a possible duplicate may start |
//! | [`permits`] | The priority semaphore: concurrency per job type, capacity of the worker |
//! | [`cancel_request`] | A request to cancel, as it stands in Redis |
//! | [`acks`] | Acknowledgements of many deliveries in one frame |
//! | [`lru_set`] | The attempts that ended or were handed back last |
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
pub(crate) mod run_table;
pub(crate) mod watchdog;
