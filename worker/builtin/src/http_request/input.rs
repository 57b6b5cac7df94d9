//! What can be asked of `http-request`, and whether it can be done.

use std::{collections::BTreeMap, ops::RangeInclusive};

use reqwest::{
    Method, Url,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{auth::HttpAuth, body_check::BodyCheck};
use crate::{context::BuiltinError, guard};

/// The most headers, and the most parameters of the query.
const MAX_MAP_ENTRIES: usize = 50;
/// The most bytes of the body, secrets filled in.
const MAX_REQUEST_BODY_BYTES: usize = 1024 * 1024;
/// The most assertions on the body.
const MAX_BODY_CHECKS: usize = 20;
/// The longest address, secrets filled in.
const MAX_URL_BYTES: usize = 8 * 1024;
/// Headers that belong to the connection: with a value of its own, one of them would say something else than what happens.
const RESERVED_HEADERS: [HeaderName; 8] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHORIZATION,
];

/// What to call.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "HTTP request")]
pub(crate) struct HttpRequestInput {
    /// The address, beginning with http:// or https://. Addresses inside the worker's network are refused unless the
    /// worker allows them.
    #[schemars(title = "Address", length(min = 8, max = 2048), example = "https://example.org/health")]
    pub(super) url: String,
    /// What is asked of the address.
    #[serde(default)]
    #[schemars(title = "Method")]
    pub(super) method: HttpMethod,
    /// Parameters added to the address, by name; encoded as needed.
    #[serde(default)]
    #[schemars(title = "Query", extend("maxProperties" = MAX_MAP_ENTRIES))]
    pub(super) query: BTreeMap<String, String>,
    /// Headers sent along, by name.
    #[serde(default)]
    #[schemars(title = "Headers", extend("maxProperties" = MAX_MAP_ENTRIES))]
    pub(super) headers: BTreeMap<String, String>,
    /// The text sent along; say in the header content-type what it is.
    #[serde(default)]
    #[schemars(title = "Body", length(max = 65536), extend("format" = "multiline"))]
    pub(super) body: Option<String>,
    /// How the call proves who it is from: `basic`, `bearer`, `apiKey` or `oauth2`. Write secrets as {{secret:name}}.
    #[serde(default)]
    #[schemars(title = "Authentication", example = serde_json::json!({"type": "bearer", "token": "{{secret:api}}"}))]
    pub(super) auth: Option<HttpAuth>,
    /// The statuses that count as success: 204, 200-299 or 2xx.
    #[serde(default = "success")]
    #[schemars(title = "Expected status", length(max = 50))]
    pub(super) expected_status: Vec<String>,
    /// The statuses after which another attempt is worth it. All others that are not expected end the job's attempts.
    #[serde(default = "worth_another_try")]
    #[schemars(title = "Retry on status", length(max = 50))]
    pub(super) retry_status: Vec<String>,
    /// What the answer's body must be like, each of it: `contains`, `matches` or `jsonPath`. A body that is not like it is
    /// worth another try.
    #[serde(default)]
    #[schemars(
        title = "Expected body",
        length(max = MAX_BODY_CHECKS),
        example = serde_json::json!([{"type": "jsonPath", "path": "$.status", "equals": "ok"}])
    )]
    pub(super) expect_body: Vec<BodyCheck>,
    /// Whether to go where the answer points to, three times at the most.
    #[serde(default)]
    #[schemars(title = "Follow redirects")]
    pub(super) follow_redirects: bool,
    /// After how many seconds the call is given up, from 1 to 3600.
    #[serde(default = "half_a_minute")]
    #[schemars(title = "Timeout in seconds", range(min = 1, max = 3600))]
    pub(super) timeout_seconds: u32,
}

fn success() -> Vec<String> {
    vec!["2xx".to_owned()]
}

fn worth_another_try() -> Vec<String> {
    ["408", "425", "429", "5xx"].map(str::to_owned).to_vec()
}

fn half_a_minute() -> u32 {
    30
}

/// A method of HTTP.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum HttpMethod {
    #[default]
    Get,
    Post,
    Put,
    Patch,
    Delete,
    Head,
    Options,
}

impl From<HttpMethod> for Method {
    fn from(verb: HttpMethod) -> Self {
        match verb {
            HttpMethod::Get => Self::GET,
            HttpMethod::Post => Self::POST,
            HttpMethod::Put => Self::PUT,
            HttpMethod::Patch => Self::PATCH,
            HttpMethod::Delete => Self::DELETE,
            HttpMethod::Head => Self::HEAD,
            HttpMethod::Options => Self::OPTIONS,
        }
    }
}

/// A request that was looked at.
#[derive(Clone, Debug)]
pub(super) struct PreparedRequest {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<String>,
}

/// Some statuses.
#[derive(Debug)]
pub(super) struct StatusCodeRanges(Vec<RangeInclusive<u16>>);

