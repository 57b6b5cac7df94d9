//! The page behind a one-time link: `/setup` for the link that the server printed, `/invite` for an Admin's invitation,
//! and `/reset` for a new passphrase. An Admin creates the latter, or the command line of the server.

use leptos::prelude::*;
use leptos_router::hooks::{use_location, use_query_map};
use milvaion_api::team::{LinkInfo, LinkKind};

use super::login::{AuthPage, PassphraseField, navigate_when_done, problems_of};
use crate::{
    api::session::{AcceptLink, FlashView, one_time_link, take_flash},
    components::{
        action::SubmitButton,
        fields::InputField,
        form::ErrorSummary,
        icon::Icon,
        input_form::{error_of, summary_entries},
        loading::render_page,
    },
    error::AppError,
};

/// `/setup?token=`, `/invite?token=` or `/reset?token=`.
#[component]
pub fn OneTimeLinkPage() -> impl IntoView {
    let path = use_location().pathname.get_untracked();
    let page = LinkKind::from_slug(path.trim_matches('/')).unwrap_or_default();
    let query = use_query_map();
    let token = Memo::new(move |_| query.with(|query| query.get("token")).unwrap_or_default());
    let data = Resource::new_blocking(
        move || token.get(),
        |token| async {
            Ok::<_, AppError>((one_time_link(token).await?, take_flash("link".into()).await?.unwrap_or_default()))
        },
    );
    render_page(data, move |(link, flash): (Option<LinkInfo>, FlashView)| match link {
        Some(info) => view! { <AcceptForm token=token.get_untracked() info flash/> }.into_any(),
        None => view! { <ExpiredLink page/> }.into_any(),
    })
}

/// Explains that a one-time link is no longer valid and how to get a new one.
#[component]
fn ExpiredLink(page: LinkKind) -> impl IntoView {
    let (reason, remedy) = match page {
        LinkKind::Setup => (
            "A setup link works once, for 15 minutes, and only while no account exists.",
            "If no account exists, restart the server to get a new link. Otherwise sign in, or ask an Admin for an invitation.",
        ),
        LinkKind::Invite => {
            ("An invitation works once, until it expires or is revoked.", "Ask the Admin who sent it for a new one.")
        }
        LinkKind::Reset => (
            "A reset link works once, for 24 hours, and only until it is revoked or replaced by a newer one.",
            "Ask an Admin for a new link. If no Admin can sign in, run milvaion admin reset-passphrase with your e-mail address on the server's machine.",
        ),
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
fn AcceptForm(token: String, info: LinkInfo, flash: FlashView) -> impl IntoView {
    let action = ServerAction::<AcceptLink>::new();
    let wrong = problems_of(action.value(), &flash);
    navigate_when_done(action.value());
    let LinkInfo { kind, name, email, role } = info;
    let (title, intro, verb) = match kind {
        LinkKind::Setup => (
            "Set up Milvaion",
            "This creates the first account. It has the role Admin: it can do everything, including inviting users."
                .to_owned(),
            "Create the first Admin",
        ),
        LinkKind::Invite => (
            "Welcome to Milvaion",
            format!("You were invited as {}. Choose an e-mail address and a passphrase.", role.label()),
            "Create my account",
        ),
        LinkKind::Reset => (
            "Set a new passphrase",
            format!(
                "This link is for {name}. A new passphrase ends all sessions of this account and signs you in here."
            ),
            "Set passphrase",
        ),
    };
    let (label, pending) =
        if kind == LinkKind::Reset { ("New passphrase", "Saving…") } else { ("Passphrase", "Creating…") };
    let user = if kind == LinkKind::Reset {
        // Without a name the field is not sent: a password manager stores it with the new passphrase.
        view! {
            <div class="field">
                <label for="f-email">"E-mail"</label>
                <input type="email" id="f-email" value=email autocomplete="username" readonly/>
            </div>
        }
        .into_any()
    } else {
        let name = if flash.typed("name").is_empty() { name } else { flash.typed("name") };
        view! {
            <InputField
                id="f-name"
                name="name"
                label="Name"
                hint="Shown to other users; 1 to 100 characters."
                autocomplete="name"
                maxlength="100"
                required=true
                value=name
                error=error_of(wrong, "name")
            />
            <InputField
                id="f-email"
                name="email"
                label="E-mail"
                hint="Used to sign in."
                kind="email"
                autocomplete="username"
                required=true
                value=flash.typed("email")
                error=error_of(wrong, "email")
            />
        }
        .into_any()
    };
    view! {
        <AuthPage title>
            <p>{intro}</p>
            <ActionForm action attr:class="form">
                <ErrorSummary id="error-summary" errors=Signal::derive(move || wrong.with(|wrong| summary_entries(wrong)))/>
                <input type="hidden" name="token" value=token/>
                <input type="hidden" name="page" value=kind.slug()/>
                {user}
                <PassphraseField
                    label
                    hint="At least 12 characters. Several unrelated words make a good passphrase."
                    autocomplete="new-password"
                    error=error_of(wrong, "passphrase")
                />
                <SubmitButton is_busy=action.pending()>
                    {move || if action.pending().get() { pending } else { verb }}
                </SubmitButton>
            </ActionForm>
        </AuthPage>
    }
}
