//! Singleton loops: the election in a real Redis, also with processes in Python, and the behaviour of a loop on a paused
//! clock.

mod election;
mod hand_over;
mod paused;
mod python;
mod witness;
