//! The commands against a fake server: real HTTP on a local port, with the answers of each test.

mod commands;
// The server and its documents are those of the client's tests.
#[expect(dead_code, reason = "only the client's tests break a stream")]
#[path = "../../../client/tests/it/fake.rs"]
mod fake;
mod files;
mod help;
mod lists;
mod login;
mod logs;
#[path = "../../../client/tests/it/samples.rs"]
mod samples;
mod shell;
