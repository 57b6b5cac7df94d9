//! Labels of causes, and safe display of untrusted text.

use leptos::prelude::*;
use milvaion_api::failures::FailureCause;

use crate::components::icon::Icon;

/// Returns the label of a cause.
#[must_use]
pub const fn cause_label(cause: FailureCause) -> &'static str {
    match cause {
        FailureCause::Failed => "Failed",
        FailureCause::Permanent => "Permanent error",
        FailureCause::Exhausted => "Retries used up",
        FailureCause::TimedOut => "Timed out",
        FailureCause::Rejected => "Rejected",
        FailureCause::Poison => "Crashed its worker",
        FailureCause::Lost => "Run lost",
    }
}

/// Returns a sentence that explains a cause.
#[must_use]
pub const fn cause_description(cause: FailureCause) -> &'static str {
    match cause {
        FailureCause::Failed => "Its only attempt failed.",
        FailureCause::Permanent => "The job reported an error that a retry cannot fix.",
        FailureCause::Exhausted => "All of its attempts failed.",
        FailureCause::TimedOut => "It exceeded its timeout.",
        FailureCause::Rejected => "No worker could read its message.",
        FailureCause::Poison => "It crashed its worker process repeatedly.",
        FailureCause::Lost => "Its worker no longer reported the run, and it was not started again.",
    }
}

/// Shows a cause as icon and label.
#[component]
pub fn CauseBadge(
    /// The cause of the failure.
    cause: FailureCause,
) -> impl IntoView {
    let (status, icon) = match cause {
        FailureCause::Failed | FailureCause::Permanent | FailureCause::Exhausted => ("failed", "octagon-x"),
        FailureCause::TimedOut => ("timed-out", "timer-off"),
        FailureCause::Rejected | FailureCause::Poison => ("dead", "archive-x"),
        FailureCause::Lost => ("unknown", "wifi-off"),
    };
    view! {
        <span class="badge" data-status=status title=cause_description(cause)>
            <Icon name=icon/>
            <span>{cause_label(cause)}</span>
        </span>
    }
}

/// Escapes the characters of untrusted text that are invisible or that change the direction of the rest of the line.
/// They are shown as their code points.
#[must_use]
pub fn escape_unprintable(text: &str) -> String {
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

/// Formats a number of bytes: `812 bytes`, `3.4 KiB`.
#[must_use]
pub fn byte_size(bytes: i64) -> String {
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
    fn unprintable_characters_are_escaped() {
        assert_eq!(escape_unprintable("a\u{0}\u{1b}[31m\tb\nc\u{7f}"), "a\\x00\\x1b[31m\tb\nc\\x7f");
        assert_eq!(escape_unprintable("safe\u{202e}gpj.exe\u{200b}ä"), "safe\\u{202e}gpj.exe\\u{200b}ä");
    }

    #[test]
    fn byte_sizes_use_the_largest_fitting_unit() {
        assert_eq!(
            [0, 1, 1_023, 1_024, 3_500, 100_000, 5_000_000].map(byte_size),
            ["0 bytes", "1 byte", "1,023 bytes", "1.0 KiB", "3.4 KiB", "97.6 KiB", "4.7 MiB"]
        );
    }
}
