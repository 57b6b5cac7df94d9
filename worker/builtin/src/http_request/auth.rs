//! Authentication of requests.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::input::{ApiKeyLocation, HttpAuth, PreparedRequest, parse_header};
use crate::context::{BuiltinContext, BuiltinError};

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
