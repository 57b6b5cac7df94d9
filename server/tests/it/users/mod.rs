//! Users: invitations, sign-in, sessions and permissions.

mod harness;

mod invites;
mod sessions;
mod web;
