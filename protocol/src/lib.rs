//! The wire between the server and its workers: ids, statuses, messages, broker topology and Redis keys.
//!
//! Programs in other languages, older servers and newer workers read these bytes, so this crate is a contract. The rule
//! of change: a field may be added with a default. A field is never repurposed, renamed or removed, and the number of a
//! status is never given to another status. `tests/wire` pins the JSON of every message; a changed golden is a changed
//! contract, and the change must be intended. `docs/protocol` describes the same contract for readers who do not use
//! Rust, with JSON Schemas generated from these types (module `schema`, behind the feature of the same name).
//!
//! The crate performs no I/O and reads no clock. It compiles to wasm32, because the dashboard uses its types in the
//! browser. The schedule of a job is in `milvaion-schedule`; the types of the dashboard are in `milvaion-api`.
//!
//! Reading order: [`id`] and [`status`] define the ids and the state machine of an occurrence. [`topology`] names the
//! exchanges, queues and keys. [`message`] defines the bodies that they carry. [`reading`] reads those of workers part by
//! part, with [`mend`] for what is not quite JSON and [`exact_json`] for numbers that would be rounded; [`storable`] removes
//! what PostgreSQL cannot store. [`trace`] has the trace that a message belongs to. [`singleton`] has the lease of singleton
//! loops, which use Redis only. [`claims`] has the scripts of claims. `schema` generates the JSON Schemas, and `asyncapi` the
//! document that refers to them. [`backoff`] has the delays between attempts to reach a service.

#[cfg(feature = "schema")]
pub mod asyncapi;
pub mod backoff;
pub mod claims;
pub mod exact_json;
pub mod id;
mod lenient;
mod log_bounds;
pub mod mend;
pub mod message;
pub mod reading;
#[cfg(feature = "schema")]
pub mod schema;
pub mod singleton;
pub mod status;
pub mod storable;
pub mod topology;
pub mod trace;
