//! The response within its bounds.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use milvaion_worker::JobError;
use reqwest::{
    Response,
    header::{DATE, HeaderMap, RETRY_AFTER, SET_COOKIE},
};

use crate::context::{BuiltinContext, BuiltinError};

/// Maximum size of the part of a body that is read, after decompression.
pub(super) const MAX_RESPONSE_BODY_BYTES: usize = 1024 * 1024;
/// Maximum size of the part of a body that an error quotes.
const MAX_QUOTED_BODY_BYTES: usize = 500;
/// Maximum number of headers in the result.
const MAX_KEPT_HEADERS: usize = 50;
/// Maximum size of each header's value in the result.
const MAX_HEADER_VALUE_BYTES: usize = 1_000;
/// Longest pause that a response can request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Reads at most `max` bytes of the body. Returns true with it if that was the whole body. Decompression ends with the
/// piece that exceeds the limit.
///
/// # Errors
/// Returns a retryable error if the connection fails.
pub(super) async fn read_body(response: Response, max: usize) -> Result<(String, bool), BuiltinError> {
    let mut stream = response.bytes_stream();
    let mut body = Vec::new();
    while body.len() <= max
        && let Some(piece) = stream.next().await
    {
        body.extend_from_slice(&piece.map_err(|error| transport_error("the response was interrupted", error))?);
    }
    let whole = body.len() <= max;
    body.truncate(max);
    Ok((String::from_utf8_lossy(&body).into_owned(), whole))
}

/// Converts an error of reqwest, with its causes but without the URL, whose query may contain a secret.
pub(super) fn transport_error(what: &str, error: reqwest::Error) -> BuiltinError {
    let is_invalid_request = error.is_builder();
    let text = format!("{what}: {}", JobError::from(error.without_url()));
    if is_invalid_request { BuiltinError::permanent(text) } else { BuiltinError::retry(text) }
}

/// Returns the start of a body, redacted, for an error message.
pub(super) fn quote_body(body: &str, context: &BuiltinContext) -> String {
    context.redactor().redact_start(body, MAX_QUOTED_BODY_BYTES).into_owned()
}

/// Returns the headers for the result, redacted and without cookies, which are equivalent to passwords.
pub(super) fn readable_headers(headers: &HeaderMap, context: &BuiltinContext) -> BTreeMap<String, String> {
    let readable = headers.iter().filter(|(name, _)| *name != SET_COOKIE);
    readable
        .take(MAX_KEPT_HEADERS)
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.to_string(), context.redactor().redact_start(&value, MAX_HEADER_VALUE_BYTES).into_owned())
        })
        .collect()
}

/// Returns the pause that `Retry-After` requests. A date is compared with the date of the same response, so that only
/// the server's clock matters.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let wanted = text(RETRY_AFTER)?.trim();
    let pause = match wanted.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = |text| httpdate::parse_http_date(text).ok();
            date(wanted)?.duration_since(date(text(DATE)?)?).ok()?
        }
    };
    Some(pause.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_relative_to_the_response() {
        let now = "Sat, 21 Nov 2026 12:00:00 GMT";
        for (wanted, date, seconds) in [
            ("120", None, Some(120)),
            ("0", None, Some(0)),
            ("999999", None, Some(3600)),
            ("Sat, 21 Nov 2026 12:02:00 GMT", Some(now), Some(120)),
            ("Sat, 21 Nov 2026 11:00:00 GMT", Some(now), None),
            ("Sat, 21 Nov 2026 12:02:00 GMT", None, None),
            ("soon", Some(now), None),
            ("-5", None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, wanted.parse().expect("a value"));
            if let Some(date) = date {
                headers.insert(DATE, date.parse().expect("a value"));
            }
            assert_eq!(retry_after(&headers).map(|pause| pause.as_secs()), seconds, "{wanted} {date:?}");
        }
    }
}
