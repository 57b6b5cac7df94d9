//! The times at which messages are sent.
//!
//! An occurrence that is created ahead of its due time must not be sent before it. Messages that leave at one instant
//! form one batch; a batch for each microsecond would cost the broker more than the runs do.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Duration, Utc};

/// The bound of the time for which a message waits for those that are due after it.
const MAX_WAIT: Duration = Duration::milliseconds(1);

/// Groups runs by the times at which their messages are sent: what is due by `now` at once, everything else at its due
/// time. Due times within less than a millisecond share the latest of them, so there are at most a thousand groups a
/// second. A group keeps the order of its runs.
#[must_use]
pub fn group_by_send_time<T>(runs: Vec<(DateTime<Utc>, T)>, now: DateTime<Utc>) -> BTreeMap<DateTime<Utc>, Vec<T>> {
    let coming: BTreeSet<DateTime<Utc>> = runs.iter().map(|(due, _)| *due).filter(|due| *due > now).collect();
    // The send time of each group, by its first due time.
    let mut send_times = BTreeMap::from([(now, now)]);
    let mut first = now;
    for due in coming {
        if first == now || due - first >= MAX_WAIT {
            first = due;
        }
        send_times.insert(first, due);
    }
    let mut groups: BTreeMap<DateTime<Utc>, Vec<T>> = BTreeMap::new();
    for (due, run) in runs {
        let group = send_times.range(..=due.max(now)).next_back();
        groups.entry(group.map_or(due, |(_, at)| *at)).or_default().push(run);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the groups of runs that are due at these microseconds, each as its send time and the due times in it.
    fn groups(due: &[i64], now: i64) -> Vec<(i64, Vec<i64>)> {
        let at = |micros: i64| DateTime::from_timestamp_micros(1_800_000_000_000_000 + micros).expect("an instant");
        let runs = due.iter().map(|due| (at(*due), *due)).collect();
        let groups = group_by_send_time(runs, at(now));
        groups.into_iter().map(|(send, due)| ((send - at(0)).num_microseconds().expect("a short time"), due)).collect()
    }

    #[test]
    fn run_is_sent_at_its_due_time_and_not_before() {
        assert_eq!(groups(&[5_401], 5_400), [(5_401, vec![5_401])]);
        assert_eq!(groups(&[5_400, -60_000_000, 5_399], 5_400), [(5_400, vec![5_400, -60_000_000, 5_399])]);
        assert_eq!(groups(&[15_400, 25_400], 5_400), [(15_400, vec![15_400]), (25_400, vec![25_400])]);
        assert_eq!(
            groups(&[5_500, 0], 5_400),
            [(5_400, vec![0]), (5_500, vec![5_500])],
            "what is due waits for nothing"
        );
    }

    #[test]
    fn due_times_within_a_millisecond_share_the_latest() {
        let due = [3_000, 2_000, 1_999, 1_500, 1_000, 3_999];
        let expected = [(1_999, vec![1_999, 1_500, 1_000]), (2_000, vec![2_000]), (3_999, vec![3_000, 3_999])];
        assert_eq!(groups(&due, 0), expected);
        let spread: Vec<i64> = (1..=10_000).map(|n| n * 100).collect();
        assert_eq!(groups(&spread, 0).len(), 1_000, "ten thousand a second");
    }
}
