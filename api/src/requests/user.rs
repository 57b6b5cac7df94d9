//! What people say of themselves.

/// Checks a passphrase: 12 to 1,024 characters.
///
/// # Errors
///
/// What to do.
pub fn check_passphrase(passphrase: &str) -> Result<(), String> {
    match passphrase.chars().count() {
        n if n < 12 => Err("a passphrase has at least 12 characters: a few words do well".into()),
        n if n > 1_024 => Err("a passphrase has at most 1,024 characters".into()),
        _ => Ok(()),
    }
}

/// Checks an e-mail address for what mail needs, no more.
///
/// # Errors
///
/// What to do.
pub fn check_email(email: &str) -> Result<String, String> {
    let email = email.trim().to_lowercase();
    let ok = email.len() <= 254
        && email.split_once('@').is_some_and(|(name, domain)| {
            !name.is_empty() && !domain.is_empty() && !domain.contains('@') && !email.contains(char::is_whitespace)
        });
    if ok { Ok(email) } else { Err("write an e-mail address, as in ana@example.org".into()) }
}

/// Checks a person's name: 1 to 100 characters, none of them a control character.
///
/// # Errors
///
/// What to do.
pub fn check_name(name: &str) -> Result<String, String> {
    let name = name.trim();
    match name.chars().count() {
        0 => Err("write a name".into()),
        n if n > 100 => Err("a name has at most 100 characters".into()),
        _ if name.chars().any(char::is_control) => Err("a name has no control characters".into()),
        _ => Ok(name.to_owned()),
    }
}
