//! The encoding of responses and of their errors.
//!
//! It is JSON, as in `server_fn`, but decoded from text and not from bytes. Resources decode the data of the document
//! from text too, and the compiler generates the decoder of each type once for each kind of input: with one kind of
//! input, the browser loads one decoder for each type.

use leptos::server_fn::{
    Bytes, ContentType, Decodes, Encodes, Format, FormatType,
    codec::Post,
    error::{FromServerFnError, ServerFnErrorErr},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::error::Category;
use thiserror::Error;

use crate::error::AppError;

/// The reason for which a response could not be decoded, as a sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The response is JSON of another form, so the server has another version than the page.
    #[error("This page is from an older version of Milvaion. Reload it.")]
    OtherVersion,
    /// The response is no JSON, so it is the error page of a proxy, or it is incomplete.
    #[error("The server's response could not be read. Try again.")]
    NotJson,
}

/// JSON that is decoded from text.
#[derive(Debug)]
pub struct JsonTextEncoding;

/// The output encoding of all server functions.
pub type JsonText = Post<JsonTextEncoding>;

impl ContentType for JsonTextEncoding {
    const CONTENT_TYPE: &'static str = "application/json";
}

impl FormatType for JsonTextEncoding {
    const FORMAT_TYPE: Format = Format::Text;
}

impl<T: Serialize> Encodes<T> for JsonTextEncoding {
    type Error = serde_json::Error;

    fn encode(output: &T) -> Result<Bytes, Self::Error> {
        serde_json::to_vec(output).map(Bytes::from)
    }
}

impl<T: DeserializeOwned> Decodes<T> for JsonTextEncoding {
    type Error = DecodeError;

    fn decode(bytes: Bytes) -> Result<T, Self::Error> {
        // Invalid UTF-8 becomes a replacement character, which JSON accepts only inside a string.
        serde_json::from_str(&String::from_utf8_lossy(&bytes)).map_err(|error| match error.classify() {
            Category::Data => DecodeError::OtherVersion,
            Category::Io | Category::Syntax | Category::Eof => DecodeError::NotJson,
        })
    }
}

impl FromServerFnError for AppError {
    type Encoder = JsonTextEncoding;

    fn from_server_fn_error(error: ServerFnErrorErr) -> Self {
        match error {
            ServerFnErrorErr::Request(_) => {
                Self::Unavailable("The server cannot be reached. Check the connection and try again.".into())
            }
            ServerFnErrorErr::Args(message) | ServerFnErrorErr::MissingArg(message) => {
                Self::Failed(format!("The request could not be read: {message}"))
            }
            // The codec's errors are sentences.
            ServerFnErrorErr::Deserialization(message) => Self::Failed(message),
            other => Self::Failed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &'static str) -> Result<Vec<u8>, DecodeError> {
        JsonTextEncoding::decode(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn response_of_another_version_differs_from_an_error_page() {
        assert_eq!(decode("[1,2]"), Ok(vec![1, 2]));
        for text in ["{\"items\":[]}", "[\"a\"]", "null"] {
            assert_eq!(decode(text), Err(DecodeError::OtherVersion), "{text}");
        }
        for text in ["", "[1,", "<html>502 Bad Gateway</html>"] {
            assert_eq!(decode(text), Err(DecodeError::NotJson), "{text}");
        }
    }

    #[test]
    fn error_of_another_version_is_a_plain_sentence() {
        let error = AppError::de(Bytes::from_static(br#"{"quotaExceeded":"9"}"#));
        assert_eq!(error.to_string(), "This page is from an older version of Milvaion. Reload it.");
    }
}
