//! Users: invitations, sign-in, sessions and permissions.

mod harness;

mod invites;
mod sessions;
mod sign_in;
mod web;
