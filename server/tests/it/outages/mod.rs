//! Services that go away, come back empty, or come back old, while jobs are due every second.
//!
//! Each test starts the service it is going to mistreat, in a folder and on ports of its own, and shares the other two
//! with all tests. What is asked afterwards is always the same, and [`workload::OutageVerdict`] asks it of the rows: was anything
//! lost, was anything run twice, was anything called a failure that was only the service's absence, and how late was it.
//!
//! The tests start real programs and wait out real outages, so they are few, run one after another (`outages` in
//! `.config/nextest.toml`), and one broker serves a whole sequence: it takes ten seconds to boot.

mod broker;
mod database;
mod private_service;
mod redis;
mod workload;
