//! Which runs share a message, and how many.
//!
//! A message costs the broker the same whether it has one run or ten. So runs of one worker, job type and priority that
//! are sent together share messages, if all that may receive them take such bundles. A bundle is never so large that one
//! instance receives what others could run at the same time.
//!
//! Critical runs have a queue of their own while an instance reserves slots for them. Since a bundle has one priority, it is
//! sent to one queue.

use std::collections::{HashMap, HashSet};

use milvaion_protocol::{
    message::{MAX_BUNDLE_BYTES, MAX_BUNDLE_RUNS, bundle_bytes},
    topology::MAX_PRIORITY,
};

/// The worker, the job type and the priority of runs that may share a message.
pub type BundleKey<'a> = (&'a str, &'a str, u8);

/// The number of runs in a message by key; of other keys, each run has a message of its own.
pub type BundleSizes<'a> = HashMap<BundleKey<'a>, usize>;

/// The workers and job types whose critical runs have a queue of their own.
pub type CriticalTypes<'a> = HashSet<(&'a str, &'a str)>;

/// How a batch is sent.
#[derive(Clone, Debug, Default)]
pub struct SendPlan<'a> {
    /// The sizes of bundles.
    pub sizes: BundleSizes<'a>,
    /// The job types with a queue of critical runs.
    pub critical: CriticalTypes<'a>,
}

/// Returns true if a run of this priority is critical.
#[must_use]
pub const fn is_critical(priority: u8) -> bool {
    priority >= MAX_PRIORITY
}

/// What the instances of a worker announce about a job type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BundleOffer {
    /// The largest bundle by the last registration of the type, also if no instance is alive.
    pub announced: usize,
    /// The smallest of the largest bundles that the live instances take; none if none is alive.
    pub smallest_live: Option<usize>,
    /// The number of concurrent runs in one instance.
    pub concurrency: usize,
    /// The number of live instances.
    pub instances: usize,
    /// True if each of them runs as much as its capacity allows; false if none is alive.
    pub is_full: bool,
    /// The number of running occurrences of the job type; 0 if an instance has permits for more in any case.
    pub running: usize,
    /// The number of live instances that reserve slots for critical runs, and do not stop.
    pub critical_instances: usize,
    /// The smallest number of slots that one of these reserves; 0 if there is none.
    pub critical_slots: usize,
}

impl BundleOffer {
    /// Returns the number of runs in a message if `count` are sent at once; 1 for no bundles.
    ///
    /// While no live instance has a free permit, each run has a message of its own. A bundle would be rejected after two
    /// seconds, while single messages keep their place at the broker.
    #[must_use]
    pub fn size(&self, count: usize) -> usize {
        if self.has_no_permit() {
            return 1;
        }
        let taken = self.smallest_live.map_or(self.announced, |smallest| smallest.min(self.announced));
        let share = count.div_ceil(self.instances.max(1));
        MAX_BUNDLE_RUNS.min(taken).min(self.concurrency).min(share).max(1)
    }

    const fn has_no_permit(&self) -> bool {
        self.is_full || (self.instances > 0 && self.running >= self.concurrency.saturating_mul(self.instances))
    }

    /// Returns true if critical runs have a queue of their own.
    #[must_use]
    pub const fn has_critical_queue(&self) -> bool {
        self.critical_slots > 0
    }

    /// Returns the offer for that queue: only the instances with reserved slots receive its messages. The number of free
    /// slots is not known, so while no instance has a free permit, each critical run has a message of its own too.
    #[must_use]
    pub const fn critical(self) -> Self {
        Self {
            concurrency: self.critical_slots,
            instances: self.critical_instances,
            is_full: self.has_no_permit(),
            running: 0,
            ..self
        }
    }
}

/// Groups what is sent at once. `place` returns the key of an item and the size of its group, or none for an item alone. The
/// items of one key keep their order.
pub fn group<'a, T>(
    items: impl IntoIterator<Item = T>,
    place: impl Fn(&T) -> Option<(BundleKey<'a>, usize)>,
) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut open: HashMap<BundleKey<'a>, usize> = HashMap::new();
    for item in items {
        if let Some((key, size)) = place(&item) {
            if let Some(&index) = open.get(&key).filter(|index| groups[**index].len() < size) {
                groups[index].push(item);
                continue;
            }
            open.insert(key, groups.len());
        }
        groups.push(vec![item]);
    }
    groups
}

