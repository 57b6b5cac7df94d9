//! The trace of an occurrence: the identity under which all its spans are recorded, on the server and on the worker.
//!
//! It travels as the `traceparent` of the [W3C Trace Context](https://www.w3.org/TR/trace-context/) in job messages and
//! in reports. An occurrence that a request creates continues the trace of the request. Any other occurrence has a trace
//! of its own, whose ids follow from the id of the occurrence: the trace id is the same 128 bits, and the id of its first
//! span is the second half of them, which is random. So every server finds the trace of every occurrence without a
//! look-up, and nothing is stored.
//!
//! `tracestate` is not transmitted: it may have half a kilobyte per message, and no span depends on it.

use std::fmt;

use crate::id::OccurrenceId;

/// The length of a `traceparent` of version 00, in bytes.
const LENGTH: usize = 55;

/// A position in a trace: the span that comes before the next one, and whether the trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traceparent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    is_sampled: bool,
}

impl Traceparent {
    /// Builds a position from its ids; `None` if one of them is zero, which the standard forbids.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], is_sampled: bool) -> Option<Self> {
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id, is_sampled })
    }

    /// Reads a `traceparent`; `None` if it is malformed. Fields that a later version of the standard adds at the end are
    /// ignored, as the standard demands.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let version = hex::<1>(bytes.get(..2)?)?[0];
        let is_whole = match version {
            0 => bytes.len() == LENGTH,
            // 255 is forbidden.
            u8::MAX => false,
            _ => bytes.len() == LENGTH || bytes.get(LENGTH) == Some(&b'-'),
        };
        if !is_whole || bytes.len() < LENGTH || [2, 35, 52].iter().any(|at| bytes[*at] != b'-') {
            return None;
        }
        let flags = hex::<1>(&bytes[53..55])?[0];
        Self::new(hex(&bytes[3..35])?, hex(&bytes[36..52])?, flags & 1 == 1)
    }

    /// Returns the first position in the trace of an occurrence that no request created; `None` for an id of zeros.
    #[must_use]
    pub fn of_occurrence(id: OccurrenceId, is_sampled: bool) -> Option<Self> {
        let trace_id = id.0.into_bytes();
        let mut span_id = [0; 8];
        span_id.copy_from_slice(&trace_id[8..]);
        Self::new(trace_id, span_id, is_sampled)
    }

    /// Returns the id of the trace.
    #[must_use]
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// Returns the id of the span.
    #[must_use]
    pub const fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Returns true if the trace is recorded.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// Returns the id of the trace as 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id_text(&self) -> String {
        self.to_string()[3..35].to_owned()
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace_id, span_id) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(formatter, "00-{trace_id:032x}-{span_id:016x}-0{}", u8::from(self.is_sampled))
    }
}

/// Returns the trace id of an occurrence: that of the trace that it continues, or its own.
#[must_use]
pub fn trace_id_text(id: OccurrenceId, stored: Option<&str>) -> String {
    stored
        .and_then(Traceparent::parse)
        .map_or_else(|| id.0.simple().to_string(), |traceparent| traceparent.trace_id_text())
}

/// Reads `N` bytes from lower-case hexadecimal digits; the standard forbids upper case.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn traceparent_round_trips() {
        let read = Traceparent::parse(EXAMPLE).expect("it is valid");
        assert_eq!(read.to_string(), EXAMPLE);
        assert!(read.is_sampled());
        assert_eq!(read.trace_id_text(), "0af7651916cd43dd8448eb211c80319c");
        let unsampled = EXAMPLE.replace("-01", "-00");
        assert_eq!(Traceparent::parse(&unsampled).map(|read| read.to_string()), Some(unsampled));
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        for later in [EXAMPLE.replacen("00", "cc", 1), format!("{}-more", EXAMPLE.replacen("00", "01", 1))] {
            assert_eq!(Traceparent::parse(&later).map(|read| read.to_string()).as_deref(), Some(EXAMPLE), "{later}");
        }
        // Of the flags, only the one for sampling is known.
        let flags = EXAMPLE.replace("-01", "-ff");
        assert_eq!(Traceparent::parse(&flags).map(|read| read.to_string()).as_deref(), Some(EXAMPLE));
    }

    #[test]
    fn malformed_traceparent_is_refused() {
        let malformed = [
            String::new(),
            "00".into(),
            EXAMPLE[..54].into(),
            format!("{EXAMPLE}-more"),
            format!(" {EXAMPLE}"),
            EXAMPLE.to_uppercase(),
            EXAMPLE.replacen("00", "ff", 1),
            EXAMPLE.replacen('-', "_", 1),
            EXAMPLE.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            EXAMPLE.replace("b7ad6b7169203331", &"0".repeat(16)),
            EXAMPLE.replace("b7ad", "b7äd"),
            EXAMPLE.replace("-01", "-0g"),
            format!("{}more", EXAMPLE.replacen("00", "01", 1)),
        ];
        for text in malformed {
            assert_eq!(Traceparent::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn trace_of_an_occurrence_follows_from_its_id() {
        let id: OccurrenceId = "019a9b3f-7c00-7abc-8def-0123456789ab".parse().expect("an id");
        let own = Traceparent::of_occurrence(id, true).expect("it is not zero");
        assert_eq!(own.to_string(), "00-019a9b3f7c007abc8def0123456789ab-8def0123456789ab-01");
        assert_eq!(trace_id_text(id, None), own.trace_id_text());
        assert_eq!(trace_id_text(id, Some(EXAMPLE)), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(Traceparent::of_occurrence(OccurrenceId::default(), true), None);
    }
}
