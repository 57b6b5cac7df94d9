//! Who gets in, who stays in, and who may do what.

mod harness;

mod invites;
mod sessions;
mod web;
