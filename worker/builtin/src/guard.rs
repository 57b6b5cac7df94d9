//! The check of the destinations of `http-request`, in the words of a worker.

use milvaion_address_guard::{GuardError, GuardWords};
use url::Url;

pub(crate) use milvaion_address_guard::{EgressGuard, EgressRule, HttpClientCache, ProtectedBackend, normalize_host};

use crate::context::BuiltinError;

/// The words of the messages.
pub(crate) const GUARD_WORDS: GuardWords =
    GuardWords { owner: "this worker", sender: "job", allow: "MILVAION_HTTP_ALLOW", deny: "MILVAION_HTTP_DENY" };
/// The `User-Agent` of requests that set none.
pub(crate) const USER_AGENT: &str = concat!("milvaion-worker/", env!("CARGO_PKG_VERSION"));

impl From<GuardError> for BuiltinError {
    fn from(error: GuardError) -> Self {
        if error.is_permanent() { Self::permanent(error) } else { Self::retry(error) }
    }
}

/// Parses a URL. `field` is the input field that contains it.
///
/// # Errors
/// Returns a permanent error that names the field. The URL is not repeated, because it may contain a secret.
pub(crate) fn parse_url(text: &str, field: &str) -> Result<Url, BuiltinError> {
    let credentials = "give it in `auth`, and the password as a reference to a secret";
    Ok(milvaion_address_guard::parse_url(text, field, credentials)?)
}
