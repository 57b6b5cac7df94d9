//! The seams: the places at which a fault test may disable the claim, or the deadlines of a singleton loop.
//!
//! The admission of deliveries and the leases of loops call [`SEAMS`] there, and know nothing of the sabotage. Each default method is the worker
//! as users have it. Only a build with the feature `faults` contains another implementation.

#[cfg(feature = "faults")]
use std::time::Duration;

#[cfg(feature = "faults")]
use chrono::DateTime;
use tokio::time::Instant;

use crate::{delivery::claim::ClaimResult, net::redis::RedisUnavailable};

/// The seams of this build.
#[cfg(not(feature = "faults"))]
pub(crate) static SEAMS: UntouchedSeams = UntouchedSeams;
/// The seams of this build.
#[cfg(feature = "faults")]
pub(crate) static SEAMS: SabotagedSeams = SabotagedSeams;

/// The places at which the claim may be disabled.
pub(crate) trait Seams {
    /// Returns true if a delivery is handled as a possible duplicate.
    fn may_be_duplicate(&self, may_be: bool) -> bool {
        may_be
    }

    /// Changes the answer to a claim.
    fn claim_answer(&self, answer: Result<ClaimResult, RedisUnavailable>) -> Result<ClaimResult, RedisUnavailable> {
        answer
    }

    /// Changes a deadline of a singleton loop's lease.
    fn loop_deadline(&self, deadline: Instant) -> Instant {
        deadline
    }
}

/// The worker as users have it.
#[cfg(not(feature = "faults"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UntouchedSeams;

#[cfg(not(feature = "faults"))]
impl Seams for UntouchedSeams {}

/// The worker without a claim, if a test has disabled it.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SabotagedSeams;

#[cfg(feature = "faults")]
impl Seams for SabotagedSeams {
    fn may_be_duplicate(&self, may_be: bool) -> bool {
        may_be && !has_no_claim()
    }

    fn claim_answer(&self, answer: Result<ClaimResult, RedisUnavailable>) -> Result<ClaimResult, RedisUnavailable> {
        match answer {
            Ok(ClaimResult::Granted { .. }) | Err(_) => answer,
            Ok(_) if has_no_claim() => Ok(ClaimResult::Granted { cancel: None, since: DateTime::UNIX_EPOCH }),
            Ok(_) => answer,
        }
    }

    fn loop_deadline(&self, deadline: Instant) -> Instant {
        if super::is_sabotaged("skip_loop_deadlines") { deadline + Duration::from_secs(3600) } else { deadline }
    }
}

#[cfg(feature = "faults")]
fn has_no_claim() -> bool {
    super::is_sabotaged("skip_claim")
}
