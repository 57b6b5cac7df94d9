//! Checks of the data that users enter about themselves.

use milvaion_schedule::printable::check_printable;

/// Checks a passphrase: 12 to 1,024 characters.
///
/// # Errors
///
/// Returns a message with the remedy.
pub fn check_passphrase(passphrase: &str) -> Result<(), String> {
    match passphrase.chars().count() {
        n if n < 12 => Err("a passphrase has at least 12 characters: use several words".into()),
        n if n > 1_024 => Err("a passphrase has at most 1,024 characters".into()),
        _ => Ok(()),
    }
}

/// Checks an e-mail address, only for what mail delivery needs.
///
/// # Errors
///
/// Returns a message with the remedy.
pub fn check_email(email: &str) -> Result<String, String> {
    let email = email.trim().to_lowercase();
    let ok = email.len() <= 254
        && email.split_once('@').is_some_and(|(name, domain)| {
            !name.is_empty() && !domain.is_empty() && !domain.contains('@') && !email.contains(char::is_whitespace)
        });
    if ok { Ok(email) } else { Err("enter an e-mail address, for example ana@example.org".into()) }
}

/// Checks a user's name: 1 to 100 printable characters.
///
/// # Errors
///
/// Returns a message with the remedy.
pub fn check_name(name: &str) -> Result<String, String> {
    let name = name.trim();
    match name.chars().count() {
        0 => Err("enter a name".into()),
        n if n > 100 => Err("a name has at most 100 characters".into()),
        _ => check_printable(name).map(|()| name.to_owned()),
    }
}