/// Splits a group so that no bundle is larger than [`MAX_BUNDLE_BYTES`]. `bytes` returns the size of an item.
pub fn split_by_bytes<T>(items: Vec<T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut sum = 0;
    for item in items {
        let size = bytes(&item);
        match parts.last_mut() {
            Some(part) if bundle_bytes(part.len() + 1, sum + size) <= MAX_BUNDLE_BYTES => {
                sum += size;
                part.push(item);
            }
            _ => {
                sum = size;
                parts.push(vec![item]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: BundleOffer = BundleOffer {
        announced: 10,
        smallest_live: Some(10),
        concurrency: 10,
        instances: 1,
        is_full: false,
        running: 0,
        critical_instances: 0,
        critical_slots: 0,
    };

    #[test]
    fn runs_are_divided_among_the_live_instances() {
        assert_eq!([1, 2, 7, 10, 500].map(|count| OFFER.size(count)), [1, 2, 7, 10, 10]);
        let on_ten = BundleOffer { instances: 10, ..OFFER };
        assert_eq!([1, 10, 11, 20, 35, 500].map(|count| on_ten.size(count)), [1, 1, 2, 2, 4, 10]);
        assert_eq!(BundleOffer { concurrency: 4, ..OFFER }.size(500), 4, "no more than may run at once");
        assert_eq!(BundleOffer { concurrency: 0, ..OFFER }.size(500), 1, "an unknown concurrency");
    }

    #[test]
    fn bundles_need_every_live_instance_and_the_last_registration() {
        let offer = |announced, smallest_live| BundleOffer { announced, smallest_live, ..OFFER };
        assert_eq!(offer(10, Some(1)).size(500), 1, "an instance takes none");
        assert_eq!(offer(10, Some(4)).size(500), 4);
        assert_eq!(offer(1, Some(10)).size(500), 1, "the newest release takes none");
        let last = BundleOffer { instances: 0, ..offer(10, None) };
        assert_eq!(last.size(500), 10, "none is alive: the last registration counts");
        assert_eq!(BundleOffer::default().size(500), 1, "a job type that no instance has announced");
    }

    #[test]
    fn no_bundles_are_sent_while_no_instance_has_a_permit() {
        assert_eq!(BundleOffer { is_full: true, ..OFFER }.size(500), 1, "other job types use the permits of all");
        let on_three = |running| BundleOffer { instances: 3, running, ..OFFER }.size(500);
        assert_eq!([0, 29, 30, 31].map(on_three), [10, 10, 1, 1], "three instances run ten each");
        let dead = BundleOffer { instances: 0, smallest_live: None, running: 10, ..OFFER };
        assert_eq!(dead.size(500), 10, "the runs are those of lost instances, and none is alive");
    }

    #[test]
    fn critical_runs_are_divided_among_the_reserved_slots() {
        assert!(!OFFER.has_critical_queue());
        let reserved = BundleOffer { instances: 10, critical_instances: 2, critical_slots: 3, ..OFFER };
        assert!(reserved.has_critical_queue());
        assert_eq!([1, 2, 3, 4, 500].map(|count| reserved.critical().size(count)), [1, 1, 2, 2, 3]);
        assert_eq!(reserved.size(500), 10, "other runs have the permits of all instances");
        let on_all = |running| BundleOffer { running, ..reserved }.critical().size(500);
        assert_eq!([99, 100].map(on_all), [3, 1], "no permit is free, and perhaps no slot");
        assert_eq!([4, 5].map(is_critical), [false, true]);
    }

    #[test]
    fn neighbours_of_one_type_and_priority_share_a_message() {
        let items = [("a", 3), ("b", 3), ("a", 3), ("a", 5), ("a", 3), ("lone", 3), ("a", 5), ("a", 3), ("lone", 3)];
        let numbered: Vec<_> = items.into_iter().enumerate().collect();
        let place = |item: &(usize, (&'static str, u8))| match item.1 {
            ("lone", _) => None,
            (job_type, priority) => Some((("w", job_type, priority), 3)),
        };
        let groups: Vec<Vec<usize>> =
            group(numbered, place).into_iter().map(|group| group.into_iter().map(|item| item.0).collect()).collect();
        assert_eq!(groups, [vec![0, 2, 4], vec![1], vec![3, 6], vec![5], vec![7], vec![8]]);
    }

    #[test]
    fn bundle_fits_its_bytes() {
        let split = |lengths: &[usize]| -> Vec<Vec<usize>> { split_by_bytes(lengths.to_vec(), |length| *length) };
        assert_eq!(split(&[100, 200, 300]), [vec![100, 200, 300]]);
        let half = MAX_BUNDLE_BYTES / 2;
        assert_eq!(split(&[half, half, 10, 10]), [vec![half], vec![half, 10, 10]]);
        assert_eq!(split(&[10, MAX_BUNDLE_BYTES, 10]), [vec![10], vec![MAX_BUNDLE_BYTES], vec![10]]);
        let fits = MAX_BUNDLE_BYTES - bundle_bytes(2, 0);
        assert_eq!(split(&[fits - 7, 7]), [vec![fits - 7, 7]]);
        assert_eq!(split(&[fits - 7, 8]), [vec![fits - 7], vec![8]]);
    }
}
