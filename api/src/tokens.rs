//! API tokens: the credentials of scripts.
//!
//! A token acts for its owner with a role that is at most the owner's, or, as a service token, for the installation. Its
//! secret is shown once, when the token is created or rotated. Everything here is about tokens without their secrets,
//! except [`CreatedToken`].

use chrono::{DateTime, Utc};
use milvaion_protocol::id::TokenId;
use milvaion_schedule::printable::check_printable;
use serde::{Deserialize, Serialize};

use crate::{permissions::Role, requests::FieldError};

/// The start of every secret, by which people and secret scanners recognise it. Forty letters and digits follow.
pub const TOKEN_PREFIX: &str = "milvaion_";
/// The number of characters after [`TOKEN_PREFIX`].
pub const TOKEN_SECRET_CHARS: usize = 40;
/// The maximum length of a token's name, in characters.
pub const MAX_TOKEN_NAME_CHARS: usize = 100;
/// The maximum lifetime of a token that expires, in days.
pub const MAX_TOKEN_DAYS: u32 = 3_650;
/// The lifetime of a new token, in days, if none is chosen.
pub const DEFAULT_TOKEN_DAYS: u32 = 90;
/// The lifetimes that the page offers, in days.
pub const TOKEN_DAYS_CHOICES: [u32; 3] = [30, 90, 365];
/// The time for which a rotated token still works, in hours.
pub const ROTATION_OVERLAP_HOURS: i64 = 24;
/// The time before the end of an active token from which on it is marked, in days.
pub const EXPIRY_WARNING_DAYS: i64 = 7;
/// The maximum number of active tokens of one owner.
pub const MAX_ACTIVE_TOKENS: i64 = 100;

/// The state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// The token works.
    Active,
    /// The token was rotated and works until its overlap ends.
    Rotated,
    /// The lifetime has ended.
    Expired,
    /// The token was revoked, or its owner was deactivated.
    Revoked,
}

impl TokenState {
    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Active => "Active",
            Self::Rotated => "Rotated",
            Self::Expired => "Expired",
            Self::Revoked => "Revoked",
        }
    }

    /// Returns true if requests with the token are accepted.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Active | Self::Rotated)
    }
}

/// A token in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TokenRow {
    /// The id.
    pub id: TokenId,
    /// The name.
    pub name: String,
    /// The e-mail address of the owner; none for a service token.
    pub owner: Option<String>,
    /// The role.
    pub role: Role,
    /// True if the token may only read.
    pub read_only: bool,
    /// The tag that limits the token to the jobs that have it, and to their occurrences.
    pub tag: Option<String>,
    /// The last four characters of the secret.
    pub hint: String,
    /// The state.
    pub state: TokenState,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The user who created it.
    pub created_by: String,
    /// The time at which it expires; none means never.
    pub expires_at: Option<DateTime<Utc>>,
    /// True if the token is active and expires within seven days.
    #[serde(default)]
    pub expires_soon: bool,
    /// The last use, to the minute.
    pub last_used_at: Option<DateTime<Utc>>,
    /// The network address of the last use, if it was known.
    pub last_used_address: Option<String>,
    /// The operation of the last use, as in `GET /api/v1/jobs`.
    pub last_used_route: Option<String>,
    /// The time of the revocation.
    pub revoked_at: Option<DateTime<Utc>>,
}

/// A request for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NewToken {
    /// The name, 1 to 100 printable characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The role, at most that of the owner.
    pub role: Role,
    /// True for a token that may only read.
    #[serde(default)]
    pub read_only: bool,
    /// A tag that limits the token to the jobs that have it; 1 to 50 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 50)))]
    pub tag: Option<String>,
    /// The lifetime, in days, 1 to 3,650. Without it, the token expires after 90 days.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3_650)))]
    pub expires_in_days: Option<u32>,
    /// True for a token that never expires. Only an Admin can create one.
    #[serde(default)]
    pub never_expires: bool,
    /// True for a token of the installation, which remains when its creator leaves. Only an Admin can create one.
    #[serde(default)]
    pub service: bool,
}

