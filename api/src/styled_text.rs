//! Output of programs as text, for people who read it on a page or in a terminal.
//!
//! Programs write for a terminal: they set colors, move the cursor, and overwrite a line to show their progress. Of the
//! escape sequences (ECMA-48), only colors and bold have a meaning here, and all others are removed as a whole, so that
//! no `[31m` stays behind. The text of a job is untrusted: every text is accepted, each byte is read once, and the
//! number of parts is bounded.

use std::{borrow::Cow, str::Split};

/// The maximum number of parts of a text, each of which is an element of a page. The rest keeps the style of the last
/// one.
const MAX_PARTS: usize = 200;

const ESC: char = '\u{1b}';

/// A color of a terminal. A bright color is its plain one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextColor {
    /// Number 0, and 8 for gray.
    Black,
    /// Numbers 1 and 9.
    Red,
    /// Numbers 2 and 10.
    Green,
    /// Numbers 3 and 11.
    Yellow,
    /// Numbers 4 and 12.
    Blue,
    /// Numbers 5 and 13.
    Magenta,
    /// Numbers 6 and 14.
    Cyan,
    /// Numbers 7 and 15.
    White,
}

impl TextColor {
    /// Every color in the order of the numbers.
    const ALL: [Self; 8] =
        [Self::Black, Self::Red, Self::Green, Self::Yellow, Self::Blue, Self::Magenta, Self::Cyan, Self::White];

    /// Returns the name for the style sheet.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Black => "black",
            Self::Red => "red",
            Self::Green => "green",
            Self::Yellow => "yellow",
            Self::Blue => "blue",
            Self::Magenta => "magenta",
            Self::Cyan => "cyan",
            Self::White => "white",
        }
    }
}

/// The style of a part of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// The color; `None` for that of the place.
    pub color: Option<TextColor>,
    /// True if the text is bold.
    pub is_bold: bool,
}

impl TextStyle {
    /// Returns the style after a sequence with these parameters, numbers with semicolons between them.
    fn changed_by(mut self, parameters: &str) -> Self {
        let mut codes = parameters.split(';');
        while let Some(code) = codes.next() {
            match number(code) {
                Some(0) => self = Self::default(),
                Some(1) => self.is_bold = true,
                Some(22) => self.is_bold = false,
                Some(code @ 30..=37) => self.color = Some(TextColor::ALL[code - 30]),
                Some(38) => self.color = extended_color(&mut codes),
                Some(39) => self.color = None,
                // The colors of the background and of an underline, whose own parameters are no codes.
                Some(48 | 58) => {
                    extended_color(&mut codes);
                }
                Some(code @ 90..=97) => self.color = Some(TextColor::ALL[code - 90]),
                _ => {}
            }
        }
        self
    }
}

/// Returns the number that a parameter states. An empty one is 0.
fn number(parameter: &str) -> Option<usize> {
    if parameter.is_empty() { Some(0) } else { parameter.parse().ok() }
}

/// Reads a color from the parameters after its code. One of the 16 numbered colors is returned; none is near to any
/// other.
fn extended_color(codes: &mut Split<'_, char>) -> Option<TextColor> {
    match codes.next().and_then(number) {
        Some(5) => codes.next().and_then(number).filter(|color| *color < 16).map(|color| TextColor::ALL[color % 8]),
        Some(2) => {
            // Red, green and blue.
            codes.by_ref().take(3).for_each(drop);
            None
        }
        _ => None,
    }
}

/// A part of a text with its style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StyledText {
    /// The text, without escape sequences and without other control characters than line breaks and tabs.
    pub text: String,
    /// The style.
    pub style: TextStyle,
}

