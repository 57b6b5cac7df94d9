//! The encoding of responses.
//!
//! It is JSON, as in `server_fn`, but decoded from text and not from bytes. Resources decode the data of the document
//! from text too, and the compiler generates the decoder of each type once for each kind of input: with one kind of
//! input, the browser loads one decoder for each type.

use leptos::server_fn::{Bytes, ContentType, Decodes, Encodes, Format, FormatType, codec::Post};
use serde::{Serialize, de::DeserializeOwned};

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
    type Error = serde_json::Error;

    fn decode(bytes: Bytes) -> Result<T, Self::Error> {
        // Invalid UTF-8 becomes a replacement character, which JSON accepts only inside a string.
        serde_json::from_str(&String::from_utf8_lossy(&bytes))
    }
}
