//! Users: invitations, sign-in, sessions and permissions.

mod harness;

mod account;
mod invites;
mod resets;
mod sessions;
mod team;
mod web;
