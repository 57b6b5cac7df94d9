//! Users: invitations, sign-in, sessions and permissions.

pub(crate) mod harness;

mod account;
mod invites;
mod resets;
mod sessions;
mod sign_in;
mod team;
mod web;
