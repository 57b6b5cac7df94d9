//! Traces: one trace from the request or the due time to the stored report, as a receiver sees it.

mod continued;
mod recorded;
