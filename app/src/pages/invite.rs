//! The pages behind one-time links: `/setup` for the link that the server printed, `/invite` for an Admin's invitation.

use leptos::prelude::*;
use leptos_router::hooks::use_query_map;
use milvaion_api::views::InviteInfo;

use super::login::{AuthPage, PassphraseField, navigate_when_done, problems_of};
use crate::{
    api::session::{AcceptInvite, FlashView, InviteLink, invite, take_flash},
    components::{
        busy::SubmitButton,
        form::{ErrorSummary, FormField, described_by},
        icon::Icon,
        input_form::{error_of, summary_entries},
        loading::render_page,
    },
    error::AppError,
};

/// `/setup?token=`.
#[component]
pub fn SetupPage() -> impl IntoView {
    one_time_link_page(true)
}

/// `/invite?token=`.
#[component]
pub fn InvitePage() -> impl IntoView {
    one_time_link_page(false)
}

fn one_time_link_page(is_setup: bool) -> AnyView {
    let query = use_query_map();
    let token = Memo::new(move |_| query.with(|query| query.get("token")).unwrap_or_default());
    let data = Resource::new_blocking(
        move || token.get(),
        |token| async {
            Ok::<_, AppError>((invite(token).await?, take_flash("invite".into()).await?.unwrap_or_default()))
        },
    );
    render_page(data, move |(link, flash): (InviteLink, FlashView)| match link {
        InviteLink::Good(info) => view! { <AcceptForm is_setup token=token.get_untracked() info flash/> }.into_any(),
        InviteLink::Spent => view! { <ExpiredLink is_setup/> }.into_any(),
    })
}

/// Explains that a one-time link is no longer valid and how to get a new one.
#[component]
fn ExpiredLink(is_setup: bool) -> impl IntoView {
    let (reason, remedy) = if is_setup {
        (
            "A setup link works once, for 15 minutes, and only while no account exists.",
            "If no account exists, restart the server to get a new link. Otherwise sign in, or ask an Admin for an invitation.",
        )
    } else {
        ("An invitation works once, until it expires or is revoked.", "Ask the Admin who sent it for a new one.")
    };
    view! {
        <AuthPage title="This link no longer works">
            <div class="notice" data-kind="warn">
                <Icon name="clock"/>
                <p>{reason}</p>
            </div>
            <p>{remedy}</p>
            <p>
                <a class="btn" href="/login">"Go to the sign-in page"</a>
            </p>
        </AuthPage>
    }
}

#[component]
fn AcceptForm(is_setup: bool, token: String, info: InviteInfo, flash: FlashView) -> impl IntoView {
    let action = ServerAction::<AcceptInvite>::new();
    let wrong = problems_of(action.value(), &flash);
    navigate_when_done(action.value());
    let (name_error, email_error) = (error_of(wrong, "name"), error_of(wrong, "email"));
    let name = if flash.typed("name").is_empty() { info.name } else { flash.typed("name") };
    let (title, intro, verb) = if info.is_setup {
        (
            "Set up Milvaion",
            "This creates the first account. It has the role Admin: it can do everything, including inviting users."
                .to_owned(),
            "Create the first Admin",
        )
    } else {
        (
            "Welcome to Milvaion",
            format!("You were invited as {}. Choose an e-mail address and a passphrase.", info.role.label()),
            "Create my account",
        )
    };
    view! {
        <AuthPage title>
            <p>{intro}</p>
            <ActionForm action attr:class="form">
                <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
                <input type="hidden" name="token" value=token/>
                <input type="hidden" name="page" value=if is_setup { "setup" } else { "invite" }/>
                <FormField id="f-name" label="Name" hint="Shown to other users; 1 to 100 characters." error=name_error>
                    <input
                        type="text"
                        id="f-name"
                        name="name"
                        value=name
                        autocomplete="name"
                        required
                        maxlength="100"
                        aria-describedby=described_by("f-name")
                        aria-invalid=move || name_error.get().is_some().then_some("true")
                    />
                </FormField>
                <FormField id="f-email" label="E-mail" hint="Used to sign in." error=email_error>
                    <input
                        type="email"
                        id="f-email"
                        name="email"
                        value=flash.typed("email")
                        autocomplete="username"
                        autocapitalize="off"
                        spellcheck="false"
                        required
                        aria-describedby=described_by("f-email")
                        aria-invalid=move || email_error.get().is_some().then_some("true")
                    />
                </FormField>
                <PassphraseField
                    label="Passphrase"
                    hint="At least 12 characters. Several unrelated words make a good passphrase."
                    autocomplete="new-password"
                    error=error_of(wrong, "passphrase")
                />
                <SubmitButton is_busy=action.pending()>
                    {move || if action.pending().get() { "Creating…" } else { verb }}
                </SubmitButton>
            </ActionForm>
        </AuthPage>
    }
}
