//! The confirmation of a rotation or revocation: a dialog, or without scripts a section of the page.

use leptos::{prelude::*, server_fn::ServerFn};
use leptos_router::hooks::use_query_map;
use milvaion_api::tokens::{ROTATION_OVERLAP_HOURS, TokenRow, TokenState};
use milvaion_protocol::id::TokenId;

use super::TokenActions;
use crate::{
    api::tokens::{RevokeToken, RotateToken, address},
    components::{dialog::Dialog, live_rows::LiveRows},
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

    const fn button_class(self) -> &'static str {
        match self {
            Self::Rotate => "btn btn-primary",
            Self::Revoke => "btn btn-danger",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Rotate => RotateToken::PATH,
            Self::Revoke => RevokeToken::PATH,
        }
    }

    fn question(self, name: &str) -> String {
        format!("{} {name}?", self.verb())
    }

    fn consequence(self) -> String {
        match self {
            Self::Rotate => format!(
                "A token with the same name, rights and lifetime replaces this one, and its secret is shown once. \
                 The present secret still works for {ROTATION_OVERLAP_HOURS} hours; replace it in every script until then."
            ),
            Self::Revoke => {
                "Requests with this token are refused at once, and scripts that use it fail. This cannot be \
                             undone. The token stays in the list."
                    .into()
            }
        }
    }
}

/// The action that the dialog asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedAction {
    /// The action.
    pub action: TokenAction,
    /// The token.
    pub id: TokenId,
    /// The name of the token.
    pub name: String,
}

/// The dialog that confirms an action on one of the tokens.
#[component]
pub fn ConfirmationDialog(
    /// The actions on tokens.
    actions: TokenActions,
) -> impl IntoView {
    let asked = actions.asked;
    let open = actions.is_asking;
    let action = move || asked.with(|asked| asked.as_ref().map_or(TokenAction::Revoke, |asked| asked.action));
    let title =
        move || asked.with(|asked| asked.as_ref().map(|asked| asked.action.question(&asked.name)).unwrap_or_default());
    let confirm = move |_| {
        open.set(false);
        if let Some(AskedAction { action, id, .. }) = asked.get_untracked() {
            match action {
                TokenAction::Rotate => actions.rotate(id),
                TokenAction::Revoke => actions.revoke(id),
            }
        }
    };
    view! {
        <Dialog open id="confirm-token-action" title=Signal::derive(title)>
            <p>{move || action().consequence()}</p>
            <div class="dialog-actions">
                <button type="button" class="btn" autofocus on:click=move |_| open.set(false)>"Cancel"</button>
                <button type="button" class=move || action().button_class() on:click=confirm>
                    {move || action().verb()}
                </button>
            </div>
        </Dialog>
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
        let row = action.is_possible(row.state).then_some(row)?;
        Some((action, row))
    });
    chosen.map(|(action, row)| {
        view! {
            <section class="card stack hide-js" id="confirm" aria-labelledby="confirm-heading">
                <h2 id="confirm-heading">{action.question(&row.name)}</h2>
                <p>{action.consequence()}</p>
                <form class="form-actions" method="post" action=action.path()>
                    <input type="hidden" name="id" value=row.id.to_string()/>
                    <input type="hidden" name="all" value=all.to_string()/>
                    <a class="btn" href=address(all)>"Cancel"</a>
                    <button type="submit" class=action.button_class()>{action.verb()}</button>
                </form>
            </section>
        }
    })
}
