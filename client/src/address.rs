//! The address of a server and the token, checked before anything is sent.
//!
//! A typing error in either would otherwise appear as a failed connection or a refused token, which send a user looking in
//! the wrong place. An address may have a path, for a server behind a proxy that serves it below one.

use http::HeaderValue;
use url::Url;

use crate::ClientError;

/// Parses the address of a server. The result has no slash at the end of its path, no query and no fragment.
///
/// # Errors
///
/// Returns [`ClientError::InvalidAddress`] for a text that is not an HTTP address, or that contains a passphrase.
pub(crate) fn parse_address(text: &str) -> Result<Url, ClientError> {
    let invalid =
        |reason: &str| ClientError::InvalidAddress { address: text.trim().to_owned(), reason: reason.to_owned() };
    let mut url = Url::parse(text.trim()).map_err(|error| invalid(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("it does not begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // The text is not repeated, because it contains the passphrase.
        return Err(ClientError::InvalidAddress {
            address: url.host_str().unwrap_or_default().to_owned(),
            reason: "it contains a user or a passphrase".into(),
        });
    }
    url.set_query(None);
    url.set_fragment(None);
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty();
    }
    Ok(url)
}

/// Builds the header `Authorization` of a token. Its value is left out of debug output.
///
/// # Errors
///
/// Returns [`ClientError::InvalidToken`] for a text that cannot be a token.
pub(crate) fn authorization(token: &str) -> Result<HeaderValue, ClientError> {
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(ClientError::InvalidToken);
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ClientError::InvalidToken)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_loses_its_last_slash_and_its_query() {
        let parsed = |text| parse_address(text).expect("a valid address").to_string();
        assert_eq!(parsed(" https://jobs.example.com/?a=b#c"), "https://jobs.example.com/");
        assert_eq!(parsed("http://127.0.0.1:8600/below/"), "http://127.0.0.1:8600/below");
    }

    #[test]
    fn a_wrong_address_is_refused_with_a_reason() {
        for text in ["", "jobs.example.com", "ftp://jobs.example.com", "http://"] {
            assert!(matches!(parse_address(text), Err(ClientError::InvalidAddress { .. })), "{text}");
        }
        let error = parse_address("https://me:secret@jobs.example.com").expect_err("a passphrase");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn a_token_stays_out_of_debug_output() {
        let value = authorization("milvaion_abc\n").expect("a valid token");
        assert_eq!(value.to_str().ok(), Some("Bearer milvaion_abc"));
        assert!(!format!("{value:?}").contains("abc"));
        for text in ["", "  ", "two words", "ä"] {
            assert!(matches!(authorization(text), Err(ClientError::InvalidToken)), "{text}");
        }
    }
}
