//! How a call proves who it is from.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input::{PreparedRequest, parse_header};
use crate::context::{BuiltinContext, BuiltinError};

/// How a call proves who it is from.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum HttpAuth {
    /// A name and a password.
    Basic {
        /// The name; it has no colon.
        username: String,
        /// The password, best as a reference to a secret.
        #[serde(default)]
        password: String,
    },
    /// A token that is there already.
    Bearer {
        /// The token, best as a reference to a secret.
        token: String,
    },
    /// A key under a name of the other side's choice.
    ApiKey {
        /// The header or the parameter, such as `x-api-key`.
        name: String,
        /// The key, best as a reference to a secret.
        value: String,
        /// Whether it goes into a header or into the query.
        #[serde(default, rename = "in")]
        location: ApiKeyLocation,
    },
    /// A token asked for with client credentials (RFC 6749, section 4.4), and kept for as long as it is good.
    #[serde(rename = "oauth2")]
    OAuth2(OAuthClient),
}

/// Where an API key goes.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ApiKeyLocation {
    #[default]
    Header,
    Query,
}

/// Who asks for a token, and where.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OAuthClient {
    /// Where tokens are given out; the same rules hold for it as for the address itself.
    pub(super) token_url: String,
    /// Who asks.
    pub(super) client_id: String,
    /// What proves it, best as a reference to a secret.
    pub(super) client_secret: String,
    /// What the token is to be good for; several are separated by blanks.
    #[serde(default)]
    pub(super) scope: Option<String>,
    /// Whom the token is meant for, where the other side asks for it.
    #[serde(default)]
    pub(super) audience: Option<String>,
    /// Whether id and secret are sent as basic authentication or in the body.
    #[serde(default)]
    pub(super) send_as: ClientAuthMethod,
}

/// How id and secret of a client are sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClientAuthMethod {
    #[default]
    Basic,
    Body,
}

/// What is put into a request, and taken out of it again where it goes to somebody else.
pub(super) enum RequestCredential {
    None,
    Header(HeaderName, HeaderValue),
    Parameter(String, String),
}

impl RequestCredential {
    /// What `auth` means, unless a token has to be asked for.
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

/// The value of an `Authorization` header with a name and a password.
pub(super) fn basic_auth_value(
    username: &str,
    password: &str,
    field: &str,
    context: &BuiltinContext,
) -> Result<String, BuiltinError> {
    if username.contains(':') {
        return Err(BuiltinError::permanent(format!(
            "the user name in `{field}` has a colon; basic authentication has no way to send one"
        )));
    }
    let encoded = BASE64_STANDARD.encode(format!("{username}:{password}"));
    // The secret in it would be found by itself, but not a password that stands in the input as it is.
    context.add_secret(&encoded, "{{basic authentication}}");
    Ok(format!("Basic {encoded}"))
}
