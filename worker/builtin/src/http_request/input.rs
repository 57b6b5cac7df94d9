//! The input of `http-request` and its checks.

use std::{collections::BTreeMap, ops::RangeInclusive};

use reqwest::{
    Method, Url,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::body_check::BodyCheck;
use crate::{context::BuiltinError, guard};

/// Maximum number of headers, and of query parameters.
const MAX_MAP_ENTRIES: usize = 50;
/// Maximum size of the request body with its secrets.
const MAX_REQUEST_BODY_BYTES: usize = 1024 * 1024;
/// Maximum number of conditions on the response body.
const MAX_BODY_CHECKS: usize = 20;
/// Maximum size of the URL with its query and secrets.
const MAX_URL_BYTES: usize = 8 * 1024;
/// Headers of the connection. A value from the input could contradict what is really sent.
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

/// A request, and the conditions that its response must meet.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "HTTP request")]
pub(crate) struct HttpRequestInput {
    /// URL to request, http:// or https://, up to 2,048 characters; addresses inside the worker's network must be
    /// listed in its MILVAION_HTTP_ALLOW.
    #[schemars(title = "URL", length(min = 8, max = 2048), example = "https://example.org/health")]
    pub(super) url: String,
    /// HTTP method; GET by default.
    #[serde(default)]
    #[schemars(title = "Method")]
    pub(super) method: HttpMethod,
    /// Query parameters added to the URL by name, encoded as needed; up to 50, none by default.
    #[serde(default)]
    #[schemars(title = "Query", extend("maxProperties" = MAX_MAP_ENTRIES))]
    pub(super) query: BTreeMap<String, String>,
    /// Request headers by name, except those of the connection such as host and content-length; up to 50, none by
    /// default.
    #[serde(default)]
    #[schemars(title = "Headers", extend("maxProperties" = MAX_MAP_ENTRIES))]
    pub(super) headers: BTreeMap<String, String>,
    /// Request body of up to 64 KiB, whose format the header content-type states; none by default.
    #[serde(default)]
    #[schemars(title = "Body", length(max = 65536), extend("format" = "multiline"))]
    pub(super) body: Option<String>,
    /// Authentication of type `basic`, `bearer`, `apiKey` or `oauth2`, with secrets as {{secret:name}}; none by
    /// default.
    #[serde(default)]
    #[schemars(title = "Authentication", example = serde_json::json!({"type": "bearer", "token": "{{secret:api}}"}))]
    pub(super) auth: Option<HttpAuth>,
    /// Statuses that count as success, such as 204, 200-299 or 2xx; up to 50, 2xx by default.
    #[serde(default = "default_expected_statuses")]
    #[schemars(title = "Expected statuses", length(max = 50))]
    pub(super) expected_status: Vec<String>,
    /// Statuses after which the run is retried, up to 50; 408, 425, 429 and 5xx by default. Other unexpected statuses
    /// are a permanent failure.
    #[serde(default = "default_retry_statuses")]
    #[schemars(title = "Retryable statuses", length(max = 50))]
    pub(super) retry_status: Vec<String>,
    /// Conditions of type `contains`, `matches` or `jsonPath`, up to 20; none by default. The run is retried unless the
    /// response body meets all of them.
    #[serde(default)]
    #[schemars(
        title = "Expected body",
        length(max = MAX_BODY_CHECKS),
        example = serde_json::json!([{"type": "jsonPath", "path": "$.status", "equals": "ok"}])
    )]
    pub(super) expect_body: Vec<BodyCheck>,
    /// Follows up to 3 redirects; off by default.
    #[serde(default)]
    #[schemars(title = "Follow redirects")]
    pub(super) follow_redirects: bool,
    /// Timeout of the whole request in seconds, including redirects and the token, from 1 to 3600; 30 by default.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(title = "Request timeout (seconds)", range(min = 1, max = 3600))]
    pub(super) timeout_seconds: u32,
}

fn default_expected_statuses() -> Vec<String> {
    vec!["2xx".to_owned()]
}

fn default_retry_statuses() -> Vec<String> {
    ["408", "425", "429", "5xx"].map(str::to_owned).to_vec()
}

fn default_timeout_seconds() -> u32 {
    30
}

/// An HTTP method.
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

