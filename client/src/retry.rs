//! The decision to repeat a request.
//!
//! It is a function of the outcome alone, so that its table can be tested without a network. A server that names a time
//! in `Retry-After` is obeyed up to [`MAX_RETRY_AFTER`]; a longer wait is the caller's decision, not ours.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};
use milvaion_protocol::backoff::Backoff;

/// The longest wait that a server can ask for.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The outcome of a request that may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is no answer, because the connection failed or the answer took too long.
    Disconnected,
    /// There is an answer.
    Answered {
        /// The status.
        status: StatusCode,
        /// The wait that the server asks for.
        retry_after: Option<Duration>,
    },
}

impl Outcome {
    /// Returns the outcome of an answer.
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        Self::Answered { status, retry_after: retry_after(headers) }
    }

    /// Returns true if a repetition may succeed.
    const fn is_temporary(self) -> bool {
        match self {
            Self::Disconnected => true,
            Self::Answered { status, retry_after } => match status {
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => true,
                // The first request with the same key is still being carried out.
                StatusCode::CONFLICT => retry_after.is_some(),
                _ => false,
            },
        }
    }

    /// Returns the wait before the next try; none if the outcome is final. `failures` counts the failed tries so far.
    pub(crate) fn delay(self, failures: u32, base: Duration) -> Option<Duration> {
        if !self.is_temporary() {
            return None;
        }
        match self {
            Self::Answered { retry_after: Some(wait), .. } => (wait <= MAX_RETRY_AFTER).then_some(wait),
            _ => Some(backoff(failures, base)),
        }
    }
}

/// Returns the wait after a number of failed tries: `base`, doubled with each, at most 15 s.
pub(crate) fn backoff(failures: u32, base: Duration) -> Duration {
    Backoff::new(base, Duration::from_secs(15)).after(failures)
}

/// Reads `Retry-After`: seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(200);

    fn delay(status: u16, retry_after: Option<&'static str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        if let Some(text) = retry_after {
            headers.insert(header::RETRY_AFTER, http::HeaderValue::from_static(text));
        }
        Outcome::of(StatusCode::from_u16(status).expect("a status"), &headers).delay(1, BASE)
    }

    #[test]
    fn temporary_statuses_are_retried() {
        for status in [429, 502, 503, 504] {
            assert_eq!(delay(status, None), Some(BASE), "{status}");
        }
        for status in [200, 400, 401, 404, 409, 412, 422, 500] {
            assert_eq!(delay(status, None), None, "{status}");
        }
        assert_eq!(delay(409, Some("1")), Some(Duration::from_secs(1)), "the first request is being carried out");
    }

    #[test]
    fn the_servers_wait_is_honoured_up_to_30_seconds() {
        assert_eq!(delay(429, Some("7")), Some(Duration::from_secs(7)));
        assert_eq!(delay(503, Some("30")), Some(Duration::from_secs(30)));
        assert_eq!(delay(503, Some("31")), None);
        assert_eq!(delay(503, Some("Thu, 01 Jan 2026 00:00:00 GMT")), Some(Duration::ZERO), "a time that has passed");
        assert_eq!(delay(503, Some("soon")), Some(BASE));
    }

    #[test]
    fn waits_double_and_end_at_15_seconds() {
        let waits: Vec<_> = (1..=4).map(|failures| backoff(failures, BASE).as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1_600]);
        assert_eq!(backoff(u32::MAX, BASE), Duration::from_secs(15));
    }
}
