//! Failures stay open until a user resolves or retries them, and no dead letter is lost.

mod harness;

mod dead_letters;
mod resolution;