/// Returns the text that a terminal shows in the end, in parts with one style each: a carriage return with text after
/// it overwrites its line.
#[must_use]
pub fn styled_text(text: &str) -> Vec<StyledText> {
    let mut parts: Vec<StyledText> = Vec::new();
    let mut style = TextStyle::default();
    let mut has_returned = false;
    // The number of parts, and the length of the last one, where the current line begins.
    let mut line_start = (0, 0);
    for token in (TextTokens { rest: text }) {
        let letter = match token {
            TextToken::Letter(letter) => letter,
            TextToken::Style(parameters) => {
                style = style.changed_by(parameters);
                continue;
            }
        };
        if is_removed(letter) {
            has_returned |= letter == '\r';
            continue;
        }
        if std::mem::take(&mut has_returned) && letter != '\n' {
            parts.truncate(line_start.0);
            if let Some(last) = parts.last_mut() {
                last.text.truncate(line_start.1);
            }
        }
        let is_full = parts.len() >= MAX_PARTS;
        match parts.last_mut() {
            Some(last) if last.style == style || is_full => last.text.push(letter),
            _ => parts.push(StyledText { text: letter.into(), style }),
        }
        if letter == '\n' {
            line_start = (parts.len(), parts.last().map_or(0, |last| last.text.len()));
        }
    }
    parts
}

/// Returns the text of [`styled_text`] without styles.
#[must_use]
pub fn shown_text(text: &str) -> Cow<'_, str> {
    if text.contains(is_removed) {
        Cow::Owned(styled_text(text).into_iter().map(|part| part.text).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns true for the control characters that are never shown.
fn is_removed(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\n' | '\t')
}

/// Returns the text without escape sequences. All other control characters stay, also those that overwrite text.
#[must_use]
pub fn without_sequences(text: &str) -> String {
    let letter = |token| match token {
        TextToken::Letter(letter) => Some(letter),
        TextToken::Style(_) => None,
    };
    TextTokens { rest: text }.filter_map(letter).collect()
}

/// A unit of a text.
enum TextToken<'a> {
    /// A character outside of escape sequences.
    Letter(char),
    /// The parameters of a sequence that changes the style.
    Style(&'a str),
}

/// Reads a text. A sequence without its end ends where it cannot go on.
struct TextTokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for TextTokens<'a> {
    type Item = TextToken<'a>;

    fn next(&mut self) -> Option<TextToken<'a>> {
        loop {
            let mut letters = self.rest.chars();
            let letter = letters.next()?;
            let rest = letters.as_str();
            let (rest, style) = match letter {
                ESC => after_escape(rest),
                _ => {
                    self.rest = rest;
                    return Some(TextToken::Letter(letter));
                }
            };
            self.rest = rest;
            if let Some(parameters) = style {
                return Some(TextToken::Style(parameters));
            }
        }
    }
}

/// Returns the text after the sequence that ESC has begun, and its parameters if it changes the style.
fn after_escape(rest: &str) -> (&str, Option<&str>) {
    match rest.as_bytes().first() {
        Some(b'[') => after_control_sequence(&rest[1..]),
        Some(b'P' | b'X' | b']' | b'^' | b'_') => (after_string(&rest[1..]), None),
        _ => {
            let end = rest.trim_start_matches(|letter: char| matches!(letter, ' '..='/'));
            (end.strip_prefix(|letter: char| matches!(letter, '0'..='~')).unwrap_or(end), None)
        }
    }
}

/// Returns the text after a control sequence, such as a movement of the cursor, and its parameters if it changes the
/// style.
fn after_control_sequence(rest: &str) -> (&str, Option<&str>) {
    let after_parameters = rest.trim_start_matches(|letter: char| matches!(letter, '0'..='?'));
    let parameters = &rest[..rest.len() - after_parameters.len()];
    let end = after_parameters.trim_start_matches(|letter: char| matches!(letter, ' '..='/'));
    let is_style = after_parameters.starts_with('m') && !parameters.starts_with(['<', '=', '>', '?']);
    let after = end.strip_prefix(|letter: char| matches!(letter, '@'..='~')).unwrap_or(end);
    (after, is_style.then_some(parameters))
}

