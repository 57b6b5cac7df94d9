//! How a call proves who it is from.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input::{Request, header};
use crate::seal::{Desk, Failure};

/// How a call proves who it is from.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Auth {
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
        place: Place,
    },
    /// A token asked for with client credentials (RFC 6749, section 4.4), and kept for as long as it is good.
    #[serde(rename = "oauth2")]
    OAuth2(Client),
}

/// Where an API key goes.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Place {
    #[default]
    Header,
    Query,
}

/// Who asks for a token, and where.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Client {
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
    pub(super) send_as: SendAs,
}

/// How id and secret of a client are sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SendAs {
    #[default]
    Basic,
    Body,
}

/// What is put into a request, and taken out of it again where it goes to somebody else.
pub(super) enum Credential {
    None,
    Header(HeaderName, HeaderValue),
    Parameter(String, String),
}

impl Credential {
    /// What `auth` means, unless a token has to be asked for.
    pub(super) fn of(auth: &Auth, desk: &Desk) -> Result<Option<Self>, Failure> {
        Ok(Some(match auth {
            Auth::Basic { username, password } => {
                let (name, value) = header(AUTHORIZATION.as_str(), &basic(username, password, "auth", desk)?, "auth")?;
                Self::Header(name, value)
            }
            Auth::Bearer { token } => Self::bearer(token)?,
            Auth::ApiKey { name, value, place: Place::Query } => Self::Parameter(name.clone(), value.clone()),
            Auth::ApiKey { name, value, place: Place::Header } => {
                let (name, value) = header(name, value, "auth.name")?;
                Self::Header(name, value)
            }
            Auth::OAuth2(_) => return Ok(None),
        }))
    }

    pub(super) fn bearer(token: &str) -> Result<Self, Failure> {
        let (name, value) = header(AUTHORIZATION.as_str(), &format!("Bearer {token}"), "auth.token")?;
        Ok(Self::Header(name, value))
    }

    pub(super) fn add_to(&self, request: &mut Request) {
        match self {
            Self::None => {}
            Self::Header(name, value) => drop(request.headers.insert(name, value.clone())),
            Self::Parameter(name, value) => drop(request.url.query_pairs_mut().append_pair(name, value)),
        }
    }
}

/// The value of an `Authorization` header with a name and a password.
pub(super) fn basic(username: &str, password: &str, field: &str, desk: &Desk) -> Result<String, Failure> {
    if username.contains(':') {
        return Err(Failure::permanent(format!(
            "the user name in `{field}` has a colon; basic authentication has no way to send one"
        )));
    }
    let encoded = BASE64_STANDARD.encode(format!("{username}:{password}"));
    // The secret in it would be found by itself, but not a password that stands in the input as it is.
    desk.hide(&encoded, "{{basic authentication}}");
    Ok(format!("Basic {encoded}"))
}
