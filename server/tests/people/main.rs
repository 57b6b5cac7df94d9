//! Who gets in, who stays in, and who may do what.

#[path = "../common/mod.rs"]
mod common;
mod house;

mod joining;
mod sessions;
mod web;
