//! The operations of the API, one method each, by the objects that they act on.
//!
//! Each returns an error if the server refuses the request or cannot be reached; a section `# Errors` names other errors.

mod calendars;
mod failures;
mod files;
mod installation;
pub(crate) mod jobs;
mod occurrences;
mod singletons;
mod tokens;

use crate::ClientError;

/// Returns a name as a segment of a path, which is percent-encoded later. `argument` describes it in the error.
///
/// A URL drops the segments `.` and `..`, and tabs and line breaks within a segment, so the request would be about another
/// object, or about all of them.
///
/// # Errors
///
/// Returns [`ClientError::InvalidName`] for a text that no object has as its name.
fn segment<'a>(argument: &'static str, name: &'a str) -> Result<&'a str, ClientError> {
    if matches!(name, "" | "." | "..") || name.contains(char::is_control) {
        return Err(ClientError::InvalidName { argument, value: name.to_owned() });
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_a_url_would_drop_is_refused() {
        for name in ["", ".", "..", ".\n.", "a\tb"] {
            let error = segment("the name of a loop", name).expect_err(name).to_string();
            assert!(error.contains("cannot be the name of a loop"), "{error}");
        }
        for name in ["a", "...", "a/b", "%2e%2e", "ä b"] {
            assert_eq!(segment("a key", name).ok(), Some(name));
        }
    }
}