impl StatusCodeRanges {
    pub(super) fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }

    /// Reads `words`; an empty list means `default`.
    pub(super) fn parse(words: &[String], default: &[String], field: &str) -> Result<Self, BuiltinError> {
        let words = if words.is_empty() { default } else { words };
        let ranges = words.iter().map(|word| {
            range(word.trim()).ok_or_else(|| {
                BuiltinError::permanent(format!(
                    "`{field}` holds {word:?}; write a status from 100 to 599, a range such as 200-299, or a class such as 2xx"
                ))
            })
        });
        Ok(Self(ranges.collect::<Result<_, _>>()?))
    }
}

fn range(word: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| text.parse().ok().filter(|status| (100..=599).contains(status));
    if let Some(class) = word.strip_suffix("xx") {
        let first = status(&format!("{class}00"))?;
        return Some(first..=first + 99);
    }
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (status(first)?, status(last)?);
    (first <= last).then_some(first..=last)
}

impl HttpRequestInput {
    /// The request, without what proves who it is from.
    pub(super) fn request(&self) -> Result<PreparedRequest, BuiltinError> {
        if !(1..=3600).contains(&self.timeout_seconds) {
            return Err(BuiltinError::permanent(format!(
                "`timeoutSeconds` is {}; give 1 to 3600",
                self.timeout_seconds
            )));
        }
        if self.expect_body.len() > MAX_BODY_CHECKS {
            return Err(BuiltinError::permanent(format!("`expectBody` has more than {MAX_BODY_CHECKS} entries")));
        }
        if self.body.as_ref().is_some_and(|body| body.len() > MAX_REQUEST_BODY_BYTES) {
            return Err(BuiltinError::permanent(format!("`body` has more than {MAX_REQUEST_BODY_BYTES} bytes")));
        }
        let mut url = guard::parse_url(&self.url, "url")?;
        if self.query.len() > MAX_MAP_ENTRIES {
            return Err(BuiltinError::permanent(format!("`query` has more than {MAX_MAP_ENTRIES} entries")));
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url.set_fragment(None);
        if url.as_str().len() > MAX_URL_BYTES {
            return Err(BuiltinError::permanent(format!("the address in `url` has more than {MAX_URL_BYTES} bytes")));
        }
        Ok(PreparedRequest {
            method: self.method.into(),
            url,
            headers: headers(&self.headers)?,
            body: self.body.clone(),
        })
    }

    pub(super) fn expected_statuses(&self) -> Result<StatusCodeRanges, BuiltinError> {
        StatusCodeRanges::parse(&self.expected_status, &success(), "expectedStatus")
    }

    /// Here an empty list means none.
    pub(super) fn retry_statuses(&self) -> Result<StatusCodeRanges, BuiltinError> {
        StatusCodeRanges::parse(&self.retry_status, &[], "retryStatus")
    }
}

fn headers(wanted: &BTreeMap<String, String>) -> Result<HeaderMap, BuiltinError> {
    if wanted.len() > MAX_MAP_ENTRIES {
        return Err(BuiltinError::permanent(format!("`headers` has more than {MAX_MAP_ENTRIES} entries")));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let (name, value) = parse_header(name, value, "headers")?;
        if RESERVED_HEADERS.contains(&name) {
            return Err(BuiltinError::permanent(format!(
                "the header {:?} in `headers` belongs to the connection and cannot be given",
                name.as_str()
            )));
        }
        headers.insert(name, value);
    }
    Ok(headers)
}

/// One header. Its value is not repeated in a refusal: it may hold a secret.
pub(super) fn parse_header(name: &str, value: &str, field: &str) -> Result<(HeaderName, HeaderValue), BuiltinError> {
    let wrong = || {
        BuiltinError::permanent(format!(
            "the header {name:?} in `{field}` cannot be sent; names are letters, digits and '-', values have no line breaks"
        ))
    };
    let name = HeaderName::try_from(name).map_err(|_| wrong())?;
    let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_one_by_one_by_range_and_by_class() {
        let words = ["204", "300-302", "4xx"].map(str::to_owned);
        let statuses = StatusCodeRanges::parse(&words, &[], "f").expect("statuses");
        for (status, is_in) in [(203, false), (204, true), (300, true), (302, true), (303, false), (499, true)] {
            assert_eq!(statuses.contains(status), is_in, "{status}");
        }
        for word in ["99", "600", "0xx", "xx", "6xx", "300-200", "-", "two", "2XX"] {
            let failure = StatusCodeRanges::parse(&[word.to_owned()], &[], "retryStatus").expect_err(word);
            assert!(failure.is_permanent() && failure.to_string().contains("`retryStatus`"), "{failure}");
        }
        assert!(StatusCodeRanges::parse(&[], &success(), "f").expect("the default").contains(299));
        assert!(!StatusCodeRanges::parse(&[], &[], "f").expect("none").contains(500));
    }
}
