//! Server functions of the own account: name, passphrase, sessions, and the preferences of the browser.

use leptos::prelude::*;
use milvaion_api::team::AccountView;
use milvaion_protocol::id::SessionId;
use serde::{Deserialize, Serialize};
use server_fn::codec::GetUrl;

use super::{codec::JsonText, session::FlashView};
use crate::error::AppError;

/// The notice after a change of the name.
pub const RENAMED_NOTICE: &str = "Your name is changed.";
/// The notice after a change of the passphrase.
pub const PASSPHRASE_NOTICE: &str = "Passphrase changed. All other sessions were ended.";
/// The notice after a change of the preferences.
pub const PREFERENCES_NOTICE: &str = "The preferences are saved.";

/// The parts of the account page that have a form, as `part` among the typed values of a refused post.
pub mod part {
    /// The name.
    pub const PROFILE: &str = "profile";
    /// The passphrase.
    pub const PASSPHRASE: &str = "passphrase";
    /// The sessions.
    pub const SESSIONS: &str = "sessions";
    /// The preferences.
    pub const PREFERENCES: &str = "preferences";
}

/// The fields of the preferences, as text. An unknown value is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PreferencesForm {
    /// `system`, `light` or `dark`.
    pub theme: String,
    /// `local` for the zone of the browser, `utc`, or `chosen` for `zone`.
    pub zone_mode: String,
    /// The IANA name of the chosen zone.
    pub zone: String,
    /// `relative` or `exact`.
    pub time_style: String,
    /// `24` or `12`.
    pub clock: String,
    /// `on`; empty for off, as a checkbox that is not checked.
    pub shortcuts: String,
}

/// Everything the account page renders from, in one response, so that server and browser render the same page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccountPageData {
    /// The account.
    pub account: AccountView,
    /// The preferences of the browser, or the values of a refused post.
    pub preferences: PreferencesForm,
    /// Every zone name.
    pub zones: Vec<String>,
    /// Result of a plain form post, if there was one.
    pub flash: Option<FlashView>,
}

/// Loads the account page.
#[server(input = GetUrl, output = JsonText, endpoint = "account_page")]
pub async fn load_account_page() -> Result<AccountPageData, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAccount).await?;
    let parts = super::request()?;
    let account = backend.account(&parts, &me).await.map_err(super::with_error_status)?;
    let flash = backend.take_flash(&parts, FORM).await?.map(FlashView::from);
    let typed = flash.as_ref().filter(|flash| flash.typed("part") == part::PREFERENCES);
    let typed = typed.and_then(|flash| serde_json::from_value(flash.typed.get("form")?.clone()).ok());
    let preferences = typed.unwrap_or_else(PreferencesForm::from_cookies);
    let zones = milvaion_schedule::schedule::zone_names().into_iter().map(str::to_owned).collect();
    Ok(AccountPageData { account, preferences, zones, flash })
}

/// Returns the own account with its sessions.
#[server(input = GetUrl, output = JsonText, endpoint = "account")]
pub async fn account() -> Result<AccountView, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAccount).await?;
    backend.account(&super::request()?, &me).await.map_err(super::with_error_status)
}

/// Changes the own name.
///
/// # Errors
///
/// `Fields` for `name`.
#[server(output = JsonText, endpoint = "rename_account")]
pub async fn rename_account(#[server(default)] name: String) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAccount).await?;
    let result = backend.rename_account(&me, &name).await;
    let typed = serde_json::json!({ "part": part::PROFILE, "name": name });
    super::respond(FORM, result, |()| address(part::PROFILE), RENAMED_NOTICE, &address(part::PROFILE), typed).await
}

/// Changes the own passphrase and ends all other sessions. The response carries the new session of this browser.
///
/// # Errors
///
/// `Fields` for `current` and `passphrase`; `TooMany` after too many wrong values of `current`.
#[server(output = JsonText, endpoint = "change_passphrase")]
pub async fn change_passphrase(
    #[server(default)] current: String,
    #[server(default)] passphrase: String,
) -> Result<(), AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAccount).await?;
    let result = backend.change_passphrase(&super::request()?, &me, &current, &passphrase).await;
    let typed = serde_json::json!({ "part": part::PASSPHRASE });
    let page = address(part::PASSPHRASE);
    super::respond(FORM, result, |()| page.clone(), PASSPHRASE_NOTICE, &page, typed).await
}

/// Ends one own session, or all but the current one without `session`. Returns the number of ended sessions.
///
/// # Errors
///
/// `NotFound` if the session has already ended.
#[server(output = JsonText, endpoint = "end_own_sessions")]
pub async fn end_own_sessions(#[server(default)] session: Option<SessionId>) -> Result<u32, AppError> {
    let (backend, me) = super::authorize(milvaion_api::permissions::Permission::ManageAccount).await?;
    let result = backend.end_own_sessions(&super::request()?, &me, session).await;
    let notice = result.as_ref().map(|ended| ended_notice(session.is_some(), *ended)).unwrap_or_default();
    let typed = serde_json::json!({ "part": part::SESSIONS });
    let page = address(part::SESSIONS);
    super::respond(FORM, result, |_| page.clone(), &notice, &page, typed).await
}

/// Returns the notice after sessions were ended.
#[must_use]
pub fn ended_notice(is_one: bool, ended: u32) -> String {
    match (is_one, ended) {
        (true, _) => "The session is ended.".into(),
        (false, 0) => "There was no other session.".into(),
        (false, 1) => "1 other session is ended.".into(),
        (false, n) => format!("{n} other sessions are ended."),
    }
}

