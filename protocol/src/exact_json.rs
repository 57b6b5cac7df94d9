//! JSON whose numbers keep all their digits.
//!
//! A number of the input is stored as an integer of 64 bits or as a double. One with more digits would be rounded, and
//! the job would receive another id or amount than the user has entered. Such a number is refused; written as text, it
//! keeps every digit.

use serde_json::Value;

use crate::mend::ReadProblem;

/// A step from a value to one of its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JsonStep<'a> {
    /// The name of a property, as it is written in the JSON.
    Name(&'a str),
    /// The index of an item.
    Index(usize),
}

/// Parses a JSON text, which the messages call `name`.
///
/// # Errors
///
/// Returns a message with the position of a syntax error, or with the path of a number that would be rounded.
pub fn parse_exact(name: &str, text: &str) -> Result<Value, String> {
    let value = serde_json::from_str(text).map_err(|error| format!("{name} is not JSON: {error}"))?;
    match first_rounded_number(text) {
        None => Ok(value),
        Some(number) => Err(number.to_string()),
    }
}

/// Checks that a number's text and the value that it is stored as are the same number.
///
/// # Errors
///
/// Returns a message with both numbers and the remedy.
pub fn check_number(text: &str, stored: &Value) -> Result<(), String> {
    let stored = stored.to_string();
    let digits = significant_digits(text);
    if digits.is_some() && digits == significant_digits(&stored) {
        return Ok(());
    }
    let text: String = text.chars().take(40).collect();
    Err(format!("{text} would be rounded to {stored}: use fewer digits, or write it as text"))
}

/// Returns the first number of a valid JSON text that would be rounded. Its field is a path, such as `/lines/0/id`.
#[must_use]
pub fn first_rounded_number(json: &str) -> Option<ReadProblem> {
    let mut first = None;
    visit_rounded_numbers(json, |steps, message| {
        first.get_or_insert_with(|| ReadProblem::new(path(steps), message));
    });
    first
}

/// Calls `visit` with each number of a valid JSON text that would be rounded: the steps to it, and both numbers with the
/// remedy.
pub(crate) fn visit_rounded_numbers(json: &str, mut visit: impl FnMut(&[JsonStep], String)) {
    let bytes = json.as_bytes();
    let mut steps: Vec<JsonStep> = Vec::new();
    let (mut at, mut string) = (0, "");
    while let Some(byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                while let Some(inner) = bytes.get(at).filter(|inner| **inner != b'"') {
                    at += if *inner == b'\\' { 2 } else { 1 };
                }
                string = json.get(start + 1..at).unwrap_or_default();
                at += 1;
            }
            b'{' => steps.push(JsonStep::Name("")),
            b'[' => steps.push(JsonStep::Index(0)),
            b'}' | b']' => {
                steps.pop();
            }
            b':' => {
                if let Some(last) = steps.last_mut() {
                    *last = JsonStep::Name(string);
                }
            }
            b',' => {
                if let Some(JsonStep::Index(index)) = steps.last_mut() {
                    *index += 1;
                }
            }
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                at += bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = json.get(start..at).unwrap_or_default();
                let stored: Value = serde_json::from_str(number).unwrap_or_default();
                if let Err(message) = check_number(number, &stored) {
                    visit(&steps, message);
                }
            }
            _ => {}
        }
    }
}

/// Returns a path such as `/lines/0/id`.
pub(crate) fn path(steps: &[JsonStep]) -> String {
    let step = |step: &JsonStep| match step {
        JsonStep::Name(name) => format!("/{name}"),
        JsonStep::Index(index) => format!("/{index}"),
    };
    steps.iter().map(step).collect()
}

/// Returns the digits of a decimal number without outer zeros, and the power of ten of the last one. Equal numbers have
/// equal results, whatever their notation. The sign is never lost and therefore not part of the result.
fn significant_digits(number: &str) -> Option<(String, i64)> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches(['-', '+', '0']);
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some((String::new(), 0));
    }
    let zeros = i64::try_from(digits.len() - significant.len()).ok()?;
    let fraction = i64::try_from(fraction.len()).ok()?;
    Some((significant.to_owned(), exponent.parse::<i64>().ok()?.checked_add(zeros - fraction)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_keep_their_digits_are_accepted() {
        let numbers = "0 -0 0.0 7 -12 100 1e3 1E+3 1.50 0.1 -0.25e-3 12300000000000000000000 9223372036854775807 \
            -9223372036854775808 18446744073709551615 123456789012345.6 0e999";
        for number in numbers.split_whitespace() {
            assert!(parse_exact("the value", number).is_ok(), "{number}: {:?}", parse_exact("the value", number));
        }
    }

    #[test]
    fn numbers_that_would_be_rounded_are_refused() {
        let numbers = "18446744073709551616 -9223372036854775809 123456789012345678901 0.12345678901234567890 \
            9007199254740993.0 1e-400 3.141592653589793238462643383279";
        for number in numbers.split_whitespace() {
            let message = parse_exact("the value", number).expect_err(number);
            assert!(message.starts_with(number) && message.ends_with("or write it as text"), "{message}");
        }
    }

    #[test]
    fn refusal_names_the_path_of_the_number() {
        let message = |json: &str| parse_exact("the input", json).expect_err("a message");
        let nested =
            r#"{"a": 1, "s": "\"123456789012345678901", "lines": [{"x": 1}, [2, 3], {"id": 123456789012345678901}]}"#;
        assert!(message(nested).starts_with("/lines/2/id: 123456789012345678901 would be rounded to "));
        assert!(message(r#"{"s": {"t": "1"}, "a": [1, 2.00000000000000000001]}"#).starts_with("/a/1: 2.0"));
        assert!(message("{").starts_with("the input is not JSON: "));
        assert!(parse_exact("the input", r#"{"id": "123456789012345678901", "\\": "\\", "n": 5}"#).is_ok());
    }
}
