//! The page of the API tokens: the own ones, or for Admins all of them, and a form for a new one.
//!
//! The state of the actions (a new secret, which the server returns only once, and errors) lives outside the view that
//! another list draws again.

pub mod confirm;
pub mod new_form;
pub mod new_secret;
pub mod state_badge;
pub mod table;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_query_map;
use milvaion_api::{permissions::Role, tokens::TokenRow};
use milvaion_protocol::id::TokenId;

use self::{
    confirm::ConfirmationSection,
    new_form::NewTokenForm,
    new_secret::{NewSecret, SECRET_ID, ShownSecret},
    table::{TOKEN_TABLE_ID, TokenTable},
};
use crate::{
    api::{
        session::{FlashView, take_flash},
        tokens::{
            CreateToken, address, created_text, revoke_token, revoked_notice, rotate_token, rotated_text, tokens,
        },
    },
    browser,
    components::{
        action::{UserAction, use_action},
        action_error::{ActionError, LastError},
        confirm::{RowQuestion, RowQuestionDialog},
        empty_state::EmptyState,
        focus::hand_focus,
        form::ErrorSummary,
        live_rows::LiveRows,
        loading::render_page,
        page_header::PageHeader,
        session_context::use_signed_in_user,
    },
    error::AppError,
    live::live_page,
};

/// The shortest time between two reads of the tokens.
const REFRESH_PAUSE: Duration = Duration::from_millis(200);
/// The interval at which an open page reads the tokens again, because no event reports their use.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// `/tokens?all=1`.
#[component]
pub fn TokensPage() -> impl IntoView {
    let query = use_query_map();
    let all = Memo::new(move |_| query.with(|query| query.get("all").as_deref() == Some("1")));
    let data = Resource::new_blocking(
        move || all.get(),
        |all| async move {
            let rows = tokens(all).await?;
            Ok::<_, AppError>((all, rows, take_flash("tokens".into()).await?.unwrap_or_default()))
        },
    );
    let actions = TokenActions::new();
    render_page(data, move |(all, rows, flash): (bool, Vec<TokenRow>, FlashView)| {
        view! { <TokensContent all rows flash actions/> }
    })
}

/// The actions on tokens, with their secrets and errors.
#[derive(Clone, Copy)]
pub struct TokenActions {
    creating: ServerAction<CreateToken>,
    /// The number of tokens that the form has created.
    created: RwSignal<u32>,
    /// The newest secret.
    secret: RwSignal<Option<ShownSecret>>,
    /// The question before an action.
    question: RowQuestion,
    error: LastError,
    action: UserAction,
    /// The number of changes; each one reads the table again.
    changes: RwSignal<u32>,
}

impl TokenActions {
    fn new() -> Self {
        let error = LastError::of("Change token");
        let this = Self {
            creating: ServerAction::new(),
            created: RwSignal::new(0),
            secret: RwSignal::new(None),
            question: RowQuestion::default(),
            error,
            action: use_action(error),
            changes: RwSignal::new(0),
        };
        Effect::new(move |_| {
            if let Some(Ok(made)) = this.creating.value().get() {
                this.show(created_text(&made.name, made.is_service), made.secret);
                this.created.update(|created| *created += 1);
            }
        });
        this
    }

    /// Shows a new secret, unless the page was left, and reads the table again.
    fn show(self, text: String, secret: String) {
        let _ = self.secret.try_set(Some(ShownSecret { text, secret }));
        self.count_change();
        browser::focus_on_next_frame(SECRET_ID);
    }

    fn count_change(self) {
        let _ = self.changes.try_update(|changes| *changes += 1);
    }

    /// Replaces a token and shows the secret of the new one.
    fn rotate(self, id: TokenId) {
        self.action.run(async move {
            // A refused token may have been changed by another user.
            let made = rotate_token(id, false).await.inspect_err(|_| self.count_change())?;
            self.show(rotated_text(&made.name), made.secret);
            Ok(None)
        });
    }

    /// Revokes a token.
    fn revoke(self, id: TokenId) {
        self.action.run(async move {
            let answer = revoke_token(id, false).await;
            if answer.is_ok() {
                // The buttons of the token disappear.
                hand_focus(TOKEN_TABLE_ID, browser::PAGE_TITLE_ID);
            }
            self.count_change();
            Ok(Some(revoked_notice(&answer?)))
        });
    }
}

#[component]
fn TokensContent(all: bool, rows: Vec<TokenRow>, flash: FlashView, actions: TokenActions) -> impl IntoView {
    let role = use_signed_in_user().with_untracked(|me| me.as_ref().map_or(Role::Viewer, |me| me.role));
    let rows = LiveRows::of_all(rows, |row: &TokenRow| row.id.to_string());
    live_page(REFRESH_PAUSE, move || tokens(all), |_| false, move |read| rows.apply_all(read))
        .every(IDLE_REFRESH_INTERVAL)
        .after_changes(actions.changes);
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let flash = FlashView { error: None, ..flash };
    let is_empty = Memo::new(move |_| rows.is_empty());
    let tabs = (role == Role::Admin).then(|| {
        let current = |is_tab: bool| is_tab.then_some("page");
        view! {
            <nav class="tabs" aria-label="Own and all tokens">
                <a href=address(false) aria-current=current(!all)>"Your tokens"</a>
                <a href=address(true) aria-current=current(all)>"All tokens"</a>
            </nav>
        }
    });
    view! {
        <Title text="API tokens"/>
        <PageHeader
            title="API tokens"
            sub="Scripts and other programs call the API with a token instead of your passphrase. The secret of a token is shown once."
        />
        <div class="stack">
            {tabs}
            <ErrorSummary errors=whole/>
            <ActionError error=actions.error/>
            <NewSecret shown=actions.secret/>
            <ConfirmationSection rows all/>
            <div hidden=move || !is_empty.get()>
                <EmptyState
                    icon="key-round"
                    title="No API tokens"
                    text="A script or CI system uses a token to read and run jobs through the API. Create the first one with the form below."
                >
                    <a class="btn" href="#f-name" rel="external">"New token"</a>
                </EmptyState>
            </div>
            <div hidden=move || is_empty.get()>
                <TokenTable rows actions all/>
            </div>
            <NewTokenForm flash actions role all/>
        </div>
        <RowQuestionDialog question=actions.question id="confirm-token-action"/>
    }
}