/// Stores the preferences in cookies of this browser for one year.
///
/// # Errors
///
/// `Fields` for unknown values and zones.
#[server(output = JsonText, endpoint = "save_preferences")]
pub async fn save_preferences(#[server(default)] form: PreferencesForm) -> Result<(), AppError> {
    super::authorize(milvaion_api::permissions::Permission::ManageAccount).await?;
    let result = form.cookies().map(|cookies| {
        if let Some(response) = use_context::<leptos_axum::ResponseOptions>() {
            for cookie in cookies {
                response.append_header(http::header::SET_COOKIE, cookie);
            }
        }
    });
    let typed = serde_json::json!({ "part": part::PREFERENCES, "form": form });
    let page = address(part::PREFERENCES);
    super::respond(FORM, result, |()| page.clone(), PREFERENCES_NOTICE, &page, typed).await
}

/// The name under which a refused plain post of the account page is kept.
#[cfg(feature = "ssr")]
const FORM: &str = "account";

/// Returns the address of a section of the account page.
#[cfg(feature = "ssr")]
fn address(section: &str) -> String {
    format!("/account#{section}")
}

#[cfg(feature = "ssr")]
impl PreferencesForm {
    /// Returns the preferences of the browser that sent the request. A missing or unknown value is replaced by the
    /// default.
    fn from_cookies() -> Self {
        use crate::{
            api::{request_cookie, session::chosen_zone},
            browser::{CLOCK_COOKIE, SHORTCUTS_COOKIE, THEME_COOKIE, TIME_STYLE_COOKIE, ZONE_MODE_COOKIE},
        };

        let is = |name: &str, value: &str| request_cookie(name).is_some_and(|found| found == value);
        let zone = chosen_zone();
        let zone_mode = match (is(ZONE_MODE_COOKIE, "utc"), &zone) {
            (true, _) => "utc",
            (false, Some(_)) => "chosen",
            (false, None) => "local",
        };
        Self {
            theme: ["light", "dark"].into_iter().find(|theme| is(THEME_COOKIE, theme)).unwrap_or("system").into(),
            zone_mode: zone_mode.into(),
            zone: zone.unwrap_or_default(),
            time_style: if is(TIME_STYLE_COOKIE, "exact") { "exact" } else { "relative" }.into(),
            clock: if is(CLOCK_COOKIE, "12") { "12" } else { "24" }.into(),
            shortcuts: if is(SHORTCUTS_COOKIE, "off") { "" } else { "on" }.into(),
        }
    }

    /// Returns the cookies that store these preferences.
    fn cookies(&self) -> Result<Vec<http::HeaderValue>, AppError> {
        use milvaion_api::requests::FieldError;

        use crate::browser::{
            CHOSEN_ZONE_COOKIE, CLOCK_COOKIE, SHORTCUTS_COOKIE, THEME_COOKIE, TIME_STYLE_COOKIE, ZONE_MODE_COOKIE,
        };

        let choices: [(&str, &str, &[&str]); 4] = [
            ("theme", &self.theme, &["system", "light", "dark"]),
            ("zone_mode", &self.zone_mode, &["local", "utc", "chosen"]),
            ("time_style", &self.time_style, &["relative", "exact"]),
            ("clock", &self.clock, &["24", "12"]),
        ];
        let mut errors: Vec<FieldError> = choices
            .into_iter()
            .filter(|(_, value, known)| !known.contains(value))
            .map(|(field, _, known)| FieldError::new(field, format!("choose one of {}.", known.join(", "))))
            .collect();
        if !matches!(self.shortcuts.as_str(), "" | "on") {
            errors.push(FieldError::new("shortcuts", "must be on or empty."));
        }
        let zone = self.zone.trim();
        let is_zone = milvaion_schedule::schedule::parse_zone(zone);
        match &is_zone {
            _ if self.zone_mode != "chosen" => {}
            _ if zone.is_empty() => errors.push(FieldError::new("zone", "enter an IANA name such as Europe/Warsaw.")),
            Err(message) => errors.push(FieldError::new("zone", message)),
            Ok(_) => {}
        }
        if !errors.is_empty() {
            return Err(AppError::Fields(errors));
        }
        // A zone stays chosen while times are shown in UTC, so that the top bar switches back to it.
        let chosen = if self.zone_mode != "local" && is_zone.is_ok() { zone } else { "" };
        let values = [
            (THEME_COOKIE, self.theme.as_str()),
            (ZONE_MODE_COOKIE, if self.zone_mode == "utc" { "utc" } else { "local" }),
            (CHOSEN_ZONE_COOKIE, chosen),
            (TIME_STYLE_COOKIE, self.time_style.as_str()),
            (CLOCK_COOKIE, self.clock.as_str()),
            (SHORTCUTS_COOKIE, if self.shortcuts.is_empty() { "off" } else { "on" }),
        ];
        // Every value is one of the words above or the name of a zone, so none is invalid in a header.
        Ok(values.into_iter().filter_map(|(name, value)| cookie(name, value)).collect())
    }
}

/// Builds a cookie of a preference, which scripts may read too. An empty value removes it.
#[cfg(feature = "ssr")]
fn cookie(name: &str, value: &str) -> Option<http::HeaderValue> {
    use crate::browser::PREFERENCE_SECONDS;

    let seconds = if value.is_empty() { 0 } else { PREFERENCE_SECONDS };
    http::HeaderValue::from_str(&format!("{name}={value}; Path=/; Max-Age={seconds}; SameSite=Lax")).ok()
}
