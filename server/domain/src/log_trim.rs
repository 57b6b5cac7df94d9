//! The bounds of the log of an attempt: when lines of it must be deleted, and the line that stands for them.
//!
//! A worker may send any number of lines, and its batches come to several servers, so no server counts the lines of an
//! attempt. Instead, the number and the size of a line decide whether the log is trimmed after it. A log can therefore
//! exceed its bounds by about a twentieth.

use std::collections::BTreeSet;

use milvaion_protocol::{
    id::OccurrenceId,
    message::{AttemptLogBounds, LogLine, MAX_ATTEMPT_LINES},
};

/// The number of trims while a long log grows by its bounds.
const STEPS: i64 = 20;
/// 2⁶⁴ divided by the golden ratio. The multiples of it, modulo 2⁶⁴, are distributed evenly, also those by every tenth number.
const GOLDEN_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the attempts whose logs must be trimmed after `lines` were stored: the occurrence and the first `seq` of each.
#[must_use]
pub fn logs_to_trim(lines: &[(OccurrenceId, LogLine)], bounds: AttemptLogBounds) -> BTreeSet<(OccurrenceId, i64)> {
    lines
        .iter()
        .filter_map(|(id, line)| {
            let number = line.seq.rem_euclid(MAX_ATTEMPT_LINES);
            let bytes = line.message.len() + line.data.as_ref().map_or(0, |data| data.to_string().len());
            must_trim(number, bytes as i64, bounds).then(|| (*id, line.seq.saturating_sub(number)))
        })
        .collect()
}

/// Returns true if the log is trimmed after this line: if a log of so many lines of this size exceeds the bounds, and then for
/// about one line of each step. A worker may leave numbers out, so a fixed distance between numbers could miss all its lines.
fn must_trim(number: i64, bytes: i64, bounds: AttemptLogBounds) -> bool {
    let count = number + 1;
    let is_long = count > bounds.lines || count * bytes > bounds.bytes;
    let step = (bounds.lines / STEPS).min(bounds.bytes / STEPS / bytes.max(1)).max(1);
    is_long && (number as u64).wrapping_mul(GOLDEN_STEP) <= u64::MAX / step as u64
}

/// Returns the text after the number of missing lines.
#[must_use]
pub fn gap_text(bounds: AttemptLogBounds) -> String {
    let (head, tail) = (bounds.head(), bounds.tail());
    format!(
        " lines are not kept: of an attempt, the server keeps the first {} and the last {} lines, within {} MiB; LOG_LINES and LOG_MEGABYTES change this",
        head.lines,
        tail.lines,
        bounds.bytes / (1024 * 1024)
    )
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use milvaion_protocol::message::{LogLevel, first_log_seq};

    use super::*;

    fn line(seq: i64) -> (OccurrenceId, LogLine) {
        let (at, message) = (DateTime::UNIX_EPOCH, "0123456789".to_owned());
        (OccurrenceId::default(), LogLine { seq, at, level: LogLevel::Info, message, data: None })
    }

    /// Returns the numbers after which a log is trimmed that has lines of `bytes` bytes.
    fn trims(numbers: impl Iterator<Item = i64>, bytes: i64, bounds: AttemptLogBounds) -> Vec<i64> {
        numbers.filter(|number| must_trim(*number, bytes, bounds)).collect()
    }

    #[test]
    fn long_log_is_trimmed_once_per_step() {
        let bounds = AttemptLogBounds::default();
        assert!(trims(0..10_000, 100, bounds).is_empty(), "the log is within its bounds");
        let numbers = trims(10_000..MAX_ATTEMPT_LINES, 100, bounds);
        assert!((1_950..2_000).contains(&numbers.len()), "a step has 500 lines: {} trims", numbers.len());
        assert!(numbers[0] < 11_000 && numbers.windows(2).all(|pair| pair[1] - pair[0] < 1_000), "they are regular");
    }

    #[test]
    fn large_lines_shorten_the_steps() {
        let bounds = AttemptLogBounds::default();
        assert!(trims(0..256, 16 * 1024, bounds).is_empty(), "4 MiB");
        let numbers = trims(256..10_000, 16 * 1024, bounds);
        assert!(numbers[0] < 300 && numbers.windows(2).all(|pair| pair[1] - pair[0] < 30), "{numbers:?}");
    }

    #[test]
    fn numbers_that_a_worker_leaves_out_delay_no_trim() {
        for first in 0..10 {
            let numbers = trims((first..MAX_ATTEMPT_LINES).step_by(10), 100, AttemptLogBounds::default());
            assert!(numbers.len() > 190 && numbers.windows(2).all(|pair| pair[1] - pair[0] < 15_000), "{numbers:?}");
        }
    }

    #[test]
    fn attempts_of_a_batch_are_trimmed_apart() {
        let bounds = AttemptLogBounds { lines: 100, bytes: 10_000 };
        let of_attempt = |attempt, from, to| (from..to).map(move |number| line(first_log_seq(attempt) + number));
        let batch: Vec<_> =
            of_attempt(1, 0, 100).chain(of_attempt(2, 150, 200)).chain(of_attempt(3, 500, 520)).collect();
        let first = |attempt| (OccurrenceId::default(), first_log_seq(attempt));
        assert_eq!(logs_to_trim(&batch, bounds), BTreeSet::from([first(2), first(3)]));
        // No number overflows.
        let _ = logs_to_trim(&[i64::MIN, -1, i64::MAX].map(line), AttemptLogBounds { lines: 1, bytes: 1 });
    }

    #[test]
    fn gap_names_the_settings() {
        let text = gap_text(AttemptLogBounds::default());
        assert!(text.contains("first 2000 and the last 8000 lines, within 4 MiB; LOG_LINES"), "{text}");
    }
}
