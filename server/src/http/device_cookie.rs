//! The cookie by which a user's browser is recognized as a known device.
//!
//! It is read and set through the cookies of the session layer, so it also works for a server function that a plain form
//! calls.

use http::request::Parts;
use tower_cookies::{
    Cookie, Cookies,
    cookie::{SameSite, time::Duration},
};

use crate::{command::sign_in::DEVICE_RETENTION, config::http::HttpConfig};

/// Returns the name of the cookie. Over TLS, the prefix `__Host-` makes browsers require `Secure`, `Path=/` and no
/// `Domain`.
#[must_use]
pub fn cookie_name(config: &HttpConfig) -> &'static str {
    if config.is_secure() { "__Host-milvaion_device" } else { "milvaion_device" }
}

/// Returns the device token of a request. It may be forged.
#[must_use]
pub fn device_token(config: &HttpConfig, parts: &Parts) -> Option<String> {
    let cookies: &Cookies = parts.extensions.get()?;
    Some(cookies.get(cookie_name(config))?.value().to_owned())
}

/// Sets the cookie in the response to a request. Does nothing if the request did not pass the session layer.
pub fn set_device_token(config: &HttpConfig, parts: &Parts, token: String) {
    let Some(cookies) = parts.extensions.get::<Cookies>() else { return };
    cookies.add(
        Cookie::build((cookie_name(config), token))
            .http_only(true)
            // As for the session: a link from another site to the sign-in page must find the device.
            .same_site(SameSite::Lax)
            .secure(config.is_secure())
            .path("/")
            .max_age(Duration::seconds(DEVICE_RETENTION.num_seconds()))
            .build(),
    );
}
