//! The [`TokenBackend`] implementation of [`FakeBackend`]: the API tokens.

use std::sync::MutexGuard;

use async_trait::async_trait;
use chrono::TimeDelta;
use milvaion_api::{
    permissions::Role,
    tokens::{CreatedToken, NewToken, ROTATION_OVERLAP_HOURS, TokenRow, TokenState},
    views::CurrentUser,
};
use milvaion_app::{
    backend::{RequestUser, TokenBackend},
    error::AppError,
};
use milvaion_protocol::id::TokenId;

use super::FakeBackend;
use crate::common::samples;

/// The secret of every new token.
pub(crate) const SECRET: &str = "milvaion_0123456789abcdefghijABCDEFGHIJ0123456789";

/// Returns the id of the token with this number: 1 is active, 2 rotated, 3 expired and 4 revoked, all of the signed-in
/// user; 5 is a token of Grace, 6 a service token.
pub(crate) fn token_id(number: u8) -> TokenId {
    TokenId::from_parts(samples::at(0), [70 + number; 10])
}

/// Returns tokens of `me` in every state, one of Grace and one of a service, newest first.
pub(crate) fn tokens_of(me: &CurrentUser) -> Vec<TokenRow> {
    let own = |number, name, state| token(number, name, Some(me.email.clone()), state);
    vec![
        TokenRow {
            read_only: true,
            tag: Some("billing".into()),
            last_used_at: Some(samples::at(-60)),
            last_used_address: Some("203.0.113.9".into()),
            last_used_route: Some("GET /api/v1/jobs".into()),
            ..own(1, "ci <b>main</b>", TokenState::Active)
        },
        own(2, "backup", TokenState::Rotated),
        own(3, "laptop", TokenState::Expired),
        TokenRow { revoked_at: Some(samples::at(-30)), ..own(4, "pager", TokenState::Revoked) },
        token(5, "grafana", Some("grace@example.org".into()), TokenState::Active),
        TokenRow { expires_at: None, role: Role::Operator, ..token(6, "deploy", None, TokenState::Active) },
    ]
}

fn token(number: u8, name: &str, owner: Option<String>, state: TokenState) -> TokenRow {
    TokenRow {
        id: token_id(number),
        name: name.into(),
        created_by: owner.clone().unwrap_or_else(|| "ada@example.org".into()),
        owner,
        role: Role::Viewer,
        read_only: false,
        tag: None,
        hint: format!("xyz{number}"),
        state,
        created_at: samples::at(-86_400),
        expires_at: Some(samples::at(86_400)),
        expires_soon: state == TokenState::Active,
        last_used_at: None,
        last_used_address: None,
        last_used_route: None,
        revoked_at: None,
    }
}

impl FakeBackend {
    fn lock_tokens(&self) -> MutexGuard<'_, Vec<TokenRow>> {
        self.tokens.lock().expect("the mutex is not poisoned")
    }
}

fn may_manage(me: &RequestUser, row: &TokenRow) -> bool {
    me.role == Role::Admin || row.owner.as_deref() == Some(me.email.as_str())
}

fn missing() -> AppError {
    AppError::NotFound("This token does not exist.".into())
}

#[async_trait]
impl TokenBackend for FakeBackend {
    async fn tokens(&self, me: &RequestUser, all: bool) -> Result<Vec<TokenRow>, AppError> {
        if all && me.role < Role::Admin {
            return Err(AppError::Denied("Only Admin may view the tokens of others.".into()));
        }
        let is_own = |row: &&TokenRow| all || row.owner.as_deref() == Some(me.email.as_str());
        Ok(self.lock_tokens().iter().filter(is_own).cloned().collect())
    }

    async fn token(&self, me: &RequestUser, id: TokenId) -> Result<TokenRow, AppError> {
        self.lock_tokens().iter().find(|row| row.id == id && may_manage(me, row)).cloned().ok_or_else(missing)
    }

    async fn create_token(&self, me: &RequestUser, new: &NewToken) -> Result<CreatedToken, AppError> {
        new.check(me.role).map_err(AppError::Fields)?;
        let row = TokenRow {
            role: new.role,
            read_only: new.read_only,
            tag: new.tag.clone(),
            created_by: me.email.clone(),
            created_at: samples::at(0),
            expires_at: new.lifetime_days().map(|days| samples::at(0) + TimeDelta::days(days.into())),
            ..token(7, &new.name, (!new.service).then(|| me.email.clone()), TokenState::Active)
        };
        self.lock_tokens().insert(0, row.clone());
        let days = new.lifetime_days().map_or_else(|| "ever".to_owned(), |days| format!("{days} days"));
        self.record(format!("create token {} as {} for {days}", new.name, new.role.slug()));
        Ok(CreatedToken { token: row, secret: SECRET.into() })
    }

    async fn rotate_token(&self, me: &RequestUser, id: TokenId) -> Result<CreatedToken, AppError> {
        let mut tokens = self.lock_tokens();
        let old = tokens.iter_mut().find(|row| row.id == id && may_manage(me, row)).ok_or_else(missing)?;
        if old.state != TokenState::Active {
            return Err(AppError::Conflict(format!("The token {} is no longer active.", old.name)));
        }
        let row = TokenRow { id: token_id(8), last_used_at: None, created_at: samples::at(0), ..old.clone() };
        old.state = TokenState::Rotated;
        old.expires_at = Some(samples::at(0) + TimeDelta::hours(ROTATION_OVERLAP_HOURS));
        tokens.insert(0, row.clone());
        self.record(format!("rotate token {}", row.name));
        Ok(CreatedToken { token: row, secret: SECRET.into() })
    }

    async fn revoke_token(&self, me: &RequestUser, id: TokenId) -> Result<String, AppError> {
        let mut tokens = self.lock_tokens();
        let row = tokens.iter_mut().find(|row| row.id == id && may_manage(me, row)).ok_or_else(missing)?;
        row.state = TokenState::Revoked;
        row.revoked_at = Some(samples::at(0));
        let name = row.name.clone();
        self.record(format!("revoke token {name}"));
        Ok(name)
    }
}
