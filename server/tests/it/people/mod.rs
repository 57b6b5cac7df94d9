//! Who gets in, who stays in, and who may do what.

mod house;

mod joining;
mod sessions;
mod web;
