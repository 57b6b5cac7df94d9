//! What fails is kept until somebody settles it, and what comes out of the dead letter queue is never lost on the way.

mod harness;

mod dead_letters;
mod resolution;
