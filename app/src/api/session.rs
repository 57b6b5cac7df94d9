//! Server functions for signing in and out, one-time links and flash messages, and the end of the session.

use std::time::Duration;

use leptos::{prelude::*, task::spawn_local};
use milvaion_api::{
    requests::FieldError,
    team::{LinkInfo, LinkKind},
    views::CurrentUser,
};
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::codec::JsonText;
use crate::{
    browser::{self, CHOSEN_ZONE_COOKIE},
    error::AppError,
};

/// The maximum length of the address that a sign-in redirects to, in bytes. Our own addresses are shorter.
const MAX_NEXT_PATH_BYTES: usize = 2_000;
/// The time after which a page reports a read that was refused. The refusal does not say why the session ended, but the
/// event stream does, at the latest 1.5 s after the end. A tab whose browser has a new session is signed in by then.
const REASON_WAIT: Duration = Duration::from_secs(3);

/// Data of the sign-in page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SignInPageData {
    /// True while no user exists, so that only the setup link grants access.
    pub needs_setup: bool,
    /// True if the request already has a session.
    pub signed_in: bool,
}

/// Result of a plain form post, as the browser receives it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlashView {
    /// Success message.
    pub notice: Option<String>,
    /// Error that belongs to no field.
    pub error: Option<String>,
    /// Errors by field.
    pub fields: Vec<FieldError>,
    /// Values that were typed, without secrets.
    pub typed: serde_json::Value,
}

impl FlashView {
    /// Returns all errors. The error that belongs to no field has an empty field name.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let whole = self.error.iter().map(|message| FieldError::new("", message));
        whole.chain(self.fields.iter().cloned()).collect()
    }

    /// Returns the value that was typed into `field`.
    #[must_use]
    pub fn typed(&self, field: &str) -> String {
        self.typed.get(field).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    }
}

#[cfg(feature = "ssr")]
impl From<crate::backend::FlashMessage> for FlashView {
    fn from(flash: crate::backend::FlashMessage) -> Self {
        Self { notice: flash.notice, error: flash.error, fields: flash.fields, typed: flash.typed }
    }
}

/// Returns the signed-in user, if any.
///
/// # Errors
///
/// `Unavailable` if the session cannot be read.
#[server(input = GetUrl, output = JsonText, endpoint = "whoami")]
pub async fn whoami() -> Result<Option<CurrentUser>, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    backend.me(&parts).await.map_err(super::with_error_status)
}

/// Loads the data of the sign-in page.
///
/// # Errors
///
/// `Unavailable` if the users cannot be counted.
#[server(input = GetUrl, output = JsonText, endpoint = "sign_in_page")]
pub async fn load_sign_in_page() -> Result<SignInPageData, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    // An unreadable session must not prevent a new sign-in.
    let signed_in = backend.me(&parts).await.ok().flatten().is_some();
    let needs_setup = backend.needs_setup().await.map_err(super::with_error_status)?;
    Ok(SignInPageData { needs_setup, signed_in })
}

/// Takes the message that the form named `form` stored for this session.
///
/// # Errors
///
/// `Unavailable` if the session cannot be read.
#[server(input = GetUrl, output = JsonText, endpoint = "take_flash")]
pub async fn take_flash(form: String) -> Result<Option<FlashView>, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    Ok(backend.take_flash(&parts, &form).await?.map(FlashView::from))
}

/// Signs in and returns the address to continue at. The page goes there with a full load, because everything it shows
/// depends on the user.
///
/// # Errors
///
/// `Fields` for wrong credentials; `TooMany` after too many attempts; `Unavailable` if a service is down.
#[server(output = JsonText, endpoint = "sign_in")]
pub async fn sign_in(
    #[server(default)] email: String,
    #[server(default)] passphrase: String,
    #[server(default)] next: String,
) -> Result<String, AppError> {
    let parts = super::request()?;
    let next = local_path(&next).to_owned();
    let result = match super::backend()?.sign_in(&parts, &email, &passphrase).await {
        Ok(_) => Ok(next.clone()),
        // Wrong credentials are the most common error and are shown beside the form, not on a page of their own.
        Err(error @ (AppError::Denied(_) | AppError::SignedOut)) => {
            Err(AppError::field("passphrase", error.to_string()))
        }
        Err(error) => Err(error),
    };
    let back = if next == "/" { "/login".to_owned() } else { format!("/login?next={}", query_value(&next)) };
    let typed = serde_json::json!({ "email": email });
    super::respond("login", result, Clone::clone, "", &back, typed).await
}

