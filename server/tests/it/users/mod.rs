//! Users: invitations, sign-in, sessions and permissions.

pub(crate) mod harness;

mod account;
mod invites;
mod resets;
mod sessions;
mod team;
mod web;
