//! Decides which messages of a batch share a bundle, and which are sent to a queue of critical runs. Stores the size of a
//! bundle before it is sent.
//!
//! What the instances take is read again after some seconds, not for each batch: an instance that takes no bundles and
//! receives one rejects it, and its runs are sent again; so is what waits in a queue of critical runs that no instance
//! consumes any more. The stored size is more delicate. Without it, the search for lost
//! messages would take all runs of a waiting bundle but one for lost. It is stored again after some seconds too, so that it
//! is forgotten only if no bundle was sent for [longer](crate::background::lost_messages).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use chrono::{DateTime, Duration, Utc};

use crate::{
    broker::publisher::OutgoingMessage,
    domain::bundles::{BundleOffer, BundleSizes, CriticalTypes, SendPlan, is_critical},
    error::chain,
    store::{Result, Store, bundles::TypeKey},
};

/// The time for which what was read or stored about a job type is used again.
const VALIDITY: Duration = Duration::seconds(5);
/// The longest time for a plan. Runs that are due do not wait for a slow PostgreSQL.
const PLAN_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(200);

/// The planner of bundles. Clones share what it has read and stored.
#[derive(Clone, Debug)]
pub(crate) struct BundlePlanner {
    store: Store,
    known: Arc<Mutex<HashMap<TypeKey, KnownOffer>>>,
}

/// What is known about a job type.
#[derive(Clone, Copy, Debug)]
struct KnownOffer {
    offer: BundleOffer,
    read_at: DateTime<Utc>,
    /// The size that was stored last, with the time.
    stored: Option<(usize, DateTime<Utc>)>,
}

impl KnownOffer {
    /// Returns true if bundles of `size` may be sent at `now` without storing the size.
    fn covers(&self, size: usize, now: DateTime<Utc>) -> bool {
        self.stored.is_some_and(|(stored, at)| size <= stored && is_valid(at, now))
    }

    /// Records that `size` was stored at `now`. A larger one that was stored a moment ago is stored still.
    fn record(&mut self, size: usize, now: DateTime<Utc>) {
        let largest = self.stored.filter(|(_, at)| is_valid(*at, now)).map_or(size, |(stored, _)| stored.max(size));
        self.stored = Some((largest, now));
    }

    /// Returns true if anything about the job type is used again at `now`.
    fn is_kept(&self, now: DateTime<Utc>) -> bool {
        is_valid(self.read_at, now) || self.stored.is_some_and(|(_, at)| is_valid(at, now))
    }
}

/// Returns true if what was read or stored at `at` is used again at `now`. It is not if the clock was set back by more.
fn is_valid(at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    (now - at).abs() < VALIDITY
}

impl BundlePlanner {
    /// Creates a planner that has read nothing yet.
    pub(crate) fn new(store: Store) -> Self {
        Self { store, known: Arc::default() }
    }