/// Authentication of the request.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum HttpAuth {
    /// Basic authentication.
    Basic {
        /// User name, without a colon.
        username: String,
        /// Password, best as {{secret:name}}; empty by default.
        #[serde(default)]
        password: String,
    },
    /// A token that exists already.
    Bearer {
        /// Token, best as {{secret:name}}.
        token: String,
    },
    /// An API key in a header or a query parameter.
    ApiKey {
        /// Name of the header or the parameter, such as `x-api-key`.
        name: String,
        /// Key, best as {{secret:name}}.
        value: String,
        /// Location of the key, `header` or `query`; `header` by default.
        #[serde(default, rename = "in")]
        location: ApiKeyLocation,
    },
    /// A token requested with client credentials (RFC 6749, section 4.4) and cached until it expires.
    #[serde(rename = "oauth2")]
    OAuth2(OAuthClient),
}

/// Location of an API key in a request.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ApiKeyLocation {
    #[default]
    Header,
    Query,
}

/// An OAuth 2.0 client and its token endpoint.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OAuthClient {
    /// URL of the token endpoint; the rules for the URL of the request apply to it too.
    pub(super) token_url: String,
    /// Id of the client.
    pub(super) client_id: String,
    /// Secret of the client, best as {{secret:name}}.
    pub(super) client_secret: String,
    /// Scopes of the token, separated by spaces; none by default.
    #[serde(default)]
    pub(super) scope: Option<String>,
    /// Audience of the token, if the server requires one; none by default.
    #[serde(default)]
    pub(super) audience: Option<String>,
    /// Transfer of id and secret, `basic` for basic authentication or `body`; `basic` by default.
    #[serde(default)]
    pub(super) send_as: ClientAuthMethod,
}

/// Transfer of a client's id and secret.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClientAuthMethod {
    #[default]
    Basic,
    Body,
}

/// A request whose parts were checked.
#[derive(Clone, Debug)]
pub(super) struct PreparedRequest {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<String>,
}

/// A set of status codes.
#[derive(Debug)]
pub(super) struct StatusCodeRanges(Vec<RangeInclusive<u16>>);

impl StatusCodeRanges {
    pub(super) fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }

    /// Parses `words`. An empty list means `default`.
    ///
    /// # Errors
    /// Returns a permanent error that names `field` and the invalid word.
    pub(super) fn parse(words: &[String], default: &[String], field: &str) -> Result<Self, BuiltinError> {
        let words = if words.is_empty() { default } else { words };
        let ranges = words.iter().map(|word| {
            range(word.trim()).ok_or_else(|| {
                BuiltinError::permanent(format!(
                    "`{field}` contains {word:?}; write a status from 100 to 599, a range such as 200-299, or a class such as 2xx"
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
    /// Returns the request without its credential.
    ///
    /// # Errors
    /// Returns a permanent error that names the invalid field.
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
            return Err(BuiltinError::permanent(format!("the URL in `url` has more than {MAX_URL_BYTES} bytes")));
        }
        Ok(PreparedRequest {
            method: self.method.into(),
            url,
            headers: headers(&self.headers)?,
            body: self.body.clone(),
        })
    }

    /// Returns the statuses that count as success.
    pub(super) fn expected_statuses(&self) -> Result<StatusCodeRanges, BuiltinError> {
        StatusCodeRanges::parse(&self.expected_status, &default_expected_statuses(), "expectedStatus")
    }

    /// Returns the retryable statuses. Here an empty list means none.
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
                "the header {:?} in `headers` belongs to the connection and cannot be set",
                name.as_str()
            )));
        }
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Parses a header. An error does not repeat its value, which may contain a secret.
///
/// # Errors
/// Returns a permanent error that names `field` and the header.
pub(super) fn parse_header(name: &str, value: &str, field: &str) -> Result<(HeaderName, HeaderValue), BuiltinError> {
    let wrong = || {
        BuiltinError::permanent(format!(
            "the header {name:?} in `{field}` cannot be sent; names consist of letters, digits and '-', and values have no line breaks"
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
    fn statuses_parse_as_numbers_ranges_and_classes() {
        let words = ["204", "300-302", "4xx"].map(str::to_owned);
        let statuses = StatusCodeRanges::parse(&words, &[], "f").expect("statuses");
        for (status, is_in) in [(203, false), (204, true), (300, true), (302, true), (303, false), (499, true)] {
            assert_eq!(statuses.contains(status), is_in, "{status}");
        }
        for word in ["99", "600", "0xx", "xx", "6xx", "300-200", "-", "two", "2XX"] {
            let failure = StatusCodeRanges::parse(&[word.to_owned()], &[], "retryStatus").expect_err(word);
            assert!(failure.is_permanent() && failure.to_string().contains("`retryStatus`"), "{failure}");
        }
        let default = StatusCodeRanges::parse(&[], &default_expected_statuses(), "f").expect("the default");
        assert!(default.contains(299));
        assert!(!StatusCodeRanges::parse(&[], &[], "f").expect("none").contains(500));
    }
}
