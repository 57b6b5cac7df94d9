//! A run whose worker is gone is not gone with it, and a server that heard nothing does not blame the workers.

mod bench;

mod heard;
mod judged;
mod lanes;