    /// Returns how a batch is sent. The sizes of its bundles are stored. If PostgreSQL fails or is slow, each run gets a message
    /// of its own, which needs no size, and the queue that was right when the announcements were read last.
    pub(crate) async fn plan<'a>(&self, messages: &'a [OutgoingMessage], now: DateTime<Utc>) -> SendPlan<'a> {
        let mut counts = BundleSizes::new();
        for key in messages.iter().filter_map(OutgoingMessage::bundle_key) {
            *counts.entry(key).or_default() += 1;
        }
        counts.retain(|_, count| *count > 1);
        let mut critical: CriticalTypes<'_> = messages.iter().filter_map(OutgoingMessage::critical_type).collect();
        if counts.is_empty() && critical.is_empty() {
            return SendPlan::default();
        }
        let sizes = match tokio::time::timeout(PLAN_TIMEOUT, self.sizes(counts, &critical, now)).await {
            Ok(Ok(sizes)) => sizes,
            Ok(Err(error)) => {
                tracing::debug!(error = %chain(&error), "bundles cannot be planned; each run gets a message of its own");
                BundleSizes::new()
            }
            Err(_) => {
                tracing::debug!("bundles cannot be planned in time; each run gets a message of its own");
                BundleSizes::new()
            }
        };
        {
            let known = self.lock();
            critical.retain(|(worker_id, job_type)| {
                known.get(&type_key(worker_id, job_type)).is_some_and(|known| known.offer.has_critical_queue())
            });
        }
        SendPlan { sizes, critical }
    }

    /// Returns the sizes of bundles, after they were stored. Reads what is announced about these job types and the critical
    /// ones.
    async fn sizes<'a>(
        &self,
        mut counts: BundleSizes<'a>,
        critical: &CriticalTypes<'a>,
        now: DateTime<Utc>,
    ) -> Result<BundleSizes<'a>> {
        let bundled = counts.keys().map(|(worker_id, job_type, _)| type_key(worker_id, job_type));
        let critical = critical.iter().map(|(worker_id, job_type)| type_key(worker_id, job_type));
        self.read_offers(bundled.chain(critical).collect(), now).await?;
        let mut to_store = BTreeMap::<TypeKey, usize>::new();
        {
            let known = self.lock();
            counts.retain(|(worker_id, job_type, priority), count| {
                let key = type_key(worker_id, job_type);
                let Some(known) = known.get(&key) else { return false };
                let is_apart = is_critical(*priority) && known.offer.has_critical_queue();
                let offer = if is_apart { known.offer.critical() } else { known.offer };
                *count = offer.size(*count);
                if *count > 1 && !known.covers(*count, now) {
                    let largest = to_store.entry(key).or_default();
                    *largest = (*largest).max(*count);
                }
                *count > 1
            });
        }
        if !to_store.is_empty() {
            self.store.raise_sent_bundles(&to_store, now).await?;
            let mut known = self.lock();
            for (key, size) in to_store {
                if let Some(known) = known.get_mut(&key) {
                    known.record(size, now);
                }
            }
        }
        Ok(counts)
    }

    /// Reads what the instances of the job types take, unless it was read a moment ago.
    async fn read_offers(&self, mut keys: Vec<TypeKey>, now: DateTime<Utc>) -> Result<()> {
        keys.sort_unstable();
        keys.dedup();
        {
            let known = self.lock();
            keys.retain(|key| known.get(key).is_none_or(|known| !is_valid(known.read_at, now)));
        }
        if keys.is_empty() {
            return Ok(());
        }
        let mut offers: HashMap<TypeKey, BundleOffer> =
            self.store.bundle_offers(&keys, now).await?.into_iter().collect();
        let mut known = self.lock();
        known.retain(|_, known| known.is_kept(now));
        for key in keys {
            let offer = offers.remove(&key).unwrap_or_default();
            let stored = known.get(&key).and_then(|known| known.stored);
            known.insert(key, KnownOffer { offer, read_at: now, stored });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeKey, KnownOffer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn type_key(worker_id: &str, job_type: &str) -> TypeKey {
    (worker_id.to_owned(), job_type.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + Duration::seconds(seconds)
    }

    #[test]
    fn stored_size_is_stored_again_after_some_seconds() {
        let mut known = KnownOffer { offer: BundleOffer::default(), read_at: at(0), stored: None };
        assert!(!known.covers(2, at(0)));
        known.record(4, at(0));
        assert!(known.covers(4, at(4)) && known.covers(2, at(4)));
        assert!(!known.covers(5, at(4)), "a larger one is not stored yet");
        assert!(!known.covers(2, at(5)), "it may be forgotten if it is not stored again");
        known.record(6, at(4));
        known.record(3, at(6));
        assert!(known.covers(6, at(10)), "the larger one was stored again with the smaller one");
        known.record(2, at(12));
        assert!(known.covers(2, at(12)) && !known.covers(3, at(12)), "the larger one may be forgotten");
        assert!(!known.covers(2, at(-3_600)), "the clock was set back");
    }

    #[test]
    fn offer_is_dropped_when_it_is_not_used_again() {
        let mut known = KnownOffer { offer: BundleOffer::default(), read_at: at(0), stored: None };
        assert!(known.is_kept(at(4)) && !known.is_kept(at(5)) && !known.is_kept(at(-5)));
        known.record(2, at(4));
        assert!(known.is_kept(at(8)), "the stored size is used again");
        assert!(!known.is_kept(at(9)));
    }
}