/// Returns the text after a string for the terminal, such as a title or the address of a link. A string without its end
/// takes the rest of its line.
fn after_string(rest: &str) -> &str {
    let end = rest.find(['\u{7}', ESC, '\n']).unwrap_or(rest.len());
    let end = &rest[end..];
    end.strip_prefix('\u{7}').or_else(|| end.strip_prefix("\u{1b}\\")).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn styled(text: &str) -> Vec<(String, &'static str, bool)> {
        let part = |part: StyledText| (part.text, part.style.color.map_or("", TextColor::slug), part.style.is_bold);
        styled_text(text).into_iter().map(part).collect()
    }

    #[test]
    fn colors_and_bold_become_parts() {
        for (text, expected) in [
            ("plain", vec![("plain", "", false)]),
            ("\x1b[31merror\x1b[0m: x", vec![("error", "red", false), (": x", "", false)]),
            (
                "\x1b[1;32mok\x1b[22m then\x1b[39m end",
                vec![("ok", "green", true), (" then", "green", false), (" end", "", false)],
            ),
            (
                "\x1b[90mold \x1b[97mnew\x1b[m!",
                vec![("old ", "black", false), ("new", "white", false), ("!", "", false)],
            ),
            ("\x1b[38;5;12mblue\x1b[38;5;200m none", vec![("blue", "blue", false), (" none", "", false)]),
            // The parameters of other colors are no codes of their own.
            ("\x1b[36;38;2;1;1;31mx", vec![("x", "", false)]),
            ("\x1b[35;48;5;1;58;2;1;1;1mx", vec![("x", "magenta", false)]),
            ("\x1b[4:3;33mx", vec![("x", "yellow", false)]),
            ("\u{9b}34mx", vec![("34mx", "", false)]),
            // Not a style: a setting of the keyboard.
            ("\x1b[>1;31mx", vec![("x", "", false)]),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(text, color, bold)| (text.to_owned(), color, bold)).collect();
            assert_eq!(styled(text), expected, "{text:?}");
        }
    }

    #[test]
    fn other_sequences_are_removed_as_a_whole() {
        for (text, expected) in [
            ("a\x1b[2Kb\x1b[1;1Hc\x1b[?25hd\x1b[3 qe", "abcde"),
            ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x07 end", "link end"),
            ("\x1b]0;title\x07a\x1bP1$r\x1b\\b\x1b(Bc\x1b7d\x1bce", "abcde"),
        ] {
            assert_eq!(shown_text(text), expected, "{text:?}");
            assert_eq!(without_sequences(text), expected, "{text:?}");
        }
        // A quotation mark that was decoded wrongly is no sequence.
        assert_eq!(shown_text("\u{e2}\u{80}\u{9d}, and more"), "\u{e2}, and more");
    }

    #[test]
    fn return_with_text_after_it_overwrites_the_line() {
        for (text, expected) in [
            ("10%\r20%\r30%", "30%"),
            ("100%\r\ndone\r", "100%\ndone"),
            ("first\n10%\r100%\nlast", "first\n100%\nlast"),
            ("\x1b[32m10%\r\x1b[K\x1b[0m", "10%"),
            ("10%\r\r\r20%", "20%"),
        ] {
            assert_eq!(shown_text(text), expected, "{text:?}");
        }
        assert_eq!(styled("\x1b[32m10%\r20%"), [("20%".to_owned(), "green", false)], "the color stays");
        assert_eq!(without_sequences("a\rb"), "a\rb");
    }

    #[test]
    fn hostile_texts_are_accepted() {
        let many = format!("a\x1b[{}31mb", "1;".repeat(10_000));
        let strings = "\x1b]".repeat(10_000);
        for (text, expected) in [
            ("", ""),
            ("\x1b", ""),
            ("a\x1b", "a"),
            ("a\x1b\x1b[31mb", "ab"),
            ("a\x1b[31", "a"),
            ("a\x1b[31\nb", "a\nb"),
            ("a\x1bé", "aé"),
            ("a\x1b[1é", "aé"),
            ("a\x1b]8;;https://example.org\nb", "a\nb"),
            ("a\x1b[99999999999999999999999mb", "ab"),
            ("a\0b\x08c\x7fd", "abcd"),
            ("a\u{2028}b\tc", "a\u{2028}b\tc"),
            (many.as_str(), "ab"),
            (strings.as_str(), ""),
        ] {
            assert_eq!(shown_text(text), expected, "{text:?}");
        }
        assert_eq!(styled(&many)[1], ("b".to_owned(), "red", true));
    }

    #[test]
    fn number_of_parts_is_bounded() {
        let text = "\x1b[31ma\x1b[32mb".repeat(1_000);
        let parts = styled_text(&text);
        assert_eq!(parts.len(), MAX_PARTS);
        assert_eq!(shown_text(&text), "ab".repeat(1_000));
    }
}
