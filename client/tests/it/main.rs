//! The client against a fake server: real HTTP on a local port, with the answers of each test.

mod client;
mod commands;
mod fake;
mod files;
mod help;
mod lists;
mod login;
mod logs;
mod samples;
