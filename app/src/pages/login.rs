//! The sign-in page.

use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::{components::Redirect, hooks::use_query_map};
use milvaion_api::requests::FieldError;

use crate::{
    api::session::{FlashView, SessionEndReason, SignIn, SignInPageData, load_sign_in_page, local_path, take_flash},
    browser,
    components::{
        action::SubmitButton,
        fields::InputField,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{control_id, error_of, summary_entries},
        loading::render_page,
    },
    error::AppError,
};

/// `/login?next=&reason=`.
#[component]
pub fn LoginPage() -> impl IntoView {
    let query = use_query_map();
    let next = query.with_untracked(|query| query.get("next")).unwrap_or_default();
    let next = local_path(&next).to_owned();
    let reason = query.with_untracked(|query| SessionEndReason::from_slug(&query.get("reason").unwrap_or_default()));
    let data = Resource::new_blocking(
        || (),
        |()| async {
            Ok::<_, AppError>((load_sign_in_page().await?, take_flash("login".into()).await?.unwrap_or_default()))
        },
    );
    render_page(data, move |(data, flash): (SignInPageData, FlashView)| {
        if data.signed_in {
            return view! { <Redirect path=next.clone()/> }.into_any();
        }
        let next = next.clone();
        view! {
            <AuthPage title="Sign in">
                {reason
                    .map(|reason| {
                        view! {
                            <div class="notice" data-kind="info" role="status" id="session-end">
                                <Icon name="log-out"/>
                                <p>{format!("{} Sign in to continue.", reason.sentence())}</p>
                            </div>
                        }
                    })}
                {data
                    .needs_setup
                    .then(|| {
                        view! {
                            <div class="notice" data-kind="info">
                                <Icon name="key-round"/>
                                <p>
                                    "No account exists yet. The server prints a setup link when it starts; open that link to create the first Admin."
                                </p>
                            </div>
                        }
                    })}
                <SignInForm next flash/>
            </AuthPage>
        }
        .into_any()
    })
}

/// A page without the navigation: one card in the middle of the window. Used before sign-in.
#[component]
pub(super) fn AuthPage(
    /// The heading and the page's title.
    title: &'static str,
    /// The contents of the card.
    children: Children,
) -> impl IntoView {
    view! {
        <Title text=title/>
        <main class="auth" id="content" tabindex="-1">
            <p class="brand">
                <Icon name="calendar-clock"/>
                <span>"Milvaion"</span>
            </p>
            <div class="card stack">
                <h1 id="page-title" tabindex="-1">{title}</h1>
                {children()}
            </div>
        </main>
    }
}

#[component]
fn SignInForm(next: String, flash: FlashView) -> impl IntoView {
    let action = ServerAction::<SignIn>::new();
    let wrong = problems_of(action.value(), &flash);
    navigate_when_done(action.value());
    view! {
        <ActionForm action attr:class="form">
            <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
            <input type="hidden" name="next" value=next/>
            <InputField
                id="f-email"
                name="email"
                label="E-mail"
                kind="email"
                autocomplete="username"
                required=true
                value=flash.typed("email")
                error=error_of(wrong, "email")
            />
            <PassphraseField label="Passphrase" hint="" autocomplete="current-password" error=error_of(wrong, "passphrase")/>
            <SubmitButton is_busy=action.pending()>
                {move || if action.pending().get() { "Signing in…" } else { "Sign in" }}
            </SubmitButton>
        </ActionForm>
        <p class="hint">
            "No account yet? Ask an Admin for an invitation. Forgot your passphrase? An Admin can create a link with which you choose a new one. If no Admin can sign in, run " <code>"milvaion admin reset-passphrase <e-mail>"</code> " on the server's machine."
        </p>
    }
}

/// A passphrase field with a checkbox that shows its text.
#[component]
pub(super) fn PassphraseField(
    /// The field's label.
    label: &'static str,
    /// The rules for a new passphrase; empty on the sign-in page.
    hint: &'static str,
    /// The `autocomplete` value for the browser's password manager.
    autocomplete: &'static str,
    /// The field's error.
    error: Signal<Option<String>>,
    /// The field's name.
    #[prop(default = "passphrase")]
    name: &'static str,
) -> impl IntoView {
    let shown = RwSignal::new(false);
    let id = control_id(name);
    view! {
        <FormField id=id.clone() label hint error>
            <input
                type=move || if shown.get() { "text" } else { "password" }
                id=id.clone()
                name=name
                autocomplete=autocomplete
                autocapitalize="off"
                spellcheck="false"
                required
                aria-describedby=described_by(&id)
                aria-invalid=move || error.get().is_some().then_some("true")
            />
            <label class="check needs-js">
                <input type="checkbox" prop:checked=move || shown.get() on:change=move |event| shown.set(event_target_checked(&event))/>
                <span>"Show passphrase"</span>
            </label>
        </FormField>
    }
}

/// Returns the problems of the last refused call of the page's only form. See [`problems_in`].
pub(super) fn problems_of<T>(
    value: MappedSignal<Option<Result<T, AppError>>>,
    flash: &FlashView,
) -> Signal<Vec<FieldError>>
where
    T: Clone + Send + Sync + 'static,
{
    problems_in("error-summary", value, flash)
}

/// Returns the problems of the last refused call. Before any call, returns those that a plain form left behind. After
/// a refusal the focus moves to the error summary with the id `summary`.
pub(super) fn problems_in<T>(
    summary: &'static str,
    value: MappedSignal<Option<Result<T, AppError>>>,
    flash: &FlashView,
) -> Signal<Vec<FieldError>>
where
    T: Clone + Send + Sync + 'static,
{
    let before = flash.problems();
    let wrong = Signal::derive(move || {
        value.with(|value| match value {
            None => before.clone(),
            Some(Ok(_)) => Vec::new(),
            Some(Err(error)) => error.problems(),
        })
    });
    Effect::new(move |_| {
        if wrong.with(|wrong| !wrong.is_empty()) {
            browser::focus_on_next_frame(summary);
        }
    });
    wrong
}

/// Loads the address that a call returned. It is a full page load, because the signed-in user has changed.
pub(super) fn navigate_when_done(value: MappedSignal<Option<Result<String, AppError>>>) {
    Effect::new(move |_| {
        if let Some(Ok(address)) = value.get() {
            // `assign` fails only for an invalid address, and the server has checked this one.
            let _ = window().location().assign(&address);
        }
    });
}
