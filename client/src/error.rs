//! Everything that can go wrong between a program and the server.
//!
//! The variants follow what a caller can do: correct an address or a token, wait for a server, act on a problem that the
//! server describes, or report an answer that is not Milvaion's. The text of a variant leaves out the text of its source.

use http::StatusCode;
use milvaion_api::rest::Problem;

/// A failure of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An environment variable is not set.
    #[error(
        "Set the environment variable {name}: MILVAION_URL is the address of the server, MILVAION_TOKEN an API token."
    )]
    MissingVariable {
        /// The variable.
        name: &'static str,
    },

    /// The text is not the address of a server.
    #[error(
        "{address:?} cannot be used as the address of the server: {reason}. Give one such as https://jobs.example.com or \
         http://127.0.0.1:8600."
    )]
    InvalidAddress {
        /// The text, without a passphrase.
        address: String,
        /// The reason.
        reason: String,
    },

    /// The text cannot be a part of an address: it is empty, `.` or `..`, or has control characters. The request would have
    /// been about another object.
    #[error("{value:?} cannot be {argument}. Copy the name from the list of the objects.")]
    InvalidName {
        /// The name of the argument with its article.
        argument: &'static str,
        /// The text.
        value: String,
    },

    /// The text cannot be a token.
    #[error("The token is empty or contains characters that no token has. Copy it again, or create a new one.")]
    InvalidToken,

    /// No connection to the server was made, or it was lost.
    #[error("The server at {address} cannot be reached. Check the address, the network, and that the server runs.")]
    Transport {
        /// The address of the server.
        address: String,
        /// The error of the connection.
        source: reqwest::Error,
    },

    /// The server did not answer in time.
    #[error(
        "The server at {address} sent nothing for {seconds} s. Repeat the request, and check the load of the server."
    )]
    Timeout {
        /// The address of the server.
        address: String,
        /// The limit.
        seconds: u64,
    },

    /// The server refused or failed the request, and says why.
    #[error("{}", describe(.0))]
    Problem(Box<Problem>),

    /// The answer comes from something other than the API, such as a proxy.
    #[error(
        "{address} answered with status {status} and not as the API of Milvaion does. Check that the address is that of \
         the dashboard, and any proxy before it.{}", excerpt_text(.excerpt)
    )]
    NotTheApi {
        /// The address of the request.
        address: String,
        /// The status.
        status: StatusCode,
        /// The start of the answer, or the target of a redirect.
        excerpt: String,
    },

    /// A document has another form than this version of the client expects.
    #[error(
        "The answer of {address} cannot be read. The server may have another version: use the client of the same version."
    )]
    UnreadableAnswer {
        /// The address of the request.
        address: String,
        /// The error of the parser.
        source: serde_json::Error,
    },

    /// A request cannot be written as JSON.
    #[error("The request cannot be written as JSON. Check its values.")]
    UnwritableRequest(#[source] serde_json::Error),

    /// A page of a list names a next page that the list cannot have.
    #[error(
        "The server named {cursor:?} as the next page, which this list cannot have. Use the client of its version."
    )]
    InvalidCursor {
        /// The cursor.
        cursor: String,
    },

    /// A stream of events cannot be read.
    #[error("The stream of {address} cannot be read: {reason}. Check any proxy before the server.")]
    UnreadableStream {
        /// The address of the stream.
        address: String,
        /// The reason.
        reason: String,
    },

    /// The HTTP client cannot be built.
    #[error("Connections cannot be prepared. Check the system's TLS certificates and the proxy variables.")]
    Setup(#[source] reqwest::Error),
}

impl ClientError {
    /// Returns the HTTP status, if the server or a proxy answered.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Problem(problem) => StatusCode::from_u16(problem.status).ok(),
            Self::NotTheApi { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Returns the detail of a problem, and the invalid fields on lines of their own. The detail already has a single field.
fn describe(problem: &Problem) -> String {
    let mut text = if problem.detail.is_empty() { problem.title.clone() } else { problem.detail.clone() };
    if problem.errors.len() > 1 {
        for error in &problem.errors {
            text.push_str(&format!("\n{}: {}", error.field, error.message));
        }
    }
    text
}

fn excerpt_text(excerpt: &str) -> String {
    if excerpt.is_empty() { String::new() } else { format!(" It begins: {excerpt}") }
}

#[cfg(test)]
mod tests {
    use milvaion_api::rest::ProblemField;

    use super::*;

    fn problem(fields: &[&str]) -> ClientError {
        let field = |name: &&str| ProblemField { field: (*name).to_owned(), message: "is wrong".into() };
        let errors = fields.iter().map(field).collect();
        ClientError::Problem(Box::new(Problem {
            status: 422,
            detail: "Fields are invalid.".into(),
            errors,
            ..Problem::default()
        }))
    }

    #[test]
    fn a_problem_lists_several_fields_and_never_one_twice() {
        assert_eq!(problem(&["a"]).to_string(), "Fields are invalid.");
        assert_eq!(problem(&["a", "b"]).to_string(), "Fields are invalid.\na: is wrong\nb: is wrong");
        assert_eq!(problem(&[]).status(), Some(StatusCode::UNPROCESSABLE_ENTITY));
    }
}
