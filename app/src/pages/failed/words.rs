//! Causes in words, and texts of strangers made fit to be looked at.

use leptos::prelude::*;
use milvaion_api::failure::Cause;

use crate::components::icon::Icon;

/// The word for a cause.
#[must_use]
pub const fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Failed => "Failed",
        Cause::Permanent => "Permanent",
        Cause::Exhausted => "Attempts used up",
        Cause::TimedOut => "Timed out",
        Cause::Rejected => "Rejected",
        Cause::Poison => "Ended its worker",
        Cause::Lost => "Worker lost",
    }
}

/// What a cause means, in a sentence.
#[must_use]
pub const fn cause_meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::Failed => "Its only attempt failed.",
        Cause::Permanent => "The job said that trying again is of no use.",
        Cause::Exhausted => "Every attempt it had has failed.",
        Cause::TimedOut => "Its time was up.",
        Cause::Rejected => "No worker could make anything of its message.",
        Cause::Poison => "Its runs ended their worker's process again and again.",
        Cause::Lost => "Its worker fell silent, and the job is not to be run again by itself then.",
    }
}

/// A cause as icon and word.
#[component]
pub fn CauseBadge(cause: Cause) -> impl IntoView {
    let (status, icon) = match cause {
        Cause::Failed | Cause::Permanent | Cause::Exhausted => ("failed", "octagon-x"),
        Cause::TimedOut => ("timed-out", "timer-off"),
        Cause::Rejected | Cause::Poison => ("dead", "archive-x"),
        Cause::Lost => ("unknown", "wifi-off"),
    };
    view! {
        <span class="badge" data-status=status title=cause_meaning(cause)>
            <Icon name=icon/>
            <span>{cause_word(cause)}</span>
        </span>
    }
}

/// Text that came from nobody knows where: what would be invisible, or would turn the rest of the line around, is shown
/// by its number.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => out.push(letter),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => out.push_str(&format!("\\x{:02x}", u32::from(letter))),
            '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => out.extend(letter.escape_unicode()),
            _ => out.push(letter),
        }
    }
    out
}

/// A number of bytes: `812 bytes`, `3.4 KiB`.
#[must_use]
pub fn size(bytes: i64) -> String {
    let of = |unit: i64, name: &str| {
        let tenths = bytes.saturating_mul(10) / unit;
        format!("{}.{} {name}", crate::format::count(tenths / 10), tenths % 10)
    };
    match bytes {
        ..1_024 => crate::format::plural(bytes, "byte"),
        1_024..1_048_576 => of(1_024, "KiB"),
        _ => of(1_048_576, "MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown() {
        assert_eq!(printable("a\u{0}\u{1b}[31m\tb\nc\u{7f}"), "a\\x00\\x1b[31m\tb\nc\\x7f");
        assert_eq!(printable("safe\u{202e}gpj.exe\u{200b}ä"), "safe\\u{202e}gpj.exe\\u{200b}ä");
    }

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        assert_eq!(
            [0, 1, 1_023, 1_024, 3_500, 100_000, 5_000_000].map(size),
            ["0 bytes", "1 byte", "1,023 bytes", "1.0 KiB", "3.4 KiB", "97.6 KiB", "4.7 MiB"]
        );
    }
}