impl NewToken {
    /// Checks the constraints that need no service. `creator` is the role of the user who creates the token.
    ///
    /// # Errors
    ///
    /// Returns one error per invalid field, with the names in JSON.
    pub fn check(&self, creator: Role) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        let chars = self.name.trim().chars().count();
        if !(1..=MAX_TOKEN_NAME_CHARS).contains(&chars) {
            errors.push(FieldError::new("name", "enter a name of 1 to 100 printable characters"));
        } else if let Err(message) = check_printable(self.name.trim()) {
            errors.push(FieldError::new("name", message));
        }
        if self.role > creator {
            let message =
                format!("choose {} or a lower role: a token cannot have more rights than you", creator.label());
            errors.push(FieldError::new("role", message));
        }
        if let Some(tag) = self.tag.as_deref().map(str::trim)
            && (!(1..=50).contains(&tag.chars().count()) || tag.contains(',') || check_printable(tag).is_err())
        {
            errors.push(FieldError::new("tag", "enter one tag of 1 to 50 characters, or leave it empty"));
        }
        if self.expires_in_days.is_some_and(|days| !(1..=MAX_TOKEN_DAYS).contains(&days)) {
            errors.push(FieldError::new("expiresInDays", "enter a number of days from 1 to 3,650"));
        }
        if self.never_expires && creator < Role::Admin {
            errors.push(FieldError::new("neverExpires", "only an Admin can create a token that never expires"));
        }
        if self.never_expires && self.expires_in_days.is_some() {
            errors.push(FieldError::new("expiresInDays", "leave the number of days out of a token that never expires"));
        }
        if self.service && creator < Role::Admin {
            errors.push(FieldError::new("service", "only an Admin can create a service token"));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns the lifetime in days; none means that the token never expires.
    #[must_use]
    pub fn lifetime_days(&self) -> Option<u32> {
        if self.never_expires { None } else { Some(self.expires_in_days.unwrap_or(DEFAULT_TOKEN_DAYS)) }
    }
}

/// A token that was created or rotated, with its secret. The secret cannot be read again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreatedToken {
    /// The token.
    pub token: TokenRow,
    /// The secret: `milvaion_` and 40 letters and digits.
    pub secret: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> NewToken {
        NewToken {
            name: "ci".into(),
            role: Role::Operator,
            read_only: false,
            tag: None,
            expires_in_days: None,
            never_expires: false,
            service: false,
        }
    }

    fn invalid_fields(token: &NewToken, creator: Role) -> Vec<String> {
        let errors = token.check(creator).err().unwrap_or_default();
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn token_has_at_most_the_rights_of_its_creator() {
        assert!(invalid_fields(&token(), Role::Operator).is_empty());
        assert_eq!(invalid_fields(&token(), Role::Viewer), ["role"]);
        let service = NewToken { service: true, never_expires: true, ..token() };
        assert!(invalid_fields(&service, Role::Admin).is_empty());
        assert_eq!(invalid_fields(&service, Role::Operator), ["neverExpires", "service"]);
    }

    #[test]
    fn token_expires_after_90_days_unless_another_lifetime_is_chosen() {
        assert_eq!(token().lifetime_days(), Some(90));
        assert_eq!(NewToken { expires_in_days: Some(30), ..token() }.lifetime_days(), Some(30));
        assert_eq!(NewToken { never_expires: true, ..token() }.lifetime_days(), None);
        let both = NewToken { never_expires: true, expires_in_days: Some(5_000), ..token() };
        assert_eq!(invalid_fields(&both, Role::Admin), ["expiresInDays", "expiresInDays"]);
    }

    #[test]
    fn name_and_tag_are_bounded() {
        let wrong = NewToken { name: " ".into(), tag: Some("a,b".into()), ..token() };
        assert_eq!(invalid_fields(&wrong, Role::Admin), ["name", "tag"]);
        let long = NewToken { name: "ü".repeat(101), tag: Some(String::new()), ..token() };
        assert_eq!(invalid_fields(&long, Role::Admin), ["name", "tag"]);
    }
}