/// Ends the session. A script then loads `/login`; a plain form post is redirected there.
///
/// # Errors
///
/// `Unavailable` if the session cannot be ended.
#[server(output = JsonText, endpoint = "sign_out")]
pub async fn sign_out() -> Result<(), AppError> {
    let parts = super::request()?;
    let result = super::backend()?.sign_out(&parts).await;
    // The error belongs to no form of a page.
    super::respond("notice", result, |()| "/login".into(), "", "/", ()).await
}

/// Looks up the one-time link with this token. Returns `None` if it is used, replaced, expired, revoked or mistyped.
#[server(input = GetUrl, output = JsonText, endpoint = "one_time_link")]
pub async fn one_time_link(#[server(default)] token: String) -> Result<Option<LinkInfo>, AppError> {
    let link = super::backend()?.link_info(&token).await.map_err(super::with_error_status)?;
    if link.is_none() {
        super::with_error_status(AppError::NotFound(String::new()));
    }
    Ok(link)
}

/// Consumes a one-time link: creates the user or stores the new passphrase, signs the user in and returns the address
/// to continue at. `page` is the page that a plain form post is redirected to after an error.
///
/// # Errors
///
/// `Fields` for `name`, `email` and `passphrase`; `NotFound` if the link is no longer valid.
#[server(output = JsonText, endpoint = "accept_link")]
pub async fn accept_link(
    #[server(default)] token: String,
    #[server(default)] page: LinkKind,
    #[server(default)] name: String,
    #[server(default)] email: String,
    #[server(default)] passphrase: String,
) -> Result<String, AppError> {
    let parts = super::request()?;
    let back = format!("/{}?token={}", page.slug(), query_value(&token));
    let typed = serde_json::json!({ "name": name, "email": email });
    let form = milvaion_api::team::LinkForm { page, token, name, email, passphrase };
    let result = super::backend()?.accept_link(&parts, &form).await.map(|_| "/".to_owned());
    super::respond("link", result, Clone::clone, "", &back, typed).await
}

/// Returns `next` if it is a path on this server, else the overview. Browsers treat `//host` and `/\host` as another
/// site, so both are refused, and so is everything that is not valid in a header.
#[must_use]
pub fn local_path(next: &str) -> &str {
    let mut bytes = next.bytes();
    let is_local = next.len() <= MAX_NEXT_PATH_BYTES
        && bytes.next() == Some(b'/')
        && !matches!(bytes.next(), Some(b'/' | b'\\'))
        && next.bytes().all(|byte| byte.is_ascii_graphic());
    if is_local { next } else { "/" }
}

/// Percent-encodes `text` for use after `?name=`.
#[must_use]
pub fn query_value(text: &str) -> String {
    const HEX_DIGITS: [u8; 16] = *b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/') {
            out.push(char::from(byte));
        } else {
            out.extend([
                '%',
                char::from(HEX_DIGITS[usize::from(byte >> 4)]),
                char::from(HEX_DIGITS[usize::from(byte & 15)]),
            ]);
        }
    }
    out
}

/// The reason for which the session ended or its rights changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEndReason {
    /// The session was signed out or has expired.
    SignedOut,
    /// The session was signed out in another tab, or replaced by a new sign-in.
    SignedOutElsewhere,
    /// The session was not used for too long or reached its maximum age.
    Expired,
    /// The session was ended from another device, or by an Admin.
    Revoked,
    /// The passphrase was changed, which ends all other sessions of the user.
    PassphraseChanged,
    /// The user was deactivated or deleted.
    Deactivated,
    /// The session had ended before a plain form was sent.
    FormNotSent,
}

impl SessionEndReason {
    /// Every reason.
    const ALL: [Self; 7] = [
        Self::SignedOut,
        Self::SignedOutElsewhere,
        Self::Expired,
        Self::Revoked,
        Self::PassphraseChanged,
        Self::Deactivated,
        Self::FormNotSent,
    ];

    /// Returns the value of the sign-in page's parameter `reason`.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::SignedOut => "signed-out",
            Self::SignedOutElsewhere => "signed-out-elsewhere",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::PassphraseChanged => "passphrase-changed",
            Self::Deactivated => "deactivated",
            Self::FormNotSent => "form-not-sent",
        }
    }

    /// Returns the reason of this slug; `None` for any other text.
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.slug() == slug)
    }

    /// Returns the reason as a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::SignedOut => "Your session has ended.",
            Self::SignedOutElsewhere => "You were signed out in another tab.",
            Self::Expired => "Your session has expired.",
            Self::Revoked => "Your session was ended from another device or by an Admin.",
            Self::PassphraseChanged => "Your passphrase was changed. Sign in with the new one.",
            Self::Deactivated => "Your account was deactivated.",
            Self::FormNotSent => {
                "Your session has ended. The form was not sent: nothing was changed, and any input must be entered \
                 again."
            }
        }
    }
}

