//! The only place that reads the clock or makes ids and tokens. Everything else is given them. Jitter, ports and the
//! passwords of private services are drawn where they are used: nothing is decided by them.
//!
//! Due-ness is judged by PostgreSQL's clock: the server measures how far its own clock is from the database's and adds
//! the difference, so that several servers agree on what is due even when their clocks do not.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use chrono::{DateTime, Duration, Utc};
use protocol::id::{CalendarId, JobId, OccurrenceId, UserId};

/// Where time comes from.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Microseconds to add to this machine's clock.
    offset: Arc<AtomicI64>,
    /// When set, time stands still here (microseconds since the epoch): tests move it by hand.
    frozen: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands at `at` until it is moved.
    #[must_use]
    pub fn manual(at: DateTime<Utc>) -> Self {
        Self { offset: Arc::default(), frozen: Some(Arc::new(AtomicI64::new(at.timestamp_micros()))) }
    }

    /// Now, by PostgreSQL's clock as far as it was measured.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let micros = match &self.frozen {
            Some(frozen) => frozen.load(Ordering::SeqCst),
            None => machine_now().timestamp_micros() + self.offset.load(Ordering::Relaxed),
        };
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    /// Moves a manual clock forward; a system clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Some(frozen) = &self.frozen {
            frozen.fetch_add(by.num_microseconds().unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Tells the clock what PostgreSQL's says, read between `before` and now. Returns the difference.
    pub fn align(&self, database: DateTime<Utc>, before: DateTime<Utc>) -> Duration {
        let after = machine_now();
        let middle = before + (after - before) / 2;
        let difference = database - middle;
        // A difference below the time the question took is noise.
        let offset = if difference.abs() > (after - before) { difference } else { Duration::zero() };
        self.offset.store(offset.num_microseconds().unwrap_or(0), Ordering::Relaxed);
        difference
    }

    /// A new job id.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        JobId::from_parts(self.now(), rand::random())
    }

    /// A new calendar id.
    #[must_use]
    pub fn calendar_id(&self) -> CalendarId {
        CalendarId::from_parts(self.now(), rand::random())
    }

    /// A new occurrence id.
    #[must_use]
    pub fn occurrence_id(&self) -> OccurrenceId {
        OccurrenceId::from_parts(self.now(), rand::random())
    }

    /// A new person's id.
    #[must_use]
    pub fn user_id(&self) -> UserId {
        UserId::from_parts(self.now(), rand::random())
    }

    /// 32 random bytes from the operating system, for tokens.
    #[must_use]
    pub fn token(&self) -> [u8; 32] {
        rand::random()
    }
}

/// This machine's clock, uncorrected. For measuring only.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place that may read the machine's clock")]
pub fn machine_now() -> DateTime<Utc> {
    Utc::now()
}
