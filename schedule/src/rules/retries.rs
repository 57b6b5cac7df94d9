//! Retries in words, so that the form and the job's page describe a number of retries and a delay in the same way. The
//! maximum delay is defined here too, because the words and the server's backoff must agree on it.

use std::time::Duration;

use super::Rules;

/// The maximum delay between attempts, in seconds: one day. Doubling reaches it from any base within 17 steps.
pub const MAX_RETRY_DELAY_SECONDS: u64 = 24 * 3_600;

/// The maximum number of retry delays that are listed one by one.
const MAX_LISTED_RETRY_DELAYS: u16 = 6;

impl Rules {
    /// Returns the delay before the first retry, and the retry jitter in percent.
    #[must_use]
    pub fn first_retry_delay(&self) -> (Duration, u16) {
        (Duration::from_secs(self.base_retry_delay_seconds.into()), self.retry_jitter_percent)
    }

    /// Describes the retries of a job: their number and their delays.
    ///
    /// Example: `Up to 3 retries, after 5 s, 10 s and 20 s, each up to 20 % sooner.`
    #[must_use]
    pub fn describe_retries(&self) -> String {
        describe(self.max_retries, self.base_retry_delay_seconds, self.retry_jitter_percent)
    }
}

fn describe(max_retries: u16, base_seconds: u32, jitter_percent: u16) -> String {
    let delay = |n: u16| {
        let doubled = u64::from(base_seconds) << n.min(17);
        format_delay(doubled.min(MAX_RETRY_DELAY_SECONDS))
    };
    let capped = |n: u16| u64::from(base_seconds) << n.min(17) > MAX_RETRY_DELAY_SECONDS;
    let sooner = match (jitter_percent, max_retries) {
        (0, _) => String::new(),
        (percent, 1) => format!(", or up to {percent} % sooner"),
        (percent, _) => format!(", each up to {percent} % sooner"),
    };
    match max_retries {
        0 => "No retries: a failed attempt ends the occurrence.".into(),
        1 => format!("1 retry, after {}{sooner}.", delay(0)),
        n if n <= MAX_LISTED_RETRY_DELAYS => {
            let first: Vec<_> = (0..n - 1).map(delay).collect();
            format!("Up to {n} retries, after {} and {}{sooner}.", first.join(", "), delay(n - 1))
        }
        n => {
            let first: Vec<_> = (0..MAX_LISTED_RETRY_DELAYS - 2).map(delay).collect();
            let last = delay(n - 1);
            let end = if capped(n - 1) { format!(" up to {last}") } else { format!(", the last after {last}") };
            format!("Up to {n} retries, after {} and so on, doubling each time{end}{sooner}.", first.join(", "))
        }
    }
}

/// Formats a delay in at most two units: `80 s`, `2 min 40 s`, `1 h`.
fn format_delay(seconds: u64) -> String {
    let two = |big: u64, unit: &str, small: u64, part: &str| {
        if small == 0 { format!("{big} {unit}") } else { format!("{big} {unit} {small} {part}") }
    };
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 7_200 => two(s / 60, "min", s % 60, "s"),
        s => two(s / 3_600, "h", s % 3_600 / 60, "min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_described_by_their_delays() {
        let expected = [
            (0, 5, "No retries: a failed attempt ends the occurrence."),
            (1, 5, "1 retry, after 5 s."),
            (3, 5, "Up to 3 retries, after 5 s, 10 s and 20 s."),
            (2, 90, "Up to 2 retries, after 90 s and 3 min."),
            (
                10,
                100,
                "Up to 10 retries, after 100 s, 3 min 20 s, 6 min 40 s, 13 min 20 s and so on, doubling each time, the \
                 last after 14 h 13 min.",
            ),
        ];
        for (retries, base, words) in expected {
            assert_eq!(describe(retries, base, 0), words);
        }
        assert!(
            describe(100, 86_400, 0)
                .ends_with("after 24 h, 24 h, 24 h, 24 h and so on, doubling each time up to 24 h.")
        );
        assert!(describe(40, 1, 0).ends_with("doubling each time up to 24 h."));
    }

    #[test]
    fn jitter_is_described_with_the_delays() {
        let expected = [
            (0, "No retries: a failed attempt ends the occurrence."),
            (1, "1 retry, after 5 s, or up to 20 % sooner."),
            (3, "Up to 3 retries, after 5 s, 10 s and 20 s, each up to 20 % sooner."),
        ];
        for (retries, words) in expected {
            let rules = Rules { max_retries: retries, retry_jitter_percent: 20, ..Rules::default() };
            assert_eq!(rules.describe_retries(), words);
        }
        assert!(describe(10, 100, 100).ends_with("the last after 14 h 13 min, each up to 100 % sooner."));
    }
}
