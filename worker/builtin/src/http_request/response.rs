//! What comes back, in bounds.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use milvaion_worker::JobError;
use reqwest::{
    Response,
    header::{DATE, HeaderMap, RETRY_AFTER, SET_COOKIE},
};

use crate::context::{BuiltinContext, BuiltinError};

/// The most bytes of a body that are read, after decompression.
pub(super) const MAX_RESPONSE_BODY_BYTES: usize = 1024 * 1024;
/// How much of a body is quoted when the answer is a failure.
const MAX_QUOTED_BODY_BYTES: usize = 500;
/// How many headers are kept, and how many bytes of each.
const MAX_KEPT_HEADERS: usize = 50;
const MAX_HEADER_VALUE_BYTES: usize = 1_000;
/// The longest pause an answer can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Reads at most `max` bytes of the body, and says whether that was all. Not a byte more is decompressed than the piece
/// in which it is full.
pub(super) async fn read_body(response: Response, max: usize) -> Result<(String, bool), BuiltinError> {
    let mut stream = response.bytes_stream();
    let mut body = Vec::new();
    while body.len() <= max
        && let Some(piece) = stream.next().await
    {
        body.extend_from_slice(&piece.map_err(|error| transport_error("the answer broke off", error))?);
    }
    let whole = body.len() <= max;
    body.truncate(max);
    Ok((String::from_utf8_lossy(&body).into_owned(), whole))
}

/// What reqwest says, with its causes and without the address, whose query may hold a secret.
pub(super) fn transport_error(what: &str, error: reqwest::Error) -> BuiltinError {
    let is_ours = error.is_builder();
    let text = format!("{what}: {}", JobError::from(error.without_url()));
    if is_ours { BuiltinError::permanent(text) } else { BuiltinError::retry(text) }
}

/// The beginning of a body, as a failure quotes it.
pub(super) fn quote_body(body: &str, context: &BuiltinContext) -> String {
    context.redactor().redact_start(body, MAX_QUOTED_BODY_BYTES).into_owned()
}

/// The headers worth keeping: all but the cookies, which are as good as a password.
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

/// How long the other side asks to be left alone. A date is compared with the date of the same answer, so no clock but
/// theirs is looked at.
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
    fn a_pause_is_read_as_seconds_or_against_the_answers_own_date() {
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
