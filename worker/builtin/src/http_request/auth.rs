//! Authentication of requests.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input::{PreparedRequest, parse_header};
use crate::context::{BuiltinContext, BuiltinError};

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

/// A credential, which is added to requests to the original host and to no others.
pub(super) enum RequestCredential {
    None,
    Header(HeaderName, HeaderValue),
    Parameter(String, String),
}

impl RequestCredential {
    /// Returns the credential for `auth`, or nothing if a token must be requested first.
    ///
    /// # Errors
    /// Returns a permanent error that names the field if the credential cannot be sent.
    pub(super) fn from_auth(auth: &HttpAuth, context: &BuiltinContext) -> Result<Option<Self>, BuiltinError> {
        Ok(Some(match auth {
            HttpAuth::Basic { username, password } => {
                let (name, value) = parse_header(
                    AUTHORIZATION.as_str(),
                    &basic_auth_value(username, password, "auth", context)?,
                    "auth",
                )?;
                Self::Header(name, value)
            }
            HttpAuth::Bearer { token } => Self::bearer(token)?,
            HttpAuth::ApiKey { name, value, location: ApiKeyLocation::Query } => {
                Self::Parameter(name.clone(), value.clone())
            }
            HttpAuth::ApiKey { name, value, location: ApiKeyLocation::Header } => {
                let (name, value) = parse_header(name, value, "auth.name")?;
                Self::Header(name, value)
            }
            HttpAuth::OAuth2(_) => return Ok(None),
        }))
    }

    pub(super) fn bearer(token: &str) -> Result<Self, BuiltinError> {
        let (name, value) = parse_header(AUTHORIZATION.as_str(), &format!("Bearer {token}"), "auth.token")?;
        Ok(Self::Header(name, value))
    }

    pub(super) fn add_to(&self, request: &mut PreparedRequest) {
        match self {
            Self::None => {}
            Self::Header(name, value) => drop(request.headers.insert(name, value.clone())),
            Self::Parameter(name, value) => drop(request.url.query_pairs_mut().append_pair(name, value)),
        }
    }
}

/// Returns the value of an `Authorization` header with a user name and a password.
///
/// # Errors
/// Returns a permanent error that names `field` if the user name has a colon.
pub(super) fn basic_auth_value(
    username: &str,
    password: &str,
    field: &str,
    context: &BuiltinContext,
) -> Result<String, BuiltinError> {
    if username.contains(':') {
        return Err(BuiltinError::permanent(format!(
            "the user name in `{field}` has a colon, which basic authentication cannot send"
        )));
    }
    let encoded = BASE64_STANDARD.encode(format!("{username}:{password}"));
    // A secret inside would be found by itself, but not a password that is written in the input.
    context.add_secret(&encoded, "{{basic authentication}}");
    Ok(format!("Basic {encoded}"))
}