/// Returns the address of the sign-in page that states `reason` and then continues at `next`.
#[must_use]
pub fn sign_in_address(reason: SessionEndReason, next: &str) -> String {
    format!("/login?next={}&reason={}", query_value(next), reason.slug())
}

/// The handler of the end of the session, which the layout provides.
#[derive(Clone, Copy)]
pub struct SessionEnd(Callback<SessionEndReason>);

impl SessionEnd {
    /// Provides the handler to everything inside the current owner. Called once, by the layout.
    pub fn provide(report: impl Fn(SessionEndReason) + Send + Sync + 'static) {
        provide_context(Self(Callback::new(report)));
    }

    /// Returns the handler for the current owner, with which it ends. Outside the layout it does nothing.
    #[must_use]
    pub fn current() -> Self {
        let layout = use_context::<Self>();
        Self(Callback::new(move |reason| {
            if let Some(layout) = layout {
                layout.report(reason);
            }
        }))
    }

    /// Reports that the server refused a read of the page because the session has ended. Waits for the reason, so that
    /// the sign-in page states it, and reports nothing if the page is gone or the browser has a valid session by then.
    pub fn report_refused_read(self) {
        let report = move || {
            spawn_local(async move {
                if matches!(whoami().await, Ok(None)) {
                    let _ = self.0.try_run(SessionEndReason::SignedOut);
                }
            });
        };
        browser::run_after(REASON_WAIT, report);
    }

    /// Reports that the session has ended, unless the page was left.
    pub fn report(self, reason: SessionEndReason) {
        let _ = self.0.try_run(reason);
    }
}

/// Returns the user's time zone: the valid one that they have chosen, else that of their browser. The latter is not
/// validated here; callers check that it is a zone.
#[cfg(feature = "ssr")]
#[must_use]
pub(crate) fn viewer_zone() -> Option<String> {
    chosen_zone().or_else(|| zone_cookie(browser::ZONE_COOKIE))
}

/// Returns the valid zone that the user has chosen.
#[cfg(feature = "ssr")]
#[must_use]
pub fn chosen_zone() -> Option<String> {
    zone_cookie(CHOSEN_ZONE_COOKIE).filter(|zone| milvaion_schedule::schedule::parse_zone(zone).is_ok())
}

/// Returns the zone that the user has chosen, if the browser knows it.
#[cfg(not(feature = "ssr"))]
#[must_use]
pub fn chosen_zone() -> Option<String> {
    let chosen = browser::cookie(CHOSEN_ZONE_COOKIE).filter(|zone| !zone.is_empty());
    chosen.filter(|zone| browser::zone_offset(zone, chrono::DateTime::UNIX_EPOCH).is_some())
}

/// Returns the value of a cookie with the name of a zone.
#[cfg(feature = "ssr")]
fn zone_cookie(name: &str) -> Option<String> {
    let zone = super::request_cookie(name)?.replace("%2F", "/").replace("%2f", "/").replace("%2B", "+");
    (zone.len() <= 64 && !zone.is_empty()).then_some(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_paths_are_followed() {
        assert_eq!(local_path("/jobs?q=a"), "/jobs?q=a");
        for elsewhere in ["", "jobs", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "/ä"] {
            assert_eq!(local_path(elsewhere), "/", "{elsewhere:?}");
        }
    }

    #[test]
    fn query_value_encodes_separators() {
        assert_eq!(query_value("/jobs?q=a&b#c d"), "/jobs%3Fq%3Da%26b%23c%20d");
    }

    #[test]
    fn only_known_reasons_are_accepted() {
        for reason in SessionEndReason::ALL {
            assert_eq!(SessionEndReason::from_slug(reason.slug()), Some(reason));
        }
        for slug in ["", "Signed-Out", "<b>"] {
            assert_eq!(SessionEndReason::from_slug(slug), None, "{slug:?}");
        }
        assert_eq!(
            sign_in_address(SessionEndReason::SignedOut, "/jobs/new?type=a/b"),
            "/login?next=/jobs/new%3Ftype%3Da/b&reason=signed-out"
        );
    }
}
