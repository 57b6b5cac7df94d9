//! Retries in words, so that the form and the job's page say the same about a number of attempts and a pause. The
//! longest pause stands here too: the words and the server's arithmetic must agree on it.

/// The longest pause between attempts, in seconds: a day. Doubling leads there from any base within 17 steps.
pub const MAX_RETRY_DELAY_SECONDS: u64 = 24 * 3_600;

/// How many pauses between attempts are named one by one.
const MAX_LISTED_RETRY_DELAYS: u16 = 6;

/// What becomes of a failed attempt, in words: how many more there are, and after which pauses.
///
/// As in `Tried up to 3 times more: after 5 s, 10 s and 20 s, each up to 20 % sooner.`
#[must_use]
pub fn describe_retries(max_retries: u16, base_retry_delay_seconds: u32, retry_jitter_percent: u16) -> String {
    let pause = |n: u16| {
        let doubled = u64::from(base_retry_delay_seconds) << n.min(17);
        pause_words(doubled.min(MAX_RETRY_DELAY_SECONDS))
    };
    let capped = |n: u16| u64::from(base_retry_delay_seconds) << n.min(17) > MAX_RETRY_DELAY_SECONDS;
    let sooner = match (retry_jitter_percent, max_retries) {
        (0, _) => String::new(),
        (percent, 1) => format!(", or up to {percent} % sooner"),
        (percent, _) => format!(", each up to {percent} % sooner"),
    };
    match max_retries {
        0 => "Not tried again: a failed attempt ends its occurrence.".into(),
        1 => format!("Tried once more: after {}{sooner}.", pause(0)),
        n if n <= MAX_LISTED_RETRY_DELAYS => {
            let first: Vec<_> = (0..n - 1).map(pause).collect();
            format!("Tried up to {n} times more: after {} and {}{sooner}.", first.join(", "), pause(n - 1))
        }
        n => {
            let first: Vec<_> = (0..MAX_LISTED_RETRY_DELAYS - 2).map(pause).collect();
            let last = pause(n - 1);
            let end = if capped(n - 1) { format!(", at most {last}") } else { format!("; before the last {last}") };
            format!(
                "Tried up to {n} times more: after {} and so on, each time twice as long{end}{sooner}.",
                first.join(", ")
            )
        }
    }
}

/// A pause in at most two units: `80 s`, `2 min 40 s`, `1 h`.
fn pause_words(seconds: u64) -> String {
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
    fn retries_are_told_by_their_pauses() {
        let told = [
            (0, 5, "Not tried again: a failed attempt ends its occurrence."),
            (1, 5, "Tried once more: after 5 s."),
            (3, 5, "Tried up to 3 times more: after 5 s, 10 s and 20 s."),
            (2, 90, "Tried up to 2 times more: after 90 s and 3 min."),
            (
                10,
                100,
                "Tried up to 10 times more: after 100 s, 3 min 20 s, 6 min 40 s, 13 min 20 s and so on, each time twice as \
                 long; before the last 14 h 13 min.",
            ),
        ];
        for (retries, base, words) in told {
            assert_eq!(describe_retries(retries, base, 0), words);
        }
        assert!(
            describe_retries(100, 86_400, 0)
                .ends_with("after 24 h, 24 h, 24 h, 24 h and so on, each time twice as long, at most 24 h.")
        );
        assert!(describe_retries(40, 1, 0).ends_with("each time twice as long, at most 24 h."));
    }

    #[test]
    fn jitter_is_told_with_the_pauses_it_shortens() {
        let told = [
            (0, "Not tried again: a failed attempt ends its occurrence."),
            (1, "Tried once more: after 5 s, or up to 20 % sooner."),
            (3, "Tried up to 3 times more: after 5 s, 10 s and 20 s, each up to 20 % sooner."),
        ];
        for (retries, words) in told {
            assert_eq!(describe_retries(retries, 5, 20), words);
        }
        assert!(describe_retries(10, 100, 100).ends_with("before the last 14 h 13 min, each up to 100 % sooner."));
    }
}
