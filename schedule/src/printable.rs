//! The characters that no name may have.
//!
//! Names stand in lists, log lines, messages and terminals beside each other. A control character breaks such a line, and a
//! character that sets the direction of text makes a name look like another one.

/// Checks that a name has no control character, no separator of lines, and none that sets the direction of text: the
/// property `Bidi_Control` of Unicode.
///
/// # Errors
///
/// Returns a message that names the first such character by its code point.
pub fn check_printable(name: &str) -> Result<(), String> {
    let is_wrong = |letter: &char| {
        letter.is_control()
            || matches!(
                letter,
                '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            )
    };
    name.chars().find(is_wrong).map_or(Ok(()), |letter| {
        Err(format!(
            "contains the character {}, which is invisible or changes the order of the text: remove it",
            letter.escape_unicode()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_named() {
        for name in ["a\nb", "a\u{1b}[2J", "a\u{7f}", "safe\u{202e}gpj", "\u{2067}a", "a\u{200f}", "a\u{2028}b"] {
            assert!(check_printable(name).is_err(), "{name:?}");
        }
        let message = check_printable("safe\u{202e}gpj").expect_err("refused");
        assert!(message.starts_with("contains the character \\u{202e}, which"), "{message}");
        for name in ["", "Nightly report (EU)", "größe", "日本", "שלום", "👩\u{200d}🔧"] {
            assert_eq!(check_printable(name), Ok(()), "{name:?}");
        }
    }
}
