//! Who is asking: signing in and out, one-time links, and what a plain form left for the next page.

use leptos::prelude::*;
use milvaion_api::{
    requests::FieldError,
    views::{CurrentUser, InviteInfo},
};
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use crate::error::AppError;

/// The longest address a sign-in leads on to, in bytes; a longer one is not ours.
const MAX_NEXT_PATH_BYTES: usize = 2_000;

/// What the sign-in page has to know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SignInPageData {
    /// True while there is nobody yet, so that only the setup link leads in.
    pub needs_setup: bool,
    /// True when the reader is signed in already.
    pub signed_in: bool,
}

/// What a one-time link leads to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum InviteLink {
    /// It is good, for this.
    Good(InviteInfo),
    /// It is used up, too old, mistyped, or its inviter took it back.
    Spent,
}

/// What a plain form left for the page it led back to: the browser's view of a flash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlashView {
    /// What went well.
    pub notice: Option<String>,
    /// What did not, when it belongs to no field.
    pub error: Option<String>,
    /// What did not, field by field.
    pub fields: Vec<FieldError>,
    /// What was typed, without secrets.
    pub typed: serde_json::Value,
}

impl FlashView {
    /// All that is wrong; what belongs to no field has an empty one.
    #[must_use]
    pub fn problems(&self) -> Vec<FieldError> {
        let whole = self.error.iter().map(|message| FieldError::new("", message));
        whole.chain(self.fields.iter().cloned()).collect()
    }

    /// What was typed into `field`.
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

/// Who is signed in, if anybody.
///
/// # Errors
///
/// When the session cannot be looked up.
#[server(input = GetUrl, endpoint = "whoami")]
pub async fn whoami() -> Result<Option<CurrentUser>, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    backend.me(&parts).await.map_err(super::with_error_status)
}

/// What the sign-in page has to know.
///
/// # Errors
///
/// When the people cannot be counted.
#[server(input = GetUrl, endpoint = "sign_in_page")]
pub async fn load_sign_in_page() -> Result<SignInPageData, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    // A session that cannot be read must not keep anybody from signing in anew.
    let signed_in = backend.me(&parts).await.ok().flatten().is_some();
    let needs_setup = backend.needs_setup().await.map_err(super::with_error_status)?;
    Ok(SignInPageData { needs_setup, signed_in })
}

/// Reads and forgets what the form called `form` left for this person.
///
/// # Errors
///
/// When the session cannot be looked up.
#[server(input = GetUrl, endpoint = "take_flash")]
pub async fn take_flash(form: String) -> Result<Option<FlashView>, AppError> {
    let backend = super::backend()?;
    let parts = super::request()?;
    Ok(backend.take_flash(&parts, &form).await?.map(FlashView::from))
}

/// Signs in and answers where to go on. The page goes there with a full load, because everything it shows depends on
/// who reads.
///
/// # Errors
///
/// Wrong credentials, too many tries, or a service that is away.
#[server(endpoint = "sign_in")]
pub async fn sign_in(
    #[server(default)] email: String,
    #[server(default)] passphrase: String,
    #[server(default)] next: String,
) -> Result<String, AppError> {
    let parts = super::request()?;
    let next = local_path(&next).to_owned();
    let result = match super::backend()?.sign_in(&parts, &email, &passphrase).await {
        Ok(_) => Ok(next.clone()),
        // Being refused here is the most ordinary answer and belongs beside the form, not on a page of its own.
        Err(error @ (AppError::Denied(_) | AppError::SignedOut)) => {
            Err(AppError::field("passphrase", error.to_string()))
        }
        Err(error) => Err(error),
    };
    let back = if next == "/" { "/login".to_owned() } else { format!("/login?next={}", query_value(&next)) };
    let typed = serde_json::json!({ "email": email });
    super::respond("login", result, Clone::clone, "", &back, typed).await
}

/// Ends the session. A script then loads `/login` anew; a plain form is led there.
///
/// # Errors
///
/// When the session cannot be ended.
#[server(endpoint = "sign_out")]
pub async fn sign_out() -> Result<(), AppError> {
    let parts = super::request()?;
    let result = super::backend()?.sign_out(&parts).await;
    super::respond("login", result, |()| "/login".into(), "", "/", ()).await
}

/// What the one-time link with this token is good for.
///
/// # Errors
///
/// When it cannot be looked up; a link that is not good is an answer, not an error.
#[server(input = GetUrl, endpoint = "invite")]
pub async fn invite(#[server(default)] token: String) -> Result<InviteLink, AppError> {
    match super::backend()?.invite(&token).await {
        Ok(info) => Ok(InviteLink::Good(info)),
        Err(error @ AppError::NotFound(_)) => {
            super::with_error_status(error);
            Ok(InviteLink::Spent)
        }
        Err(error) => Err(super::with_error_status(error)),
    }
}

/// Uses a one-time link up: makes the person, signs them in, and answers where to go on. `page` is `setup` or `invite`:
/// where a plain form is led back to when something is wrong.
///
/// # Errors
///
/// The wrong fields (`name`, `email`, `passphrase`), or `NotFound` when the link is no longer good.
#[server(endpoint = "accept_invite")]
pub async fn accept_invite(
    #[server(default)] token: String,
    #[server(default)] page: String,
    #[server(default)] name: String,
    #[server(default)] email: String,
    #[server(default)] passphrase: String,
) -> Result<String, AppError> {
    let parts = super::request()?;
    let backend = super::backend()?;
    let result = backend.accept_invite(&parts, &token, &name, &email, &passphrase).await.map(|_| "/".to_owned());
    let page = if page == "setup" { "setup" } else { "invite" };
    let back = format!("/{page}?token={}", query_value(&token));
    let typed = serde_json::json!({ "name": name, "email": email });
    super::respond("invite", result, Clone::clone, "", &back, typed).await
}

/// `next` if it is a path on this server, else the overview. A browser reads `//host` and `/\host` as another site, so
/// both are refused, and so is everything that could not stand in a header.
#[must_use]
pub fn local_path(next: &str) -> &str {
    let mut bytes = next.bytes();
    let is_local = next.len() <= MAX_NEXT_PATH_BYTES
        && bytes.next() == Some(b'/')
        && !matches!(bytes.next(), Some(b'/' | b'\\'))
        && next.bytes().all(|byte| byte.is_ascii_graphic());
    if is_local { next } else { "/" }
}

/// `text` as it may stand behind `?name=`.
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

/// The reader's time zone as their browser told it, if it did: the cookie `zone`. Whether it is a zone at all is for
/// whoever uses it to judge.
#[cfg(feature = "ssr")]
#[must_use]
pub(super) fn viewer_zone() -> Option<String> {
    let parts = super::request().ok()?;
    let cookies = parts.headers.get_all(http::header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let zone = cookies.flat_map(|line| line.split(';')).find_map(|pair| pair.trim().strip_prefix("zone="))?;
    let zone = zone.replace("%2F", "/").replace("%2f", "/").replace("%2B", "+");
    (zone.len() <= 64 && !zone.is_empty()).then_some(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_our_own_are_followed() {
        assert_eq!(local_path("/jobs?q=a"), "/jobs?q=a");
        for elsewhere in ["", "jobs", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "/ä"] {
            assert_eq!(local_path(elsewhere), "/", "{elsewhere:?}");
        }
    }

    #[test]
    fn a_query_value_cannot_end_its_own_value() {
        assert_eq!(query_value("/jobs?q=a&b#c d"), "/jobs%3Fq%3Da%26b%23c%20d");
    }
}
