//! The rotation and the revocation of a token, with the question before each.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::hooks::use_query_map;
use milvaion_api::tokens::{ROTATION_OVERLAP_HOURS, TokenRow, TokenState};
use milvaion_protocol::id::TokenId;

use crate::{
    api::tokens::{RevokeToken, RotateToken, address},
    components::{
        confirm::{Confirmation, confirm_section},
        live_rows::LiveRows,
    },
};

/// An action on a token that is confirmed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAction {
    /// The replacement by a new token.
    Rotate,
    /// The end of the token.
    Revoke,
}

impl TokenAction {
    /// Every action, in the order of the buttons.
    pub const ALL: [Self; 2] = [Self::Rotate, Self::Revoke];

    /// Returns the label of the button that asks for the confirmation.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rotate => "Rotate…",
            Self::Revoke => "Revoke…",
        }
    }

    /// Returns the label of the confirming button.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Rotate => "Rotate token",
            Self::Revoke => "Revoke token",
        }
    }

    /// Returns true if a token in `state` permits the action.
    #[must_use]
    pub const fn is_possible(self, state: TokenState) -> bool {
        match self {
            Self::Rotate => matches!(state, TokenState::Active),
            Self::Revoke => state.is_usable(),
        }
    }

    /// Returns the address of the page with the confirmation as a section.
    #[must_use]
    pub fn section_address(self, id: TokenId, all: bool) -> String {
        let separator = if all { '&' } else { '?' };
        format!("{}{separator}{}={id}#confirm", address(all), self.param())
    }

    const fn param(self) -> &'static str {
        match self {
            Self::Rotate => "rotate",
            Self::Revoke => "revoke",
        }
    }

    /// Returns the question before the action on a token, which the list of the own or of all tokens shows.
    #[must_use]
    pub fn question(self, id: TokenId, name: &str, all: bool) -> Confirmation {
        let (consequence, class, path) = match self {
            Self::Rotate => (
                format!(
                    "A token with the same name, rights and lifetime replaces this one, and its secret is shown once. \
                     The present secret still works for {ROTATION_OVERLAP_HOURS} hours; replace it in every script \
                     until then."
                ),
                "btn btn-primary",
                RotateToken::PATH,
            ),
            Self::Revoke => (
                "Requests with this token are refused at once, and scripts that use it fail. This cannot be undone. \
                 The token stays in the list."
                    .to_owned(),
                "btn btn-danger",
                RevokeToken::PATH,
            ),
        };
        let question = Confirmation::new(format!("{} {name}?", self.verb()), consequence, self.verb());
        let fields = vec![("id", id.to_string()), ("all", all.to_string())];
        Confirmation { class, ..question }.with_form(path, fields, address(all))
    }
}

/// The confirmation as a section of the page, for users without scripts.
#[component]
pub fn ConfirmationSection(
    /// The tokens of the page.
    rows: LiveRows<TokenRow>,
    /// True for the list of all tokens.
    all: bool,
) -> impl IntoView {
    let query = use_query_map();
    let chosen = TokenAction::ALL.into_iter().find_map(|action| {
        let id = query.with_untracked(|query| query.get(action.param()))?.parse::<TokenId>().ok()?;
        let row = rows.find(&id.to_string())?.get_untracked();
        action.is_possible(row.state).then(|| action.question(id, &row.name, all))
    });
    chosen.map(|what| confirm_section("confirm", what))
}
