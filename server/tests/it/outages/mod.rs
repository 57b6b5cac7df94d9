//! Outages: services that stop, come back empty, or come back with old data, while jobs are due every second.
//!
//! Each test starts the service that it will stop, with its own folder and ports, and shares the other two with all tests.
//! Afterwards [`workload::OutageVerdict`] checks the rows: no occurrence is lost, none ran twice, none failed because a
//! service was away, and none was too late.
//!
//! The tests start real programs and last as long as the outages do. So they are few and run one after another (`outages`
//! in `.config/nextest.toml`), and the outages of the broker share one broker, which takes ten seconds to boot.

mod broker;
mod database;
mod redis;
mod workload;
