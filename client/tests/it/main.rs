//! The client against a fake server: real HTTP on a local port, with the answers of each test.

mod client;
mod fake;
mod logs;
mod samples;
